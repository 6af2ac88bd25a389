"""A stream: images from one source, classified in order by an adapter of its own that survives restarts."""

import asyncio
import ctypes
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, Concatenate, ParamSpec, TypeVar

from acclimate.arrays import HostArray
from acclimate.errors import AcclimateError, BusyError, InputError
from acclimate.methods import state_to_bytes
from acclimate.predict import Predictions
from acclimate.reading.batcher import Batcher, Encoded
from acclimate.serve.http_errors import NotFoundError, StorageError, UnusableError
from acclimate.serve.learner import Learner
from acclimate.serve.limits import Limits
from acclimate.serve.logs import logger
from acclimate.serve.prometheus import Metrics
from acclimate.serve.queues import FairPool
from acclimate.serve.schemas import StreamSetup
from acclimate.serve.storage import SUFFIX, StreamFile, noticing_damage, remove_file, summary_of
from acclimate.serve.texts import Texts

LOADED_FACTOR = 4  # memory of a loaded stream = factor * bytes of its state
Options = ParamSpec("Options")
Result = TypeVar("Result")


def in_turn(
    method: Callable[Concatenate[Learner, Options], Result], copies: bool = False
) -> Callable[..., Awaitable[Result]]:
    """Return the method of a stream that calls this one of its learner, in its turn, on behalf of a `client`.

    Those that make a copy of the state have threads of their own, as they take much memory.
    """

    @wraps(method)
    async def call(stream: "Stream", /, *arguments: Any, client: str = "", **options: Any) -> Result:
        pool = stream.copying if copies else None
        return await stream.call(lambda: method(stream.learner, *arguments, **options), client, bounded=True, pool=pool)

    return call


