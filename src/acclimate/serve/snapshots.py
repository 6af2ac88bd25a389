"""The files of a stream: numbered snapshots, each with a journal of what was learnt after it.

Files are never overwritten: every snapshot gets a new number, and the oldest are removed when there are too many.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import accumulate, pairwise
from pathlib import Path
from time import time
from typing import Any

import numpy as np

from acclimate.arrays import HostArray
from acclimate.errors import InputError, StateError
from acclimate.files import write_atomically, writing
from acclimate.methods import Adapter, load_with_notes, state_to_bytes
from acclimate.serve.http_errors import NotFoundError, StorageError
from acclimate.serve.journal import Journal, read_journal

SNAPSHOT = ".safetensors"
JOURNAL = ".journal"
Record = tuple[dict[str, Any], bytes]  # head and body


class Snapshots:
    """The snapshots and journals in a stream's folder, of which the newest `keep` are kept.

    Attributes:
        about: description of each usable snapshot: reason, time, samples_seen, and whether it continues the one before.
    """

    def __init__(self, folder: Path, keep: int, text: Any = None) -> None:
        self.folder = folder
        self._keep = keep
        self._text = text
        self.about: dict[int, dict[str, Any]] = {}

    def listed(self) -> list[dict[str, Any]]:
        """Return the snapshots, oldest first: id, time, reason, samples_seen."""
        return [{"id": number, **about} for number, about in sorted(self.about.items())]

    def load(self, number: int) -> tuple[Adapter, dict[str, Any]]:
        """Load the adapter and the notes of a snapshot."""
        try:
            return load_with_notes(self.path(number, SNAPSHOT), text=self._text)
        except StateError as error:  # clients need not know the folder
            raise StateError(str(error).replace(f"{self.folder}{os.sep}", "")) from error

    def last(self, *, different: bool) -> int:
        """Return the number of the newest snapshot, or of the one before it that is `different` from it."""
        numbers = sorted(self.about)
        if numbers and different:
            current = self.about[numbers[-1]].get("of", numbers[-1])  # where the last rollback went back to
            numbers = [number for number in numbers if number < current]
        if not numbers:
            raise InputError("there is no older snapshot to go back to.")
        return numbers[-1]

    def write(
        self, adapter: Adapter, notes: Mapping[str, Any], reason: str, *, continues: bool, **about: Any
    ) -> tuple[int, Journal]:
        """Write a snapshot and start its journal.

        `continues` says whether it equals the snapshot before it plus that one's journal. If it cannot be written, a
        StorageError is raised and the state on disk is unchanged.
        """
        number = max([0, *self.numbers(SNAPSHOT), *self.numbers(JOURNAL)]) + 1
        about |= {"reason": reason, "time": time(), "samples_seen": adapter.samples_seen, "continues": continues}
        content = state_to_bytes(adapter, notes)
        snapshot = self.path(number, SNAPSHOT)
        path = self.path(number, JOURNAL)
        with writing(path.name, StorageError):  # the journal first: a snapshot without one would hide an older journal
            journal = Journal.create(path, about)
        try:
            with writing(snapshot.name, StorageError):
                write_atomically(snapshot, content)
        except StorageError:
            with suppress(OSError):
                path.unlink()
            raise
        self.about[number] = about
        return number, journal

    def remove_oldest(self) -> None:
        """Remove the files that are too many."""
        oldest = sorted(self.about)[-self._keep :][0]
        for ending in (SNAPSHOT, JOURNAL):
            for number in self.numbers(ending):
                if number < oldest:
                    self.about.pop(number, None)
                    with suppress(OSError):
                        self.path(number, ending).unlink()

    def recent(self) -> Iterator[Record]:
        """Yield the records of the samples that led to the current state, latest first, as far back as files are kept.

        Samples before a reset or an upload are not among them, nor are those that a rollback has undone.
        """
        numbers = sorted(self.about)
        about: dict[str, Any] = {"continues": True}
        while numbers and (about.get("continues") or about.get("reason") in ("labels", "recovered")):
            number = numbers.pop()
            records = read_journal(self.path(number, JOURNAL)).records
            yield from (each for each in reversed(records) if "first_id" in each[0])
            about = self.about[number]
            while "of" in about:  # a rollback: what came after that snapshot does not count any more
                numbers = [each for each in numbers if each < about["of"]]
                about = self.about.get(about["of"], {})

    def taught_within(self, seconds: float) -> list[tuple[str, int, float]]:
        """Return client, number of samples and age in seconds of what was learnt within the last seconds, oldest first.

        Samples that a reset or a rollback has undone are among them.
        """
        found: list[tuple[str, int, float]] = []
        now = time()
        for number in sorted(self.numbers(JOURNAL), reverse=True):
            path = self.path(number, JOURNAL)
            with suppress(OSError):
                if path.stat().st_mtime <= now - seconds:
                    break
            for record, _ in reversed(read_journal(path).records):
                if "first_id" in record and (ago := max(0.0, now - record.get("time", 0.0))) < seconds:
                    found.append((record.get("client", ""), int(learnt_of(record).sum()), ago))
        return found[::-1]

    def find(self, sample_id: int) -> tuple[HostArray, bytes]:
        """Return features (1, d) or (1, V, d), and thumbnail (empty if there is none), of a recent sample."""
        for record, body in self.recent():
            rows = np.flatnonzero(learnt_of(record))
            index = sample_id - record["first_id"]
            if 0 <= index < len(rows):
                row = rows[index]
                return features_of(record, body)[row : row + 1], thumbnails_of(record, body)[row]
        raise NotFoundError(
            f"the image {sample_id} was not learnt by this stream, or that was too long ago; send the image itself."
        )

    def last_features(self, count: int) -> list[HostArray]:
        """Return features (n, d) or (n, V, d) of at least the last `count` samples that were learnt, in their order."""
        found: list[HostArray] = []
        for record, body in self.recent():
            found.append(features_of(record, body)[learnt_of(record)])
            if sum(map(len, found)) >= count:
                break
        return found[::-1]

    def numbers(self, ending: str) -> list[int]:
        """Return the numbers of the files with this ending."""
        return [int(path.stem) for path in self.folder.glob(f"*{ending}") if path.stem.isdecimal()]

    def path(self, number: int, ending: str) -> Path:
        """Return the path of a file."""
        return self.folder / f"{number:08}{ending}"


def features_of(record: Mapping[str, Any], body: bytes) -> HostArray:
    """Return the features (n, d) or (n, V, d) in a record."""
    shape = record["shape"]
    features: HostArray = np.frombuffer(body, np.float32, np.prod(shape)).reshape(shape)
    return features


def thumbnails_of(record: Mapping[str, Any], body: bytes) -> list[bytes]:
    """Return the thumbnails of the n samples in a record, which follow their features; empty where there are none."""
    lengths = record.get("thumbnails") or [0] * record["shape"][0]
    return [body[begin:end] for begin, end in pairwise(accumulate(lengths, initial=len(body) - sum(lengths)))]


def learnt_of(record: Mapping[str, Any]) -> HostArray:
    """Return which of the n samples in a record were learnt from (n,); the others were in the same batch."""
    return np.asarray(record.get("learnt", [True] * record["shape"][0]), bool)
