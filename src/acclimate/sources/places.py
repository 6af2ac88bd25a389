"""Where the files of a source are: on the local disk, or in a place that a subclass knows."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path, PurePath
from typing import BinaryIO, Literal, TypeVar

from acclimate.errors import InputError, reason
from acclimate.files import open_regular, read_regular
from acclimate.sources.source import Sample, read_file
from acclimate.sources.video import lacking_for_videos

Kind = Literal["file", "folder", "other"]
Item = TypeVar("Item")
Result = TypeVar("Result")


class Place:
    """The local disk. A subclass that knows URLs as well overrides every method, and can be pickled.

    Attributes:
        urls: whether a path may be a URL.
    """

    urls = False

    def kind(self, path: str) -> Kind | None:
        """What is at a path, if anything."""
        # os.path, as pathlib raises an error for a name that is too long
        if os.path.isdir(path):  # noqa: PTH112
            return "folder"
        if os.path.isfile(path):  # noqa: PTH113
            return "file"
        return "other" if os.path.exists(path) else None  # noqa: PTH110

    def no_such_url(self, url: str) -> InputError:
        """The error for a URL where nothing is found."""
        return InputError(f"{url} is a URL, which is not downloaded; download the images, and pass their folder.")

    def join(self, folder: str, path: str) -> str:
        """The path of what is named in a folder, or by an absolute path."""
        return PurePath(folder, path).as_posix()

    def parent(self, path: str) -> str:
        """The folder that a path is in, as it is written."""
        return PurePath(path).parent.as_posix()

    def above(self, folder: str) -> str:
        """The folder above a folder, whatever links lead to it."""
        return Path(folder).resolve().parent.as_posix()

    def list_files(self, folder: str) -> Iterable[str]:
        """Every visible file below a folder, relative to it, in any order."""
        return list_files(folder)

    def list_names(self, folder: str) -> Iterable[str]:
        """The names of the visible files directly in a folder."""
        return [path.name for path in Path(folder).iterdir() if not path.name.startswith(".") and path.is_file()]

    def read(self, path: str, most: int) -> bytes:
        """The content of a file; OSError, before anything is read, if it holds more than `most` bytes."""
        return read_regular(path, most)

    def open(self, path: str) -> BinaryIO:
        """A file, for reading at any place."""
        return open_regular(path)

    def sample(self, path: str, label: str | None = None) -> Sample:
        """The sample of an image file, named by its path, which has forward slashes."""
        return Sample(path, partial(read_file, path), label)

    def reader(self, path: str, offset: int, size: int) -> Callable[[], bytes]:
        """What reads a part of a file; can be pickled."""
        return partial(read_file, path, offset, size)

    def lacking_for_videos(self, path: str) -> str:
        """Why a video cannot be read; "" if it can."""
        return lacking_for_videos()

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterable[Result]:
        """The results of a function, in the order of the items; several at a time where that pays."""
        return map(function, items)


def list_files(root: str) -> Iterator[str]:
    """Yield every visible file below the root, relative to it, visiting no folder twice so that links cannot loop."""
    visited = set(Path(root).resolve().parents)
    folders = deque([""])
    links = deque[str]()
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


LOCAL = Place()
