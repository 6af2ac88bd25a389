"""Runs: the features of a stream of images in a folder, from which answers are computed as often as one likes.

    answers.run/
        run.json            what made the features, and what the last answers were computed with
        head.safetensors    class vectors of the answers
        start.safetensors   state before the first image
        state.safetensors   state after the last image
        corrections.json    right labels that a person has given
        000000.safetensors  features of the first images, with their names, errors and truths
        000001.safetensors  ...

A part holds whole batches: a batch that is replayed gives the same answers to the bit. The last part is replaced by a
longer one from time to time until it is full; a full part is never written again.
"""

import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import numpy as np

from acclimate.arrays import Array, HostArray, to_host
from acclimate.errors import InputError, RunError, StateError, reason
from acclimate.files import (
    parse_snapshot,
    read_description,
    read_regular,
    remove_leftovers,
    snapshot_bytes,
    write_atomically,
    writing,
)

FORMAT = "acclimate-run"
VERSION = 1
SUFFIX = ".run"
NEW = ".new"  # ends the name of a run that will take the place of another one
ABOUT = "run.json"
HEAD = "head.safetensors"
START = "start.safetensors"
STATE = "state.safetensors"
CORRECTIONS = "corrections.json"
OWNER = "owner"  # names the process that appends to the run
PART_NAME = re.compile(r"\d{6,}\.safetensors")
PART_IMAGES = 1024
PART_BYTES = 16 * 2**20
PART_SECONDS = 10.0  # between two writes of a part that is not full
MAX_PART = 2**30  # bytes of a part that is read
MAX_ABOUT = 256 * 2**20  # bytes of run.json and corrections.json: labels, true labels and corrections
KINDS: dict[str, Any] = {  # of what a run says of its features; [int] is a list of numbers
    "model": str,
    "fingerprint": str,
    "decoder": str,
    "precision": str,
    "device": str,
    "views": int,
    "views_kind": str,
    "dim": int,
    "images": int,
    "replaced": [int],
    "seconds": float,
}
DISK_HINT = "What was encoded before is kept; free some space and pass --resume."


class Batch(NamedTuple):
    """A batch of encoded images, of which r could be read."""

    start: int  # position of the first image in the stream
    names: list[str]
    errors: list[str | None]  # reasons why images cannot be read; None for those that can
    features: Array  # (r, d), or (r, V, d) for V views: unit rows, on the host or on the encoder's GPU
    truths: list[str | None]  # true labels in the words of the source, where it provides them
    taken: Sequence[str | None] = ()  # times at which they were taken (EXIF); empty for none

    @property
    def readable(self) -> list[int]:
        """Positions in the stream of the images that could be read."""
        return [self.start + index for index, error in enumerate(self.errors) if error is None]


@dataclass(frozen=True)
class Part:
    """A file of a run: whole batches of images.

    Attributes:
        path: the file.
        start: position of its first image in the stream.
        lengths: number of images of each batch.
        names: names of its images.
        errors: reasons why images cannot be read; None for those that can.
        truths: true labels in the words of the source; None where it does not say.
        taken: times at which the images were taken; None where they do not say.
        shape: shape of the features, (r, d) or (r, V, d).
        offset: position of the features in the file, in bytes.
    """

    path: Path
    start: int
    lengths: tuple[int, ...]
    names: list[str]
    errors: list[str | None]
    truths: list[str | None]
    taken: list[str | None]
    shape: tuple[int, ...]
    offset: int

    @classmethod
    def read(cls, path: Path, run_id: str) -> "Part":
        """Read what a part says of its images, but not their features.

        Raises:
            RunError: it is damaged, or a part of another run.
        """
        with _part_errors(path):
            about, tensors = read_description(path, "part")
            shape, offset = tensors["features"]
            return cls(path, shape=shape, offset=offset, **_checked(about, shape, run_id))

    def batches(self) -> Iterator[Batch]:
        """Read the batches; the checksum of the file is compared first.

        Raises:
            RunError: the file is damaged.
        """
        with _part_errors(self.path):
            features = parse_snapshot(read_regular(self.path, MAX_PART), self.path, "part")[0]["features"]
            if features.shape != self.shape:
                raise StateError(f"{self.path} was replaced while it was read.")
        first = 0
        row = 0
        for length in self.lengths:
            images = slice(first, first + length)
            errors = self.errors[images]
            rows = errors.count(None)
            yield Batch(
                start=self.start + first,
                names=self.names[images],
                errors=errors,
                features=features[row : row + rows],
                truths=self.truths[images],
                taken=self.taken[images],
            )
            first += length
            row += rows


