"""Storage of results on a cluster: a folder, by path or by URL, with files that are written whole or not at all."""

import os
import secrets
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from acclimate.cluster.filesystems import STORES, check_scheme, explained, is_local, local_path, locate, split
from acclimate.errors import InputError, reason
from acclimate.files import MAX_SNAPSHOT, read_regular, write_atomically
from acclimate.images.opening import MAX_BYTES
from acclimate.sources.source import read_file

PROBE = ".acclimate.tmp"
MAX_OPEN_FILES = 16  # files that stay open while parts of them are read


class Storage:
    """A folder on the local disk, or on a file system that pyarrow or fsspec knows.

    Nothing is opened before it is used, and each process opens it for itself, so that it can be pickled. A file is
    written whole or not at all: an object store shows it when it is complete; elsewhere it is written under another
    name in the same folder and then moved.

    Args:
        url: a path, or a URL such as `s3://bucket/results`.

    Attributes:
        url: the folder; an absolute path if it is on the local disk.

    Raises:
        InputError: the scheme of the URL is unknown.
        MissingExtraError: the scheme needs a package that is not installed.

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
        self.local = is_local(url)
        if self.local:
            self.url = local_path(url)
        else:
            check_scheme(url)
            self.url = "/".join(part for part in split(url) if part)

    def __repr__(self) -> str:
        return f"Storage({self.url!r})"

    def read(self, name: str) -> bytes:
        """Return the content of a file.

        Raises:
            FileNotFoundError: there is none.
            OSError: it cannot be read.
        """
        if self.local:
            return read_regular(self.where(name), MAX_SNAPSHOT)
        return read_bytes(self.where(name), MAX_SNAPSHOT)

    def write(self, name: str, content: bytes) -> None:
        """Write a file and the folders above it; a writer that is killed leaves the old file, or the new one.

        Raises:
            InputError: it cannot be written.
        """
        try:
            if self.local:
                path = Path(self.where(name))
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, content)
            else:
                _write(self.where(name), content)
        except OSError as error:
            raise self._cannot_write(name, error) from error

    def names(self, folder: str = "") -> list[str]:
        """Return the names of the files directly in a folder, sorted; none if there is no such folder."""
        if self.local:
            with suppress(FileNotFoundError, NotADirectoryError), os.scandir(self.where(folder)) as entries:
                return sorted(entry.name for entry in entries if entry.is_file() and not _is_leftover(entry.name))
            return []
        found = list_directory(self.where(folder), recursive=False)
        return sorted(name for name in found if not _is_leftover(name))

    def exists(self, name: str) -> bool:
        """Return True if there is such a file."""
        if self.local:
            return Path(self.where(name)).is_file()
        return kind(self.where(name)) == "file"

    def remove(self, name: str) -> None:
        """Remove a file, if there is one."""
        if self.local:
            Path(self.where(name)).unlink(missing_ok=True)
            return
        url = self.where(name)
        with suppress(FileNotFoundError), explained(f"remove {url}"):
            filesystem, path = locate(url)
            if kind(url) is not None:
                filesystem.delete_file(path)

    def check_writable(self) -> None:
        """Write and remove a small file, so that what cannot be written is refused before the work.

        Raises:
            InputError: nothing can be written here.
        """
        self.write(PROBE, b"acclimate tries whether it can write here\n")
        with suppress(OSError):  # some may write to a store, but not remove
            self.remove(PROBE)

    def where(self, name: str) -> str:
        """Return the path or URL of a file or a folder."""
        return f"{self.url.rstrip('/')}/{name}" if name else self.url

    def _cannot_write(self, name: str, error: OSError) -> InputError:
        why = reason(error)
        if self.local:
            why += f"; check that {self.url} is a folder that you may write to, with space left"
        return InputError(f"cannot write {self.where(name)}: {why}.")


def storage_of(url: str | os.PathLike[str]) -> tuple[Storage, str]:
    """Return the storage of a single file, and its name there.

    Examples:
        >>> storage_of("/data/state.safetensors")
        (Storage('/data'), 'state.safetensors')
    """
    url = os.fspath(url)
    if is_local(url):
        file = Path(local_path(url))
        folder = str(file.parent)
        name = file.name
    else:
        root, path = split(url)
        above, _, name = path.rpartition("/")
        folder = f"{root}/{above}" if above else root
    if not name:
        raise InputError(f"{url} is a folder; name a file in it.")
    return Storage(folder), name


def read_object(url: str, offset: int = 0, size: int | None = None) -> bytes:
    """Return the bytes of an image file, by path or URL, or `size` of them. A function, so that samples can be pickled.

    Raises:
        OSError: it is missing, cannot be read, or is larger than images may be.
    """
    if is_local(url):
        return read_file(local_path(url), offset, size)
    if size is None:
        return read_bytes(url, MAX_BYTES)
    if not 0 <= size <= MAX_BYTES:
        raise OSError(f"{size:,} bytes, more than the {MAX_BYTES:,} allowed")
    with explained(f"read {url}"):
        file = _opened(url)
        try:
            content: bytes = file.read_at(size, offset)
        except Exception:  # whatever a library raises when a connection was lost meanwhile
            _opened.cache_clear()
            content = _opened(url).read_at(size, offset)
    if len(content) != size:
        raise OSError(f"{url} ends before byte {offset + size}; it is truncated.")
    return content


def open_object(url: str) -> Any:
    """Return a file by URL, for reading at any place."""
    with explained(f"read {url}"):
        filesystem, path = locate(url)
        return filesystem.open_input_file(path)


_opened = lru_cache(MAX_OPEN_FILES)(open_object)  # parts of tar files are read one by one


def kind(url: str) -> str | None:
    """Return what is at a URL: a "file", a "folder", "other", or None."""
    from pyarrow.fs import FileType

    with explained(f"look at {url}"):
        filesystem, path = locate(url)
        found = filesystem.get_file_info(path).type
    return {FileType.File: "file", FileType.Directory: "folder", FileType.NotFound: None}.get(found, "other")


def list_directory(url: str, recursive: bool) -> list[str]:
    """Return the files in a folder, relative to it, in no order; none if there is no such folder."""
    from pyarrow.fs import FileSelector, FileType

    with explained(f"list {url}"):
        filesystem, path = locate(url)
        found = filesystem.get_file_info(FileSelector(path, allow_not_found=True, recursive=recursive))
        start = len(path.rstrip("/")) + 1
        return [each.path[start:] for each in found if each.type == FileType.File]


def read_bytes(url: str, most: int) -> bytes:
    """Return the content of a file by URL; OSError, before anything is read, if it holds more than `most` bytes."""
    with open_object(url) as file, explained(f"read {url}"):
        size = file.size()
        if size > most:
            raise OSError(f"{size:,} bytes, more than the {most:,} allowed")
        content: bytes = file.read(size)
    if len(content) != size:
        raise OSError(f"{url} ends before byte {size}; it is truncated.")
    return content


def _write(url: str, content: bytes) -> None:
    with explained():
        filesystem, path = locate(url)
        if filesystem.type_name in STORES:
            _put(filesystem, path, content)
            return
        folder, _, name = path.rpartition("/")
        temporary = f"{folder}/.{name}.{secrets.token_hex(4)}.tmp"
        filesystem.create_dir(folder, recursive=True)
        try:
            _put(filesystem, temporary, content)
            filesystem.move(temporary, path)
        except BaseException:
            with suppress(Exception):
                filesystem.delete_file(temporary)
            raise


def _put(filesystem: Any, path: str, content: bytes) -> None:
    with filesystem.open_output_stream(path) as file:
        file.write(content)


def _is_leftover(name: str) -> bool:
    return name.startswith(".") and name.endswith(".tmp")
