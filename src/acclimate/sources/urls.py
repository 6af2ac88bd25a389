"""Sources by URL: images, folders, lists and tar shards in the object stores that pyarrow opens: S3, Google and Azure.

A URL is a scheme, a bucket or a host, and a path that is taken as it is written: `s3://bucket/my photos/cat #1.jpg`.
Credentials and endpoints come from the environment, where the tools of each store look for them. Every process opens a
file system for itself, once. This module is imported where sources may be URLs, as it needs pyarrow.
"""

import io
import os
import posixpath
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO

from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem

from acclimate.errors import AcclimateError, InputError, RunError, reason
from acclimate.images.opening import MAX_BYTES, URL
from acclimate.sources.source import Item, Kind, Place, Result, Sample, Samples, open_source, read_file
from acclimate.sources.video import read_frame

SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss")  # stores that show an object when it is complete
LOCAL_ADVICE = "choose a folder that you may use, with space left"
ADVICE = (
    "check the name of the bucket, the credentials in the environment (for S3: AWS_ACCESS_KEY_ID, "
    "AWS_SECRET_ACCESS_KEY, AWS_PROFILE) and what they allow, the network, and AWS_ENDPOINT_URL"
)


class FileSystemError(RunError, OSError):
    """A file system that refused, with its reason and what to check."""


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
        acclimate.errors.InputError: unknown scheme s3x:// in s3x://bucket; write a path, s3://, gs:// or abfs://.
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


def read_object(url: str, offset: int = 0, size: int | None = None, limit_bytes: int = MAX_BYTES) -> bytes:
    """Return the bytes of a file, or `size` of them. A function, so that samples can be pickled.

    Raises:
        OSError: it is missing, cannot be read, or is larger than the limit.
    """
    with located("read", url) as (filesystem, path):
        if size is None:
            with filesystem.open_input_file(path) as file:
                return _read_at(file, 0, file.size(), limit_bytes)
        try:
            return _read_at(_opened(url), offset, size, limit_bytes)
        except Exception:  # whatever a library raises when a connection was lost meanwhile
            _opened.cache_clear()
            return _read_at(_opened(url), offset, size, limit_bytes)


def _read_at(file: Any, offset: int, size: int, limit_bytes: int) -> bytes:
    if not 0 <= size <= limit_bytes:
        raise OSError(f"{size:,} bytes, more than the {limit_bytes:,} allowed")
    content: bytes = file.read_at(size, offset)
    if len(content) != size:
        raise OSError(f"the file ends before byte {offset + size}; it is truncated")
    return content


def open_object(url: str) -> Any:
    """Open a file for reading at any position."""
    with located("read", url) as (filesystem, path):
        return filesystem.open_input_file(path)


_opened = lru_cache(16)(open_object)  # parts of tar files are read one by one


def kind(url: str) -> Kind | None:
    """Return the kind of what is there: "file", "folder", "other", or None if there is nothing."""
    with located("look at", url) as (filesystem, path):
        found = filesystem.get_file_info(path).type
    names: dict[Any, Kind | None] = {FileType.File: "file", FileType.Directory: "folder", FileType.NotFound: None}
    return names.get(found, "other")


def list_files(folder: str, recursive: bool) -> list[str]:
    """Return the files in a folder, relative to it, in no order; none if there is no such folder."""
    with located("list", folder) as (filesystem, path):
        found = filesystem.get_file_info(FileSelector(path, allow_not_found=True, recursive=recursive))
        start = len(path.rstrip("/")) + 1
        return [each.path[start:] for each in found if each.type == FileType.File]


def is_local(url: str) -> bool:
    """Return True if this is a path on the local disk."""
    return not URL.match(url)


def split(url: str) -> tuple[str, str]:
    """Return the root of a URL and the path below it.

    Examples:
        >>> split("s3://bucket/photos//cats/")
        ('s3://bucket', 'photos/cats')
        >>> split("https://example.org/a.jpg?size=2")
        ('https://example.org', 'a.jpg?size=2')
    """
    scheme, _, rest = url.partition("://")
    host, _, path = rest.partition("/")
    if not host:
        raise InputError(f"{url} names no bucket or host; write {scheme}://BUCKET/PATH.")
    if ":" in host.rpartition("@")[0] and scheme != "github":
        raise InputError(
            f"the URL of {scheme}://{host.rpartition('@')[2]} contains a password, which would be written to results; "
            "put it into the environment (for S3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY)."
        )
    return f"{scheme.lower()}://{host}", "/".join(part for part in path.split("/") if part)


@lru_cache(64)
def _open(root: str) -> Any:
    scheme = root.partition(":")[0]
    if scheme not in SCHEMES:
        raise InputError(f"unknown scheme {scheme}:// in {root}; write a path, s3://, gs:// or abfs://.")
    # By default, requests to Google are repeated for a quarter of an hour.
    return FileSystem.from_uri(f"{root}?retry_limit_seconds=60" if scheme in ("gs", "gcs") else root)


@contextmanager
def located(verb: str, url: str) -> Iterator[tuple[FileSystem, str]]:
    """Yield the file system of a path or a URL, and the path within it.

    Whatever it raises within the block becomes a `FileSystemError` that says what to check.

    Raises:
        InputError: the scheme is unknown, or the URL contains a password.
        FileNotFoundError: there is no such file.
        FileSystemError: the file system cannot be reached, or refuses.
    """
    try:
        if is_local(url):
            yield LocalFileSystem(), os.path.abspath(url)  # noqa: PTH100 (pathlib keeps "..")
        else:
            root, path = split(url)
            filesystem, base = _open(root)
            yield filesystem, f"{base.rstrip('/')}/{path}" if path else base
    except (FileNotFoundError, AcclimateError):
        raise
    except Exception as error:  # libraries for file systems raise errors of many kinds
        why = " ".join((reason(error) if isinstance(error, OSError) else f"{error}" or type(error).__name__).split())
        advice = LOCAL_ADVICE if is_local(url) else ADVICE
        raise FileSystemError(f"cannot {verb} {url}: {why.rstrip('.')}; {advice}.") from error
