"""The images of a job, by path or by URL: files, folders, lists and tar shards."""

import io
import os
import posixpath
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from typing import BinaryIO

from acclimate.cluster.filesystem import is_local, kind, list_files, open_object, read_object, split
from acclimate.errors import InputError, reason
from acclimate.sources.source import Item, Kind, Place, Result, Sample, Samples, open_source, read_file
from acclimate.sources.video import read_frame


def list_images(specs: str | Sequence[str], fps: float = 1.0) -> Samples:
    """List the images of sources on the local disk and elsewhere, in the order and with the names of `open_source`.

    Images on the local disk are read by their absolute path, by whichever process does.

    Args:
        specs: sources of `open_source`, and by URL: an image, a folder, a list (.txt, .csv, .jsonl, .parquet), whose
            paths are relative to it or URLs, and `wds:URL` of tar shards. An image is named by its URL.
        fps: frames per second that are taken from videos, which must be on the local disk.

    Raises:
        InputError: a source does not exist, cannot be reached, is damaged, or contains no images.
        MissingExtraError: a source needs a package that is not installed.

    Examples:
        >>> list_images("s3x://bucket/photos")
        Traceback (most recent call last):
        ...
        acclimate.errors.InputError: unknown scheme s3x:// in s3x://bucket ...; write s3://, ...
    """
    try:
        samples = open_source(specs, fps=fps, place=Anywhere())
    except OSError as error:  # the store cannot be reached
        raise InputError(f"{reason(error).rstrip('.')}.") from error
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

    def kind(self, path: str) -> Kind | None:
        """Return the kind of a path or a URL: file, folder, or None."""
        return super().kind(path) if is_local(path) else kind(path)

    def no_such_url(self, url: str) -> InputError:
        """Return the error for a URL where nothing is found."""
        return InputError(
            f"nothing at {url}; check the names of the bucket and of the folder; patterns and options cannot be part "
            "of it: name a folder, and set AWS_ENDPOINT_URL and the like."
        )

    def join(self, folder: str, path: str) -> str:
        """Return the path or URL of what is named in a folder, by an absolute path, or by a URL."""
        if not is_local(path):
            return path
        if is_local(folder):
            return super().join(folder, path)
        root, base = split(folder)
        return f"{root}/{path.lstrip('/')}" if path.startswith("/") or not base else f"{root}/{base}/{path}"

    def parent(self, path: str) -> str:
        """Return the folder that a file is in."""
        if is_local(path):
            return super().parent(path)
        root, name = split(path)
        return f"{root}/{posixpath.dirname(name)}".rstrip("/")

    def above(self, folder: str) -> str:
        """Return the folder above a folder; a bucket is above itself."""
        return super().above(folder) if is_local(folder) else self.parent(folder)

    def list_files(self, folder: str) -> Iterable[str]:
        """Return every visible file below a folder, relative to it, in any order."""
        if is_local(folder):
            return super().list_files(folder)
        return [path for path in list_files(folder, recursive=True) if not path.startswith(".") and "/." not in path]

    def read(self, path: str, limit_bytes: int) -> bytes:
        """Read a file; OSError if it is larger than the limit."""
        return super().read(path, limit_bytes) if is_local(path) else read_object(path, limit_bytes=limit_bytes)

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading at any position."""
        return super().open(path) if is_local(path) else io.BufferedReader(open_object(path), 2**16)

    def reader(self, path: str, *part: int) -> Callable[[], bytes]:
        """Return a function that reads a file, or a part given by its offset and size; it can be pickled."""
        return super().reader(path, *part) if is_local(path) else partial(read_object, path, *part)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterable[Result]:
        """Return the results of a function, in the order of the items, several at a time."""
        with ThreadPoolExecutor(16) as pool:  # reading headers is mostly waiting
            yield from pool.map(function, items)
