"""A stream: images from one source, classified in order by an adapter of its own that survives restarts."""

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import wraps
from pathlib import Path
from secrets import token_hex
from threading import Lock
from time import monotonic, perf_counter
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from acclimate.classifier import Prediction, predictions_from
from acclimate.errors import InputError, StateError, StorageError
from acclimate.files import write_atomically
from acclimate.methods import create, load
from acclimate.methods.persist import cached_entries, duplicate, to_bytes
from acclimate.serve.batcher import Batcher, Encoded, WorkQueue
from acclimate.serve.errors import NotFoundError
from acclimate.serve.guard import Guard, GuardRules
from acclimate.serve.history import History
from acclimate.serve.metrics import Metrics

RETRY_S = 5.0  # between two attempts to write a snapshot
LARGEST_ID = 2**52  # ids are sent as JSON numbers
FILE, VERSION = "stream.json", 1
Options = ParamSpec("Options")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Setup:
    """What a stream is created with. Its labels are not part of it: they can change.

    Attributes:
        model: fingerprint of the encoder.
        templates: prompts, as for `Classifier`.
        method: name of the method.
        settings: of the method.
        thumbnails: whether to keep a small picture of every image in the caches.
        guard: rules against poisoning; None for no guard.
    """

    model: str
    templates: Any = "single"
    method: str = "tda"
    settings: Mapping[str, Any] = field(default_factory=dict)
    thumbnails: bool = False
    guard: GuardRules | None = None

    def create(self, folder: Path, labels: Sequence[str], batcher: Batcher) -> None:
        """Create a stream's folder and files."""
        encoder = batcher.encoder
        vectors = batcher.class_vectors(labels, self.templates)
        scale = {"logit_scale": encoder.logit_scale, "logit_bias": encoder.logit_bias}
        adapter = create(self.method, vectors, **scale, class_names=labels, **self.settings)
        folder.mkdir()
        write_atomically(folder / FILE, json.dumps({"version": VERSION, **asdict(self)}, indent=1).encode())
        History(folder, batcher.limits.history, adapter)

    @classmethod
    def read(cls, folder: Path) -> "Setup":
        """Read it from a stream's folder."""
        try:
            fields = json.loads((folder / FILE).read_bytes())
            if fields.pop("version") != VERSION:
                raise StateError(f"{FILE} was written by another version of acclimate; use that version.")
            guard = fields.pop("guard")
            return cls(**fields, guard=None if guard is None else GuardRules(**guard))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise StateError(f"{FILE} cannot be read ({error}); restore the file, or delete the stream.") from error


@dataclass(frozen=True)
class Answered:
    """The answer for one image of a request.

    Attributes:
        prediction: its `index` is the position in the request.
        id: under which the sample was learnt; None if it was not learnt.
        admitted: the caches it entered.
        refused: why it was not learnt although it should have been; None otherwise.
    """

    prediction: Prediction
    id: int | None
    admitted: tuple[str, ...]
    refused: str | None


def locked(
    method: Callable[Concatenate["Stream", Options], Result],
) -> Callable[Concatenate["Stream", Options], Result]:
    """Decorator: run a method of a stream while no other thread uses the stream."""

    @wraps(method)
    def run(stream: "Stream", /, *args: Options.args, **kwargs: Options.kwargs) -> Result:
        with stream.lock:
            return method(stream, *args, **kwargs)

    return run


def queued(
    method: Callable[Concatenate["Stream", Options], Result],
) -> Callable[Concatenate["Stream", Options], Result]:
    """Decorator: run a method of a stream as part of its queue, and wait for the result."""

    @wraps(method)
    def run(stream: "Stream", /, *args: Options.args, **kwargs: Options.kwargs) -> Result:
        def work(_: Any) -> Result:
            with stream.lock:
                stream.check_open()
                return method(stream, *args, **kwargs)

        return stream.queue.put(work).result()

    return run


