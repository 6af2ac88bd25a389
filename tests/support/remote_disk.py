"""A file system of fsspec, `remote://HOST/PATH`, that keeps its files below the folder that REMOTE_DISK names.

With REMOTE_DISK_STALL set, half of a file is written, and then nothing more happens. Counts the bytes that are read.
"""

import os
import time

import fsspec
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

bytes_read = 0


class RemoteDisk(DirFileSystem):
    protocol = "remote"
    cachable = False  # each test has a folder of its own

    def __init__(self, **options):
        super().__init__(path=os.environ["REMOTE_DISK"], fs=LocalFileSystem(), **options)

    def open(self, path, mode="rb", **options):
        return _File(super().open(path, mode, **options))


class _File:
    def __init__(self, file):
        self._file = file

    def __getattr__(self, name):
        return getattr(self._file, name)

    def read(self, *size):
        global bytes_read
        content = self._file.read(*size)
        bytes_read += len(content)
        return content

    def write(self, content):
        if "REMOTE_DISK_STALL" in os.environ:
            self._file.write(bytes(content)[: len(content) // 2])
            self._file.flush()
            print("half", flush=True)  # noqa: T201
            time.sleep(600)
        return self._file.write(content)


fsspec.register_implementation("remote", RemoteDisk, clobber=True)
