"""Images on disk: a folder with its subfolders, or a glob pattern."""

import os
import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

from acclimate.errors import InputError, reason
from acclimate.images import lacking_for_heif
from acclimate.sources.base import Sample, Samples, file_sample
from acclimate.sources.video import is_video, lacking_for_videos, open_video

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


def open_folder(spec: str, fps: float = 1.0) -> Samples:
    """List all images and videos in a folder and its subfolders in natural order; hidden ones are skipped.

    An image in a subfolder is labelled with the name of that subfolder. Links to folders are followed, but no folder is
    listed twice, and links to a parent of the root are ignored.
    """
    return open_listed(spec, list(list_files(spec)), fps)


def open_glob(spec: str, fps: float = 1.0) -> Samples:
    """List all images that match a pattern in natural order; labelled as in `open_folder`, below the fixed part."""
    return open_listed(*match_files(spec), fps)


def open_file(spec: str, fps: float = 1.0) -> Samples:
    """An image, or the frames of a video; nothing, with its kind among those skipped, if it is neither."""
    path = PurePath(spec)
    return open_listed(path.parent.as_posix(), [path.name], fps)


def match_files(pattern: str) -> tuple[str, list[str]]:
    """Match a pattern: the folder before the first wildcard, and the paths of the files relative to it."""
    parts = PurePath(pattern).parts
    first = next(position for position, part in enumerate(parts) if is_pattern(part))
    base, rest = Path(*parts[:first]), list(parts[first:])
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


def open_listed(base: str, files: list[str], fps: float = 1.0) -> Samples:
    """The samples of the images and videos among files, which are relative to the base."""
    samples = Samples()
    for file in sorted(files, key=natural_key):
        found = _open_file(PurePath(base, file), PurePath(file).parent.name or None, fps)
        if isinstance(found, str):
            samples.skipped[found] += 1
        else:
            samples += found
    return samples


def _open_file(path: PurePath, label: str | None, fps: float) -> list[Sample] | str:
    """The samples of a file, or its kind if it cannot be read."""
    suffix = path.suffix.lower()
    if is_image(path.name):
        return [file_sample(path, label)]
    if suffix in HEIF_SUFFIXES:
        return f"{suffix} ({why})" if (why := lacking_for_heif()) else [file_sample(path, label)]
    if is_video(path.name):
        return f"{suffix} ({why})" if (why := lacking_for_videos()) else open_video(path, label, fps)
    return suffix or "without a suffix"


def list_files(root: str) -> Iterator[str]:
    """Yield every visible file below the root, relative to it, visiting no folder twice so that links cannot loop."""
    visited = set(Path(root).resolve().parents)
    folders, links = deque([""]), deque[str]()
    while folders or links:  # links come last, so that a folder is listed under its real name rather than a link's
        folder = folders.pop() if folders else links.popleft()
        here = Path(root, folder)
        if (real := here.resolve()) in visited:
            continue
        visited.add(real)
        try:
            with os.scandir(here) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except OSError as error:
            raise InputError(f"cannot list the folder {here}: {reason(error)}.") from error
        for entry in entries:
            if entry.name.startswith("."):
                continue
            relative = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir(follow_symlinks=False):
                folders.append(relative)
            elif entry.is_symlink() and os.path.isdir(entry):  # noqa: PTH112 (unlike pathlib's, it never raises)
                links.append(relative)
            elif entry.is_symlink() or entry.is_file():  # a broken link is listed and fails when it is read
                yield relative
