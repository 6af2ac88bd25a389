"""The images of a job, by path or by URL: files, folders, lists and tar shards."""

import io
import os
import posixpath
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from acclimate.cluster.filesystems import is_local, local_path, split
from acclimate.cluster.storage import kind, list_directory, open_object, read_bytes, read_object
from acclimate.errors import InputError, reason
from acclimate.sources.source import Item, Kind, Place, Result, Sample, Samples, open_source, read_file
from acclimate.sources.video import read_frame

READ_AHEAD_BYTES = 2**16  # bytes that are read at once in search of headers
CONCURRENT_SHARDS = 16  # shards whose headers are read at the same time; reading them is mostly waiting
Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


def list_images(specs: str | Sequence[str], fps: float = 1.0, map: Map | None = None) -> Samples:
    """List the images of sources on the local disk and elsewhere, in the order and with the names of `open_source`.

    Images on the local disk are read by their absolute path, by whichever process does.

    Args:
        specs: sources of `open_source`, and by URL: an image, a folder, a list (.txt, .csv, .jsonl, .parquet), whose
            paths are relative to it or URLs, and `wds:URL` of tar shards. An image is named by its URL.
        fps: frames per second that are taken from videos, which must be on the local disk.
        map: calls a function with each of many shards, in their order, like the built-in `map`; several at a time in
            threads by default. Both can be pickled.

    Raises:
        InputError: a source does not exist, cannot be reached, is damaged, or contains no images.
        MissingExtraError: a source needs a package that is not installed.

    Examples:
        >>> list_images("s3x://bucket/photos")
        Traceback (most recent call last):
        ...
        acclimate.errors.InputError: unknown scheme s3x:// in s3x://bucket; write s3://, ...
    """
    try:
        samples = open_source(specs, fps=fps, place=Anywhere(map))
    except OSError as error:  # the store cannot be reached
        raise InputError(f"{reason(error)}.") from error
    absolute = lru_cache(1)(partial(os.path.join, Path.cwd().as_posix()))  # the images of a shard share its path
    for position, sample in enumerate(samples):
        read = sample.read
        if isinstance(read, partial) and read.func in (read_file, read_frame):
            path, *part = read.args
            samples[position] = Sample(sample.name, partial(read.func, absolute(path), *part), sample.label)
    return samples


class Anywhere(Place):
    """The local disk, and every file system that has URLs."""

    urls = True

    def __init__(self, map: Map | None = None) -> None:
        self._map = map

    def __reduce__(self) -> tuple[Any, ...]:
        return Anywhere, ()  # one that is sent to another process has one shard to read there

    def kind(self, path: str) -> Kind | None:
        """Return the kind of a path or a URL: file, folder, or None."""
        return super().kind(_plain(path)) if is_local(path) else cast(Kind | None, kind(path))

    def no_such_url(self, url: str) -> InputError:
        """Return the error for a URL where nothing is found."""
        hint = "check the names of the bucket and of the folder"
        if "?" in url or "*" in url:
            hint += "; patterns and options cannot be part of it: name a folder, and set AWS_ENDPOINT_URL and the like"
        return InputError(f"nothing at {url}; {hint}.")

    def join(self, folder: str, path: str) -> str:
        """Return the path or URL of what is named in a folder, by an absolute path, or by a URL."""
        if is_local(folder):
            return path if not is_local(path) else super().join(_plain(folder), _plain(path))
        if not is_local(path):
            return path
        if path.partition("://")[0].lower() == "file":
            raise InputError(f"a list at {folder} names {path}, a file of this machine; copy it there first.")
        root, base = split(folder)
        return f"{root}/{path.lstrip('/')}" if path.startswith("/") or not base else f"{root}/{base}/{path}"

    def parent(self, path: str) -> str:
        """Return the folder that a file is in."""
        if is_local(path):
            return super().parent(_plain(path))
        root, name = split(path)
        return f"{root}/{posixpath.dirname(name)}".rstrip("/")

    def above(self, folder: str) -> str:
        """Return the folder above a folder; a bucket is above itself."""
        return super().above(_plain(folder)) if is_local(folder) else self.parent(folder)

    def list_files(self, folder: str) -> Iterable[str]:
        """Return every visible file below a folder, relative to it, in any order."""
        if is_local(folder):
            return super().list_files(_plain(folder))
        found = list_directory(folder, recursive=True)
        return [path for path in found if not path.startswith(".") and "/." not in path]

    def read(self, path: str, limit_bytes: int) -> bytes:
        """Read a file; OSError if it is larger than the limit."""
        if is_local(path):
            return super().read(_plain(path), limit_bytes)
        return read_bytes(path, limit_bytes)

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading at any position."""
        return super().open(_plain(path)) if is_local(path) else io.BufferedReader(open_object(path), READ_AHEAD_BYTES)

    def reader(self, path: str, *part: int) -> Callable[[], bytes]:
        """Return a function that reads a file, or a part given by its offset and size; it can be pickled."""
        if is_local(path):
            return super().reader(_plain(path), *part)
        return partial(read_object, path, *part)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterable[Result]:
        """Return the results of a function, in the order of the items."""
        if self._map is not None:
            return self._map(function, items)
        return _in_threads(function, items)


def _in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterable[Result]:
    with ThreadPoolExecutor(CONCURRENT_SHARDS) as pool:
        yield from pool.map(function, items)


def _plain(path: str) -> str:
    """Return a path unchanged, or the path of a `file://` URL."""
    return local_path(path) if path[:7].lower() == "file://" or path[:8].lower() == "local://" else path
