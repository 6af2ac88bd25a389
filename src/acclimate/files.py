"""Snapshots on disk: safetensors with JSON metadata, versioned, written whole or not at all."""

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as serialise

from acclimate.arrays import HostArray
from acclimate.errors import AcclimateError, InputError, RunError, StateError

FORMAT = "acclimate-state"
VERSION = 1


def to_bytes(tensors: Mapping[str, HostArray], metadata: Mapping[str, str]) -> bytes:
    """A safetensors file's content; the same tensors and metadata give the same bytes.

    The library writes metadata in random order, so the header is written again with its keys sorted.
    """
    content = serialise({name: np.ascontiguousarray(values) for name, values in tensors.items()}, dict(metadata))
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"] = dict(sorted(metadata.items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the data that follows must be aligned
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file so that a crash at any moment leaves the old file or the new one, never a part."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


@contextmanager
def writing(what: object, error: type[AcclimateError] = RunError, hint: str = "") -> Iterator[None]:
    """Turn an OSError of the block into an error that says what cannot be written, and why.

    Args:
        what: the file, as the message names it.
        error: the error to raise.
        hint: a sentence about what to do next.
    """
    try:
        yield
    except OSError as cause:
        raise error(f"cannot write {what}: {cause.strerror or cause}. {hint}".rstrip()) from cause


def check_writable(path: Path) -> None:
    """Refuse an output path that cannot be written, before the work and not after it."""
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise InputError(f"cannot write {path}: it is a folder, or its folder is missing or not writable.")


def snapshot_bytes(tensors: Mapping[str, HostArray], description: Mapping[str, Any]) -> bytes:
    """What `write_snapshot` writes; a checksum tells damage that leaves the file readable."""
    text = json.dumps(description, sort_keys=True)
    checksum = f"{_checksum(tensors, text):08x}"
    metadata = {"format": FORMAT, "version": str(VERSION), "description": text, "checksum": checksum}
    return to_bytes(tensors, metadata)


def write_snapshot(
    path: str | os.PathLike[str], tensors: Mapping[str, HostArray], description: Mapping[str, Any]
) -> None:
    """Write tensors and a JSON description as one snapshot, atomically.

    Args:
        path: the file to create or replace.
        tensors: named host arrays.
        description: what the tensors mean; anything JSON can hold.
    """
    try:
        write_atomically(path, snapshot_bytes(tensors, description))
    except OSError as error:
        reason = error.strerror or error
        raise StateError(f"cannot write {path}: {reason}. What was there before is untouched.") from error


def read_snapshot(path: str | os.PathLike[str]) -> tuple[dict[str, HostArray], dict[str, Any]]:
    """Read a snapshot's tensors and description; refuse anything else with a reason."""
    with _opened(path) as (file, metadata):
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        checksum = metadata.get("checksum")  # files of acclimate 0.1 may have none
        if checksum is not None and checksum != f"{_checksum(tensors, metadata['description']):08x}":
            raise StateError(f"{path} is damaged: its checksum does not fit its content. Use another copy.")
        return tensors, json.loads(metadata["description"])


def read_description(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A snapshot's description alone, without reading the tensors."""
    with _opened(path) as (_, metadata):
        return dict(json.loads(metadata["description"]))


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[tuple[Any, dict[str, str]]]:
    """An open snapshot and its metadata; whatever is wrong with it becomes a StateError."""
    path = Path(path)
    if not path.is_file():
        raise StateError(f"no state file at {path}.")
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise StateError(f"{path} is a safetensors file but not an acclimate state.")
            if metadata.get("version") != str(VERSION):
                raise StateError(
                    f"{path} has state version {metadata.get('version')}, this acclimate reads version {VERSION}; "
                    "use the acclimate that wrote it, or start a new state."
                )
            yield file, metadata
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise StateError(f"{path} cannot be read as a state: it is truncated, damaged or foreign ({error}).") from error


def _checksum(tensors: Mapping[str, HostArray], text: str) -> int:
    checksum = crc32(text.encode())
    for name in sorted(tensors):
        about = f"{name} {tensors[name].dtype} {tensors[name].shape}"
        checksum = crc32(np.ascontiguousarray(tensors[name]).tobytes(), crc32(about.encode(), checksum))
    return checksum


def _sync_folder(folder: Path) -> None:
    """Make a rename durable; not every platform lets a folder be opened."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
