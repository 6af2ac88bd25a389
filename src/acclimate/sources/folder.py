"""Images and videos among files: of a folder with its subfolders, or of a glob pattern."""

import re
from collections.abc import Iterable
from pathlib import Path, PurePath
from sys import intern
from typing import Any

from acclimate.errors import InputError
from acclimate.images.opening import lacking_for_heif
from acclimate.sources.source import LOCAL, Place, Sample, Samples
from acclimate.sources.video import is_video, lacking_for_videos, open_video

# The formats among those Pillow opens that people store photographs in.
IMAGE_SUFFIXES = tuple(
    f".{name}"
    for name in "jpg jpeg jpe jfif png webp bmp dib gif tif tiff avif jp2 ppm pgm pbm pnm tga".split()  # noqa: SIM905
)
HEIF_SUFFIXES = (".heic", ".heif", ".hif")
RAW_SUFFIXES = (".arw", ".cr2", ".cr3", ".dng", ".nef", ".orf", ".pef", ".raf", ".rw2", ".srw")


def is_image(name: str) -> bool:
    """Return True if a file name has the suffix of an image, in upper or lower case."""
    return name.lower().endswith(IMAGE_SUFFIXES)


def is_pattern(spec: str) -> bool:
    """Return True if a path is a glob pattern."""
    return any(wildcard in spec for wildcard in "*?[")


def natural_key(path: str) -> tuple[Any, ...]:
    """Return a sort key: folder by folder, ignoring case, numbers by their value; then the path itself."""
    return tuple(_natural(part) for part in path.split("/")), path


def match_files(pattern: str) -> tuple[str, list[str]]:
    """Return the folder before the first wildcard of a pattern, and the matching files, relative to it."""
    parts = PurePath(pattern).parts
    first = next(position for position, part in enumerate(parts) if is_pattern(part))
    base = Path(*parts[:first])
    rest = list(parts[first:])
    if rest[-1] == "**":
        rest.append("*")
    hidden = any(part.startswith(".") for part in rest)
    found = set()
    try:
        for path in base.glob("/".join(rest)):
            relative = path.relative_to(base)
            if not hidden and any(part.startswith(".") for part in relative.parts):
                continue
            if path.is_file() or (path.is_symlink() and not path.is_dir()):
                found.add(relative.as_posix())
    except (ValueError, NotImplementedError, OSError) as error:
        raise InputError(f"the pattern {pattern} cannot be used: {error}.") from error
    if not found:
        raise InputError(
            f"no images in {pattern}: no file matches it; end it with '/*' to match the files of a folder."
        )
    return base.as_posix(), sorted(found, key=natural_key)


def _natural(text: str) -> list[Any]:
    # Numbers compare by length, then digit by digit: as integers do, but without int()'s limit on their length.
    pieces: list[Any] = re.split(r"([0-9]+)", text.casefold())
    pieces[1::2] = [(len(digits), digits) for digits in (piece.lstrip("0") for piece in pieces[1::2])]
    return pieces


def open_listed(base: str, files: Iterable[str], fps: float = 1.0, place: Place = LOCAL) -> Samples:
    """Return the images and videos among files in natural order, with the kinds of those that were skipped.

    An image in a subfolder is labelled with the name of that subfolder.

    Args:
        base: the folder that the files are relative to.
        files: paths with forward slashes.
        fps: frames per second that are taken from videos.
        place: where the files are.
    """
    samples = Samples()
    start = place.join(base, "_")[:-1]  # once: pathlib takes longer than all the rest
    for file in sorted(files, key=natural_key):
        path = start + file
        label = intern(file.rpartition("/")[0].rpartition("/")[2]) or None  # one string for all images of a class
        heif = path.lower().endswith(HEIF_SUFFIXES)
        why = lacking_for_heif() if heif else lacking_for_videos(path) if is_video(path) else ""
        if (heif or is_image(path)) and not why:
            samples.append(Sample(path, place.reader(path), label))
        elif is_video(path) and not why:
            samples += open_video(path, label, fps)
        else:
            suffix = PurePath(path).suffix.lower()
            why = "camera raw, which is not read: export JPEGs" if suffix in RAW_SUFFIXES else why
            samples.skipped[f"{suffix} ({why})" if why else suffix or "without a suffix"] += 1
    return samples
