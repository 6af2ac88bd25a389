"""A journal: what happened since a snapshot, appended as records with checksums.

A record is handed to the operating system with one write before the request is answered, so a killed process loses
nothing. A power cut may lose what was written since the last `sync`. A mark beside the journals says how far the newest
was synced, so that damage there is not taken for such a loss.
"""

import errno
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from threading import Lock
from typing import Any
from zlib import crc32

from acclimate.errors import reason
from acclimate.files import write_atomically
from acclimate.serve.http_errors import StorageError

MAGIC = b"acclimate journal 1\n"
PREFIX = Struct("<III")  # length of the payload, its checksum, checksum of these two numbers
ABOUT_BYTES = 4096  # length of the description at the start of a file
HEAD = Struct("<I")  # length of the JSON at the start of the payload
MARK = "synced"  # the file with the mark
_sync = getattr(os, "fdatasync", os.fsync)  # fdatasync is cheaper, but not on every platform


@dataclass
class Contents:
    """The content of a journal file."""

    about: dict[str, Any] = field(default_factory=dict)  # the description it was created with
    records: list[tuple[dict[str, Any], bytes]] = field(default_factory=list)  # head and body of the complete records
    size: int = 0  # length of the file up to the last complete record; what follows was cut off by a crash
    damage: str | None = None  # an error in the middle of the file; records after that are not used


class Journal:
    """A journal file, appended to from one thread; `sync` may be called from another.

    The file is not kept open: many streams need few handles, and a file that was removed is noticed. `size` is its
    length up to the last complete record; the next `append` cuts off what follows.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.size = size
        self.failed = False  # True if the last `append` failed
        self._synced = size
        self._marking = Lock()

    @classmethod
    def create(cls, path: Path, about: Mapping[str, Any]) -> "Journal":
        """Write a new file."""
        content = MAGIC + _record(about, b"")
        write_atomically(path, content)
        return cls(path, len(content))

    def append(self, head: Mapping[str, Any], body: bytes = b"") -> int:
        """Write a record with one system call; returns the journal's length before it, for `cut`.

        If it cannot be written, a StorageError is raised and the journal is unchanged.
        """
        record = _record(head, body)
        before = self.size
        self.failed = True
        try:
            with open(self.path, "r+b", buffering=0) as file:
                if file.seek(0, os.SEEK_END) != before:
                    file.truncate(before)
                    file.seek(before)
                if file.write(record) != len(record):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            with suppress(OSError):
                self.cut(before)
            raise StorageError(f"cannot write {self.path.name}: {reason(error)}; free some disk space.") from error
        self.size = before + len(record)
        self.failed = False
        return before

    def cut(self, size: int) -> None:
        """Remove what was appended since the journal had this length."""
        self.size = size
        with self._marking:
            if size < self._synced:
                self._mark(size)
            os.truncate(self.path, size)

    def sync(self) -> None:
        """Force what was written to the disk, and mark it; return at once if it is there already."""
        if self.size == self._synced:
            return
        with self._marking:
            size = self.size
            with open(self.path, "r+b") as file:
                _sync(file.fileno())
            self._mark(size)

    def mark(self) -> None:
        """Mark a new journal, once its snapshot is written."""
        with self._marking:
            self._mark(self._synced)

    def _mark(self, size: int) -> None:
        """Note how far the journal is synced. The mark itself is not: an older one only tells less."""
        self._synced = size
        text = f"{self.path.stem} {size}"
        with suppress(OSError):
            (self.path.parent / MARK).write_text(f"{text} {crc32(text.encode()):08x}\n")


def read_mark(folder: Path) -> tuple[int, int]:
    """Return the number and length of the journal that is known to be on the disk; 0 and 0 if none is."""
    try:
        number, size, checksum = (folder / MARK).read_text().split()
        if checksum == f"{crc32(f'{number} {size}'.encode()):08x}":
            return int(number), int(size)
    except (OSError, ValueError):  # written by an earlier version, or half written
        pass
    return 0, 0


def read_journal(path: Path, size: int = -1) -> Contents:
    """Return the complete records in the first `size` bytes of a journal file, and what is wrong with the rest."""
    try:
        with open(path, "rb") as file:
            content = file.read(size)
    except OSError as error:
        return Contents(damage=f"{path.name} cannot be read: {reason(error)}")
    if not content.startswith(MAGIC):
        return Contents(damage=f"{path.name} is not a journal")
    found = Contents(size=len(MAGIC))
    written = len(content.rstrip(b"\0"))  # a power cut may leave zeros at the end
    while found.size < len(content):
        try:
            record = _next_record(content, found.size, written)
        except EOFError:
            break
        except ValueError:
            found.damage = f"{path.name} is damaged at byte {found.size} of {len(content)}"
            break
        found.records.append(record[:2])
        found.size = record[2]
    if not found.records:
        found.damage = found.damage or f"{path.name} is cut off in its first record"
    else:
        found.about = found.records.pop(0)[0]
    return found


def _record(head: Mapping[str, Any], body: bytes) -> bytes:
    text = json.dumps(head).encode()
    payload = HEAD.pack(len(text)) + text + body
    numbers = Struct("<II").pack(len(payload), crc32(payload))
    return numbers + HEAD.pack(crc32(numbers)) + payload


def _next_record(content: bytes, at: int, written: int) -> tuple[dict[str, Any], bytes, int]:
    """Return a record's head, body and end; EOFError if it is incomplete, ValueError if it is damaged.

    `written` is the length of the file without zeros at its end.
    """
    begin = at + PREFIX.size
    if len(content) < begin:
        raise EOFError
    length, checksum, prefix_checksum = PREFIX.unpack_from(content, at)
    if crc32(content[at : at + 8]) != prefix_checksum:
        raise EOFError if written <= begin else ValueError
    payload = content[begin : begin + length]
    if len(payload) < length or crc32(payload) != checksum:
        raise EOFError if written <= begin + length else ValueError
    (size,) = HEAD.unpack_from(payload)
    return json.loads(payload[HEAD.size : HEAD.size + size]), payload[HEAD.size + size :], begin + length
