"""A stream in memory: an adapter that learns, and who taught it; every change is an event in the stream's file."""

from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import islice, repeat
from pathlib import Path
from time import time
from typing import Any

import numpy as np

from acclimate.arrays import HostArray
from acclimate.errors import InputError, StateError, nearest
from acclimate.evidence import Head
from acclimate.methods import Adapter, Step, duplicate, state_from_bytes, state_to_bytes
from acclimate.methods.cache import Cache
from acclimate.methods.gates import Gate, NearDuplicates, Rejector
from acclimate.methods.persist import MAX_ORIGINS
from acclimate.methods.state import LARGEST_ID
from acclimate.predict import Predictions, answers_again, refuse_none, walk
from acclimate.reading.batcher import Encoded
from acclimate.serve.http_errors import NotFoundError
from acclimate.serve.limits import Limits
from acclimate.serve.schemas import ResultResponse, StreamSetup
from acclimate.serve.storage import (
    ANSWERED,
    BATCH,
    NEWEST,
    REQUESTED,
    SUFFIX,
    Event,
    StreamFile,
    claim_folder,
    noticing_damage,
    summary_of,
)

MAX_ANSWERED_AGAIN = 2000  # answers of which a second pass is made at once
HEADER_FACTOR = 4  # header of an uploaded state <= factor * header of the stream's own + `HEADER_SLACK_BYTES`
HEADER_SLACK_BYTES = 2**20
LISTED_LABELS = 5  # labels that are kept of an answer
NOTHING = np.empty(0, np.float32)  # features of an event that has none