class Stream:
    """One stream; its methods may be called from any thread.

    `classify` and everything that changes the stream join one queue when they are called. A change is on disk when its
    method returns; if it cannot be written, a StorageError is raised and the stream stays as it was. All methods except
    `classify` may block.

    Args:
        name: of the stream.
        folder: a folder that `Setup.create` made.
        batcher: the shared encoder.
        pool: executes the work of streams.
        metrics: counts every request.

    Raises:
        StateError: the files cannot be used; the message says why.
    """

    def __init__(self, name: str, folder: Path, batcher: Batcher, pool: Executor, metrics: Metrics) -> None:
        self.name, self.limits = name, batcher.limits
        self._batcher, self._metrics = batcher, metrics
        self.setup = Setup.read(folder)
        self.history = History(folder, self.limits.history)
        encoder = batcher.encoder
        if self.setup.model != encoder.fingerprint or self.history.adapter.dim != encoder.dim:
            raise StateError("it was made with another model; start the service with that model, or delete the stream.")
        self._guard = None if self.setup.guard is None else Guard(self.setup.guard)
        self._problems: dict[str, str] = {}  # with writing the "journal" or a "snapshot"
        self._retry_at = 0.0
        self._answered = self._changed = 0
        self.queue = WorkQueue(pool)
        self.lock = Lock()  # held while the history is used
        self._closed = False

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes, in order."""
        return self.history.adapter.class_names

    def classify(
        self, images: Sequence[bytes], *, adapt: bool = True, top_k: int = 5, client: str = ""
    ) -> "Future[list[Answered]]":
        """Classify images in order, after everything that was requested from this stream before.

        Args:
            images: contents of 1 to `limits.images` image files.
            adapt: learn from them, unless the stream is frozen.
            top_k: number of labels to return per image.
            client: who sends them, for the guard.

        Returns:
            A future with an answer per image, set once what was learnt is written to the journal. If an image cannot be
            read, it raises ImageError, and nothing of the request is learnt. If `cancel` returns True, nothing of the
            request was or will be learnt.

        Raises:
            InputError: there are too many images or none.
            BusyError: too many images are waiting.
        """
        if not 1 <= len(images) <= self.limits.images:
            raise InputError(f"a request must have 1 to {self.limits.images} images, got {len(images)}.")
        if top_k < 1:
            raise InputError(f"top_k must be at least 1, got {top_k}.")
        self.check_open()
        encoded = self._batcher.submit(images, self.setup.thumbnails)
        return self.queue.put(lambda found: self._classify(found, adapt, top_k, client), encoded)

    @locked
    def describe(self) -> dict[str, Any]:
        """The stream as JSON values.

        `degraded` is why the disk cannot be written to, and `broken` which files were damaged when they were read; both
        are None normally. `answered` and `changed` count images since the service started.
        """
        adapter, setup = self.history.adapter, self.setup
        return {
            "name": self.name,
            "labels": list(adapter.class_names),
            "templates": setup.templates,
            "method": adapter.name,
            "settings": asdict(adapter.config),
            "thumbnails": setup.thumbnails,
            "guard": None if setup.guard is None else asdict(setup.guard),
            "refusals": 0 if self._guard is None else self._guard.refusals,
            "samples_seen": adapter.samples_seen,
            "frozen": adapter.frozen,
            "entries": self._entries(),
            "snapshots": len(self.history.snapshots()),
            "answered": self._answered,
            "changed": self._changed,
            "changed_share": self._changed / self._answered if self._answered else 0.0,
            "degraded": " ".join(self._problems.values()) or None,
            "broken": self.history.problem,
        }

    @locked
    def entries(self) -> dict[str, int]:
        """Number of entries in each cache."""
        return self._entries()

    @locked
    def caches(self) -> list[dict[str, Any]]:
        """Every cache entry: cache, label, entropy, id, client, and thumbnail (JPEG bytes, or None)."""
        history, names = self.history, self.labels
        return [
            {
                "cache": kind,
                "label": names[label],
                "entropy": entropy,
                "id": entry_id,
                "client": history.senders[kind].get(entry_id, ""),
                "thumbnail": history.thumbnails.get(entry_id),
            }
            for kind, listed in cached_entries(history.adapter).items()
            for label, entropy, entry_id in listed
        ]

    @locked
    def snapshots(self) -> list[dict[str, Any]]:
        """The snapshots that `rollback` accepts, oldest first: id, time, reason, samples_seen."""
        return self.history.snapshots()

    @locked
    def state_bytes(self) -> bytes:
        """What was learnt, as the content of a state file; without clients and thumbnails."""
        return to_bytes(self.history.adapter)

    @queued
    def set_frozen(self, frozen: bool) -> None:
        """Stop learning and answer from what was learnt so far, or resume learning."""
        self.history.set_frozen(frozen)

    @queued
    def snapshot(self) -> int:
        """Write a snapshot of the current state; returns its id."""
        return self.history.snapshot("requested")

    @queued
    def reset(self) -> None:
        """Forget everything learnt; the snapshots remain."""
        adapter = duplicate(self.history.adapter)
        adapter.reset()
        self.history.replace(adapter, {}, "reset")

    @queued
    def rollback(self, snapshot_id: int | None = None) -> int:
        """Go back to a snapshot, including its labels; a frozen stream stays frozen. Returns the snapshot's id.

        Args:
            snapshot_id: from `snapshots`; by default the last one, or if nothing was learnt since then, the one before.
                Repeated calls go further and further back.

        Raises:
            NotFoundError: there is no such snapshot.
            InputError: there is no older snapshot.
        """
        return self.history.rollback(snapshot_id)

    @queued
    def change_labels(self, add: Sequence[str] = (), remove: Sequence[str] = ()) -> None:
        """Remove labels with what was learnt about them, then add labels; either all of it happens or nothing."""
        adapter, templates = duplicate(self.history.adapter), self.setup.templates
        if remove:
            adapter.remove_classes(remove)
        names = self.limits.check_labels([*adapter.class_names, *add], templates)
        if new := names[len(adapter.class_names) :]:
            adapter.add_classes(self._batcher.class_vectors(new, templates), new)
        self.history.replace(adapter, self.history.notes(), "labels")

    @queued
    def load_state(self, content: bytes) -> None:
        """Continue from a state file; one that does not fit is refused with a StateError, and nothing changes."""
        path = self.history.folder / f".upload-{token_hex(4)}.tmp"
        try:
            path.write_bytes(content)
            adapter = load(path, like=self.history.adapter)
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
            raise StateError("the state has values that no stream can produce; it was damaged or edited. Use another.")
        adapter.frozen = self.history.adapter.frozen
        self.history.replace(adapter, {}, "uploaded")

    def tick(self) -> None:
        """Call this regularly: it syncs the journal to the disk, and takes a snapshot if one is due."""
        history = self.history
        try:
            history.sync()
            due = not history.writable or (history.samples > 0 and history.age > self.limits.snapshot_s)
        except OSError:
            due = True
        if due:
            self.queue.put(lambda _: self._take_snapshot("time"))

    def close(self) -> "Future[None]":
        """Finish what is queued, and write a snapshot of what was learnt."""
        return self.queue.put(lambda _: self._close())

    def check_open(self) -> None:
        """Raise NotFoundError if the stream was deleted."""
        if self._closed:
            raise NotFoundError(f"the stream {self.name!r} does not exist any more.")

    def _entries(self) -> dict[str, int]:
        return {kind: len(senders) for kind, senders in self.history.senders.items()}

    @locked
    def _classify(self, encoded: Encoded, adapt: bool, top_k: int, client: str) -> list[Answered]:
        self.check_open()
        began = perf_counter()
        adapter, features = self.history.adapter, encoded.features
        learning = adapt and not adapter.frozen
        # The guard decides for each sample. Evidence is computed first: an invalid row must fail before any is learnt.
        size = 1 if learning and self._guard is not None else len(features)
        parts = [slice(start, start + size) for start in range(0, len(features), size)]
        evidence = [self.history.observe(features[part]) for part in parts]
        answers: list[Answered] = []
        replaced = 0
        for part, seen in zip(parts, evidence, strict=True):
            first_id, changes = None, {}
            refused = self._refusal(client) if learning else None
            if learning and refused is None:
                try:
                    logits, first_id = self.history.learn(seen, features[part], client, encoded.thumbnails[part])
                    changes = adapter.changes
                    self._problems.pop("journal", None)
                except StorageError as error:
                    self._problems["journal"] = refused = str(error)
            if first_id is None:
                logits = adapter.respond(seen, np.arange(len(seen.logits)), learn=False)
            if self._guard is not None and any(change.admitted for change in changes.values()):
                self._guard.admitted(client)
            replaced += sum(len(change.dropped) for change in changes.values())
            indices = range(part.start, part.start + size)
            for place, prediction in enumerate(predictions_from(adapter.class_names, seen, logits, top_k, indices)):
                admitted = tuple(kind for kind, change in changes.items() if place in change.admitted)
                answers.append(Answered(prediction, None if first_id is None else first_id + place, admitted, refused))
        self._count(answers, replaced, perf_counter() - began)
        if self.history.samples >= self.limits.snapshot_samples:
            self._try_snapshot("samples")
        return answers

    def _refusal(self, client: str) -> str | None:
        if self._guard is None:
            return None
        taught = self.history.taught
        return self._guard.refusal(client, taught[client], taught.total(), len(self.labels))

    def _count(self, answers: Sequence[Answered], replaced: int, seconds: float) -> None:
        changed = sum(answer.prediction.changed for answer in answers)
        refused = sum(answer.refused is not None for answer in answers)
        self._answered += len(answers)
        self._changed += changed
        self._metrics.answered([answer.prediction for answer in answers], len(self.labels))
        self._metrics.adapted(changed, refused, replaced, seconds)

    @locked
    def _take_snapshot(self, reason: str) -> None:
        if not self._closed:
            self._try_snapshot(reason)

    @locked
    def _close(self) -> None:
        self._closed = True
        self._retry_at = 0.0
        if self.history.samples:
            self._try_snapshot("shutdown")
        self.history.sync()

    def _try_snapshot(self, reason: str) -> None:
        """Take a snapshot; a failure is reported in `describe`, and does not stop the stream."""
        if monotonic() < self._retry_at:
            return
        try:
            self.history.snapshot(reason)
            self._problems.pop("snapshot", None)
        except StorageError as error:
            self._problems["snapshot"] = str(error)
            self._retry_at = monotonic() + RETRY_S
