"""A stream: images of one source, classified in order by an adapter of its own that survives restarts."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Any, TypeVar

from acclimate.errors import InputError, NotFoundError
from acclimate.methods.persist import to_bytes
from acclimate.serve.batcher import Batcher, Encoded
from acclimate.serve.events import Events
from acclimate.serve.lane import Lane
from acclimate.serve.learner import Answered, Learner

__all__ = ["Answered", "Stream"]

Result = TypeVar("Result")


class Stream:
    """One stream; its methods may be called from any thread.

    `classify` and everything that changes the stream take their places in one queue, at the call. What changes the
    stream waits for its turn, and is on disk when it returns; if it cannot be written, a StorageError is raised and the
    stream stays as it was. All methods but `classify` may block: call them from a thread that may wait.

    Args:
        name: of the stream.
        folder: with the files that `Learner.create_files` made.
        batcher: the shared encoder.
        pool: where streams do their work.
        events: told of every request.

    Raises:
        StateError: the files cannot be used at all; the message says why.
    """

    def __init__(self, name: str, folder: Path, batcher: Batcher, pool: Executor, events: Events) -> None:
        self.name, self.limits = name, batcher.limits
        self._batcher, self._events = batcher, events
        self._learner = Learner(folder, batcher)
        self._lane = Lane(pool)
        self._lock = Lock()  # held while the learner is used, so that it can be looked at from outside the lane
        self._closed = False

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes, in order."""
        return self._learner.memory.adapter.class_names

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
            A future with an answer for each image, given once what was learnt is written down. If one of the images
            cannot be read it raises ImageError, and nothing of the request is learnt. Cancelling it takes the request
            back: when `cancel` says True, nothing of it was or will be learnt.

        Raises:
            InputError: too many images or none.
            BusyError: too many images are waiting.
        """
        if not 1 <= len(images) <= self.limits.images:
            raise InputError(f"a request must hold 1 to {self.limits.images} images, got {len(images)}.")
        if top_k < 1:
            raise InputError(f"top_k must be at least 1, got {top_k}.")
        self._check_open()
        encoded = self._batcher.submit(images, self._learner.setup.thumbnails)
        return self._lane.put(lambda found: self._classify(found, adapt, top_k, client), encoded)

    def describe(self) -> dict[str, Any]:
        """The stream in JSON's terms.

        `degraded` says why the disk cannot be written to, `broken` which files were damaged when they were read; both
        None if all is well. `answered` and `changed` count images since the service began.
        """
        with self._lock:
            return {"name": self.name, **self._learner.describe()}

    def entries(self) -> dict[str, int]:
        """Number of entries in each cache."""
        with self._lock:
            return {kind: len(held) for kind, held in self._learner.memory.entries.items()}

    def caches(self) -> list[dict[str, Any]]:
        """Every cache entry: cache, label, entropy, id, client, and thumbnail (JPEG bytes, or None)."""
        with self._lock:
            return self._learner.caches()

    def snapshots(self) -> list[dict[str, Any]]:
        """The snapshots to roll back to, oldest first: id, time, reason, samples_seen."""
        with self._lock:
            return self._learner.history.snapshots()

    def state_bytes(self) -> bytes:
        """What was learnt, as a state file that `acclimate` reads; without clients and thumbnails."""
        with self._lock:
            return to_bytes(self._learner.memory.adapter)

    def freeze(self) -> None:
        """Answer from what was learnt so far, and learn nothing more."""
        self._do(lambda learner: learner.set_frozen(True))

    def unfreeze(self) -> None:
        """Learn again."""
        self._do(lambda learner: learner.set_frozen(False))

    def snapshot(self) -> int:
        """Keep the state as it is now in the history; returns the snapshot's id."""
        return self._do(lambda learner: learner.history.write(learner.memory, "asked for", continues=True))

    def reset(self) -> None:
        """Forget everything learnt; the snapshots stay."""
        self._do(lambda learner: learner.reset())

    def rollback(self, snapshot_id: int | None = None) -> int:
        """Go back to a snapshot, labels included; a frozen stream stays frozen. Returns the snapshot's id.

        Args:
            snapshot_id: from `snapshots`. When not given, the last one; if nothing was learnt since, the one before.
                Called again and again, it goes further and further back.

        Raises:
            NotFoundError: there is no such snapshot.
            InputError: there is none before.
        """
        return self._do(lambda learner: learner.rollback(snapshot_id))

    def change_labels(self, add: Sequence[str] = (), remove: Sequence[str] = ()) -> None:
        """Remove labels and what was learnt of them, and add others: all of it, or nothing."""
        self._do(lambda learner: learner.change_labels(add, remove))

    def load_state(self, content: bytes) -> None:
        """Go on from a state file; one that does not fit is refused with a StateError, and nothing changes."""
        self._do(lambda learner: learner.load_state(content))

    def tick(self) -> None:
        """To be called now and then: brings the journal to the disk, and takes a snapshot if one is due."""
        history = self._learner.history
        try:
            history.sync()
            due = not history.writable or (history.samples > 0 and history.age > self.limits.snapshot_s)
        except OSError:
            due = True
        if due:
            self._lane.put(lambda _: self._keep())

    def close(self) -> "Future[None]":
        """Finish what is queued, and keep what was learnt in a snapshot."""
        return self._lane.put(lambda _: self._finish())

    def _classify(self, encoded: Encoded, adapt: bool, top_k: int, client: str) -> list[Answered]:
        with self._lock:
            self._check_open()
            began = perf_counter()
            answers, replaced = self._learner.classify(encoded, adapt, top_k, client)
        self._events.adapted(answers, replaced, perf_counter() - began)
        return answers

    def _do(self, action: Callable[[Learner], Result]) -> Result:
        """Wait for the stream's turn, then change it."""

        def act(_: Any) -> Result:
            with self._lock:
                self._check_open()
                return action(self._learner)

        return self._lane.put(act).result()

    def _keep(self) -> None:
        with self._lock:
            if not self._closed:
                self._learner.keep("time")

    def _finish(self) -> None:
        with self._lock:
            self._closed = True
            self._learner.close()

    def _check_open(self) -> None:
        if self._closed:
            raise NotFoundError(f"there is no stream {self.name!r} any more.")
