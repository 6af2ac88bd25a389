"""A stream: images from one source, classified in order by an adapter of its own that survives restarts."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from functools import wraps
from pathlib import Path
from threading import Semaphore
from time import monotonic, perf_counter
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from acclimate.errors import InputError, StateError, nearest, reason
from acclimate.evidence import Head
from acclimate.methods import Adapter, duplicate, state_from_bytes, state_to_bytes
from acclimate.methods.persist import MAX_ORIGINS
from acclimate.methods.state import LARGEST_ID
from acclimate.predict import Predictions, refuse_none
from acclimate.serve.batcher import Encoded, WorkQueue
from acclimate.serve.history import History
from acclimate.serve.http_errors import BusyError, NotFoundError
from acclimate.serve.interfaces import AnyBatcher
from acclimate.serve.learning import Learning
from acclimate.serve.problems import Problems
from acclimate.serve.prometheus import Metrics
from acclimate.serve.setups import read_setup
from acclimate.serve.summaries import StreamSummary, list_caches, list_corrections, list_learnt
from acclimate.serve.texts import Texts

RETRY_S = 5.0  # interval between two attempts to write a snapshot
Options = ParamSpec("Options")
Result = TypeVar("Result")


def queued(
    method: Callable[Concatenate["Stream", Options], Result],
) -> Callable[Concatenate["Stream", Options], Result]:
    """Decorator: run a method of a stream as part of its queue, and wait for the result; see `Stream.enqueue`."""

    @wraps(method)
    def run(stream: "Stream", /, *args: Options.args, **kwargs: Options.kwargs) -> Result:
        return stream.enqueue(method, *args, **kwargs).result()

    return run


def queued_read(method: Callable[["Stream"], Result]) -> Callable[["Stream"], Result]:
    """Decorator: run a method that only reads between the stream's other work, and wait; see `Stream.enqueue_read`."""

    @wraps(method)
    def run(stream: "Stream", /) -> Result:
        return stream.enqueue_read(method).result()

    return run


