"""What a stream does, one thing after another: answer, learn, write down, and change on request."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from secrets import token_hex
from time import monotonic
from typing import Any

import numpy as np

from acclimate.arrays import Array, HostArray
from acclimate.classifier import Prediction, predictions_from
from acclimate.errors import InputError, NotFoundError, StateError, StorageError
from acclimate.evidence import Evidence
from acclimate.methods import create, load
from acclimate.methods.persist import cached_entries
from acclimate.serve.batcher import Batcher, Encoded
from acclimate.serve.guard import Guard
from acclimate.serve.history import History
from acclimate.serve.memory import Memory
from acclimate.serve.setup import Setup, check_labels

RETRY_S = 5.0  # from a snapshot that could not be written to the next attempt
LARGEST_ID = 2**52  # ids travel as JSON numbers


@dataclass(frozen=True)
class Answered:
    """What is said of one image of a request.

    Attributes:
        prediction: its `index` is the place in the request.
        id: under which the sample was learnt; None if nothing was learnt from it.
        admitted: the caches it entered.
        refused: why nothing was learnt, if it should have been; None otherwise.
    """

    prediction: Prediction
    id: int | None
    admitted: tuple[str, ...]
    refused: str | None


class Learner:
    """A stream's memory and its files; used by one thread at a time.

    The memory is always what the files say: what cannot be written down is not learnt, and a change that cannot be
    written does not happen (StorageError).

    Args:
        folder: with the files that `create_files` made.
        batcher: the shared encoder, for new labels.

    Raises:
        StateError: the files cannot be used at all; the message says why.
    """

    def __init__(self, folder: Path, batcher: Batcher) -> None:
        self._folder, self._batcher, self.limits = folder, batcher, batcher.limits
        self.setup = Setup.read(folder)
        self.history = History(folder, self.limits.history)
        self.memory = self.history.recover()
        encoder = batcher.encoder
        if self.setup.model != encoder.fingerprint or self.memory.adapter.dim != encoder.dim:
            raise StateError("it was made with another model; start the service with that one, or delete the stream.")
        self._guard = None if self.setup.guard is None else Guard(self.setup.guard)
        self._problems: dict[str, str] = {}  # with writing: "journal", "snapshot"
        self._retry_at = 0.0
        self._answered = self._changed = 0

    @staticmethod
    def create_files(folder: Path, setup: Setup, labels: Sequence[str], batcher: Batcher) -> None:
        """Write the files of a new stream to a new folder."""
        encoder = batcher.encoder
        adapter = create(
            setup.method,
            batcher.class_vectors(labels, setup.templates),
            logit_scale=encoder.logit_scale,
            logit_bias=encoder.logit_bias,
            class_names=labels,
            **setup.settings,
        )
        folder.mkdir()
        setup.write(folder)
        History(folder, batcher.limits.history).write(Memory(adapter), "created", continues=False)

    def classify(self, encoded: Encoded, adapt: bool, top_k: int, client: str) -> tuple[list[Answered], int]:
        """Answers for a request's images, and how many cache entries they replaced."""
        adapter, features = self.memory.adapter, encoded.features
        learning = adapt and not adapter.frozen
        # The guard decides sample by sample. Evidence is taken first: a bad row must fail before one is learnt.
        size = 1 if learning and self._guard is not None else len(features)
        parts = [slice(start, start + size) for start in range(0, len(features), size)]
        evidence = [self.memory.observe(features[part]) for part in parts]
        answers: list[Answered] = []
        replaced = 0
        for part, seen in zip(parts, evidence, strict=True):
            if learning:
                logits, first_id, refused = self._learn(seen, features[part], encoded.thumbnails[part], client)
            else:
                logits, first_id, refused = self.memory.answer(seen), None, None
            changes = {} if first_id is None else adapter.changes
            replaced += sum(len(change.dropped) for change in changes.values())
            indices = range(part.start, part.start + size)
            for place, prediction in enumerate(predictions_from(adapter.class_names, seen, logits, top_k, indices)):
                admitted = tuple(kind for kind, change in changes.items() if place in change.admitted)
                answers.append(Answered(prediction, None if first_id is None else first_id + place, admitted, refused))
        self._answered += len(answers)
        self._changed += sum(answer.prediction.changed for answer in answers)
        if self.history.samples >= self.limits.snapshot_samples:
            self.keep("samples")
        return answers, replaced

    def describe(self) -> dict[str, Any]:
        """What the stream is and holds, in JSON's terms."""
        adapter, guard = self.memory.adapter, self.setup.guard
        return {
            "labels": list(adapter.class_names),
            "templates": self.setup.templates,
            "method": adapter.name,
            "settings": asdict(adapter.config),
            "thumbnails": self.setup.thumbnails,
            "guard": None if guard is None else asdict(guard),
            "refusals": 0 if self._guard is None else self._guard.refusals,
            "samples_seen": adapter.samples_seen,
            "frozen": adapter.frozen,
            "entries": {kind: len(held) for kind, held in self.memory.entries.items()},
            "snapshots": len(self.history.snapshots()),
            "answered": self._answered,
            "changed": self._changed,
            "changed_share": self._changed / self._answered if self._answered else 0.0,
            "degraded": " ".join(self._problems.values()) or None,
            "broken": self.history.problem,
        }

    def caches(self) -> list[dict[str, Any]]:
        """Every cache entry."""
        names = self.memory.adapter.class_names
        return [
            {
                "cache": kind,
                "label": names[label],
                "entropy": entropy,
                "id": entry_id,
                "client": self.memory.entries[kind].get(entry_id, ""),
                "thumbnail": self.memory.thumbnails.get(entry_id),
            }
            for kind, listed in cached_entries(self.memory.adapter).items()
            for label, entropy, entry_id in listed
        ]

    def set_frozen(self, frozen: bool) -> None:
        """Stop learning, or go on."""
        if self.memory.adapter.frozen != frozen:
            self.history.append({"frozen": frozen})
            self.memory.adapter.frozen = frozen

    def reset(self) -> None:
        """Forget everything learnt."""
        adapter = self.memory.copy().adapter
        adapter.reset()
        self._become(Memory(adapter), "reset")

    def rollback(self, snapshot_id: int | None) -> int:
        """Go back to a snapshot; returns its id."""
        known = {each["id"]: each for each in self.history.snapshots()}
        if snapshot_id is None:
            last = max(known)
            older = [each for each in known if self.history.samples or each < known[last].get("of", last)]
            if not older:
                raise InputError("there is no older snapshot to go back to.")
            snapshot_id = max(older)
        if snapshot_id not in known:
            raise NotFoundError(f"there is no snapshot {snapshot_id}; see the list of snapshots.")
        memory = self.history.load(snapshot_id)
        memory.adapter.frozen = self.memory.adapter.frozen
        self._become(memory, "rollback", of=snapshot_id)
        return snapshot_id

    def change_labels(self, add: Sequence[str], remove: Sequence[str]) -> None:
        """Remove labels, then add some."""
        memory = self.memory.copy()
        adapter, templates = memory.adapter, self.setup.templates
        if remove:
            adapter.remove_classes(remove)
        names = check_labels([*adapter.class_names, *add], templates, self.limits)
        if new := names[len(adapter.class_names) :]:
            adapter.add_classes(self._batcher.class_vectors(new, templates), new)
        self._become(Memory(adapter, memory.notes()), "labels")

    def load_state(self, content: bytes) -> None:
        """Go on from a state file."""
        path = self._folder / f".upload-{token_hex(4)}.tmp"
        try:
            path.write_bytes(content)
            adapter = load(path, like=self.memory.adapter)
        except OSError as error:
            raise StorageError(f"the state could not be stored: {error.strerror or error}.") from error
        except StateError as error:
            raise StateError(str(error).replace(str(path), "the state")) from error
        finally:
            with suppress(OSError):
                path.unlink()
        ids = [entry_id for listed in cached_entries(adapter).values() for *_, entry_id in listed]
        keys = [values for name, values in adapter.dump().items() if name.endswith(".keys")]
        too_long = any((np.linalg.norm(each, axis=1) > 1.01).any() for each in keys)  # features are unit vectors
        if too_long or max([*ids, adapter.samples_seen]) > LARGEST_ID or min([0, *ids]) < 0:
            raise StateError("the state holds numbers that no stream leads to; it was damaged or edited. Use another.")
        adapter.frozen = self.memory.adapter.frozen
        self._become(Memory(adapter), "uploaded")

    def keep(self, reason: str) -> None:
        """Take a snapshot in passing; if that fails, say so and go on."""
        if monotonic() < self._retry_at:
            return
        try:
            self.history.write(self.memory, reason, continues=True)
            self._problems.pop("snapshot", None)
        except StorageError as error:
            self._problems["snapshot"] = str(error)
            self._retry_at = monotonic() + RETRY_S

    def close(self) -> None:
        """Keep what was learnt in a snapshot."""
        self._retry_at = 0.0
        if self.history.samples:
            self.keep("shutdown")
        self.history.sync()

    def _learn(
        self, evidence: Evidence, features: HostArray, thumbnails: tuple[bytes, ...], client: str
    ) -> tuple[Array, int | None, str | None]:
        """Adapted logits, and the first sample's id if they were learnt, else why not."""
        memory, refused = self.memory, None
        if self._guard is not None:
            labels = len(memory.adapter.class_names)
            refused = self._guard.refusal(client, memory.held[client], memory.held.total(), labels)
        if refused is None:
            head, body = memory.record(features, client, thumbnails)
            try:
                mark = self.history.append(head, body)
            except StorageError as error:
                self._problems["journal"] = refused = str(error)
        if refused is not None:
            return memory.answer(evidence), None, refused
        try:
            logits = memory.learn(evidence, head, body)
        except BaseException:
            self.history.take_back(mark, len(features))
            raise
        self._problems.pop("journal", None)
        if self._guard is not None and any(change.admitted for change in memory.adapter.changes.values()):
            self._guard.admitted(client)
        return logits, head["first_id"], None

    def _become(self, memory: Memory, reason: str, **about: Any) -> None:
        """Go on with another memory; what was learnt until now stays in the history."""
        if self.history.samples:
            self.history.write(self.memory, f"before {reason}", continues=True)
        self.history.write(memory, reason, continues=False, **about)
        self.memory = memory
