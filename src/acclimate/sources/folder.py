"""Images on disk: a folder with its subfolders, or a glob pattern."""

import re
from pathlib import Path, PurePath
from sys import intern
from typing import Any

from acclimate.errors import InputError
from acclimate.images.opening import lacking_for_heif
from acclimate.sources.places import LOCAL, Place
from acclimate.sources.source import Sample, Samples
from acclimate.sources.video import is_video, open_video

# The formats among those Pillow opens that people store photographs in.
IMAGE_SUFFIXES = tuple(
    f".{name}"
    for name in "jpg jpeg jpe jfif png webp bmp dib gif tif tiff avif jp2 ppm pgm pbm pnm tga".split()  # noqa: SIM905
)
HEIF_SUFFIXES = (".heic", ".heif", ".hif")


def is_image(name: str) -> bool:
    """Whether a file name has the suffix of an image, in upper or lower case."""
    return name.lower().endswith(IMAGE_SUFFIXES)


def is_pattern(spec: str) -> bool:
    """Whether a path is a glob pattern."""
    return any(wildcard in spec for wildcard in "*?[")


def natural_key(path: str) -> tuple[Any, ...]:
    """Sort key: folder by folder, ignoring case, numbers by their value; ties are broken by the path itself."""
    return tuple(_natural(part) for part in path.split("/")), path


def open_folder(spec: str, fps: float = 1.0, place: Place = LOCAL) -> Samples:
    """List all images and videos in a folder and its subfolders in natural order; hidden ones are skipped.

    An image in a subfolder is labelled with the name of that subfolder. Links to folders are followed, but no folder is
    listed twice, and links to a parent of the root are ignored.
    """
    return open_listed(spec, list(place.list_files(spec)), fps, place)


def open_glob(spec: str, fps: float = 1.0) -> Samples:
    """List all images that match a pattern in natural order; labelled as in `open_folder`, below the fixed part."""
    return open_listed(*match_files(spec), fps)


def open_file(spec: str, fps: float = 1.0, place: Place = LOCAL) -> Samples:
    """An image, or the frames of a video; nothing, with its kind among those skipped, if it is neither."""
    return open_listed(place.parent(spec), [PurePath(spec).name], fps, place)


def match_files(pattern: str) -> tuple[str, list[str]]:
    """Match a pattern: the folder before the first wildcard, and the paths of the files relative to it."""
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


def open_listed(base: str, files: list[str], fps: float = 1.0, place: Place = LOCAL) -> Samples:
    """The samples of the images and videos among files, which are relative to the base, with forward slashes."""
    samples = Samples()
    start = place.join(base, "_")[:-1]  # once: pathlib takes longer than all the rest
    for file in sorted(files, key=natural_key):
        label = intern(file.rpartition("/")[0].rpartition("/")[2])  # one string for all images of a class
        found = _open_file(place, start + file, label or None, fps)
        if isinstance(found, str):
            samples.skipped[found] += 1
        else:
            samples += found
    return samples


def _open_file(place: Place, path: str, label: str | None, fps: float) -> list[Sample] | str:
    """The samples of a file, or its kind if it cannot be read."""
    if is_image(path):
        return [place.sample(path, label)]
    suffix = PurePath(path).suffix.lower()
    if suffix in HEIF_SUFFIXES:
        return f"{suffix} ({why})" if (why := lacking_for_heif()) else [place.sample(path, label)]
    if is_video(path):
        return f"{suffix} ({why})" if (why := place.lacking_for_videos(path)) else open_video(path, label, fps)
    return suffix or "without a suffix"
