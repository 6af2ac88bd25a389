"""What a stream has learnt, in memory and on disk: numbered snapshots, each with a journal of what was learnt after it.

The state of a stream is its newest snapshot plus that snapshot's journal. A snapshot that *continues* (one that was not
taken because of a reset, say) equals the snapshot before it plus that one's journal, so if it is damaged, nothing is
lost: the older files lead to the same state. Files are never overwritten: every snapshot gets a new number, and the
oldest are removed when there are too many.
"""

import os
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import accumulate, chain, pairwise
from pathlib import Path
from time import monotonic, time
from typing import Any

import numpy as np

from acclimate.arrays import HostArray
from acclimate.errors import InputError, StateError, reason
from acclimate.evidence import Evidence
from acclimate.files import write_atomically, writing
from acclimate.methods import Adapter, Step, load_with_notes, state_to_bytes
from acclimate.predict import Adapted
from acclimate.serve.errors import NotFoundError, StorageError
from acclimate.serve.journal import ABOUT_BYTES, Journal, read_journal

SNAPSHOT, JOURNAL = ".safetensors", ".journal"


class History:
    """The adapter of a stream and the files in its folder; used by one thread at a time, with few exceptions.

    Memory always equals the files: a sample is written to the journal before it is learnt, and a change takes effect
    only once its snapshot is written. Otherwise a StorageError is raised, and everything stays as it was.

    Args:
        folder: the stream's folder.
        keep: number of snapshots to keep.
        adapter: starts a new history; when not given, the state is recovered from the files.
        text: the encoder, for methods that need its text tower.

    Attributes:
        adapter: what was learnt.
        senders: for each cache, the client that sent each entry, by id.
        taught: what each client has taught: its cache entries, or for methods without entries its samples.
        thumbnails: small JPEG files of cache entries, by id.
        samples: number of samples learnt and corrections made since the last snapshot.
        next_id: the id of the next sample.
        replayed: how many of them were read from journals at the start.
        problem: what was damaged when the files were read, and what was done about it; None if nothing.

    Raises:
        StateError: there are no files that can be used.
    """

    adapter: Adapter
    senders: dict[str, dict[int, str]]
    taught: Counter[str]
    thumbnails: dict[int, bytes]

    def __init__(self, folder: Path, keep: int, adapter: Adapter | None = None, text: Any = None) -> None:
        self.folder, self._keep, self._text = folder, keep, text
        self.samples = self.replayed = 0
        self.problem: str | None = None
        self._journal: Journal | None = None
        self._taken = monotonic()
        self._about: dict[int, dict[str, Any]] = {}  # per snapshot: reason, time, samples_seen
        if adapter is None:
            self._recover()
        else:
            self.replace(adapter, {}, "created")

    def learn(
        self, evidence: Evidence, features: HostArray, client: str, thumbnails: tuple[bytes, ...] = ()
    ) -> Adapted:
        """Write samples to the journal, then learn from them.

        `evidence` belongs to the features: (n, d), or (n, V, d) for V views per sample, float32. Thumbnails are n small
        JPEG files, or none.
        """
        record: dict[str, Any] = {"first_id": self.next_id, "shape": features.shape}
        if client:
            record["client"] = client
        if thumbnails:
            record["thumbnails"] = [len(each) for each in thumbnails]
        body = features.tobytes() + b"".join(thumbnails)
        with self._written(record, body):
            step = self._learn(evidence, record, body)
        return Adapted(evidence, step, record["first_id"] + np.arange(len(features)))

    def correct(self, label: str, sample_id: int, feature: HostArray, thumbnail: bytes = b"") -> None:
        """Give a sample its right label: its id, its feature (d,) float32 and a small JPEG file; on disk on return."""
        self._change({"correct": sample_id, "label": label, "dim": len(feature)}, feature.tobytes() + thumbnail)

    def undo(self, sample_id: int) -> None:
        """Undo the correction of a sample; on disk on return."""
        self._change({"undo": sample_id})

    def find(self, sample_id: int) -> tuple[HostArray, bytes]:
        """Features and thumbnail (empty if there is none) of a sample that was learnt and is still in a journal.

        The features are (1, d), or (1, V, d) for V views. Only journals that lead to the current state are read.
        """
        numbers = sorted(self._about)
        about: dict[str, Any] = {"continues": True}
        while numbers and (about.get("continues") or about.get("reason") in ("labels", "recovered")):
            number = numbers.pop()
            for record, body in reversed(read_journal(self._path(number, JOURNAL)).records):
                place = sample_id - record.get("first_id", sample_id + 1)
                if 0 <= place < record.get("shape", [0])[0]:
                    return _features(record, body)[place : place + 1], _thumbnails(record, body)[place]
            about = self._about[number]
            while "of" in about:  # a rollback: what came after that snapshot does not count any more
                numbers = [each for each in numbers if each < about["of"]]
                about = self._about.get(about["of"], {})
        raise NotFoundError(
            f"the image {sample_id} was not learnt by this stream, or that was too long ago; send the image itself."
        )

    def set_frozen(self, frozen: bool) -> None:
        """Stop learning, or resume it."""
        if self.adapter.frozen != frozen:
            self._append({"frozen": frozen})
            self.adapter.frozen = frozen

    def snapshot(self, reason: str) -> int:
        """Write a snapshot of the current state; returns its number."""
        return self._write(self.adapter, self.notes(), reason, continues=True)

    def replace(self, adapter: Adapter, notes: Mapping[str, Any], reason: str, **about: Any) -> None:
        """Continue with another adapter and its `notes`; the current state is kept as a snapshot.

        `reason` and `about` are stored with the snapshots.
        """
        if self.samples:
            self.snapshot(f"before {reason}")
        self._write(adapter, notes, reason, continues=False, **about)
        self._set(adapter, notes)

    def load(self, number: int | None = None) -> tuple[int, Adapter, dict[str, Any]]:
        """Number, adapter and notes of a snapshot, by default the last one that differs from the current state."""
        if number is None:
            number = self._last_different()
        if number not in self._about:
            raise NotFoundError(f"there is no snapshot {number}; see the list of snapshots.")
        return number, *self._load(number)

    def snapshots(self) -> list[dict[str, Any]]:
        """The snapshots, oldest first: id, time, reason, samples_seen."""
        return [{"id": number, **about} for number, about in sorted(self._about.items())]

    def entries(self) -> dict[str, int]:
        """Number of entries in each cache; may be called from any thread."""
        return {cache: len(senders) for cache, senders in self.senders.items()}

    def notes(self) -> dict[str, Any]:
        """Who taught what, and the thumbnails; to be stored with the adapter."""
        clients = {str(i): client for senders in self.senders.values() for i, client in senders.items() if client}
        thumbnails = {str(i): b64encode(content).decode() for i, content in self.thumbnails.items()}
        return {"clients": clients, "thumbnails": thumbnails, "taught": {} if self.senders else self.taught}

    def sync(self) -> None:
        """Force the journal to the disk; may be called from any thread."""
        journal = self._journal
        if journal is not None:
            journal.sync()

    def snapshot_due(self, after_s: float) -> bool:
        """Sync the journal; whether that fails, it cannot be written, or the last snapshot is old. For any thread."""
        try:
            self.sync()
        except OSError:
            return True
        if self._journal is None or self._journal.failed:
            return True
        return self.samples > 0 and monotonic() - self._taken > after_s

    def _set(self, adapter: Adapter, notes: Mapping[str, Any]) -> None:
        clients, thumbnails = notes.get("clients", {}), notes.get("thumbnails", {})
        ids = {cache: [entry.id for entry in entries] for cache, entries in adapter.entries().items()}
        self.adapter = adapter
        self.senders = {cache: {i: clients.get(str(i), "") for i in each} for cache, each in ids.items()}
        self.taught = Counter(client for senders in self.senders.values() for client in senders.values())
        if not self.senders:
            self.taught.update(notes.get("taught", {}))
            self.taught[""] += adapter.samples_seen - self.taught.total()  # samples of an uploaded state
        self._corrected = {each.id for each in adapter.corrections}
        pictured = [i for i in chain(self._corrected, *ids.values()) if str(i) in thumbnails]
        self.thumbnails = {i: b64decode(thumbnails[str(i)]) for i in pictured}
        self.next_id = max([adapter.next_id, *(i + 1 for i in self._corrected)])

    def _change(self, record: Mapping[str, Any], body: bytes = b"") -> None:
        """Write a correction or its undoing to the disk, then carry it out."""
        with self._written(record, body):
            try:
                self.sync()
            except OSError as error:
                raise StorageError(f"the correction could not be written: {reason(error)}.") from error
            self._correct(record, body)

    @contextmanager
    def _written(self, record: Mapping[str, Any], body: bytes) -> Iterator[None]:
        """Write a record for what is done in the context; if that fails, it is as if there had been neither."""
        size = self._append(record, body)
        try:
            yield
        except BaseException:
            assert self._journal is not None
            self._journal.cut(size)
            self._recover()  # some of it may have been done
            raise

    def _append(self, record: Mapping[str, Any], body: bytes = b"") -> int:
        if self._journal is None:
            raise StorageError("the stream's state could not be written; free some disk space.")
        return self._journal.append(record, body)

    def _correct(self, record: Mapping[str, Any], body: bytes) -> None:
        """Carry out the correction, or the undoing of one, in a journal record."""
        adapter = self.adapter
        if "undo" in record:
            adapter.undo([record["undo"]])
            self._corrected.discard(record["undo"])
            self._drop_thumbnail(record["undo"])
        else:
            sample_id, size = record["correct"], 4 * record["dim"]
            feature = np.frombuffer(body[:size], np.float32)
            adapter.correct(feature[None], [adapter.head.class_names.index(record["label"])], [sample_id])
            self._corrected.add(sample_id)
            self.next_id = max(self.next_id, sample_id + 1)
            if len(body) > size:
                self.thumbnails[sample_id] = body[size:]
        self.samples += 1
        for cache, entries in adapter.entries().items():
            for gone in set(self.senders[cache]).difference(entry.id for entry in entries):
                self._forget(cache, gone)

    def _learn(self, evidence: Evidence, record: Mapping[str, Any], body: bytes) -> Step:
        """Learn from the samples of a journal record."""
        first, count, client = record["first_id"], record["shape"][0], record.get("client", "")
        step = self.adapter.adapt(evidence, first + np.arange(count))
        self.next_id = first + count
        self.samples += count
        pictures = _thumbnails(record, body)
        for cache, change in step.changes.items():
            for position in change.admitted:
                self.senders[cache][first + position] = client
                if pictures[position]:
                    self.thumbnails[first + position] = pictures[position]
        self.taught[client] += sum(len(change.admitted) for change in step.changes.values()) if self.senders else count
        for cache, change in step.changes.items():
            for entry_id in change.dropped:
                self._forget(cache, entry_id)
        return step

    def _forget(self, cache: str, entry_id: int) -> None:
        sender = self.senders[cache].pop(entry_id, None)
        if sender is None:  # entries of merged states may share an id
            return
        self.taught[sender] -= 1
        self._drop_thumbnail(entry_id)

    def _drop_thumbnail(self, sample_id: int) -> None:
        """Remove the thumbnail of a sample that is neither an entry nor a correction any more."""
        if not any(sample_id in ids for ids in (self._corrected, *self.senders.values())):
            self.thumbnails.pop(sample_id, None)

    def _recover(self) -> None:
        """Read the newest state there is."""
        numbers, problems = sorted(self._numbers(SNAPSHOT)), []
        for start in reversed(numbers):
            try:
                self._set(*self._load(start))
                break
            except StateError as error:
                problems.append(str(error))
        else:
            raise StateError(" ".join(problems) or "its folder has no snapshot.")
        for number in numbers[: numbers.index(start) + 1]:
            if about := read_journal(self._path(number, JOURNAL), ABOUT_BYTES).about:
                self._about[number] = about
        self.samples = 0
        size = self._replay(start, problems)
        self.replayed = self.samples
        if size is not None:
            self._journal = Journal(self._path(start, JOURNAL), size)
        else:  # continue under a new number; the damaged files stay as they are
            try:
                self._write(self.adapter, self.notes(), "recovered", continues=False)
            except StorageError as error:
                problems.append(str(error))
        if problems:
            self.problem = f"{'; '.join(problems)}. Serving what could be read."

    def _replay(self, start: int, problems: list[str]) -> int | None:
        """Learn again what came after a snapshot; the size of its journal if it can be continued, else None."""
        snapshots, journals = self._numbers(SNAPSHOT), self._numbers(JOURNAL)
        last, size = start, 0
        for number in range(start, max([*snapshots, *journals]) + 1):
            contents = read_journal(self._path(number, JOURNAL))
            if number not in snapshots and not contents.records:
                continue  # a snapshot was about to be taken
            if number > start and not contents.about.get("continues"):
                problems.append(f"snapshot {number} cannot be read, and what was learnt after it depends on it")
                return None
            for record, body in contents.records:
                if "frozen" in record:
                    self.adapter.frozen = record["frozen"]
                elif "shape" in record:
                    self._learn(self.adapter.head.observe(_features(record, body)), record, body)
                else:
                    self._correct(record, body)
            if contents.damage is not None:
                problems.append(f"{contents.damage}; what was learnt after that is lost")
                return None
            last, size = number, contents.size
        return size if last == start else None

    def _last_different(self) -> int:
        numbers = sorted(self._about)
        if numbers and not self.samples:
            current = self._about[numbers[-1]].get("of", numbers[-1])  # where the last rollback went back to
            numbers = [number for number in numbers if number < current]
        if not numbers:
            raise InputError("there is no older snapshot to go back to.")
        return numbers[-1]

    def _write(self, adapter: Adapter, notes: Mapping[str, Any], reason: str, *, continues: bool, **about: Any) -> int:
        """Write a snapshot and start its journal; returns its number.

        `continues` says whether it equals the snapshot before it plus that one's journal. If it cannot be written, a
        StorageError is raised and the state on disk is unchanged.
        """
        number = max([0, *self._numbers(SNAPSHOT), *self._numbers(JOURNAL)]) + 1
        about |= {"reason": reason, "time": time(), "samples_seen": adapter.samples_seen}
        about["continues"] = continues and self._journal is not None
        content = state_to_bytes(adapter, notes)
        snapshot, path = self._path(number, SNAPSHOT), self._path(number, JOURNAL)
        with writing(path.name, StorageError):  # the journal first: a snapshot without one would hide an older journal
            journal = Journal.create(path, about)
        try:
            with writing(snapshot.name, StorageError):
                write_atomically(snapshot, content)
        except StorageError:
            with suppress(OSError):
                path.unlink()
            raise
        with suppress(OSError):  # the new snapshot contains what the old journal does
            self.sync()
        self._journal, self.samples, self._taken = journal, 0, monotonic()
        self._about[number] = about
        self._remove_oldest()
        return number

    def _remove_oldest(self) -> None:
        oldest = sorted(self._about)[-self._keep :][0]
        for ending in (SNAPSHOT, JOURNAL):
            for number in self._numbers(ending):
                if number < oldest:
                    self._about.pop(number, None)
                    with suppress(OSError):
                        self._path(number, ending).unlink()

    def _load(self, number: int) -> tuple[Adapter, dict[str, Any]]:
        try:
            return load_with_notes(self._path(number, SNAPSHOT), text=self._text)
        except StateError as error:  # clients need not know the folder
            raise StateError(str(error).replace(f"{self.folder}{os.sep}", "")) from error

    def _numbers(self, ending: str) -> list[int]:
        return [int(path.stem) for path in self.folder.glob(f"*{ending}") if path.stem.isdecimal()]

    def _path(self, number: int, ending: str) -> Path:
        return self.folder / f"{number:08}{ending}"


def _features(record: Mapping[str, Any], body: bytes) -> HostArray:
    """The features (n, d) or (n, V, d) in a journal record."""
    shape = record["shape"]
    features: HostArray = np.frombuffer(body, np.float32, np.prod(shape)).reshape(shape)
    return features


def _thumbnails(record: Mapping[str, Any], body: bytes) -> list[bytes]:
    """The thumbnails of the n samples in a journal record, which follow their features; empty where there are none."""
    lengths = record.get("thumbnails") or [0] * record["shape"][0]
    return [body[begin:end] for begin, end in pairwise(accumulate(lengths, initial=len(body) - sum(lengths)))]
