"""Files by path or by URL, on the local disk and in the object stores that pyarrow opens: S3, Google and Azure.

A URL is a scheme, a bucket or a host, and a path that is taken as it is written: `s3://bucket/my photos/cat #1.jpg`.
Credentials and endpoints come from the environment, where the tools of each store look for them. Every process opens a
file system for itself, once.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem

from acclimate.errors import AcclimateError, InputError, RunError, reason
from acclimate.files import MAX_SNAPSHOT, write_atomically
from acclimate.images.opening import MAX_BYTES, URL
from acclimate.sources.source import Kind

SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss")  # stores that show an object when it is complete
PROBE = ".acclimate.tmp"
FILE_DELAY_S = 10.0  # a network file system shows a new file everywhere within this time
# Words in errors, in lower case -> advice
LOCAL_HINTS = {"space|quota|denied|permitted|read-only|directory": "choose a folder that you may use, with space left"}
HINTS = {
    "no_such_bucket|bucket.*(not exist|not found)": "check the name of the bucket, and AWS_ENDPOINT_URL",
    "access_denied|access_key|signature|forbidden|permission|status 40[13]|unauthorized|credential": "check the "
    "credentials in the environment (for S3: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_PROFILE), and that they "
    "allow this",
    "resolving region": "check the name of the bucket, and the network; or set AWS_ENDPOINT_URL",
    "network_connection|resolve|connect|time.?out|timed out": "check the network, and AWS_ENDPOINT_URL",
}


class FileSystemError(RunError, OSError):
    """A file system that refused, with a reason and a hint."""


class Storage:
    """A folder by path or by URL, whose files are written whole or not at all.

    Nothing is opened before it is used, so that a storage can be pickled.

    Args:
        url: a path, or a URL such as `s3://bucket/results`.

    Attributes:
        url: the folder; an absolute path if it is on the local disk.

    Examples:
        >>> from tempfile import mkdtemp
        >>> results = Storage(mkdtemp())
        >>> results.write("run/part.txt", b"done")
        >>> results.names("run"), results.read("run/part.txt")
        (['part.txt'], b'done')
    """

    def __init__(self, url: str | os.PathLike[str]) -> None:
        url = os.fspath(url)
        if not url:
            raise InputError("the name of the folder is empty; pass a path, or a URL such as s3://bucket/results.")
        self.url = os.path.abspath(url) if is_local(url) else "/".join(filter(None, split(url)))  # noqa: PTH100

    def where(self, name: str) -> str:
        """Return the path or URL of a file or a folder."""
        return f"{self.url.rstrip('/')}/{name}" if name else self.url

    def copy(self, name: str, folder: Path) -> Path:
        """Return the local path of a file, which is copied into a folder unless it lies on the local disk."""
        if is_local(self.url):
            return Path(self.where(name))
        write_atomically(folder / name, self.read(name))
        return folder / name

    def read(self, name: str) -> bytes:
        """Return the content of a file.

        Raises:
            FileNotFoundError: there is none.
            OSError: it cannot be read.
        """
        return read_object(self.where(name), limit_bytes=MAX_SNAPSHOT)

    def write(self, name: str, content: bytes) -> None:
        """Write a file and the folders above it; a writer that is killed leaves the old file, or the new one.

        Raises:
            FileSystemError: it cannot be written.
        """
        with located("write", self.where(name)) as (filesystem, path):
            if is_local(self.url):
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, content)
            else:
                with filesystem.open_output_stream(path) as file:
                    file.write(content)

    def names(self, folder: str = "") -> list[str]:
        """Return the names of the files directly in a folder, sorted; none if there is no such folder."""
        found = list_files(self.where(folder), recursive=False)
        return sorted(name for name in found if not (name.startswith(".") and name.endswith(".tmp")))

    def exists(self, name: str) -> bool:
        """Return True if there is such a file."""
        return kind(self.where(name)) == "file"

    def wait_for(self, name: str) -> bool:
        """Wait until a file is seen that another machine has written; returns False if it does not appear."""
        latest = monotonic() + FILE_DELAY_S
        while not self.exists(name) and monotonic() < latest:
            sleep(0.2)
        return self.exists(name)

    def remove(self, name: str) -> None:
        """Remove a file, if there is one."""
        with suppress(FileNotFoundError), located("remove", self.where(name)) as (filesystem, path):
            filesystem.delete_file(path)

    def check_writable(self) -> None:
        """Write and remove a small file, so that what cannot be written is refused before the work.

        Raises:
            InputError: nothing can be written here.
        """
        try:
            self.write(PROBE, b"acclimate tries whether it can write here\n")
        except OSError as error:
            raise InputError(f"{error}") from error
        with suppress(OSError):  # some may write to a store, but not remove
            self.remove(PROBE)


def storage_of(url: str | os.PathLike[str]) -> tuple[Storage, str]:
    """Return the storage of a single file, and its name there.

    Examples:
        >>> storage, name = storage_of("/data/state.safetensors")
        >>> storage.url, name
        ('/data', 'state.safetensors')
    """
    folder, _, name = Storage(url).url.rpartition("/")
    if folder.endswith(":/") or not name:
        raise InputError(f"{os.fspath(url)} is a folder; name a file in it.")
    return Storage(folder or "/"), name


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
        hints = LOCAL_HINTS if is_local(url) else HINTS
        hint = next((hint for pattern, hint in hints.items() if re.search(pattern, why.lower())), "")
        raise FileSystemError(f"cannot {verb} {url}: {why.rstrip('.')}{hint and f'; {hint}'}.") from error
