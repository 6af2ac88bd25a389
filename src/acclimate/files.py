"""Files written whole or not at all, and snapshots: safetensors with a JSON description and a checksum."""

import errno
import io
import json
import math
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO
from zlib import crc32

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as deserialise
from safetensors.numpy import save as serialise

from acclimate.arrays import HostArray
from acclimate.errors import AcclimateError, InputError, RunError, StateError, reason

FORMATS = {"state": "acclimate-state", "part": "acclimate-run"}  # what a snapshot holds -> the name in its file
VERSION = 2
SnapshotKind = Literal["state", "part"]
MAX_SNAPSHOT = 4 * 2**30  # bytes; the largest states, of methods that keep K x K numbers, have 2 GB
MAX_HEADER = 64 * 2**20  # bytes of tensor names and the description: names of classes and of streams, notes
MAX_TEXT = 16 * 2**20  # bytes of labels, templates and the like
MAX_LIST = 256 * 2**20  # bytes of a list of images
# What makes a spreadsheet calculate, behind any number of the marks that `to_cell` puts before it.
# The last four are the same signs in full width.
FORMULA = re.compile(r"((?:'|\./)*)(?:[\t\r\n]|\s*[=+\-@\uff1d\uff0b\uff0d\uff20])")
# Separators that a spreadsheet may guess, with a formula behind them, or with marks and a formula
SEPARATED = re.compile(r"([;,\t|])(?='* *[=+\-@\uff1d\uff0b\uff0d\uff20])")
MARKED = re.compile(r"([;,\t|])'(?='* *[=+\-@\uff1d\uff0b\uff0d\uff20])")
NUMBER = re.compile(r"\s*[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?\s*")


def to_bytes(tensors: Mapping[str, HostArray], metadata: Mapping[str, str]) -> bytes:
    """Return the content of a safetensors file; the same tensors and metadata give the same bytes.

    The safetensors library writes metadata in random order, so the header is written again with its keys sorted.
    """
    content = serialise({name: _as_stored(values) for name, values in tensors.items()}, dict(metadata))
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length].decode())
    header["__metadata__"] = dict(sorted(metadata.items()))
    text = _header_bytes(header)
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file for reading; OSError for a pipe, a device or another that is not a regular file, without waiting."""
    return open(path, "rb", opener=_regular)


def read_regular(path: str | os.PathLike[str], most: int) -> bytes:
    """Return the content of a regular file; OSError, before anything is read, if it holds more than `most` bytes.

    Examples:
        >>> read_regular("/dev/null", 10)
        Traceback (most recent call last):
        ...
        OSError: [Errno 22] a device, not a regular file: '/dev/null'
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"{size:,} bytes, more than the {most:,} allowed", str(path))
        return file.read(size)  # not to its end: that of a growing file may never come


def open_text(path: str | os.PathLike[str], most: int = MAX_TEXT, newline: str | None = None) -> TextIO:
    """Open the content that `read_regular` gives as text in UTF-8; decoding fails where it is read."""
    return io.TextIOWrapper(io.BytesIO(read_regular(path, most)), "utf-8-sig", newline=newline)