def part_bytes(run_id: str, batches: Sequence[Batch]) -> bytes:
    """Return the content of the file of consecutive batches; the same batches give the same bytes."""
    features = np.concatenate([np.asarray(to_host(batch.features), np.float32) for batch in batches])
    about = {
        "run": run_id,
        "start": batches[0].start,
        "lengths": [len(batch.names) for batch in batches],
        "names": [name for batch in batches for name in batch.names],
        "errors": [error for batch in batches for error in batch.errors],
        "truths": [truth for batch in batches for truth in batch.truths],
        "taken": [time for batch in batches for time in batch.taken or [None] * len(batch.names)],
    }
    return snapshot_bytes({"features": features}, about, "part")


def part_name(number: int) -> str:
    """Return the file name of a part."""
    return f"{number:06d}.safetensors"


class StoredFeatures:
    """Features (n, d) or (n, V, d) of the images of a run that could be read, read from its parts when indexed.

    It has the shape of an array, and is indexed with slices and with positions (m,), so memory holds one block of them.
    """

    dtype = np.dtype(np.float32)

    def __init__(self, parts: Sequence[Part], each: tuple[int, ...]) -> None:
        self._parts = [part for part in parts if part.shape[0]]
        self._ends = list(accumulate(part.shape[0] for part in self._parts))
        self.shape = (self._ends[-1] if self._ends else 0, *each)
        self.ndim = len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | HostArray) -> HostArray:
        if not isinstance(rows, slice):
            return self._at(np.asarray(rows))
        first, stop, step = rows.indices(len(self))
        found = [np.empty((0, *self.shape[1:]), np.float32)]
        for part, end in zip(self._parts, self._ends, strict=True):
            begin = end - part.shape[0]
            if first < end and first < stop and begin < stop:
                found.append(np.array(_map(part)[first - begin : stop - begin : step]))
                first += -(-(min(stop, end) - first) // step) * step
        return np.concatenate(found)

    def _at(self, positions: HostArray) -> HostArray:
        found = np.empty((len(positions), *self.shape[1:]), np.float32)
        numbers = np.searchsorted(self._ends, positions, side="right")
        for number in np.unique(numbers):
            part = self._parts[number]
            here = numbers == number
            found[here] = _map(part)[positions[here] - (self._ends[number] - part.shape[0])]
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> HostArray:
        return np.asarray(self[:], dtype)


def _map(part: Part) -> HostArray:
    return np.memmap(part.path, np.float32, "r", part.offset, part.shape)


@dataclass
class Run:
    """The features of a stream of images, kept in a folder, and the answers that were last computed from them.

    Attributes:
        path: its folder.
        id: names the features; those of a run that was encoded anew have another one.
        features: what made the features: model, fingerprint, decoder, precision, views and so on, as JSON holds it.
        answer: what the answers were computed with, as resolved values; {} if none were.
        parts: its parts, up to the first that is missing.
        feature_path: the folder of the parts: its own, or that of the run whose features it names.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = Run.create(Path(folder, "photos.run"), {"model": "bundled", "views": 1, "dim": 3})
        ...     writer = RunWriter(run)
        ...     writer.append(Batch(0, ["a.jpg", "b.jpg"], [None, "no image"], np.eye(3)[:1], [None, None]))
        ...     writer.close(complete=True)
        ...     again = Run.open(run.path)
        ...     [batch.errors for batch in again.batches()], again.stored_features.shape
        ([[None, 'no image']], (1, 3))
    """

    path: Path
    id: str
    features: dict[str, Any]
    answer: dict[str, Any] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)

    def __post_init__(self) -> None:
        origin = self.features.get("from")
        self.feature_path = self.path / origin if isinstance(origin, str) else self.path

    @classmethod
    def create(cls, path: Path, features: Mapping[str, Any]) -> "Run":
        """Make the folder of a run, which is one as soon as it is saved."""
        run = cls(path, secrets.token_hex(16), dict(features) | {"complete": False, "seconds": 0.0})
        with writing(path, InputError):
            path.mkdir(exist_ok=True)
        return run

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "Run":
        """Open a run, or one that names the features of another.

        Raises:
            RunError: it is damaged, of another version, or its features are gone.
        """
        path = Path(path)
        about = _read_json(path / ABOUT)
        try:
            if about["format"] != FORMAT or about["version"] != VERSION:
                raise RunError(f"{path} is a run of another version of acclimate; read it with that, or encode again.")
            run = cls(path, str(about["id"]), dict(about["features"]), dict(about["answer"]))
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{path / ABOUT} is not the description of a run ({error}); use another copy.") from error
        check_kinds(run.features, KINDS, path / ABOUT)
        if run.feature_path != path:
            if not is_run(run.feature_path):
                raise RunError(f"{path} was answered from the features in {run.feature_path}, which are gone.")
            origin = cls.open(run.feature_path)
            if origin.id != run.id or origin.feature_path != origin.path:
                raise RunError(
                    f"the features in {origin.path} were replaced since {path} was answered from them; answer "
                    f"{origin.path} again."
                )
            run.features = origin.features | {"from": run.features["from"]}
            run.parts = origin.parts
            return run
        run.read_parts()
        return run

    def read_parts(self) -> None:
        """Read what the parts say of their images, up to the first part that is missing.

        Raises:
            RunError: a part is damaged.
        """
        self.parts = []
        start = 0
        while (path := self.path / part_name(len(self.parts))).exists():
            part = Part.read(path, self.id)
            if part.start != start or (self.parts and part.shape[1:] != self.parts[0].shape[1:]):
                raise RunError(f"{path} does not follow the part before it; use another copy of the run.")
            self.parts.append(part)
            start += len(part.names)

    def check_whole(self) -> None:
        """Refuse a run that says that it is complete and lacks parts."""
        if self.complete and (self.has_later_parts() or self.images < (self.features.get("images") or 0)):
            raise RunError(
                f"{self.feature_path / part_name(len(self.parts))} is missing; put it back, or encode its images again "
                "with --resume."
            )

    def has_later_parts(self) -> bool:
        """Return True if there are parts after one that is missing."""
        names = [path.name for path in self.feature_path.iterdir() if PART_NAME.fullmatch(path.name)]
        return len(names) > len(self.parts)

    @property
    def images(self) -> int:
        """Number of images, those that could not be read among them."""
        return sum(len(part.names) for part in self.parts)

    @property
    def complete(self) -> bool:
        """True if all images of its source were encoded."""
        return bool(self.features.get("complete"))

    @property
    def names(self) -> list[str]:
        """The names of all images, in order."""
        return [name for part in self.parts for name in part.names]

    @property
    def errors(self) -> list[str | None]:
        """The reasons why images cannot be read, in order; None for those that can."""
        return [error for part in self.parts for error in part.errors]

    @property
    def truths(self) -> list[str | None]:
        """The true labels in the words of the source, in order; None where it does not say."""
        return [truth for part in self.parts for truth in part.truths]

    @property
    def stored_features(self) -> StoredFeatures:
        """The features of the images that could be read, in order."""
        each = self.parts[0].shape[1:] if self.parts else (int(self.features.get("dim", 0)),)
        return StoredFeatures(self.parts, each)

    def batches(self) -> Iterator[Batch]:
        """Yield the batches in which the images were encoded.

        Raises:
            RunError: a part is damaged.
        """
        for part in self.parts:
            yield from part.batches()

    def derive(self, path: Path) -> "Run":
        """Return a run at `path` with answers of its own that names the features of this one."""
        run = Run(path, self.id, self.features | {"from": os.path.relpath(self.feature_path, path)}, {}, self.parts)
        with writing(path, InputError):
            path.mkdir(exist_ok=True)
        return run

    def save(self) -> None:
        """Write what it says of itself, atomically."""
        features = self.features
        if self.feature_path != self.path:
            features = {"from": features["from"]}
        about = {"format": FORMAT, "version": VERSION, "id": self.id, "features": features, "answer": self.answer}
        with writing(self.path / ABOUT, hint=DISK_HINT):
            write_atomically(self.path / ABOUT, json.dumps(about, indent=1).encode())

    def take_place(self) -> None:
        """Take the place of the run that this one was made to replace, if there is one."""
        if self.path.suffix != NEW:
            return
        place = self.path.with_suffix("")
        old = self.path.with_suffix(".old")
        with writing(place, hint=DISK_HINT):
            if place.exists():
                place.rename(old)
            self.path.rename(place)
            shutil.rmtree(old, ignore_errors=True)
        self.path = self.feature_path = place
        self.parts = [replace(part, path=place / part.path.name) for part in self.parts]

    def write_head(self, tensors: Mapping[str, HostArray], about: Mapping[str, Any]) -> None:
        """Write the class vectors of the answers."""
        with writing(self.path / HEAD, hint=DISK_HINT):
            write_atomically(self.path / HEAD, snapshot_bytes(tensors, about))

    @property
    def corrections(self) -> dict[str, str]:
        """The right labels that a person has given, by the names of images."""
        path = self.path / CORRECTIONS
        found = _read_json(path) if path.exists() else {}
        if not all(isinstance(label, str) for label in found.values()):
            raise RunError(f"{path} must hold a label for each file; take a correction back with `acclimate correct`.")
        return found

    @corrections.setter
    def corrections(self, labels: Mapping[str, str]) -> None:
        path = self.path / CORRECTIONS
        with writing(path, hint=DISK_HINT):
            if labels:
                write_atomically(path, json.dumps(dict(labels), indent=1).encode())
            else:
                path.unlink(missing_ok=True)


