"""A stream in memory: an adapter that learns, and who taught it; every change is an event in the stream's file."""

import json
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from time import time
from typing import Any

import numpy as np

from acclimate.arrays import HostArray
from acclimate.errors import InputError, StateError, nearest
from acclimate.evidence import Evidence, Head
from acclimate.files import parse_snapshot
from acclimate.methods import Adapter, Step, duplicate, state_from_bytes, state_to_bytes
from acclimate.methods.cache import Cache
from acclimate.methods.gates import Gate, NearDuplicates, Rejector
from acclimate.methods.persist import MAX_ORIGINS, build_adapter
from acclimate.methods.state import LARGEST_ID
from acclimate.predict import Prediction, Predictions, choose_samples, none_scores, refuse_none
from acclimate.serve.batcher import Encoded
from acclimate.serve.guard import FairSlots, Guard
from acclimate.serve.http_errors import NotFoundError
from acclimate.serve.limits import Limits
from acclimate.serve.schemas import StreamSetup
from acclimate.serve.storage import SUFFIX, Event, StreamFile, claim_folder, noticing_damage, summary_of


class Learner:
    """The loaded state of a stream, for one thread at a time; another one must be made once its file is `stale`.

    Args:
        file: the stream's file.
        limits: limits on the stream.
        text: the encoder, for methods that need its text tower.
        guard: the guard of an earlier learner of this stream, which remembers what each client has taught.

    Attributes:
        adapter: the learnt state.
        next_id: the id of the next sample.
        changes: samples learnt and other changes since the newest snapshot.
        clients: the client that sent each sample in a cache, by id; "" for those of an uploaded state.
        taught: samples learnt from each client.
        thumbnails: small JPEG files of samples in caches and of corrections, by id.
    """

    def __init__(self, file: StreamFile, limits: Limits, text: Any = None, guard: Guard | None = None) -> None:
        self._file = file
        self._limits = limits
        self._text = text
        self.setup = StreamSetup(**file.about("stream")["setup"])
        newest = file.snapshot()
        notes = json.loads(newest["notes"])
        self.adapter = adapter = self._adapter(newest)
        self._caches = [part for part in adapter.parts.values() if isinstance(part, Cache)]
        self.clients = dict.fromkeys(self._cached(), "")
        self.clients |= {int(i): client for i, client in notes.get("clients", {}).items()}
        self.thumbnails = {int(i): b64decode(picture) for i, picture in notes.get("thumbnails", {}).items()}
        self.taught = Counter(notes.get("taught", {}))
        self.taught[""] += adapter.samples_seen - self.taught.total()  # samples of an uploaded state
        self.next_id: int = max(adapter.next_id, notes.get("next_id", 0))
        self._snapshot_time = newest["time"]
        self.changes = 0
        for event in file.replay():
            self._apply(event)
        self._rejector: Rejector | None = None
        self._duplicates = NearDuplicates()
        self._remember_features()
        self.guard = guard or self._make_guard()

    @property
    def snapshot_due(self) -> str:
        """The reason for a snapshot that should be taken now; "" for none."""
        if self.changes * self.setup.views >= self._limits.snapshot_samples:
            return "samples"
        return "time" if self.changes and time() - self._snapshot_time > self._limits.snapshot_s else ""

    def classify(
        self,
        encoded: Encoded,
        negatives: HostArray | None = None,
        *,
        learn: bool = True,
        top_k: int = 5,
        unsure: float = 0.0,
        client: str = "",
    ) -> tuple[Predictions, Step]:
        """Answer images, and learn from those that may be learnt from; they are on the disk then."""
        adapter = self.adapter
        evidence = adapter.head.observe(encoded.features)
        gates = self._gates(negatives)
        none = none_scores(adapter, evidence, gates)
        predict = partial(Predictions.of, adapter.head, evidence, top_k=top_k, unsure=unsure, none=none)
        count = len(evidence)
        allowed = count if learn and adapter.counts_samples else 0
        why = ""
        if allowed and self.guard is not None:
            allowed, why = self.guard.allowed(client, count, len(adapter.head))
        learnt, refused = choose_samples(adapter, evidence, np.arange(count) < allowed, gates)
        refused[allowed:] = [why or None] * (count - allowed)
        if not learnt.any():
            step = adapter.adapt(evidence, learn=False)
            return predict(step, refused=refused), step
        event = self._event(encoded, learnt, client)
        with self._file.transaction():
            step = self._apply(event, evidence)
            found = predict(step, ids=np.where(learnt, _ids(event), -1), refused=refused)
            self._file.add(event._replace(answers=[_answer(each, event) for each in found if each.id is not None]))
        if self.guard is not None:
            self.guard.learnt(client, event.samples)
        return found, step

    def correct(self, label: str, sample_id: int | None, client: str = "", encoded: Encoded | None = None) -> int:
        """Correct the label of an image, one that was learnt or one that is given; returns the correction's id."""
        corrections = self.adapter.corrections
        names = self.adapter.head.class_names
        if label not in names:
            raise InputError(f"the stream has no label {label[:80]!r}; {nearest(label, names)}")
        features, picture = self._file.find(sample_id or 0) if encoded is None else _only(encoded)
        known = sample_id in corrections.ids or corrections.knows(self.adapter.head.observe(features))[0]
        if not known and len(corrections) >= self._limits.corrections:
            raise InputError(f"the maximum of {self._limits.corrections} corrections is reached; undo one first.")
        record = {"id": sample_id, "label": label, "shape": features.shape, "thumbnails": [len(picture)]}
        return int(self._change("correction", client, record, features.tobytes() + picture))

    def undo(self, correction: int) -> None:
        """Undo a correction; NotFoundError if there is none with this id."""
        if correction not in self.adapter.corrections.ids:
            raise NotFoundError(f"there is no correction {correction}; see the list of corrections.")
        self._change("undo", "", {"id": correction})

    def set_frozen(self, frozen: bool) -> None:
        """Stop learning and answer from what was learnt so far, or resume learning."""
        if self.adapter.frozen != frozen:
            self._change("frozen", "", {"frozen": frozen})

    def corrections(self) -> list[dict[str, Any]]:
        """Return every correction: id, label, and thumbnail (JPEG bytes, or None)."""
        return [
            {"id": each.id, "label": each.label, "thumbnail": self.thumbnails.get(each.id)}
            for each in self.adapter.corrections
        ]

    def caches(self) -> list[dict[str, Any]]:
        """Return every cache entry: cache, label, entropy, id, client, and thumbnail (JPEG bytes, or None)."""
        names = self.adapter.head.class_names
        return [
            {
                "cache": cache,
                "label": names[entry.class_index],
                "entropy": entry.entropy,
                "id": entry.id,
                "client": self.clients.get(entry.id, ""),
                "thumbnail": self.thumbnails.get(entry.id),
            }
            for cache, entries in self.adapter.entries().items()
            for entry in entries
        ]

    def learnt(self) -> dict[str, Any]:
        """Return what was learnt about each label, as named columns, and how much each client has taught.

        The latter are its cache entries, or for methods without caches its samples.
        """
        columns = {name: values.tolist() for name, values in self.adapter.learnt().items()}
        taught = Counter(each["client"] for each in self.caches()) if self._caches else self.taught
        return {"labels": list(self.adapter.head.class_names), "columns": columns, "clients": dict(+taught)}

    def answers(self, after: int = -1, limit: int = 1000) -> list[Mapping[str, Any]]:
        """Return the answers to samples that led to the current state, as far back as they are kept.

        They have an id above `after`, and id, time, client, label, score, zero_shot and changed.
        """
        return self._file.answers(after, limit)

    def snapshots(self) -> list[dict[str, Any]]:
        """Return the snapshots that `rollback` accepts, oldest first: id, time, reason, samples_seen."""
        return self._file.snapshots()

    def state_bytes(self) -> bytes:
        """Return what was learnt, as the content of a state file; without clients and thumbnails."""
        return state_to_bytes(self.adapter)

    def snapshot(self, reason: str = "requested") -> int:
        """Write a snapshot of the current state; returns its id, or that of the last one if it has this state."""
        if not self.changes:
            return int(self._file.snapshot()["id"])
        with self._file.transaction():
            number = self._add_snapshot(reason)
        self.changes = 0
        self._snapshot_time = time()
        return number

    def rollback(self, snapshot_id: int | None = None) -> int:
        """Go back to a snapshot, including its labels; a frozen stream stays frozen. Returns the snapshot's id.

        By default it is the last snapshot, or if nothing was learnt since then, the one before; repeated calls go
        further and further back. NotFoundError if there is no such snapshot, InputError if there is no older one.
        """
        earlier = snapshot_id is None and not self.changes
        found = self._file.earlier_snapshot() if earlier else self._file.snapshot(snapshot_id)
        self._replace(self._adapter(found), json.loads(found["notes"]), "rollback", found)
        return int(found["id"])

    def reset(self) -> None:
        """Forget everything learnt; the snapshots remain. A stream that was created from a fitted file cannot."""
        if self.adapter.kind == "few-shot":
            raise InputError("this stream answers as it was fitted and learns nothing; there is nothing to reset.")
        adapter = duplicate(self.adapter)
        adapter.reset()
        self._replace(adapter, {}, "reset")

    def continue_from(self, content: bytes) -> None:
        """Continue from the content of a state file; StateError if it does not belong to such a stream."""
        adapter = state_from_bytes(content, like=self.adapter)
        adapter.origin = self._file.path.name.removesuffix(SUFFIX)
        if adapter.next_id > LARGEST_ID // 2 or len({*adapter.seen, adapter.origin}) > MAX_ORIGINS:
            raise StateError("the state leaves no room for more samples, ids or origins; use another.")
        if len(adapter.corrections) > self._limits.corrections:
            raise StateError(f"the state has more than {self._limits.corrections} corrections; use another.")
        self._replace(adapter, {}, "uploaded")

    def new_labels(self, add: Sequence[str], remove: Sequence[str]) -> tuple[str, ...]:
        """Return the labels to add, cleaned; InputError if they cannot be added to those that are left."""
        kept = [label for label in self.adapter.head.class_names if label not in set(remove)]
        new = self._limits.check_labels([*kept, *add], self.setup.templates)[len(kept) :]
        if self.setup.reject and new:
            refuse_none(new)
        return new

    def put_labels(self, add: Sequence[str], remove: Sequence[str], head: Head | None) -> None:
        """Remove labels, then add labels, whose head is given."""
        adapter = duplicate(self.adapter)
        new = self.new_labels(add, remove)  # they may have changed since they were encoded
        if remove:
            adapter.remove_classes(remove)
        if head is not None:
            adapter.add_classes(head.class_vectors, new)
        self._replace(adapter, self._notes(), "labels")

    def _replace(self, adapter: Adapter, notes: Mapping[str, Any], reason: str, copy_of: Any = None) -> None:
        """Continue with another state, which the next learner reads; the current one is kept as a snapshot."""
        adapter.frozen = self.adapter.frozen
        with self._file.transaction():
            if self.changes:
                self._add_snapshot(f"before {reason}")
            self._file.add_snapshot(adapter, notes, reason, copy_of, branches=reason != "labels")
            self._trim()
        self._file.stale = True

    def _add_snapshot(self, reason: str) -> int:
        number = self._file.add_snapshot(self.adapter, self._notes(), reason)
        self._trim()
        return number

    def _trim(self) -> None:
        self._file.trim(self._limits.history, self._limits.snapshot_bytes, self._limits.history_bytes)

    def _adapter(self, snapshot: Any) -> Adapter:
        return build_adapter(*parse_snapshot(snapshot["state"], "it"), "it", text=self._text)[0]

    def _notes(self) -> dict[str, Any]:
        """Return what belongs to the adapter as JSON values, less that of samples which have left the caches."""
        cached = self._cached()
        shown = cached | set(self.adapter.corrections.ids.tolist())
        self.clients = {i: client for i, client in self.clients.items() if i in cached}
        self.thumbnails = {i: picture for i, picture in self.thumbnails.items() if i in shown}
        thumbnails = {i: b64encode(picture).decode() for i, picture in self.thumbnails.items()}
        return {"clients": self.clients, "thumbnails": thumbnails, "taught": self.taught, "next_id": self.next_id}

    def _cached(self) -> set[int]:
        """Return the ids of all samples in the caches, with those that a correction has set apart."""
        return {int(i) for cache in self._caches for i in cache.dump()["ids"]}

    def _change(self, kind: str, client: str, record: dict[str, Any], body: bytes = b"") -> Any:
        """Carry out an event that is not of samples; returns what `_apply` does."""
        event = Event(kind, time(), client, 0, 0, record, (), body)
        with self._file.transaction():
            result = self._apply(event)
            self._file.add(event)
            self._file.set_about("summary", summary_of(self.adapter))
        return result

    def _apply(self, event: Event, evidence: Evidence | None = None) -> Any:
        """Carry out an event; returns the step of samples, or the id of a correction.

        The evidence is that of the samples, if it is known.
        """
        head = self.adapter.head
        if event.kind == "frozen":
            self.adapter.frozen = event.record["frozen"]
            return None
        self.changes += event.samples or 1
        if event.kind == "samples":
            return self._learn(event, head.observe(event.features) if evidence is None else evidence)
        if event.kind == "undo":
            return self.adapter.corrections.undo([event.record["id"]])
        label = head.class_names.index(event.record["label"])
        ids = None if event.record["id"] is None else [event.record["id"]]
        (correction,) = self.adapter.corrections.correct(event.features, [label], ids)
        if event.thumbnails[0]:
            self.thumbnails[correction] = event.thumbnails[0]
        return correction

    def _learn(self, event: Event, evidence: Evidence) -> Step:
        ids = _ids(event)
        pictures = event.thumbnails
        if "age" in event.record:
            for cache in self._caches:
                cache.eviction_rule = FairSlots(self.clients, event.client, event.record["age"])
        try:
            step = self.adapter.adapt(evidence, ids, event.learnt)
        finally:
            for cache in self._caches:
                cache.eviction_rule = None
        self.next_id = event.first_id + event.samples
        self.taught[event.client] += event.samples
        for row in {row for change in step.changes.values() for row in change.admitted}:
            self.clients[int(ids[row])] = event.client
            if pictures[row]:
                self.thumbnails[int(ids[row])] = pictures[row]
        return step

    def _event(self, encoded: Encoded, learnt: HostArray, client: str) -> Event:
        """Return the event of samples, of which some (n,) are learnt from."""
        features = encoded.features
        thumbnails = encoded.thumbnails
        record = {"shape": features.shape, "learnt": learnt.tolist(), "thumbnails": [*map(len, thumbnails)]}
        if self.guard is not None and self.guard.rules.fair and not set(self.clients.values()) <= {"", client}:
            record["age"] = self.guard.rules.age  # clients share the slots of caches
        body = features.tobytes() + b"".join(thumbnails)
        return Event("samples", time(), client, self.next_id, int(learnt.sum()), record, (), body)

    def _gates(self, negatives: HostArray | None) -> list[Gate]:
        """Return the gates that samples have to pass to be learnt from."""
        if negatives is not None and self._rejector is None:
            self._rejector = Rejector(self.adapter.head, negatives)
        gates = [self._rejector, self._duplicates if self.setup.skip_duplicates else None]
        return [gate for gate in gates if gate is not None]

    def _remember_features(self) -> None:
        """Show the gate for duplicates the last samples that were learnt."""
        found: list[HostArray] = []
        for event in self._file.samples() if self.setup.skip_duplicates else ():
            found.append(event.features[event.learnt])
            if sum(map(len, found)) >= self._duplicates.remembered:
                break
        for batch in reversed(found):
            self._duplicates(self.adapter.head.observe(batch), np.full(len(batch), True))

    def _make_guard(self) -> Guard | None:
        """Return the guard of the stream; None without rules, or if the method has no state that could be poisoned."""
        parts = [part for part in self.adapter.parts.values() if part is not self.adapter.corrections]
        if self.setup.guard is None or not parts:
            return None
        guard = Guard(self.setup.guard, entries_only=all(isinstance(part, Cache) for part in parts))
        now = time()
        for client, samples, when in self._file.taught_since(now - guard.rules.window_s):
            guard.learnt(client, samples, max(0.0, now - when))
        return guard