def _regular(path: str, flags: int) -> int:
    handle = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # a pipe is opened without waiting for a writer
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return handle
    os.close(handle)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, f"a {'pipe' if stat.S_ISFIFO(mode) else 'device'}, not a regular file", path)


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file so that a crash at any moment leaves the old file or the new one, never a part."""
    with replacing(path) as file:
        file.write(content)


@contextmanager
def replacing(path: str | os.PathLike[str], folder: Path | None = None) -> Iterator[BinaryIO]:
    """Open a file for writing that takes the place of another one, durably, when the block ends without an error.

    It is written in `folder`, on the same file system, or else beside the other one.
    """
    path = Path(path)
    temporary = (
        folder or path.parent
    ) / f".{secrets.token_hex(8)}.tmp"  # not its own name, which may be as long as allowed
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def remove_leftovers(folder: Path) -> None:
    """Remove what writes left that were cut off by a crash; nobody else may be writing to the folder."""
    for path in folder.glob(".*.tmp"):
        with suppress(OSError):
            path.unlink()


def keep_recent(folder: Path, pattern: str, files: int, size: int) -> None:
    """Remove the files that were changed least recently, so that those of a pattern are so many, of so many bytes.

    Others may read, write and remove them at the same time.
    """
    found = []
    for path in folder.glob(pattern):
        with suppress(OSError):  # it was removed
            about = path.stat()
            found.append((about.st_mtime_ns, about.st_size, path))
    for number, (_, length, path) in enumerate(sorted(found, reverse=True), 1):
        size -= length
        if number > files or size < 0:
            with suppress(OSError):
                path.unlink()


def append(path: Path, content: bytes) -> None:
    """Append to a file that exists, all or nothing."""
    rest = memoryview(content)
    with open(path, "r+b", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        try:
            while rest:
                rest = rest[file.write(rest) or 0 :]
        except OSError:
            with suppress(OSError):
                file.truncate(end)
            raise


@contextmanager
def writing(what: object, error: type[AcclimateError] = RunError, hint: str = "") -> Iterator[None]:
    """Turn an OSError within the block into an error that says what could not be written, why, and what to do."""
    try:
        yield
    except OSError as cause:
        raise error(f"cannot write {what}: {reason(cause)}.{hint and ' ' + hint}") from cause


def check_writable(path: Path) -> None:
    """Refuse an output path that cannot be written, before the work and not after it."""
    with writing(path, InputError):  # such as a name that is too long
        problems = [
            (path.is_dir(), "it is a folder; name a file in it"),
            (path.exists() and not path.is_file(), "it is a pipe or a device; name a regular file"),
            (not path.parent.is_dir(), f"there is no folder {path.parent}; make it first"),
            (not os.access(path.parent, os.W_OK), f"the folder {path.parent} is not writable"),
        ]
    for found, problem in problems:
        if found:
            raise InputError(f"cannot write {path}: {problem}.")


def snapshot_bytes(
    tensors: Mapping[str, HostArray], description: Mapping[str, Any], holds: SnapshotKind = "state"
) -> bytes:
    """Return a snapshot: tensors and a description that JSON can hold, with a checksum of both."""
    text = json.dumps(description, sort_keys=True)
    about = {
        "format": FORMATS[holds],
        "version": str(VERSION),
        "description": text,
        "checksum": _checksum(tensors, text),
    }
    content = to_bytes(tensors, about)
    if int.from_bytes(content[:8], "little") > MAX_HEADER:  # what cannot be read again must not be written
        raise StateError(f"names and notes of a {holds} may have {MAX_HEADER:,} bytes at most.")
    return content


def parse_snapshot(
    content: bytes, what: object = "the state", holds: SnapshotKind = "state"
) -> tuple[dict[str, HostArray], dict[str, Any]]:
    """Return the tensors and the description of a snapshot; damage of any byte is refused.

    Every byte counts: the header must be as it would be written, and the checksum covers the rest.

    Args:
        content: the bytes that `snapshot_bytes` gave.
        what: its name, for errors.
        holds: what it is a snapshot of.
    """
    with _reading_snapshot(what, holds):
        header, end = _parse_header(io.BytesIO(content), len(content), what, holds)
        tensors = deserialise(content)
        metadata = header["__metadata__"]
        text = metadata["description"]
        if metadata["checksum"] != _checksum(tensors, text) or content[8:end] != _header_bytes(header):
            raise StateError(f"{what} is damaged: its checksum does not match its content. Use another copy.")
        return tensors, {**json.loads(text)}  # refuses what is not a JSON object


def read_snapshot(
    path: str | os.PathLike[str], holds: SnapshotKind = "state"
) -> tuple[dict[str, HostArray], dict[str, Any]]:
    """Return the tensors and the description of a file that holds a snapshot."""
    try:
        content = read_regular(path, MAX_SNAPSHOT)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise StateError(f"no state file at {path}.") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        raise StateError(f"{path} cannot be read: {reason(error)}.") from error
    return parse_snapshot(content, path, holds)


def read_description(
    path: str | os.PathLike[str], holds: SnapshotKind
) -> tuple[dict[str, Any], dict[str, tuple[tuple[int, ...], int]]]:
    """Return the description of a file that holds a snapshot, and the shape and the offset in bytes of each tensor.

    Only the header is read, so the tensors are not checked; `read_snapshot` does that.
    """
    with _reading_snapshot(path, holds), open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        header, end = _parse_header(file, size, path, holds)
        description = {**json.loads(header.pop("__metadata__")["description"])}
        tensors = {}
        for name, about in header.items():
            first, last = about["data_offsets"]
            shape = tuple(about["shape"])
            if about["dtype"] != "F32" or last - first != 4 * math.prod(shape) or not 0 <= first <= last <= size - end:
                raise ValueError(f"the tensor {name!r} does not fit the file")
            tensors[name] = (shape, end + first)
        return description, tensors


def _parse_header(file: BinaryIO, size: int, what: object, holds: SnapshotKind) -> tuple[dict[str, Any], int]:
    """Return the header of a snapshot of so many bytes, and the position of its end."""
    length = int.from_bytes(file.read(8), "little")
    if length > min(size - 8, MAX_HEADER):
        raise ValueError(f"a header of {length} bytes in a file of {size}")
    header = json.loads(file.read(length).decode())
    metadata = header.get("__metadata__", {})
    if metadata.get("format") != FORMATS[holds]:
        raise StateError(f"{what} is a safetensors file but not an acclimate {holds}.")
    if metadata.get("version") != str(VERSION):
        raise StateError(
            f"{what} has {holds} version {metadata.get('version')}, this acclimate reads version {VERSION}; "
            f"use the acclimate that wrote it, or start a new {holds}."
        )
    return header, 8 + length


@contextmanager
def _reading_snapshot(what: object, holds: SnapshotKind) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise StateError(
            f"{what} cannot be read as a {holds}: it is truncated, damaged or foreign ({error})."
        ) from error


def _header_bytes(header: Mapping[str, Any]) -> bytes:
    """Return the header of a safetensors file as it is written, with spaces that align what follows."""
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    return text + b" " * (-len(text) % 8)


def _checksum(tensors: Mapping[str, HostArray], text: str) -> str:
    checksum = crc32(text.encode())
    for name in sorted(tensors):
        values = _as_stored(tensors[name])
        checksum = crc32(f"{name} {values.dtype} {values.shape}".encode(), checksum)
        checksum = crc32(values.data, checksum)
    return f"{checksum:08x}"


def _as_stored(values: HostArray) -> HostArray:
    """Return the array as a file gives it back: in C order, in native byte order, and of the same shape.

    `np.ascontiguousarray` would not do: it makes the shape () into (1,).
    """
    return np.asarray(values, dtype=values.dtype.newbyteorder("="), order="C")


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, after a rename; not every platform can open a folder."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def separator_of(header: str) -> str:
    """Return what separates the cells of a csv file with this header: spreadsheets take semicolons or tabs, too."""
    return max(",;\t", key=header.count)


def to_cell(text: str, path: bool = False) -> str:
    """Return the text as a cell: with an apostrophe, or `./` before a relative path, where it would be a formula.

    So would be what follows a separator, if a program takes another one than that of the file.

    Examples:
        >>> to_cell("=HYPERLINK(1)"), to_cell("-2+3.jpg", path=True), to_cell("-2.5"), to_cell("a-b"), to_cell("a;=1")
        ("'=HYPERLINK(1)", './-2+3.jpg', '-2.5', 'a-b', "a;'=1")
    """
    text = SEPARATED.sub(r"\1'", text)
    return ("./" if path else "'") + text if _marks(text) is not None else text


def from_cell(cell: str) -> str:
    """Return the text of a cell that `to_cell` made; other cells are text as they are.

    Examples:
        >>> from_cell("'=HYPERLINK(1)"), from_cell("./-2+3.jpg"), from_cell("'quoted'"), from_cell("./a.jpg")
        ('=HYPERLINK(1)', '-2+3.jpg', "'quoted'", './a.jpg')
    """
    text = re.sub(r"^(?:'|\./)", "", cell) if _marks(cell) else cell
    return MARKED.sub(r"\1", text)


def _marks(text: str) -> str | None:
    """Return the marks before a formula; None if the text is not one."""
    found = FORMULA.match(text)
    return None if found is None or NUMBER.fullmatch(text, found.end(1)) else found[1]
