"""The learnt state of a stream, in memory and on disk: numbered snapshots, each with a journal of what came after it.

The state of a stream is its newest snapshot plus that snapshot's journal. A snapshot that *continues* (one that was not
taken because of a reset, say) equals the snapshot before it plus that one's journal, so if it is damaged, nothing is
lost: the older files lead to the same state.
"""

from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, time
from typing import Any

import numpy as np

from acclimate.arrays import HostArray
from acclimate.errors import StateError, reason
from acclimate.evidence import Evidence
from acclimate.methods import Adapter, Step
from acclimate.methods.cache import Cache
from acclimate.serve.guard import FairSlots
from acclimate.serve.http_errors import NotFoundError, StorageError
from acclimate.serve.journal import ABOUT_BYTES, Journal, read_journal, read_mark
from acclimate.serve.snapshots import JOURNAL, SNAPSHOT, Snapshots, features_of, learnt_of, thumbnails_of


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
        files: the snapshots and journals.
        adapter: the learnt state.
        senders: the client that sent each entry, by cache and id.
        taught: number of samples per client: its cache entries, or for methods without entries its samples.
        corrected: ids of the corrections.
        thumbnails: small JPEG files of cache entries and corrections, by id.
        samples: number of samples learnt and corrections made since the last snapshot.
        next_id: the id of the next sample.
        replayed: number of them that were read from journals at the start.
        problem: the damage found when the files were read, and its consequences; None if there is none.

    Raises:
        StateError: there are no files that can be used.
    """

    adapter: Adapter
    senders: dict[str, dict[int, str]]
    taught: Counter[str]
    corrected: set[int]
    thumbnails: dict[int, bytes]

    def __init__(self, folder: Path, keep: int, adapter: Adapter | None = None, text: Any = None) -> None:
        self.files = Snapshots(folder, keep, text)
        self.samples = self.replayed = 0
        self.problem: str | None = None
        self._journal: Journal | None = None
        self._taken = monotonic()
        if adapter is None:
            self._recover()
        else:
            self.replace(adapter, {}, "created")

    def learn(
        self,
        evidence: Evidence,
        features: HostArray,
        learnt: HostArray,
        client: str,
        thumbnails: tuple[bytes, ...] = (),
        age: int | None = None,
    ) -> tuple[Step, HostArray]:
        """Write samples to the journal, then learn from those that may be learnt from (n,).

        Returns the step, and the ids (n,) of the samples, -1 for those not learnt from.

        `evidence` belongs to the features: (n, d), or (n, V, d) for V views per sample, float32. Thumbnails are n small
        JPEG files, or none. Samples that are not learnt from are written as well, as the same batch gives the same
        rounding; if there are only such, nothing is written. With an `age`, clients share the slots of caches: see
        `FairSlots`.
        """
        record: dict[str, Any] = {"first_id": self.next_id, "shape": features.shape, "time": time()}
        if client:
            record["client"] = client
        if age is not None and self.senders and any(n for name, n in self.taught.items() if name not in ("", client)):
            record["age"] = age
        if thumbnails:
            record["thumbnails"] = [len(each) for each in thumbnails]
        if not learnt.all():
            record["learnt"] = learnt.tolist()
        if not learnt.any():
            return self.adapter.adapt(evidence, learn=False), np.full(len(features), -1)
        body = features.tobytes() + b"".join(thumbnails)
        with self._written(record, body):
            step = self._learn(evidence, record, body)
        return step, np.where(learnt, _ids(record, learnt), -1)

    def correct(self, label: str, sample_id: int | None, features: HostArray, thumbnail: bytes = b"") -> int:
        """Give a sample its right label; returns the correction's id once it is on disk.

        The features are (1, d), or (1, V, d) for V views, float32. Without an id, one is made from the features.
        """
        record = {"correct": sample_id, "label": label, "shape": features.shape, "thumbnails": [len(thumbnail)]}
        return self._change(record, features.tobytes() + thumbnail)

    def undo(self, sample_id: int) -> None:
        """Undo the correction of a sample; on disk on return."""
        self._change({"undo": sample_id})

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
        """Load a snapshot's number, adapter and notes, by default the last one that differs from the current state."""
        if number is None:
            number = self.files.last(different=not self.samples)
        if number not in self.files.about:
            raise NotFoundError(f"there is no snapshot {number}; see the list of snapshots.")
        return number, *self.files.load(number)

    def entries(self) -> dict[str, int]:
        """Return the number of entries in each cache; may be called from any thread."""
        return {name: part.size for name, part in self.adapter.parts.items() if isinstance(part, Cache)}

    def notes(self) -> dict[str, Any]:
        """Return the clients of the samples and the thumbnails, to be stored with the adapter."""
        known = [self._aside, *self.senders.values()]
        clients = {str(i): client for senders in known for i, client in senders.items() if client}
        thumbnails = {str(i): b64encode(content).decode() for i, content in self.thumbnails.items()}
        taught = {} if self.senders else self.taught
        return {"clients": clients, "thumbnails": thumbnails, "taught": taught, "next_id": self.next_id}

    def sync(self) -> None:
        """Force the journal to the disk; may be called from any thread."""
        journal = self._journal
        if journal is not None:
            journal.sync()

    def snapshot_due(self, after_s: float) -> bool:
        """Sync the journal; return True if it cannot be written or the last snapshot is old. For any thread."""
        try:
            self.sync()
        except OSError:
            return True
        if self._journal is None or self._journal.failed:
            return True
        return self.samples > 0 and monotonic() - self._taken > after_s

    def _set(self, adapter: Adapter, notes: Mapping[str, Any]) -> None:
        clients = notes.get("clients", {})
        thumbnails = notes.get("thumbnails", {})
        ids = {cache: [entry.id for entry in entries] for cache, entries in adapter.entries().items()}
        self.adapter = adapter
        self.senders = {cache: {i: clients.get(str(i), "") for i in each} for cache, each in ids.items()}
        self.taught = Counter(client for senders in self.senders.values() for client in senders.values())
        if not self.senders:
            self.taught.update(notes.get("taught", {}))
            self.taught[""] += adapter.samples_seen - self.taught.total()  # samples of an uploaded state
        # Entries that a correction contradicts are kept apart and restored if it is undone.
        listed = {int(i) for cache in ids for i in adapter.parts[cache].dump()["ids"]}
        self._aside = {i: clients[str(i)] for i in listed.difference(*ids.values()) if str(i) in clients}
        self.corrected = {each.id for each in adapter.corrections}
        kept = listed | self.corrected
        self.thumbnails = {i: b64decode(thumbnails[str(i)]) for i in kept if str(i) in thumbnails}
        self.next_id = max(adapter.next_id, notes.get("next_id", 0))

    def _change(self, record: Mapping[str, Any], body: bytes = b"") -> int:
        """Write a correction or its undoing to the disk, then carry it out; returns the correction's id."""
        with self._written(record, body):
            try:
                self.sync()
            except OSError as error:
                raise StorageError(f"the correction could not be written: {reason(error)}.") from error
            return self._correct(record, body)

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

    def _correct(self, record: Mapping[str, Any], body: bytes) -> int:
        """Carry out the correction, or the undoing of one, in a journal record; returns the correction's id."""
        adapter = self.adapter
        notes = self.notes()
        if "undo" in record:
            correction = int(record["undo"])
            adapter.corrections.undo([correction])
        else:
            label = adapter.head.class_names.index(record["label"])
            ids = None if record["correct"] is None else [record["correct"]]
            (correction,) = adapter.corrections.correct(features_of(record, body), [label], ids)
            (picture,) = thumbnails_of(record, body)
            if picture:
                notes["thumbnails"][str(correction)] = b64encode(picture).decode()
        self._set(adapter, notes)
        self.samples += 1
        return correction

    def _learn(self, evidence: Evidence, record: Mapping[str, Any], body: bytes) -> Step:
        """Learn from the samples of a journal record."""
        adapter = self.adapter
        learnt = learnt_of(record)
        client = record.get("client", "")
        ids = _ids(record, learnt)
        caches = {name: part for name, part in adapter.parts.items() if isinstance(part, Cache)}
        try:
            for name, cache in caches.items() if "age" in record else ():
                cache.eviction_rule = FairSlots(self.senders[name], client, record["age"])
            step = adapter.adapt(evidence, ids, learnt)
        finally:
            for cache in caches.values():
                cache.eviction_rule = None
        self.next_id = int(record["first_id"] + learnt.sum())
        self.samples += int(learnt.sum())
        pictures = thumbnails_of(record, body)
        for name, change in step.changes.items():
            for position in change.admitted:
                self.senders[name][int(ids[position])] = client
                if pictures[position]:
                    self.thumbnails[int(ids[position])] = pictures[position]
        admitted = sum(len(change.admitted) for change in step.changes.values())
        self.taught[client] += admitted if self.senders else int(learnt.sum())
        for name, change in step.changes.items():
            for entry_id in change.dropped:
                self._forget(name, entry_id)
        return step

    def _forget(self, cache: str, entry_id: int) -> None:
        sender = self.senders[cache].pop(entry_id, None)
        if sender is None:  # entries of merged states may share an id
            return
        self.taught[sender] -= 1
        if not any(entry_id in senders for senders in self.senders.values()) and entry_id not in self.corrected:
            self.thumbnails.pop(entry_id, None)

    def _recover(self) -> None:
        """Read the newest state there is."""
        numbers = sorted(self.files.numbers(SNAPSHOT))
        problems = []
        for start in reversed(numbers):
            try:
                self._set(*self.files.load(start))
                break
            except StateError as error:
                problems.append(str(error))
        else:
            raise StateError(" ".join(problems) or "its folder has no snapshot.")
        for number in numbers[: numbers.index(start) + 1]:
            if about := read_journal(self.files.path(number, JOURNAL), ABOUT_BYTES).about:
                self.files.about[number] = about
        self.samples = 0
        size = self._replay(start, problems)
        self.replayed = self.samples
        if size is not None:
            self._journal = Journal(self.files.path(start, JOURNAL), size)
        else:  # continue under a new number; the damaged files stay as they are
            try:
                self._write(self.adapter, self.notes(), "recovered", continues=False)
            except StateError as error:
                problems.append(str(error))
        if problems:
            self.problem = f"{'; '.join(problems)}. Serving what could be read."

    def _replay(self, start: int, problems: list[str]) -> int | None:
        """Learn again what came after a snapshot; return the size of its journal if it can be continued, else None."""
        snapshots = self.files.numbers(SNAPSHOT)
        journals = self.files.numbers(JOURNAL)
        last = start
        size = 0
        marked, synced = read_mark(self.files.folder)
        if marked > max([*snapshots, *journals]):
            problems.append(f"snapshot {marked} and its journal are missing; what was learnt after that is lost")
            return None
        for number in range(start, max([*snapshots, *journals]) + 1):
            path = self.files.path(number, JOURNAL)
            contents = read_journal(path)
            if number not in snapshots and not contents.records:
                continue  # a snapshot was about to be taken
            if number > start and not contents.about.get("continues"):
                problems.append(f"snapshot {number} cannot be read, and what was learnt after it depends on it")
                return None
            for record, body in contents.records:
                if "frozen" in record:
                    self.adapter.frozen = record["frozen"]
                elif "first_id" in record:
                    self._learn(self.adapter.head.observe(features_of(record, body)), record, body)
                else:
                    self._correct(record, body)
            if contents.damage is None and number == marked and contents.size < synced:
                contents.damage = f"{path.name} ends at byte {contents.size}, and had {synced}"
            if contents.damage is not None:
                problems.append(f"{contents.damage}; what was learnt after that is lost")
                return None
            last = number
            size = contents.size
        return size if last == start else None

    def _write(self, adapter: Adapter, notes: Mapping[str, Any], reason: str, *, continues: bool, **about: Any) -> int:
        """Write a snapshot and start its journal; returns its number."""
        continues = continues and self._journal is not None
        number, journal = self.files.write(adapter, notes, reason, continues=continues, **about)
        with suppress(OSError):  # the new snapshot contains what the old journal does
            self.sync()
        journal.mark()
        self._journal = journal
        self.samples = 0
        self._taken = monotonic()
        self.files.remove_oldest()
        return number


def _ids(record: Mapping[str, Any], learnt: HostArray) -> HostArray:
    """Return the ids (n,) of the samples in a record; those that are not learnt from (n,) have the id of the next."""
    ids: HostArray = record["first_id"] + np.cumsum(learnt) - learnt
    return ids