class Stream:
    """One stream, for the event loop: its calls are done one after another, in their order, in the threads of a pool.

    A change is on the disk when its call returns; if it cannot be written, a StorageError is raised and the stream
    stays as it was. A call that is cancelled while it waits never happens; a change that has begun ends.

    The state is loaded from the file by the first call, and may be unloaded between two calls.

    Attributes:
        name: its name.
        client: the client that made it; "" for none.
        setup: the settings that it was created with.
        broken: the reason why its file cannot be used; None if it can.
        degraded: the reason why what is learnt cannot be written at the moment; None if it can.
        file_bytes: the size of its file.
        copying: threads for what makes a copy of the state: one of a client at a time.
        used: when it was last asked for, on the clock `monotonic`.
    """

    def __init__(
        self,
        path: Path,
        limits: Limits,
        batcher: Batcher,
        texts: Texts,
        pool: FairPool,
        copying: FairPool,
        metrics: Metrics,
        room: Callable[["Stream"], float],
    ) -> None:
        self.name = path.name.removesuffix(SUFFIX)
        self.limits = limits
        self.client = ""
        self.broken: str | None = None
        self.degraded: str | None = None
        self.file_bytes = 0
        self.used = 0.0
        self._path = path
        self._batcher = batcher
        self._texts = texts
        self._pool = pool
        self.copying = copying
        self._room = room
        self._metrics = metrics
        self._turn = asyncio.Lock()
        self._waiting = 0  # bounded calls that wait or work
        self._received = 0  # position of the next image
        self._gone = False
        self._learner: Learner | None = None
        try:
            with noticing_damage(), closing(StreamFile(path, self.limits)) as file:
                about = file.about("stream")
                self._summary = file.summary()
                self.client = str(about["client"])
                self.setup = StreamSetup.stored(about["setup"])
                self.file_bytes = path.stat().st_size
                if about["model"] != batcher.encoder.fingerprint:
                    raise UnusableError(
                        "it was made with another model; start the service with that model, or delete the stream."
                    )
        except AcclimateError as error:
            self.broken = str(error)

    @property
    def learner(self) -> Learner:
        """The loaded state, for the work of a call."""
        assert self._learner is not None
        return self._learner

    @property
    def loaded_bytes(self) -> int:
        """The memory that its state takes; 0 if it is not loaded."""
        return 0 if self._learner is None else LOADED_FACTOR * self._summary["state_bytes"]

    def describe(self) -> dict[str, Any]:
        """Return the stream as JSON values, as of the last call that ended; only `broken` if it cannot be used."""
        if self.broken:
            return {"name": self.name, "broken": self.broken}
        return {
            **self.setup.model_dump(),
            **self._summary,
            "name": self.name,
            "changed_share": self._summary["changed"] / max(1, self._summary["answered"]),
            "degraded": self.degraded,
            "broken": None,
        }

    async def load(self, client: str = "") -> None:
        """Load the state, unless it is; UnusableError if the file cannot be used."""
        self.used = monotonic()
        if self._learner is None:
            await self.call(lambda: None, client)

    async def classify(
        self,
        images: Sequence[bytes | str],
        *,
        names: Sequence[str] = (),
        adapt: bool = True,
        top_k: int = 5,
        unsure: float | None = None,
        client: str = "",
    ) -> Predictions:
        """Classify image files (or these as base64) in order, after everything requested from this stream before.

        The images are learnt if `adapt`, unless the stream is frozen, they belong to no label, or they are nearly the
        same as images before. Answers with a score below `unsure`, or else that of the
        setup, are marked. If an image cannot be read, ImageError is raised with its name, if `names` has one, and
        nothing of the request is learnt.
        """
        self.limits.check_images(len(images), self.setup.views)
        if top_k < 1:
            raise InputError(f"top_k must be at least 1, got {top_k}.")
        negatives = await self._texts.negatives() if self.setup.reject else None
        await self.load(client)
        encoded = self._encode(images, names, client)
        self._received += len(images)
        unsure = self.setup.unsure if unsure is None else unsure
        options = {"learn": adapt, "top_k": top_k, "unsure": unsure or 0.0, "client": client, "names": names}
        return await self.call(partial(self._classify, negatives, options), client, encoded)

    async def correct(
        self, label: str, sample_id: int | None = None, image: bytes | str | None = None, client: str = ""
    ) -> int:
        """Correct the label of an image: one that was learnt, by its id, or one that is given; returns an id.

        NotFoundError is raised if no image with this id is known (any more), and InputError if there is no such label,
        or there are too many corrections.
        """
        await self.load(client)
        encoded = None if image is None else self._encode([image], (), client)
        return await self.call(
            lambda *found: self.learner.correct(label, sample_id, client, *found), client, encoded, bounded=True
        )

    async def change_labels(self, add: Sequence[str] = (), remove: Sequence[str] = (), client: str = "") -> None:
        """Remove labels with what was learnt about them, then add labels; either all of it happens or nothing."""
        if not add and not remove:
            return
        labels, known = await self.call(lambda: self.learner.changed_labels(add, remove), client, bounded=True)
        setup = self.setup
        head = await self._texts.head(labels, setup.templates, client, expand=setup.expand, known=known)
        if not await self._put_labels(add, remove, head, client=client):
            await self.change_labels(add, remove, client)  # somebody else has changed them meanwhile

    undo = in_turn(Learner.undo)
    set_frozen = in_turn(Learner.set_frozen)
    corrections = in_turn(Learner.corrections)
    caches = in_turn(Learner.caches)
    learnt = in_turn(Learner.learnt)
    snapshot = in_turn(Learner.snapshot, copies=True)
    rollback = in_turn(Learner.rollback, copies=True)
    reset = in_turn(Learner.reset, copies=True)
    continue_from = in_turn(Learner.continue_from, copies=True)
    _put_labels = in_turn(Learner.put_labels, copies=True)
    answers = in_turn(Learner.answers)
    # The snapshots that `rollback` accepts, oldest first.
    snapshots = in_turn(lambda learner: learner.file.snapshots())
    # What was learnt, as the content of a state file; without clients and thumbnails.
    state_bytes = in_turn(lambda learner: state_to_bytes(learner.adapter))

    async def tick(self) -> None:
        """Do periodic work: try a disk that was full, take a snapshot if one is due, move changes into the database."""

        def work() -> None:
            self._try_disk()
            if reason := self.learner.snapshot_due:
                self.learner.snapshot(reason)
            self.learner.file.checkpoint()

        if self._learner is not None:
            await self.call(work)

    async def unload(self) -> None:
        """Free the memory of the state until the next call, unless it is in use."""

        def work() -> None:
            self._close()
            with suppress(OSError, AttributeError):  # other systems than Linux have none
                ctypes.CDLL(None).malloc_trim(0)  # else it stays with this process

        if not self._turn.locked():
            await self.call(work, loads=False)

    async def close(self) -> None:
        """Write a snapshot of what was learnt, and accept no more calls."""

        def work() -> None:
            self._gone = True
            try:
                if self._learner is not None:
                    self._learner.snapshot("shutdown")
            finally:
                self._close()

        await self.call(work, loads=False)

    async def delete(self, deleted: Callable[[], Any] = lambda: None, client: str = "") -> None:
        """Delete the stream and its file, then call `deleted`; after a StorageError the stream goes on as before."""

        def work() -> None:
            self._close()
            try:
                remove_file(self._path)
            except OSError as error:
                raise StorageError(f"the stream {self.name!r} could not be removed: {error.strerror}.") from error
            self._gone = True
            deleted()

        await self.call(work, client, loads=False)

    async def call(
        self,
        work: Callable[..., Result],
        client: str = "",
        encoded: Future[Encoded] | None = None,
        *,
        loads: bool = True,
        bounded: bool = False,
        pool: FairPool | None = None,
    ) -> Result:
        """Do work in a thread when it is its turn, with the images that it needs, and with the state if it `loads`.

        The thread is of this pool, or of that which most calls share. The turn ends with the work, whoever waits for
        it. BusyError if too many calls wait that are `bounded`.
        """
        self._waiting += bounded
        try:
            if bounded and self._waiting > self.limits.calls:
                raise BusyError(f"{self.limits.calls} calls are waiting for this stream; try again in a moment.")
            await self._turn.acquire()
            try:
                arguments = () if encoded is None else (await asyncio.wrap_future(encoded),)
            except BaseException:
                self._turn.release()
                raise
            sender = client or f"/{self.name}"  # periodic work counts as the stream's own
            return await (pool or self._pool).run(sender, lambda: self._do(work, arguments, loads), self._turn.release)
        finally:
            self._waiting -= bounded
            if encoded is not None:
                encoded.cancel()

    def _do(self, work: Callable[..., Result], arguments: Sequence[Any], loads: bool) -> Result:
        if self._gone:
            raise NotFoundError(f"the stream {self.name!r} does not exist any more.")
        if loads:
            self._load()
        try:
            return work(*arguments)
        except StorageError as error:
            self._report(str(error))
            raise
        except sqlite3.Error as error:
            raise StorageError(f"the stream's file cannot be read ({error}); restore a backup.") from error
        finally:
            self._refresh()

    def _load(self) -> None:
        """Read the state from the file, unless it is that of the file; a file that is broken is not tried again."""
        if self._learner is not None and not self._learner.file.stale:
            return
        if self.broken is None:
            try:
                file = self._learner.file if self._learner else self._open()
                self._learner = Learner(file, self.limits, self._batcher.encoder)
            except UnusableError as error:
                self.broken = str(error)
        if self.broken is not None:
            self._close()
            raise UnusableError(f"the stream {self.name!r} cannot be used: {self.broken}")
        self._received = self.learner.next_id

    def _refresh(self) -> None:
        """Read the state again if it may differ from the file, and describe it."""
        if self._learner is not None:
            self._load()
            self._summary = summary_of(self.learner.adapter) | self.learner.file.counts()
            self.file_bytes = self.learner.file.file_bytes

    def _open(self) -> StreamFile:
        return StreamFile(self._path, self.limits, check=True, room=lambda: self._room(self))

    def _close(self) -> None:
        if self._learner is not None:
            self._learner.file.close()
        self._learner = None

    def _report(self, problem: str | None) -> None:
        """Note that what is learnt cannot be written, or that it can; the log says when it begins and ends."""
        fields = {"stream": self.name, "reason": problem or self.degraded}
        if problem and not self.degraded:
            logger.warning("what is learnt cannot be written", extra={"fields": fields})
        if self.degraded and not problem:
            logger.info("what is learnt can be written again", extra={"fields": fields})
        self.degraded = problem

    def _try_disk(self) -> None:
        """Raise StorageError if the disk, which could not be written, still has no room for another snapshot."""
        if self.degraded:
            self.learner.file.probe()
            self._report(None)

    def _encode(self, images: Sequence[bytes | str], names: Sequence[str], client: str) -> Future[Encoded]:
        return self._batcher.submit(
            images,
            names=names,
            thumbnail=self.limits.thumbnail if self.setup.thumbnails else 0,
            views=self.setup.views,
            kind=self.setup.views_kind or "augmix",
            start=self._received,
            client=client,
        )

    def _classify(self, negatives: HostArray | None, options: dict[str, Any], encoded: Encoded) -> Predictions:
        """Answer images and learn from them; if that cannot be written, answer them as if nobody had asked to learn."""
        began = perf_counter()
        try:
            if options["learn"]:
                self._try_disk()
            found, step = self.learner.classify(encoded, negatives, **options)
        except StorageError as error:
            self._report(str(error))
            self._refresh()
            found, step = self.learner.classify(encoded, negatives, **options | {"learn": False})
            found = replace(found, refused=[str(error)] * len(found))
        replaced = sum(len(change.dropped) for change in step.changes.values())
        self._metrics.answered(found, len(self.learner.adapter.head))
        self._metrics.adapted(found, replaced, perf_counter() - began)
        return found