class Stream:
    """One stream; its methods may be called from any thread, and those without a future may block.

    `classify` and everything that changes the stream join one queue when they are called. A change is on disk when its
    method returns; if it cannot be written, a StorageError is raised and the stream stays as it was.

    The folder has the files that `create_files` wrote; StateError if they cannot be used. Work is done in the pool.
    """

    def __init__(
        self, name: str, folder: Path, batcher: AnyBatcher, texts: Texts, pool: Executor, metrics: Metrics
    ) -> None:
        self.name = name
        self.limits = batcher.limits
        self._batcher = batcher
        self._texts = texts
        self._metrics = metrics
        self.setup, model, self.client = read_setup(folder)
        self.history = History(folder, self.limits.history, text=batcher.encoder)
        dim = self.history.adapter.head.dim
        if model != batcher.encoder.fingerprint or dim != batcher.encoder.dim:
            raise StateError("it was made with another model; start the service with that model, or delete the stream.")
        self._problems = Problems(name)
        self.learning = Learning(self.setup, self.history, texts, self._problems)
        self._summary = StreamSummary(name, self.setup, self.history, self.learning, self._problems)
        self._retry_at = 0.0
        self._received = self.history.next_id  # position of the next image
        self._closed = False
        self._calls = Semaphore(self.limits.calls)
        self.queue = WorkQueue(pool, self._summary.update)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes, in order."""
        return self.history.adapter.head.class_names

    @property
    def degraded(self) -> str | None:
        """The reason why what is learnt cannot be written; None if it can. For any thread."""
        return self._problems.text

    def classify(
        self,
        images: Sequence[bytes | str],
        *,
        names: Sequence[str] = (),
        adapt: bool = True,
        top_k: int = 5,
        unsure: float | None = None,
        client: str = "",
    ) -> "Future[Predictions]":
        """Classify image files (or these as base64) in order, after everything requested from this stream before.

        The images are learnt if `adapt`, unless the stream is frozen, its guard refuses the client, they belong to no
        label, or they are nearly the same as images before. Answers with a score below `unsure`, or else that of the
        setup, are marked. The future has a prediction per image once what was learnt is written to the journal. If an
        image cannot be read, it raises ImageError with its name, if `names` has one, and nothing of the request is
        learnt. If `cancel` returns True, nothing of the request was or will be learnt.
        """
        self.limits.check_images(len(images), self.setup.views)
        if top_k < 1:
            raise InputError(f"top_k must be at least 1, got {top_k}.")
        negatives = self._texts.negatives() if self.learning.needs_negatives else None
        encoded = self._encode(images, names, client)
        if negatives is not None:
            self.queue.put(lambda _: None, negatives)  # waits for them without occupying a thread
        self._received += len(images)
        threshold = self.setup.unsure if unsure is None else unsure
        return self.queue.put(lambda found: self._classify(found, adapt, top_k, threshold or 0.0, client), encoded)

    def correct(
        self, label: str, sample_id: int | None = None, image: bytes | str | None = None, client: str = ""
    ) -> "Future[int]":
        """Correct the label of an image: one that was learnt, by its id, or one that is given.

        It joins the queue; the future has the correction's id once the correction is on disk. It raises
        NotFoundError if no image with this id is known (any more), and InputError if there is no such label, or there
        are too many corrections. BusyError is raised if too many calls are waiting.
        """
        encode = None if image is None else lambda: self._encode([image], client=client)
        return self._call(lambda found: self._correct(label, sample_id, found), encode)

    @queued
    def undo(self, correction: int) -> None:
        """Undo a correction; NotFoundError if there is none with this id."""
        if correction not in self.history.corrected:
            raise NotFoundError(f"there is no correction {correction}; see the list of corrections.")
        self.history.undo(correction)

    @queued_read
    def corrections(self) -> list[dict[str, Any]]:
        """Return every correction: id, label, and thumbnail (JPEG bytes, or None)."""
        return list_corrections(self.history)

    def describe(self) -> dict[str, Any]:
        """Return the stream as JSON values.

        This does not wait for the stream: it is as of the last piece of work that was finished. `degraded` is why the
        disk cannot be written to, and `broken` which files were damaged when they were read; both are None normally.
        `answered` and `changed` count images since the service started.
        """
        return dict(self._summary.fields)

    def described(self) -> "Future[dict[str, Any]]":
        """Describe the stream without blocking: the future is done at once."""
        described: Future[dict[str, Any]] = Future()
        described.set_result(self.describe())
        return described

    @queued_read
    def caches(self) -> list[dict[str, Any]]:
        """Return every cache entry: cache, label, entropy, id, client, and thumbnail (JPEG bytes, or None)."""
        return list_caches(self.history)

    @queued_read
    def learnt(self) -> dict[str, Any]:
        """Return what was learnt about each label, as named columns, and how much each client has taught."""
        return list_learnt(self.history)

    @queued_read
    def snapshots(self) -> list[dict[str, Any]]:
        """Return the snapshots that `rollback` accepts, oldest first: id, time, reason, samples_seen."""
        return self.history.files.listed()

    @queued_read
    def state_bytes(self) -> bytes:
        """Return what was learnt, as the content of a state file; without clients and thumbnails."""
        return state_to_bytes(self.history.adapter)

    @queued
    def set_frozen(self, frozen: bool) -> None:
        """Stop learning and answer from what was learnt so far, or resume learning."""
        self.history.set_frozen(frozen)

    @queued
    def snapshot(self) -> int:
        """Write a snapshot of the current state; returns its id."""
        return self.history.snapshot("requested")

    @queued
    def rollback(self, snapshot_id: int | None = None) -> int:
        """Go back to a snapshot, including its labels; a frozen stream stays frozen. Returns the snapshot's id.

        By default it is the last snapshot, or if nothing was learnt since then, the one before; repeated calls go
        further and further back. NotFoundError if there is no such snapshot, InputError if there is no older one.
        """
        number, adapter, notes = self.history.load(snapshot_id)
        adapter.frozen = self.history.adapter.frozen
        self._replace(adapter, notes, "rollback", of=number)
        return number

    @queued
    def reset(self) -> None:
        """Forget everything learnt; the snapshots remain. A stream that was created from a fitted file cannot."""
        if self.history.adapter.kind == "few-shot":
            raise InputError("this stream answers as it was fitted and learns nothing; there is nothing to reset.")
        adapter = duplicate(self.history.adapter)
        adapter.reset()
        self._replace(adapter, {}, "reset")

    def head_of(self, add: Sequence[str], remove: Sequence[str], client: str = "") -> "Future[Head | None]":
        """Encode labels that are to be added, None if there are none; what the stream is doing need not wait for it."""
        kept = [label for label in self.labels if label not in set(remove)]
        new = self.limits.check_labels([*kept, *add], self.setup.templates)[len(kept) :]
        head: Future[Head | None] = Future()
        if not new:
            head.set_result(None)
            return head
        if self.setup.reject:
            refuse_none(new)
        return cast("Future[Head | None]", self._texts.head(new, self.setup.templates, client))

    @queued
    def put_labels(self, add: Sequence[str], remove: Sequence[str], head: Head | None) -> None:
        """Remove labels with what was learnt about them, then add labels; either all of it happens or nothing.

        The head is what `head_of` gave; the labels may have changed since.
        """
        adapter = duplicate(self.history.adapter)
        if remove:
            adapter.remove_classes(remove)
        kept = adapter.head.class_names
        new = self.limits.check_labels([*kept, *add], self.setup.templates)[len(kept) :]
        if head is not None:
            adapter.add_classes(head.class_vectors, new)
        self._replace(adapter, self.history.notes(), "labels")

    def read_state(self, content: bytes) -> Adapter:
        """Return the adapter in a state file that this stream can continue from; StateError if there is none."""
        adapter = state_from_bytes(content, like=self.history.adapter)
        if adapter.next_id > LARGEST_ID // 2 or len(adapter.seen.keys() | {self.name}) > MAX_ORIGINS:
            raise StateError("the state leaves no room for more samples, ids or origins; use another.")
        if len(adapter.corrections) > self.limits.corrections:
            raise StateError(f"the state has more than {self.limits.corrections} corrections; use another.")
        return adapter

    @queued
    def continue_from(self, adapter: Adapter) -> None:
        """Continue with what `read_state` gave, unless the labels have changed since."""
        if differences := adapter.head.differences(self.history.adapter.head):
            raise StateError(f"the stream has changed in the meantime: {'; '.join(differences)}. Upload it again.")
        adapter.origin = self.name
        adapter.frozen = self.history.adapter.frozen
        self._replace(adapter, {}, "uploaded")

    def enqueue(
        self, method: Callable[Concatenate["Stream", Options], Result], *args: Options.args, **kwargs: Options.kwargs
    ) -> "Future[Result]":
        """Queue a call of a method that is `queued`, without waiting for it.

        If `cancel` of the future returns True, the call will never happen. BusyError if too many are waiting.
        """
        change = getattr(method, "__wrapped__", method)

        def work(_: None) -> Result:
            self.check_open()
            result: Result = change(self, *args, **kwargs)
            return result

        return self._call(work)

    def enqueue_read(self, method: Callable[["Stream"], Result]) -> "Future[Result]":
        """Queue a call of a method that is a `queued_read`, like `enqueue`; it does not wait for all of the queue."""
        read = getattr(method, "__wrapped__", method)
        return self._call(lambda _: read(self), reads=True)

    def tick(self) -> None:
        """Call this regularly: it syncs the journal to the disk, and takes a snapshot if one is due."""
        if self.history.snapshot_due(self.limits.snapshot_s):
            self.queue.put(lambda _: None if self._closed else self._try_snapshot("time"))

    def close(self) -> "Future[None]":
        """Finish what is queued, and write a snapshot of what was learnt, unless it was closed or deleted before."""

        def work(_: None) -> None:
            if self._closed:
                return
            self._closed = True
            self._retry_at = 0.0
            if self.history.samples:
                self._try_snapshot("shutdown")
            try:
                self.history.sync()
            except OSError as error:
                self._problems.report("journal", f"the last samples may not be on the disk: {reason(error)}.")

        return self.queue.put(work)

    @queued
    def end(self, remove: Callable[[], None]) -> None:
        """Finish what is queued, then `remove` the stream's files; if that fails, the stream goes on as before."""
        remove()
        self._closed = True

    def check_open(self) -> None:
        """Raise NotFoundError if the stream was deleted."""
        if self._closed:
            raise NotFoundError(f"the stream {self.name!r} does not exist any more.")

    def _call(
        self,
        work: Callable[[Any], Result],
        needs: "Callable[[], Future[Any]] | None" = None,
        reads: bool = False,
    ) -> "Future[Result]":
        """Queue work and what it needs, which is only asked for if not too many calls are waiting."""
        if not self._calls.acquire(blocking=False):
            raise BusyError(f"{self.limits.calls} calls are waiting for this stream; try again in a moment.")
        try:
            future = self.queue.put(work, needs and needs(), reads=reads)
        except BaseException:
            self._calls.release()
            raise
        future.add_done_callback(lambda _: self._calls.release())
        return future

    def _replace(self, adapter: Adapter, notes: Mapping[str, Any], reason: str, **about: Any) -> None:
        """Continue with another adapter."""
        self.history.replace(adapter, notes, reason, **about)
        self._received = self.history.next_id
        self.learning.forget()

    def _encode(self, images: Sequence[bytes | str], names: Sequence[str] = (), client: str = "") -> "Future[Encoded]":
        self.check_open()
        setup = self.setup
        kind = self.setup.views_kind or "augmix"
        start = self._received
        options = {"thumbnails": setup.thumbnails, "views": setup.views, "kind": kind, "start": start}
        return self._batcher.submit(images, names=names, client=client, **options)

    def _correct(self, label: str, sample_id: int | None, encoded: Encoded | None) -> int:
        self.check_open()
        history = self.history
        if label not in self.labels:
            raise InputError(f"the stream has no label {label[:80]!r}; {nearest(label, self.labels)}")
        if encoded is not None:
            features = encoded.features
            picture = b"".join(encoded.thumbnails)
        else:
            assert sample_id is not None
            features, picture = history.files.find(sample_id)
        known = (
            sample_id in history.corrected
            or history.adapter.corrections.knows(history.adapter.head.observe(features))[0]
        )
        if not known and len(history.corrected) >= self.limits.corrections:
            raise InputError(f"the maximum of {self.limits.corrections} corrections is reached; undo one first.")
        return history.correct(label, sample_id, features, picture)

    def _classify(self, encoded: Encoded, learn: bool, top_k: int, unsure: float, client: str) -> Predictions:
        self.check_open()
        began = perf_counter()
        adapter = self.history.adapter
        features = encoded.features
        seen = adapter.head.observe(features)
        if learn and adapter.counts_samples:
            found, step = self.learning.learn(seen, features, client, encoded.thumbnails, top_k, unsure)
        else:
            found, step = self.learning.answer(seen, top_k, unsure)
        replaced = sum(len(change.dropped) for change in step.changes.values())
        self._summary.count(found)
        self._metrics.answered(found, len(adapter.head))
        self._metrics.adapted(found, replaced, perf_counter() - began)
        if self.history.samples * self.setup.views >= self.limits.snapshot_samples:
            self._try_snapshot("samples")
        return found

    def _try_snapshot(self, reason: str) -> None:
        """Take a snapshot; a failure is reported in `describe`, and does not stop the stream."""
        if monotonic() < self._retry_at:
            return
        try:
            self.history.snapshot(reason)
        except StateError as error:  # it cannot be written, or could not be read again
            self._problems.report("snapshot", str(error))
            self._retry_at = monotonic() + RETRY_S
        else:
            self._problems.report("snapshot", None)
            self._problems.report("journal", None)  # there is a new one
