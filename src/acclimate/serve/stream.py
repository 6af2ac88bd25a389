"""A stream: images from one source, classified in order by an adapter of its own that survives restarts."""

import asyncio
import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from time import monotonic, perf_counter, time
from typing import Any, TypeVar

import numpy as np

from acclimate.arrays import HostArray
from acclimate.errors import InputError, StateError, nearest
from acclimate.evidence import Head
from acclimate.methods import duplicate, state_from_bytes, state_to_bytes
from acclimate.methods.cache import Cache
from acclimate.methods.gates import Gate, NearDuplicates, Rejector
from acclimate.methods.persist import MAX_ORIGINS
from acclimate.methods.state import LARGEST_ID
from acclimate.predict import Predictions, choose_samples, none_scores, refuse_none
from acclimate.serve.batcher import Batcher, Encoded
from acclimate.serve.guard import Guard
from acclimate.serve.http_errors import BusyError, NotFoundError, StorageError, UnusableError
from acclimate.serve.logs import logger
from acclimate.serve.memory import Event, Memory
from acclimate.serve.prometheus import Metrics
from acclimate.serve.queues import FairPool
from acclimate.serve.schemas import StreamSetup
from acclimate.serve.storage import SUFFIX, StreamFile, delete_file
from acclimate.serve.texts import Texts

