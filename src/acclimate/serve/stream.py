"""A stream: images of one source, classified in order by an adapter of its own that survives restarts."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from secrets import token_hex
from threading import Lock
from time import monotonic, perf_counter
from typing import Any

from acclimate.adapters import create, load
from acclimate.adapters.persist import cached_entries, to_bytes
from acclimate.arrays import Array, HostArray
from acclimate.classifier import Prediction, predictions_from
from acclimate.errors import InputError, NotFoundError, StateError
from acclimate.evidence import Evidence
from acclimate.serve.batcher import Batcher, Encoded
from acclimate.serve.events import Events
from acclimate.serve.guard import Guard
from acclimate.serve.history import History
from acclimate.serve.lane import Lane
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


class Stream:
    """One stream; its methods may be called from any thread.

    `classify` and everything that changes the stream take their places in one queue, at the call. What changes the
    stream waits for its turn, and is on disk when it returns; if it cannot be written, a StateError is raised and the
    stream stays as it was. All methods but `classify` may block: call them from a thread that may wait.

    Args:
        name: of the stream.
        folder: with the files that `create_files` made.
        batcher: the shared encoder.
        pool: where streams do their work.
        events: told of every request.

    Raises:
        StateError: the files cannot be used at all; the message says why.
    """

    def __init__(self, name: str, folder: Path, batcher: Batcher, pool: Executor, events: Events | None = None):
        self.name, self._folder, self._batcher = name, folder, batcher
        self.limits, self._events = batcher.limits, events or Events()
        self.setup = Setup.read(folder)
        self._history = History(folder, self.limits.history)
        self._memory = self._history.recover()
        self._check_model()
        self._guard = None if self.setup.guard is None else Guard(self.setup.guard)
        self._lane = Lane(pool)
        self._lock = Lock()  # held while the memory changes, so that it can be read from outside the lane
        self._closed = False
        self._problems: dict[str, str] = {}  # with writing to the disk: "journal", "snapshot"
        self._retry_at = 0.0
        self._answered = self._changed = 0

    @staticmethod
    def create_files(folder: Path, setup: Setup, labels: Sequence[str], batcher: Batcher) -> None:
        """Write the files of a new stream to an empty folder."""
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
        history = History(folder, batcher.limits.history)
        history.write(Memory(adapter), "created", continues=False)
        history.close()

    def classify(
        self, images: Sequence[bytes], *, adapt: bool = True, top_k: int = 5, client: str = ""
    ) -> "Future[list[Answered]]":
        """Classify encoded images in order, behind all that was asked of this stream before.

        Args:
            images: contents of image files, 1 to `limits.images`.
            adapt: learn from them, unless the stream is frozen.
            top_k: labels to name.
            client: who sends them, for the guard.

        Returns:
            A future with an answer for each image. If one of them cannot be read it raises ImageError, and nothing of
            the request is learnt. Cancelling the future before its turn has come takes the request back; when
            `cancel` says True, nothing of it was or will be learnt. An answer is given once what was learnt is
            written down.

        Raises:
            InputError: too many images or none.
            BusyError: too many images are waiting.
        """
        if not 1 <= len(images) <= self.limits.images:
            raise InputError(f"a request must hold 1 to {self.limits.images} images, got {len(images)}.")
        if top_k < 1:
            raise InputError(f"top_k must be at least 1, got {top_k}.")
        self._check_open()
        encoded = self._batcher.submit(images, self.setup.thumbnails)
        answer = self._lane.put(lambda found: self._classify(found, adapt, top_k, client), encoded)
        answer.add_done_callback(lambda done: encoded.cancel() if done.cancelled() else None)
        return answer

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes, in order."""
        return self._memory.adapter.class_names

    def describe(self) -> dict[str, Any]:
        """The stream in JSON's terms: what it is, what it holds, and what is wrong with it, if anything is."""
        with self._lock:
            adapter = self._memory.adapter
            return {
                "name": self.name,
                "labels": list(adapter.class_names),
                "templates": self.setup.templates,
                "method": adapter.name,
                "settings": asdict(adapter.config),
                "thumbnails": self.setup.thumbnails,
                "guard": None if self.setup.guard is None else asdict(self.setup.guard),
                "refusals": 0 if self._guard is None else self._guard.refusals,
                "samples_seen": adapter.samples_seen,
                "frozen": adapter.frozen,
                "entries": self.entries(),
                "snapshots": len(self._history.snapshots()),
                "answered": self._answered,
                "changed": self._changed,
                "changed_share": self._changed / self._answered if self._answered else 0.0,
                "degraded": " ".join(self._problems.values()) or None,
                "broken": self._history.problem,
            }

    def entries(self) -> dict[str, int]:
        """Number of entries in each cache."""
        return {kind: len(held) for kind, held in self._memory.entries.items()}

    def caches(self) -> list[dict[str, Any]]:
        """Every cache entry: cache, label, entropy, id, client, and thumbnail (JPEG bytes, or None)."""
        with self._lock:
            memory = self._memory
            names = memory.adapter.class_names
            return [
                {
                    "cache": kind,
                    "label": names[label],
                    "entropy": entropy,
                    "id": entry_id,
                    "client": memory.entries[kind][entry_id],
                    "thumbnail": memory.thumbnails.get(entry_id),
                }
                for kind, listed in cached_entries(memory.adapter).items()
                for label, entropy, entry_id in listed
            ]

    def snapshots(self) -> list[dict[str, Any]]:
        """The snapshots to roll back to, oldest first: id, time, reason, samples_seen."""
        with self._lock:
            return self._history.snapshots()

    def state_bytes(self) -> bytes:
        """What was learnt, as a state file that `acclimate` reads; without clients and thumbnails."""
        with self._lock:
            return to_bytes(self._memory.adapter)

    def freeze(self) -> None:
        """Answer from what was learnt so far, and learn nothing more."""
        self._do(lambda: self._set_frozen(True))

    def unfreeze(self) -> None:
        """Learn again."""
        self._do(lambda: self._set_frozen(False))

    def snapshot(self) -> int:
        """Keep the state as it is now in the history; returns the snapshot's id."""
        return int(self._do(lambda: self._history.write(self._memory, "asked for", continues=True)))

    def reset(self) -> None:
        """Forget everything learnt; the snapshots stay."""

        def fresh() -> None:
            memory = self._memory.copy()
            memory.adapter.reset()
            self._become(Memory(memory.adapter), "reset")

        self._do(fresh)

    def rollback(self, snapshot_id: int | None = None) -> int:
        """Go back to a snapshot, labels included; a frozen stream stays frozen. Returns the snapshot's id.

        Args:
            snapshot_id: from `snapshots`. When not given, the last one; if nothing was learnt since, the one before;
                called again and again, it goes further and further back.
        """

        def back() -> int:
            known = {each["id"]: each for each in self._history.snapshots()}
            target = snapshot_id
            if target is None:
                last = max(known)
                older = [i for i in known if self._history.samples or i < known[last].get("of", last)]
                if not older:
                    raise InputError("there is no older snapshot to go back to.")
                target = max(older)
            if target not in known:
                raise NotFoundError(f"stream {self.name!r} has no snapshot {target}; see its list of snapshots.")
            memory = self._history.load(target)
            memory.adapter.frozen = self._memory.adapter.frozen
            self._become(memory, "rollback", of=target)
            return target

        return int(self._do(back))

    def add_labels(self, labels: Sequence[str]) -> None:
        """Add labels; what was learnt of the others stays."""
        self.change_labels(add=labels)

    def remove_labels(self, labels: Sequence[str]) -> None:
        """Remove labels and what was learnt of them."""
        self.change_labels(remove=labels)

    def change_labels(self, add: Sequence[str] = (), remove: Sequence[str] = ()) -> None:
        """Add and remove labels at once: all of it, or nothing."""

        def change() -> None:
            memory = self._memory.copy()
            adapter = memory.adapter
            if remove:
                adapter.remove_classes(remove)
            if add:
                names = check_labels([*adapter.class_names, *add], self.setup.templates, self.limits)
                new = names[len(adapter.class_names) :]
                adapter.add_classes(self._batcher.class_vectors(new, self.setup.templates), new)
            if len(adapter.class_names) < 2:
                raise InputError("a stream needs at least two labels to choose from.")
            self._become(Memory(adapter, memory.notes()), "labels")

        self._do(change)

    def load_state(self, content: bytes) -> None:
        """Go on from a state file; one that does not fit is refused with a StateError, and nothing changes."""

        def become() -> None:
            path = self._folder / f".upload-{token_hex(4)}.tmp"
            try:
                path.write_bytes(content)
                adapter = load(path, like=self._memory.adapter)
            except OSError as error:
                raise StateError(f"the state could not be stored: {error.strerror or error}.") from error
            except StateError as error:
                raise StateError(str(error).replace(str(path), "the state")) from error
            finally:
                with suppress(OSError):
                    path.unlink()
            ids = [entry_id for listed in cached_entries(adapter).values() for *_, entry_id in listed]
            if max([*ids, adapter.samples_seen]) > LARGEST_ID or min([0, *ids]) < 0:
                raise StateError("the state's ids and counts are out of range; it was damaged or edited.")
            adapter.frozen = self._memory.adapter.frozen
            self._become(Memory(adapter), "uploaded")

        self._do(become)

    def tick(self) -> None:
        """To be called now and then: brings the journal to the disk, and takes a snapshot if one is due."""
        try:
            self._history.sync()
            failed = not self._history.writable
        except OSError:
            failed = True
        if failed or (self._history.samples and self._history.age > self.limits.snapshot_s):
            self._lane.put(lambda _: self._snapshot_if_open("time"))

    def close(self) -> "Future[None]":
        """Finish what is queued, keep what was learnt in a snapshot, and close the files."""

        def finish(_: Any) -> None:
            with self._lock:
                if not self._closed and self._history.samples:
                    self._snapshot("shutdown")
                self._closed = True
                self._history.close()

        return self._lane.put(finish)

    def _classify(self, encoded: Encoded, adapt: bool, top_k: int, client: str) -> list[Answered]:
        self._check_open()
        began = perf_counter()
        with self._lock:
            adapter, features = self._memory.adapter, encoded.features
            learning = adapt and not adapter.frozen
            # The guard decides sample by sample. Evidence is taken first: a bad row must fail before one is learnt.
            size = 1 if learning and self._guard is not None else len(features)
            parts = [slice(start, start + size) for start in range(0, len(features), size)]
            evidence = [self._memory.observe(features[part]) for part in parts]
            answers: list[Answered] = []
            replaced = 0
            for part, seen in zip(parts, evidence, strict=True):
                first_id, refused = None, None
                if learning:
                    logits, first_id, refused = self._learn(seen, features[part], encoded.thumbnails[part], client)
                else:
                    logits = self._memory.answer(seen)
                places = range(part.start, part.start + len(features[part]))
                entered: list[tuple[str, ...]] = [() for _ in places]
                for kind, change in adapter.changes.items() if first_id is not None else ():
                    replaced += len(change.dropped)
                    for place in change.admitted:
                        entered[place] += (kind,)
                for place, prediction in enumerate(predictions_from(adapter.class_names, seen, logits, top_k, places)):
                    entry_id = None if first_id is None else first_id + place
                    answers.append(Answered(prediction, entry_id, entered[place], refused))
            self._answered += len(answers)
            self._changed += sum(answer.prediction.changed for answer in answers)
            if self._history.samples >= self.limits.snapshot_samples and monotonic() > self._retry_at:
                self._snapshot("samples")
        self._events.adapted(answers, replaced, perf_counter() - began)
        return answers

    def _learn(
        self, evidence: Evidence, features: HostArray, thumbnails: tuple[bytes, ...], client: str
    ) -> tuple[Array, int | None, str | None]:
        """Adapted logits, and the first sample's id if they were learnt, else why not."""
        memory, refused = self._memory, None
        if self._guard is not None:
            labels = len(memory.adapter.class_names)
            refused = self._guard.refusal(client, memory.held[client], memory.held.total(), labels)
        if refused is None:
            head, body = memory.record(features, client, thumbnails)
            try:
                mark = self._history.append(head, body)
            except StateError as error:  # what cannot be written down is not learnt: nothing acknowledged is ever lost
                self._problems["journal"] = refused = str(error)
        if refused is not None:
            return memory.answer(evidence), None, refused
        try:
            logits = memory.learn(evidence, head, body)
        except BaseException:
            self._history.take_back(mark, len(features))
            raise
        self._problems.pop("journal", None)
        if self._guard is not None and any(change.admitted for change in memory.adapter.changes.values()):
            self._guard.admitted(client)
        return logits, head["first_id"], None

    def _do(self, action: Callable[[], Any]) -> Any:
        """Wait for the stream's turn, then change it."""

        def act(_: Any) -> Any:
            self._check_open()
            with self._lock:
                return action()

        return self._lane.put(act).result()

    def _set_frozen(self, frozen: bool) -> None:
        if self._memory.adapter.frozen != frozen:
            self._history.append({"frozen": frozen})
            self._memory.adapter.frozen = frozen

    def _become(self, memory: Memory, reason: str, **about: Any) -> None:
        """Go on with another memory; what was learnt until now stays in the history."""
        if self._history.samples:
            self._history.write(self._memory, f"before {reason}", continues=True)
        self._history.write(memory, reason, continues=False, **about)
        self._memory = memory

    def _snapshot(self, reason: str) -> None:
        """Take a snapshot in passing; if that fails, say so and go on."""
        try:
            self._history.write(self._memory, reason, continues=True)
            self._problems.pop("snapshot", None)
        except StateError as error:
            self._problems["snapshot"] = str(error)
            self._retry_at = monotonic() + RETRY_S

    def _snapshot_if_open(self, reason: str) -> None:
        with self._lock:
            if not self._closed and monotonic() > self._retry_at:
                self._snapshot(reason)

    def _check_open(self) -> None:
        if self._closed:
            raise NotFoundError(f"there is no stream {self.name!r} any more.")

    def _check_model(self) -> None:
        encoder, adapter = self._batcher.encoder, self._memory.adapter
        if self.setup.model != encoder.fingerprint or adapter.dim != encoder.dim:
            raise StateError("it was made with another model; start the service with that one, or delete the stream.")