def export_state(path: Path, snapshot: int | None = None) -> bytes:
    """Return the content of a state file from the file of a stream: its current state, or one of its snapshots.

    The service may be running.
    """
    with _opened(path) as file, file.transaction("DEFERRED"):
        if snapshot is None:
            return Learner(file, Limits()).state_bytes()
        state: bytes = file.snapshot(snapshot)["state"]
        return state


def import_state(path: Path, content: bytes) -> None:
    """Continue a stream from the content of a state file, as an upload does; its service must be stopped."""
    with claim_folder(path.parent.parent), _opened(path) as file:
        Learner(file, Limits()).continue_from(content)


def _opened(path: Path) -> Any:
    with noticing_damage():
        return closing(StreamFile(path))


def _ids(event: Event) -> HostArray:
    """Return the ids (n,) of the samples of an event; those that were not learnt from have the id of the next."""
    ids: HostArray = event.first_id + np.cumsum(event.learnt) - event.learnt
    return ids


def _answer(found: Prediction, event: Event) -> dict[str, Any]:
    about = {"id": found.id, "time": event.time, "client": event.client, "changed": found.changed}
    return about | {"label": found.label, "score": found.score, "zero_shot": vars(found.zero_shot)}


def _only(encoded: Encoded) -> tuple[HostArray, bytes]:
    return encoded.features, b"".join(encoded.thumbnails)