Result = TypeVar("Result")


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
        loaded_bytes: the size of its state in memory; 0 if it is not loaded.
        file_bytes: the size of its file.
        unsaved: samples learnt and other changes since the last snapshot.
        used: when it was last used, on the clock `monotonic`.
    """

    def __init__(self, path: Path, batcher: Batcher, texts: Texts, pool: FairPool, metrics: Metrics) -> None:
        self.name = path.name.removesuffix(SUFFIX)
        self.limits = batcher.limits
        self._path = path
        self._batcher = batcher
        self._texts = texts
        self._pool = pool
        self._metrics = metrics
        self.broken: str | None = None
        self.degraded: str | None = None
        self.loaded_bytes = self.file_bytes = self.unsaved = 0
        self.used = 0.0
        self._turn = asyncio.Lock()
        self._calls = self._managing = 0  # calls that wait or work; those among them that are not `classify`
        self._answered = self._changed = 0
        self._gone = False
        self._written = False  # True if there are changes since the last checkpoint
        self._taken = monotonic()  # when the last snapshot was taken
        self._received = 0  # position of the next image
        self._memory: Memory | None = None
        self._guard: Guard | None = None
        self._duplicates: NearDuplicates | None = None
        self._rejector: Rejector | None = None
        self.client = ""
        self.setup = StreamSetup()
        self._summary: dict[str, Any] = {}
        try:
            self._read_about()
        except UnusableError as error:
            self.broken = str(error)
        except (sqlite3.Error, OSError, ValueError, LookupError, TypeError) as error:
            self.broken = f"its file cannot be read ({error}); restore a backup, or delete the stream."

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes, in order."""
        return tuple(self._summary["labels"])

    @property
    def idle(self) -> bool:
        """True if it is loaded and no call waits or works."""
        return self._memory is not None and not self._calls

    def describe(self) -> dict[str, Any]:
        """Return the stream as JSON values, as of the last call that was finished; only `broken` if it cannot be used.

        `answered` and `changed` count images since the service started.
        """
        if self.broken:
            return {"name": self.name, "broken": self.broken}
        return {
            **self.setup.model_dump(),
            **self._summary,
            "name": self.name,
            "refusals": 0 if self._guard is None else self._guard.refusals,
            "answered": self._answered,
            "changed": self._changed,
            "changed_share": self._changed / self._answered if self._answered else 0.0,
            "degraded": self.degraded,
            "broken": None,
        }

    async def load(self) -> None:
        """Load the state, unless it is; UnusableError if the file cannot be used."""
        if self._memory is None:
            await self._call(lambda: None)

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

        The images are learnt if `adapt`, unless the stream is frozen, its guard refuses the client, they belong to no
        label, or they are nearly the same as images before. Answers with a score below `unsure`, or else that of the
        setup, are marked. If an image cannot be read, ImageError is raised with its name, if `names` has one, and
        nothing of the request is learnt.
        """
        self.limits.check_images(len(images), self.setup.views)
        if top_k < 1:
            raise InputError(f"top_k must be at least 1, got {top_k}.")
        negatives = await self._texts.negatives() if self.setup.reject else None
        await self.load()
        encoded = self._encode(images, names, client)
        self._received += len(images)
        threshold = self.setup.unsure if unsure is None else unsure
        options = {"learn": adapt, "top_k": top_k, "unsure": threshold or 0.0, "client": client, "negatives": negatives}
        return await self._call(partial(self._classify, **options), client, encoded)

    async def correct(
        self, label: str, sample_id: int | None = None, image: bytes | str | None = None, client: str = ""
    ) -> int:
        """Correct the label of an image: one that was learnt, by its id, or one that is given; returns an id.

        NotFoundError is raised if no image with this id is known (any more), and InputError if there is no such label,
        or there are too many corrections.
        """
        await self.load()
        encoded = None if image is None else self._encode([image], client=client)
        return await self._manage(partial(self._correct, label, sample_id, client), client, encoded)

    async def undo(self, correction: int, client: str = "") -> None:
        """Undo a correction; NotFoundError if there is none with this id."""

        def work() -> None:
            if correction not in {each.id for each in self._state.adapter.corrections}:
                raise NotFoundError(f"there is no correction {correction}; see the list of corrections.")
            self._change(Event("undo", time(), client, {"id": correction}))

        await self._manage(work)

    async def set_frozen(self, frozen: bool, client: str = "") -> None:
        """Stop learning and answer from what was learnt so far, or resume learning."""

        def work() -> None:
            if self._state.adapter.frozen != frozen:
                self._change(Event("frozen", time(), client, {"frozen": frozen}))

        await self._manage(work)

    async def corrections(self) -> list[dict[str, Any]]:
        """Return every correction: id, label, and thumbnail (JPEG bytes, or None)."""

        def work() -> list[dict[str, Any]]:
            memory = self._state
            return [
                {"id": each.id, "label": each.label, "thumbnail": memory.thumbnails.get(each.id)}
                for each in memory.adapter.corrections
            ]

        return await self._manage(work)

    async def caches(self) -> list[dict[str, Any]]:
        """Return every cache entry: cache, label, entropy, id, client, and thumbnail (JPEG bytes, or None)."""

        def work() -> list[dict[str, Any]]:
            memory = self._state
            names = memory.adapter.head.class_names
            return [
                {
                    "cache": cache,
                    "label": names[entry.class_index],
                    "entropy": entry.entropy,
                    "id": entry.id,
                    "client": memory.clients.get(entry.id, ""),
                    "thumbnail": memory.thumbnails.get(entry.id),
                }
                for cache, entries in memory.adapter.entries().items()
                for entry in entries
            ]

        return await self._manage(work)

    async def learnt(self) -> dict[str, Any]:
        """Return what was learnt about each label, as named columns, and how much each client has taught."""

        def work() -> dict[str, Any]:
            adapter = self._state.adapter
            columns = {name: values.tolist() for name, values in adapter.learnt().items()}
            return {"labels": list(adapter.head.class_names), "columns": columns, "clients": self._state.shares()}

        return await self._manage(work)

    async def answers(self, after: int = -1, limit: int = 1000) -> list[dict[str, Any]]:
        """Return the answers to samples that led to the current state, as far back as they are kept.

        They have an id above `after`, and id, time, client, label, score, zero_shot and changed.
        """
        return await self._manage(lambda: self._file.answers(after, limit))

    async def snapshots(self) -> list[dict[str, Any]]:
        """Return the snapshots that `rollback` accepts, oldest first: id, time, reason, samples_seen."""
        return await self._manage(lambda: self._file.snapshots())

    async def state_bytes(self) -> bytes:
        """Return what was learnt, as the content of a state file; without clients and thumbnails."""
        return await self._manage(lambda: state_to_bytes(self._state.adapter))

    async def snapshot(self) -> int:
        """Write a snapshot of the current state; returns its id, or that of the last one if it has this state."""
        return await self._manage(lambda: self._snapshot("requested") if self.unsaved else self._file.snapshot().id)

    async def rollback(self, snapshot_id: int | None = None) -> int:
        """Go back to a snapshot, including its labels; a frozen stream stays frozen. Returns the snapshot's id.

        By default it is the last snapshot, or if nothing was learnt since then, the one before; repeated calls go
        further and further back. NotFoundError if there is no such snapshot, InputError if there is no older one.
        """
        return await self._manage(lambda: self._roll_back(snapshot_id))

    async def reset(self) -> None:
        """Forget everything learnt; the snapshots remain. A stream that was created from a fitted file cannot."""

        def work() -> None:
            if self._state.adapter.kind == "few-shot":
                raise InputError("this stream answers as it was fitted and learns nothing; there is nothing to reset.")
            adapter = duplicate(self._state.adapter)
            adapter.reset()
            self._replace(Memory(adapter), "reset", branches=True)

        await self._manage(work)

    async def change_labels(self, add: Sequence[str] = (), remove: Sequence[str] = (), client: str = "") -> None:
        """Remove labels with what was learnt about them, then add labels; either all of it happens or nothing."""
        await self.load()
        head = None
        kept = [label for label in self.labels if label not in set(remove)]
        if new := await self._pool.run(client, lambda: self._check_labels(kept, add)):
            head = await self._texts.head(new, self.setup.templates, client)
        await self._manage(lambda: self._put_labels(add, remove, head), client)

    async def continue_from(self, content: bytes, client: str = "") -> None:
        """Continue from the content of a state file; StateError if it does not belong to such a stream."""

        def work() -> None:
            adapter = state_from_bytes(content, like=self._state.adapter)
            if adapter.next_id > LARGEST_ID // 2 or len(adapter.seen.keys() | {self.name}) > MAX_ORIGINS:
                raise StateError("the state leaves no room for more samples, ids or origins; use another.")
            if len(adapter.corrections) > self.limits.corrections:
                raise StateError(f"the state has more than {self.limits.corrections} corrections; use another.")
            adapter.origin = self.name
            adapter.frozen = self._state.adapter.frozen
            self._replace(Memory(adapter), "uploaded", branches=True)

        await self._manage(work, client)

    async def tick(self) -> None:
        """Do periodic work: move changes into the database, take a snapshot if one is due, try the disk again."""
        due = self.unsaved and monotonic() - self._taken > self.limits.snapshot_s
        if self._memory is not None and (due or self._written or self.degraded):
            with suppress(StorageError, NotFoundError):
                await self._call(self._tick)

    async def unload(self) -> None:
        """Free the memory of the state until the next call."""
        await self._call(self._close, loads=False)

    async def close(self) -> None:
        """Write a snapshot of what was learnt, and accept no more calls."""

        def work() -> None:
            self._gone = True
            with suppress(StorageError):
                if self.unsaved and self._memory is not None:
                    self._snapshot("shutdown")
            self._close()

        if not self._gone:
            await self._call(work, loads=False)

    async def delete(self, deleted: Callable[[], Any] = lambda: None) -> None:
        """Delete the stream and its file, then call `deleted`; after a StorageError the stream goes on as before."""

        def work() -> None:
            self._close()
            delete_file(self._path)
            self._gone = True
            deleted()

        await self._call(work, loads=False)

    async def _manage(self, work: Callable[..., Result], client: str = "", encoded: Any = None) -> Result:
        """Do what `_call` does; BusyError if too many calls of this kind are waiting."""
        if self._managing >= self.limits.calls:
            raise BusyError(f"{self.limits.calls} calls are waiting for this stream; try again in a moment.")
        self._managing += 1
        try:
            return await self._call(work, client, encoded)
        finally:
            self._managing -= 1

    async def _call(
        self, work: Callable[..., Result], client: str = "", encoded: Any = None, *, loads: bool = True
    ) -> Result:
        """Run work in the pool when it is its turn, with the images that it needs; begun work ends its turn."""
        self._calls += 1
        loop = asyncio.get_running_loop()
        try:
            await self._turn.acquire()
            try:
                arguments = () if encoded is None else (await asyncio.wrap_future(encoded),)
                job = self._pool.submit(client, lambda: self._do(work, arguments, loads))
            except BaseException:
                self._turn.release()
                raise
            job.add_done_callback(lambda _: loop.call_soon_threadsafe(self._turn.release))
            return await asyncio.wrap_future(job)
        finally:
            self._calls -= 1
            if encoded is not None:
                encoded.cancel()

    def _do(self, work: Callable[..., Result], arguments: Sequence[Any], loads: bool) -> Result:
        """Do the work of a call, in a thread of the pool."""
        if self._gone:
            raise NotFoundError(f"the stream {self.name!r} does not exist any more.")
        try:
            if loads and self._memory is None:
                self._load()
            return work(*arguments)
        except sqlite3.Error as error:
            raise StorageError(f"the stream's file cannot be read: {error}; try again.") from error
        finally:
            self.used = monotonic()
            if self._memory is not None:
                self._summary = self._memory.summary() | {"snapshots": self._file.snapshot_count}
                self.loaded_bytes = self._file.state_bytes

    @property
    def _state(self) -> Memory:
        assert self._memory is not None
        return self._memory

    def _read_about(self) -> None:
        """Read what can be known of the stream without its state."""
        file = StreamFile(self._path)
        try:
            about = file.about("stream")
            if about["model"] != self._batcher.encoder.fingerprint:
                raise UnusableError(
                    "it was made with another model; start the service with that model, or delete the stream."
                )
            self.client = about["client"]
            self.setup = StreamSetup(**about["setup"])
            self._summary, self.unsaved = file.summary()
        finally:
            file.close()
        self.file_bytes = self._path.stat().st_size

    def _load(self) -> None:
        """Open the file and read the state; a file that cannot be used is not tried again."""
        try:
            if self.broken is None:
                self._file = StreamFile(self._path)
                self._read_state()
        except UnusableError as error:
            self.broken = str(error)
        if self.broken is not None:
            raise UnusableError(f"the stream {self.name!r} cannot be used: {self.broken}")
        self._received = max(self._received, self._state.next_id)
        adapter = self._state.adapter
        parts = [part for part in adapter.parts.values() if part is not adapter.corrections]
        rules = self.setup.guard if parts else None  # a method without state cannot be poisoned
        if rules is not None and self._guard is None:
            self._guard = Guard(rules, entries_only=all(isinstance(part, Cache) for part in parts))
            now = time()
            for client, samples, when in self._file.taught_since(now - rules.window_s):
                self._guard.learnt(client, samples, max(0.0, now - when))

    def _read_state(self) -> None:
        """Read the state from the file; what is in memory may differ from it after an error."""
        self._memory = None
        self._duplicates = self._rejector = None
        try:
            self._memory, self.unsaved = self._file.load(self._batcher.encoder)
        except BaseException:
            self._file.close()
            raise

    def _close(self) -> None:
        if self._memory is not None:
            self._memory = None
            self.loaded_bytes = 0
            self._file.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Change memory and file together; after an error both are as they were."""
        try:
            with self._file.transaction():
                yield
        except BaseException as error:
            if isinstance(error, StorageError):
                self._report(str(error))
            self._read_state()
            raise
        self._report(None)
        self._written = True

    def _report(self, problem: str | None) -> None:
        """Note that what is learnt cannot be written, or that it can; the log says when it begins and ends."""
        if problem and not self.degraded:
            fields = {"stream": self.name, "reason": problem}
            logger.warning("what is learnt cannot be written", extra={"fields": fields})
        elif self.degraded and not problem:
            logger.info("what is learnt can be written again", extra={"fields": {"stream": self.name}})
        self.degraded = problem

    def _try_disk(self) -> None:
        """Raise StorageError if the disk, which could not be written, still has no room for another snapshot."""
        if self.degraded:
            self._file.probe()
            self._report(None)

    def _change(self, event: Event) -> Any:
        """Carry out an event that is not of samples; returns what `Memory.apply` does."""
        with self._writing():
            result = self._state.apply(event)
            self._file.add(event)
            self._file.set_about("summary", self._state.summary())
        self.unsaved += event.kind != "frozen"
        return result

    def _add_snapshot(self, reason: str, **options: Any) -> int:
        number = self._file.add_snapshot(self._state, reason, **options)
        self._file.trim(self.limits.history, self.limits.snapshot_bytes, self.limits.history_bytes)
        return number

    def _snapshot(self, reason: str) -> int:
        with self._writing():
            number = self._add_snapshot(reason)
        self.unsaved = 0
        self._taken = monotonic()
        return number

    def _replace(self, memory: Memory, reason: str, **options: Any) -> None:
        """Continue with another state; the current one is kept as a snapshot."""
        with self._writing():
            if self.unsaved:
                self._add_snapshot(f"before {reason}")
            self._memory = memory
            self._add_snapshot(reason, **options)
        self.unsaved = 0
        self._taken = monotonic()
        self._received = memory.next_id
        self._duplicates = self._rejector = None

    def _roll_back(self, number: int | None) -> int:
        if number is None:
            number = self._file.snapshot().id if self.unsaved else self._file.snapshot_before()
        snapshot = self._file.snapshot(number)
        memory = Memory(snapshot.adapter(self._batcher.encoder), json.loads(snapshot.notes))
        memory.adapter.frozen = self._state.adapter.frozen
        self._replace(memory, "rollback", branches=True, copy_of=snapshot)
        return number

    def _check_labels(self, kept: Sequence[str], add: Sequence[str]) -> tuple[str, ...]:
        """Return the labels to add, cleaned; InputError if they cannot be added to those that are kept."""
        new = self.limits.check_labels([*kept, *add], self.setup.templates)[len(kept) :]
        if self.setup.reject and new:
            refuse_none(new)
        return new

    def _put_labels(self, add: Sequence[str], remove: Sequence[str], head: Head | None) -> None:
        adapter = duplicate(self._state.adapter)
        if remove:
            adapter.remove_classes(remove)
        new = self._check_labels(adapter.head.class_names, add)  # they may have changed since they were encoded
        if head is not None:
            adapter.add_classes(head.class_vectors, new)
        self._replace(Memory(adapter, self._state.notes()), "labels")

    def _tick(self) -> None:
        self._try_disk()
        if self.unsaved and monotonic() - self._taken > self.limits.snapshot_s:
            self._snapshot("time")
        self.file_bytes = self._file.checkpoint()
        self._written = False

    def _encode(self, images: Sequence[bytes | str], names: Sequence[str] = (), client: str = "") -> Future[Encoded]:
        setup = self.setup
        return self._batcher.submit(
            images,
            names=names,
            thumbnails=setup.thumbnails,
            views=setup.views,
            kind=setup.views_kind or "augmix",
            start=self._received,
            client=client,
        )

    def _correct(self, label: str, sample_id: int | None, client: str, encoded: Encoded | None = None) -> int:
        adapter = self._state.adapter
        if label not in self.labels:
            raise InputError(f"the stream has no label {label[:80]!r}; {nearest(label, self.labels)}")
        if encoded is not None:
            features = encoded.features
            picture = b"".join(encoded.thumbnails)
        else:
            assert sample_id is not None
            features, picture = self._file.find(sample_id)
        known = sample_id in {each.id for each in adapter.corrections}
        known = known or adapter.corrections.knows(adapter.head.observe(features))[0]
        if not known and len(adapter.corrections) >= self.limits.corrections:
            raise InputError(f"the maximum of {self.limits.corrections} corrections is reached; undo one first.")
        record = {"id": sample_id, "label": label, "shape": features.shape, "thumbnails": [len(picture)]}
        return int(self._change(Event("correction", time(), client, record, features.tobytes() + picture)))

    def _classify(
        self,
        encoded: Encoded,
        *,
        learn: bool,
        top_k: int,
        unsure: float,
        client: str,
        negatives: HostArray | None,
    ) -> Predictions:
        began = perf_counter()
        adapter = self._state.adapter
        evidence = adapter.head.observe(encoded.features)
        gates = self._gates(negatives)
        none = none_scores(adapter, evidence, gates)
        count = len(evidence)
        allowed, why = self._allowed(client, count) if learn and adapter.counts_samples else (0, None)
        learnt, refused = choose_samples(adapter, evidence, np.arange(count) < allowed, gates)
        refused[allowed:] = [why] * (count - allowed)
        predict = partial(Predictions.of, adapter.head, evidence, top_k=top_k, unsure=unsure, none=none)
        found = None
        if learnt.any():
            event = self._samples(encoded, learnt, client)
            try:
                with self._writing():
                    step = self._state.apply(event, evidence)
                    found = predict(step, ids=np.where(learnt, event.ids, -1), refused=refused)
                    self._file.add(event._replace(answers=_answers(found)))
                self._count(event)
            except StorageError as error:
                found = None
                refused = [str(error)] * count
        if found is None:
            step = self._state.adapter.adapt(evidence, learn=False)
            found = predict(step, refused=refused)
        replaced = sum(len(change.dropped) for change in step.changes.values())
        self._answered += count
        self._changed += sum(prediction.changed for prediction in found)
        self._metrics.answered(found, len(adapter.head))
        self._metrics.adapted(found, replaced, perf_counter() - began)
        return found

    def _allowed(self, client: str, samples: int) -> tuple[int, str | None]:
        """Return how many of so many samples may be learnt from a client now, and the reason if not all."""
        try:
            self._try_disk()
        except StorageError as error:
            return 0, str(error)
        if self._guard is None:
            return samples, None
        return self._guard.allowed(client, samples, len(self._state.adapter.head))

    def _samples(self, encoded: Encoded, learnt: HostArray, client: str) -> Event:
        """Return the event of samples, of which some (n,) are learnt from."""
        features = encoded.features
        record: dict[str, Any] = {"shape": features.shape, "learnt": learnt.tolist()}
        if encoded.thumbnails:
            record["thumbnails"] = [len(each) for each in encoded.thumbnails]
        if self._guard is not None and self._guard.rules.fair and self._state.shared(client):
            record["age"] = self._guard.rules.age
        body = features.tobytes() + b"".join(encoded.thumbnails)
        return Event("samples", time(), client, record, body, self._state.next_id, int(learnt.sum()))

    def _count(self, event: Event) -> None:
        """Count samples that were learnt, and take a snapshot if they are many."""
        self.unsaved += event.samples
        if self._guard is not None:
            self._guard.learnt(event.client, event.samples)
        if self.unsaved * self.setup.views >= self.limits.snapshot_samples:
            with suppress(StorageError):  # `degraded` says so
                self._snapshot("samples")

    def _gates(self, negatives: HostArray | None) -> list[Gate]:
        """Return the gates that samples have to pass to be learnt from."""
        gates: list[Gate] = []
        if negatives is not None:
            self._rejector = self._rejector or Rejector(self._state.adapter.head, negatives)
            gates.append(self._rejector)
        if self.setup.skip_duplicates:
            if self._duplicates is None:  # the samples to remember are in the file
                self._duplicates = NearDuplicates()
                for batch in self._file.last_features(self._duplicates.remembered):
                    self._duplicates(self._state.adapter.head.observe(batch), np.full(len(batch), True))
            gates.append(self._duplicates)
        return gates


def _answers(found: Predictions) -> list[tuple[str, float, str, float]]:
    """Return label and score, adapted and zero-shot, of the samples that were learnt from."""
    learnt = [each for each in found if each.id is not None]
    return [(each.label, each.score, each.zero_shot.label, each.zero_shot.score) for each in learnt]
