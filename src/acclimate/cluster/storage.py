"""Folders by path or by URL, in which files are written whole or not at all."""

import os
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

from acclimate.errors import InputError
from acclimate.files import MAX_SNAPSHOT, write_atomically
from acclimate.sources.urls import is_local, kind, list_files, located, read_object, split

PROBE = ".acclimate.tmp"
FILE_DELAY_S = 10.0  # a network file system shows a new file everywhere within this time


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