class RunWriter:
    """Appends encoded batches to a run, as its only writer.

    Args:
        run: the run; what another process left unfinished in it is continued.
        images: images of a full part.
        seconds: time between two writes of a part that is not full.

    Raises:
        RunError: from any method, if another process has begun to write to the run.
    """

    def __init__(self, run: Run, images: int = PART_IMAGES, seconds: float = PART_SECONDS) -> None:
        self.run = run
        self.images = images
        self.seconds = seconds
        self._owner = secrets.token_hex(16)
        if run.has_later_parts():
            raise RunError(
                f"{run.path / part_name(len(run.parts))} is missing, and parts after it are there; put it back, or "
                "remove these, and pass --resume."
            )
        with writing(run.path, hint=DISK_HINT):
            write_atomically(run.path / OWNER, self._owner.encode())
            remove_leftovers(run.path)
        self._number = len(run.parts)
        self._batches: list[Batch] = []
        self._written = 0  # batches of the open part that are on disk
        if run.parts and not self._is_full(run.parts[-1]):
            self._number -= 1
            self._batches = list(run.parts[-1].batches())
            self._written = len(self._batches)
        self._begun = self._saved = monotonic()

    def append(self, batch: Batch) -> None:
        """Append a batch; it is on disk when the part is full, or some seconds later."""
        self.check_owner()
        self._batches.append(batch._replace(features=np.asarray(to_host(batch.features), np.float32)))
        images = sum(len(each.names) for each in self._batches)
        size = sum(each.features.nbytes for each in self._batches)
        full = images >= self.images or size >= PART_BYTES
        if full or monotonic() - self._saved >= self.seconds:
            self.flush()
        if full:
            self._number += 1
            self._batches = []
            self._written = 0

    def flush(self) -> None:
        """Write the open part, if it has new batches."""
        self._saved = monotonic()
        if len(self._batches) == self._written:
            return
        path = self.run.path / part_name(self._number)
        with writing(path, hint=DISK_HINT):
            write_atomically(path, part_bytes(self.run.id, self._batches))
        self._written = len(self._batches)
        self.run.parts[self._number :] = [Part.read(path, self.run.id)]

    def close(self, complete: bool) -> None:
        """Write what is not written yet, and say whether all images of the source were encoded."""
        self.flush()
        self.check_owner()
        self.run.features |= {"complete": complete, "images": self.run.images}
        self.run.features["seconds"] = round(self.run.features.get("seconds", 0.0) + monotonic() - self._begun, 3)
        self.run.save()
        with writing(self.run.path, hint=DISK_HINT):
            (self.run.path / OWNER).unlink(missing_ok=True)

    def check_owner(self) -> None:
        """Stop if another process has begun to write to the run."""
        try:
            found = (self.run.path / OWNER).read_text()
        except OSError:
            found = ""
        if found != self._owner:
            raise RunError(
                f"another process writes, or has written, to {self.run.path}, or it was removed; this one stops. Wait "
                "for the other one, or choose another --out."
            )

    def _is_full(self, part: Part) -> bool:
        return len(part.names) >= self.images or 4 * math.prod(part.shape) >= PART_BYTES