class Learner:
    """The loaded state of a stream, for one thread at a time; another one must be made once its file is `stale`.

    Args:
        file: the stream's file.
        limits: limits on the stream.
        encoder: the model, for methods that need its text tower.

    Attributes:
        file: the stream's file.
        adapter: the learnt state.
        next_id: the id of the next sample.
        changes: samples learnt and other changes since the newest snapshot.
        clients: the client that sent each sample in a cache, by id; "" for those of an uploaded state.
        taught: samples learnt from each client.
        thumbnails: small JPEG files of samples in caches and of corrections, by id.
    """

    @noticing_damage()
    def __init__(self, file: StreamFile, limits: Limits, encoder: Any = None) -> None:
        self.file = file
        self._limits = limits
        self._encoder = encoder
        self.setup = StreamSetup.stored(file.about("stream")["setup"])
        self.adapter, notes = file.load(encoder=encoder)
        self._caches = [part for part in self.adapter.parts.values() if isinstance(part, Cache)]
        known = {int(i): client for i, client in notes.get("clients", {}).items()}
        self.clients = dict.fromkeys(self._cached(), "") | known
        self.thumbnails = {int(i): picture for i, picture in notes.get("thumbnails", {}).items()}
        self.taught = Counter(notes.get("taught", {}))
        self.taught[""] += self.adapter.samples_seen - self.taught.total()  # samples of an uploaded state
        self.next_id: int = max(self.adapter.next_id, notes.get("next_id", 0))
        self._snapshot_time = notes["time"]
        self.changes = 0
        for event in file.replay(notes):
            self._apply(event)
        self._rejector: Rejector | None = None
        self._duplicates = NearDuplicates()
        for about, features in reversed([*islice(file.samples(), self._duplicates.remembered)]):
            batch = features[np.array(about["learnt"])]
            self._duplicates(self.adapter.head.observe(batch), np.full(len(batch), True))

    @property
    def snapshot_due(self) -> str:
        """The reason for a snapshot that should be taken now; "" for none."""
        if self.changes * self.setup.views >= self._limits.snapshot_samples:
            return "samples"
        return "time" if self.changes and abs(time() - self._snapshot_time) > self._limits.snapshot_s else ""

    def classify(
        self,
        encoded: Encoded,
        negatives: HostArray | None = None,
        *,
        learn: bool = True,
        top_k: int = 5,
        unsure: float = 0.0,
        client: str = "",
        names: Sequence[str] = (),
    ) -> tuple[Predictions, Step]:
        """Answer images, and learn from those that may be learnt from; they and the answers are on the disk then.

        With `learn` false, nothing is kept of them. The `names` of the images are kept with the answers.
        """

        def answer() -> tuple[Predictions, Step]:
            found, step, _ = walk(
                self.adapter,
                encoded.features,
                top_k,
                unsure,
                next_id=self.next_id,
                learn=learn,
                gates=self._gates(negatives),
            )
            return found, step

        if not learn:
            return answer()
        about = self._about_samples(encoded, client)
        with self.file.transaction():
            found, step = answer()
            learnt = found.ids >= 0
            about |= {"samples": int(learnt.sum()), "learnt": learnt.tolist()}
            if learnt.any():
                self.changes += about["samples"]
                self._note_samples(about, step)
            about["answers"] = [
                {field: value for field, value in each.to_json().items() if field in ResultResponse.model_fields}
                | {"time": about["time"], "client": client, "file": name, "label": each.label}
                | {"score": each.score, "predictions": [vars(answer) for answer in each.top[:LISTED_LABELS]]}
                for each, name in zip(found, names or repeat(""), strict=False)
            ]
            self.file.add(Event(about, encoded.features))
            if self.snapshot_due:
                self._add_snapshot(self.snapshot_due)
        return found, step

    def answers(
        self, after: int = -1, limit: int = 1000, newest: bool = False, again: bool = False, thumbnails: bool = False
    ) -> list[dict[str, Any]]:
        """Return the answers to images after the sample `after`, in their order: the first ones, or the `newest`.

        They are those that led to the current state, as far back as they are kept. With `again`, each has the answer
        of a second pass over all of them, `now`; that is at most `MAX_ANSWERED_AGAIN` of them.
        """
        step = -1 if newest else 1
        every = (
            row
            for about, features in self.file.samples(NEWEST if newest else ANSWERED, after)
            for row in [*zip(about["answers"], features, about["thumbnails"] or repeat(None), strict=False)][::step]
            if row[0]["id"] is None or row[0]["id"] > after
        )
        rows = [*islice(every, min(limit, MAX_ANSWERED_AGAIN) if again else limit)][::step]
        found = [answer | {"thumbnail": _data_url(picture) if thumbnails else None} for answer, _, picture in rows]
        if again and rows:
            now = answers_again(
                self.adapter,
                np.stack([feature for _, feature, _ in rows]),
                [answer.get("none") for answer in found],
            )
            found = [answer | {"now": vars(new)} for answer, new in zip(found, now, strict=True)]
        return found

    def correct(self, label: str, sample_id: int | None, client: str = "", encoded: Encoded | None = None) -> int:
        """Correct the label of an image, one that was learnt or one that is given; returns the correction's id."""
        corrections = self.adapter.corrections
        if label not in (names := self.adapter.head.class_names):
            raise InputError(f"the stream has no label {label[:80]!r}; {nearest(label, names)}")
        features, pictures = encoded or self._find(sample_id or 0)
        known = sample_id in corrections.ids or corrections.is_corrected(self.adapter.head.observe(features))[0]
        if not known and len(corrections) >= self._limits.corrections:
            raise InputError(f"the maximum of {self._limits.corrections} corrections is reached; undo one first.")
        about = {"id": sample_id, "label": label, "thumbnails": _texts(pictures)}
        return int(self._change("correction", client, about, features))

    def undo(self, correction: int) -> None:
        """Undo a correction; NotFoundError if there is none with this id."""
        if correction not in self.adapter.corrections.ids:
            raise NotFoundError(f"there is no correction {correction}; see the list of corrections.")
        self._change("undo", "", {"id": correction}, NOTHING)

    def set_frozen(self, frozen: bool) -> bool:
        """Stop learning and answer from what was learnt, or resume learning; returns False if it is so already."""
        changes = self.adapter.frozen != frozen
        if changes:
            self._change("frozen", "", {"frozen": frozen}, NOTHING)
        return changes

    def corrections(self) -> list[dict[str, Any]]:
        """Return every correction: id, label, and thumbnail (a data URL, or None)."""
        return [
            {"id": each.id, "label": each.label, "thumbnail": _data_url(self.thumbnails.get(each.id))}
            for each in self.adapter.corrections
        ]

    def caches(self, thumbnails: bool = True) -> list[dict[str, Any]]:
        """Return every cache entry: cache, label, entropy, id, client, and thumbnail (a data URL, or None)."""
        names = self.adapter.head.class_names
        return [
            {
                "cache": cache,
                "label": names[entry.class_index],
                "entropy": entry.entropy,
                "id": entry.id,
                "client": self.clients.get(entry.id, ""),
                "thumbnail": _data_url(self.thumbnails.get(entry.id)) if thumbnails else None,
            }
            for cache, entries in self.adapter.entries().items()
            for entry in entries
        ]

    def learnt(self) -> dict[str, Any]:
        """Return what was learnt about each label, as named columns, and how much each client has taught.

        The latter are its cache entries, or for methods without caches its samples.
        """
        taught = Counter(each["client"] for each in self.caches()) if self._caches else self.taught
        return {
            "labels": list(self.adapter.head.class_names),
            "columns": {name: values.tolist() for name, values in self.adapter.class_statistics().items()},
            "clients": dict(+taught),
        }

    def snapshot(self, reason: str = REQUESTED) -> int:
        """Write a snapshot of the current state; returns its id, or that of the last one if it has this state."""
        if not self.changes:
            return int(self.file.snapshots()[-1]["id"])
        with self.file.transaction():
            return self._add_snapshot(reason)

    def rollback(self, snapshot_id: int | None = None) -> int:
        """Go back to a snapshot, including its labels; a frozen stream stays frozen. Returns the snapshot's id.

        By default it is the last snapshot, or if nothing was learnt since then, the one before; repeated calls go
        further and further back. NotFoundError if there is no such snapshot, InputError if there is no older one.
        """
        if snapshot_id is None and not self.changes:
            snapshot_id = self.file.earlier_snapshot()
        adapter, notes = self.file.load(snapshot_id, self._encoder)
        self._replace(adapter, notes, "rollback", copy_of=notes)
        return int(notes["snapshot"])

    def reset(self) -> None:
        """Forget everything learnt; the snapshots remain. A stream that was created from a fitted file cannot."""
        if self.adapter.kind == "few-shot":
            raise InputError("this stream answers as it was fitted and learns nothing; there is nothing to reset.")
        adapter = duplicate(self.adapter)
        adapter.reset()
        self._replace(adapter, {}, "reset")

    def continue_from(self, content: bytes) -> None:
        """Continue from the content of a state file; StateError if it does not belong to such a stream.

        A header that is far larger than the stream's own is not parsed: that takes far more memory than it has bytes.
        """
        own = state_to_bytes(self.adapter)
        header_bytes, own_bytes = (int.from_bytes(each[:8], "little") for each in (content, own))
        if header_bytes > HEADER_FACTOR * own_bytes + HEADER_SLACK_BYTES:
            raise StateError("the header of the state is far larger than that of a state of this stream; use another.")
        adapter = state_from_bytes(content, like=self.adapter)
        adapter.origin = self.file.path.name.removesuffix(SUFFIX)
        if adapter.next_id > LARGEST_ID // 2 or len({*adapter.seen, adapter.origin}) > MAX_ORIGINS:
            raise StateError("the state leaves no room for more samples, ids or origins; use another.")
        if len(adapter.corrections) > self._limits.corrections:
            raise StateError(f"the state has more than {self._limits.corrections} corrections; use another.")
        self._replace(adapter, {}, "uploaded")

    def changed_labels(self, add: Sequence[str], remove: Sequence[str]) -> tuple[tuple[str, ...], Head]:
        """Return the labels after a change, cleaned, and the head before it; InputError if they cannot be used."""
        head = self.adapter.head
        if len(remove) > len(head):
            raise InputError(f"the stream has {len(head)} labels, and {len(remove)} cannot be removed; send fewer.")
        kept = head.remove(remove).class_names if remove else head.class_names
        labels = self._limits.check_labels([*kept, *add], self.setup.templates)
        if self.setup.reject:
            refuse_none(labels)
        return labels, head

    def put_labels(self, add: Sequence[str], remove: Sequence[str], head: Head) -> bool:
        """Follow the head of changed labels; returns False if the labels have changed since it was made."""
        if head.class_names != self.changed_labels(add, remove)[0]:
            return False
        adapter = duplicate(self.adapter)
        adapter.replace_head(head)
        self._replace(adapter, self._notes(), "labels")
        return True

    def _replace(self, adapter: Adapter, notes: Mapping[str, Any], reason: str, copy_of: Any = None) -> None:
        """Continue with another state, which the next learner reads; the current one is kept as a snapshot."""
        adapter.frozen = self.adapter.frozen
        with self.file.transaction():
            if self.changes:
                self._add_snapshot(f"before {reason}")
            self.file.add_snapshot(adapter, notes, reason, copy_of, branches=reason != "labels")
        self.file.stale = True

    def _add_snapshot(self, reason: str) -> int:
        self.changes = 0
        self._snapshot_time = time()
        return self.file.add_snapshot(self.adapter, self._notes(), reason)

    def _notes(self) -> dict[str, Any]:
        """Return what belongs to the adapter as JSON values, less that of samples which have left the caches."""
        cached = self._cached()
        self.clients = {i: client for i, client in self.clients.items() if i in cached}
        cached |= set(self.adapter.corrections.ids.tolist())
        self.thumbnails = {i: picture for i, picture in self.thumbnails.items() if i in cached}
        return {
            "clients": self.clients,
            "thumbnails": self.thumbnails,
            "taught": self.taught,
            "next_id": self.next_id,
        }

    def _cached(self) -> set[int]:
        """Return the ids of all samples in the caches, with those that a correction has set apart."""
        return {int(i) for cache in self._caches for i in cache.dump()["ids"]}

    def _change(self, kind: str, client: str, about: dict[str, Any], features: HostArray) -> Any:
        """Carry out an event that is not of samples; returns what `_apply` does."""
        event = Event({"kind": kind, "time": time(), "client": client, **about}, features)
        with self.file.transaction():
            result = self._apply(event)
            self.file.add(event)
            self.file.set_about("summary", summary_of(self.adapter))
        return result

    def _apply(self, event: Event) -> Any:
        """Carry out an event; returns the id of a correction."""
        about, features = event
        head = self.adapter.head
        if about["kind"] == "frozen":
            self.adapter.frozen = about["frozen"]
            return None
        self.changes += about.get("samples", 1)
        if about["kind"] == "samples":
            step = self.adapter.adapt(head.observe(features), _ids(about), np.array(about["learnt"]))
            return self._note_samples(about, step)
        if about["kind"] == "undo":
            return self.adapter.corrections.undo([about["id"]])
        label = head.class_names.index(about["label"])
        ids = None if about["id"] is None else [about["id"]]
        (correction,) = self.adapter.corrections.correct(features, [label], ids)
        self.thumbnails |= dict(zip([correction], about["thumbnails"], strict=False))
        return correction

    def _note_samples(self, about: Mapping[str, Any], step: Step) -> None:
        """Remember who taught the samples of an event, which were learnt in a step."""
        ids = _ids(about)
        self.next_id = about["first_id"] + about["samples"]
        self.taught[about["client"]] += about["samples"]
        rows = {row for change in step.changes.values() for row in change.admitted}
        self.clients |= {int(ids[row]): about["client"] for row in rows}
        self.thumbnails |= {int(ids[row]): about["thumbnails"][row] for row in rows if about["thumbnails"]}

    def _about_samples(self, encoded: Encoded, client: str) -> dict[str, Any]:
        """Return what an event says of samples before they are learnt from."""
        return {
            "kind": "samples",
            "time": time(),
            "client": client,
            "first_id": self.next_id,
            "thumbnails": _texts(encoded.thumbnails),
        }

    def _find(self, sample_id: int) -> Encoded:
        """Return features (1, d) or (1, V, d), and thumbnail if there is one, of a recent sample."""
        for about, features in self.file.samples(BATCH, sample_id):
            row = np.flatnonzero(about["learnt"])[sample_id - about["first_id"]]
            return Encoded(features[row : row + 1], tuple(map(b64decode, about["thumbnails"][row : row + 1])))
        raise NotFoundError(
            f"the image {sample_id} was not learnt by this stream, or that was too long ago; send the image itself."
        )

    def _gates(self, negatives: HostArray | None) -> list[Gate]:
        if negatives is not None and self._rejector is None:
            self._rejector = Rejector(self.adapter.head, negatives)
        gates = [self._rejector, self._duplicates if self.setup.skip_duplicates else None]
        return [gate for gate in gates if gate is not None]


def export_state(path: Path, snapshot: int | None = None) -> bytes:
    """Return the content of a state file from the file of a stream: its current state, or one of its snapshots.

    The service may be running.
    """
    with closing(StreamFile(path, Limits())) as file, file.transaction("DEFERRED"):
        adapter = Learner(file, Limits()).adapter if snapshot is None else file.load(snapshot)[0]
        return state_to_bytes(adapter)


def import_state(path: Path, content: bytes) -> None:
    """Continue a stream from the content of a state file, as an upload does; its service must be stopped."""
    with claim_folder(path.parent.parent), closing(StreamFile(path, Limits())) as file:
        Learner(file, Limits()).continue_from(content)


def _ids(about: Mapping[str, Any]) -> HostArray:
    """Return the ids (n,) of the samples of an event; those that were not learnt from have the id of the next."""
    return np.asarray(about["first_id"] + np.cumsum(about["learnt"]) - about["learnt"])


def _texts(thumbnails: Sequence[bytes]) -> list[str]:
    return [b64encode(each).decode() for each in thumbnails]


def _data_url(text: str | None) -> str | None:
    return f"data:image/jpeg;base64,{text}" if text else None
