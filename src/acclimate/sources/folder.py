"""Images on disk: one file, a folder and what lies below it, or a glob pattern."""

import os
import re
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path, PurePath
from typing import Any

from acclimate.errors import InputError
from acclimate.sources.base import Sample, read_file

# What people keep photographs in, out of what Pillow opens.
IMAGE_SUFFIXES = tuple(
    f".{name}"
    for name in "jpg jpeg jpe jfif png webp bmp dib gif tif tiff avif jp2 ppm pgm pbm pnm tga".split()  # noqa: SIM905
)


def is_image(name: str) -> bool:
    """Whether a file is an image by its suffix, in any case."""
    return name.lower().endswith(IMAGE_SUFFIXES)


def is_pattern(spec: str) -> bool:
    """Whether a path is a glob pattern."""
    return any(sign in spec for sign in "*?[")


def natural_key(path: str) -> tuple[Any, ...]:
    """Sort key that puts img2 before img10, whatever the case, folder by folder; the path itself breaks ties."""
    return tuple(_natural(part) for part in path.split("/")), path


def open_image(spec: str) -> list[Sample]:
    """The one image at a path."""
    name = PurePath(spec).as_posix()
    return [Sample(name, partial(read_file, name))]


def open_folder(spec: str) -> list[Sample]:
    """All images in a folder and below, in natural order; hidden files and folders are skipped.

    The label of an image in a subfolder is the name of the folder it lies in. A link to a folder is followed once,
    unless the folder is listed anyway or holds the root itself.
    """
    return _samples(spec, spec, _walk(spec))


def open_glob(spec: str) -> list[Sample]:
    """All images that match a pattern, in natural order; labels as in a folder, below the part without wildcards."""
    base, matches = match_files(spec)
    return _samples(spec, base, matches)


def match_files(pattern: str) -> tuple[str, list[str]]:
    """The files that match a pattern: the folder before the first wildcard, and paths relative to it."""
    parts = PurePath(pattern).parts
    first = next(place for place, part in enumerate(parts) if is_pattern(part))
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
        raise InputError(f"{pattern} cannot be matched: {error}.") from error
    if not found:
        raise InputError(f"no images in {pattern}: no file matches it; '/*' asks for the files of a folder.")
    return base.as_posix(), sorted(found, key=natural_key)


def _natural(text: str) -> tuple[Any, ...]:
    # Numbers compare by their length, then digit by digit: as int would, and of any length.
    pieces: list[Any] = re.split(r"([0-9]+)", text.casefold())
    for place in range(1, len(pieces), 2):
        digits = pieces[place].lstrip("0")
        pieces[place] = (len(digits), digits)
    return tuple(pieces)


def _samples(spec: str, base: str, files: Iterable[str]) -> list[Sample]:
    images: list[str] = []
    others: list[str] = []
    for file in files:
        if is_image(file):
            images.append(file)
        elif len(others) < 3:
            others.append(file)
    if not images:
        reason = f"no file has an image suffix (saw {', '.join(others)})" if others else "it holds no files"
        raise InputError(f"no images in {spec}: {reason}.")
    images.sort(key=natural_key)
    samples = []
    for file in images:
        name = PurePath(base, file).as_posix()
        folders = file.split("/")[:-1]
        samples.append(Sample(name, partial(read_file, name), folders[-1] if folders else None))
    return samples


def _walk(root: str) -> Iterator[str]:
    """Every visible file below root, relative to it; no folder twice, so that links cannot lead in circles."""
    seen = set(Path(root).resolve().parents)
    folders, links = deque([""]), deque[str]()
    while folders or links:  # links wait, so that a folder is listed under its own name rather than a link's
        folder = folders.pop() if folders else links.popleft()
        here = Path(root, folder)
        if (real := here.resolve()) in seen:
            continue
        seen.add(real)
        try:
            with os.scandir(here) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except OSError as error:
            raise InputError(f"cannot list the folder {here}: {error.strerror or error}.") from error
        for entry in entries:
            if entry.name.startswith("."):
                continue
            relative = f"{folder}/{entry.name}" if folder else entry.name
            if _is_folder(entry):
                (links if entry.is_symlink() else folders).append(relative)
            elif entry.is_symlink() or entry.is_file():  # a broken link is listed and fails when read
                yield relative


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False