def is_run(path: str | os.PathLike[str]) -> bool:
    """Return True if a folder holds a run."""
    try:
        return (Path(path) / ABOUT).is_file() and f'"{FORMAT}"' in read_start(Path(path) / ABOUT)
    except (OSError, ValueError):  # ValueError: a path with a null byte
        return False


def read_start(path: Path, length: int = 100) -> str:
    """Return the first characters of a file."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(length)


def run_path(results: Path) -> Path:
    """Return the folder of the run of a table of results.

    Examples:
        >>> run_path(Path("photos/answers.csv")).as_posix()
        'photos/answers.run'
    """
    return results.with_suffix(SUFFIX)


def check_kinds(values: Mapping[str, Any], kinds: Mapping[str, Any], where: Path) -> None:
    """Refuse values that are not of their kind, a type or a list of one; None stands for no value."""
    for name, kind in kinds.items():
        value = values.get(name)
        if isinstance(kind, list):
            fits = isinstance(value, list) and all(type(each) is kind[0] for each in value)
        else:
            fits = type(value) is kind or (kind is float and type(value) is int)
        if value is not None and not fits:
            raise RunError(f"{where} says that {name} is {value!r:.80}; use another copy of the run.")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return {**json.loads(read_regular(path, MAX_ABOUT))}
    except FileNotFoundError:
        raise RunError(f"{path.parent} is not a run: it has no {path.name}.") from None
    except OSError as error:
        raise RunError(f"{path} cannot be read: {reason(error)}.") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise RunError(f"{path} is damaged ({error}); use another copy of the run.") from error


@contextmanager
def _part_errors(path: Path) -> Iterator[None]:
    """Turn what is wrong with a part into a sentence that says what to do."""
    how = "put another copy of the file there, or remove it with the parts after it, and pass --resume"
    try:
        yield
    except OSError as error:
        raise RunError(f"{path} cannot be read: {reason(error)}; {how}.") from error
    except (StateError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{str(error).rstrip('.')}; {how}.") from error


def _checked(about: Mapping[str, Any], shape: tuple[int, ...], run_id: str) -> dict[str, Any]:
    """Return what a part says of its images, if that can be."""
    if about["run"] != run_id:
        raise StateError("it is a part of another run")
    texts: dict[str, Any] = {name: about[name] for name in ("names", "errors", "truths", "taken")}
    lengths = about["lengths"]
    start = about["start"]
    whole = all(type(each) is int and each > 0 for each in lengths) and type(start) is int and start >= 0
    if not whole or len(shape) not in (2, 3) or 0 in shape[1:]:
        raise ValueError("its batches are not whole")
    for name, values in texts.items():
        kinds = (str,) if name == "names" else (str, type(None))
        if len(values) != sum(lengths) or not all(isinstance(each, kinds) for each in values):
            raise ValueError(f"its {name} are not those of its images")
    if texts["errors"].count(None) != shape[0]:
        raise ValueError(f"it has {shape[0]} features of {texts['errors'].count(None)} images")
    return {"start": start, "lengths": tuple(lengths), **texts}
