"""All streams of a service: created, found by name, listed, deleted, and loaded from disk at the start."""

import os
import shutil
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

from acclimate.encoders import Encoder
from acclimate.errors import StateError
from acclimate.files import remove_leftovers
from acclimate.prompts import LearnedPrompts
from acclimate.serve.audit import AuditLog
from acclimate.serve.batcher import Batcher
from acclimate.serve.http_errors import ExistsError, NotFoundError, StorageError, UnusableError
from acclimate.serve.limits import Limits
from acclimate.serve.prometheus import Metrics
from acclimate.serve.service import DELETED, NAME, NEW, Service, claim_folder, move_away, not_there, remove_for_good
from acclimate.serve.stream import Stream
from acclimate.serve.texts import Texts

STREAM_THREADS = 8  # streams that work at the same time


class Streams(Service):
    """The streams in a folder; methods may be called from any thread, and may block.

    Args:
        folder: the folder of the streams; created if it does not exist. Only one service at a time may use it.
        encoder: the model that all streams share.
        limits: limits on everything.
        defaults: arguments of `create` for streams that are created by their first images; None to refuse those.
        prompts: learned prompts, which streams name as their templates.

    Attributes:
        audit: the log of administrative calls in the folder.
        unsaved: once it is closed, why the state of a stream could not be written, for each that has this problem.

    Raises:
        InputError: the folder cannot be used, or another service uses it.
    """

    batcher: Batcher

    def __init__(
        self,
        folder: Path,
        encoder: Encoder,
        limits: Limits | None = None,
        defaults: Mapping[str, Any] | None = None,
        prompts: LearnedPrompts | None = None,
    ) -> None:
        limits = limits or Limits()
        metrics = Metrics()
        streams = Path(folder) / "streams"
        self._lock_file = claim_folder(Path(folder), streams)
        texts = Path(folder) / "texts"
        remove_leftovers(texts)
        batcher = Batcher(encoder, limits, metrics)
        labels = Texts(encoder, limits, texts, prompts)
        super().__init__(streams, batcher, labels, limits, metrics, AuditLog(Path(folder)), defaults)
        self._pool = ThreadPoolExecutor(STREAM_THREADS, "acclimate-stream")
        self._lock = Lock()
        self._streams: dict[str, Stream] = {}
        self._unusable: dict[str, str] = {}
        self.unsaved: dict[str, str] = {}
        for path in sorted(self._folder.iterdir()):
            if NAME.fullmatch(path.name) and path.is_dir():
                remove_leftovers(path)
                try:
                    self._streams[path.name] = self._open(path.name)
                except StateError as error:
                    self._unusable[path.name] = str(error)
            elif path.name.startswith((NEW, DELETED)):  # half created or half deleted
                shutil.rmtree(path, ignore_errors=True)
        self.metrics.watch_degraded(lambda: len(self.degraded()))
        self._closing = Event()
        self._ticker = Thread(target=self._tick, name="acclimate-tick", daemon=True)
        self._ticker.start()

    def _place(self, unfinished: Path, name: str, client: str) -> Stream:
        with self._lock:
            self.check_room(name, client)
            os.replace(unfinished, self._folder / name)
            try:
                stream = self._streams[name] = self._open(name)
            except (OSError, StateError, MemoryError) as error:
                os.replace(self._folder / name, unfinished)  # the name is free again
                why = str(error) or "not enough memory"
                raise StorageError(f"the stream {name!r} could not be opened: {why}") from error
        return stream

    def get(self, name: str) -> Stream:
        """Find a stream by name; NotFoundError if there is none, UnusableError if its files cannot be used."""
        stream = self._streams.get(name)
        if stream is not None:
            return stream
        if name in self._unusable:
            raise UnusableError(f"the stream {name!r} cannot be used: {self._unusable[name]}")
        raise not_there(name)

    def describe(self) -> list[dict[str, Any]]:
        """Describe every stream; for those that cannot be used, only `name` and `broken`."""
        usable = [stream.describe() for stream in list(self._streams.values())]
        unusable = [{"name": name, "broken": reason} for name, reason in self._unusable.items()]
        return sorted([*usable, *unusable], key=lambda each: str(each["name"]))

    def entries(self) -> Counter[str]:
        """Return the number of entries per cache, summed over all streams."""
        total: Counter[str] = Counter()
        for stream in list(self._streams.values()):
            total.update(stream.history.entries())
        return total

    def degraded(self) -> list[str]:
        """Return the reason why the states of streams cannot be written, for each that has this problem."""
        return [why for stream in list(self._streams.values()) if (why := stream.degraded)]

    def corrections(self) -> int:
        """Return the number of corrections in all streams."""
        return sum(len(stream.history.corrected) for stream in list(self._streams.values()))

    def delete(self, name: str) -> Future[None]:
        """Finish the stream's queued work, then remove it and its files; they are removed when the future is done.

        It raises NotFoundError if there is no such stream, and StorageError if the files cannot be removed; the stream
        can then be used as before. If `cancel` returns True, nothing is removed.
        """
        stream = self._streams.get(name)
        remove = partial(self._remove, name)
        return self._pool.submit(remove) if stream is None else stream.enqueue(Stream.end, remove)

    def readiness(self) -> Future[str | None]:
        """Return the reason why images are not accepted, or what is learnt cannot be written; None if all is well."""
        why = "the queue is full; try again in a moment." if self.batcher.full else None
        if why is None and (problems := self.degraded()):
            why = f"degraded streams: {len(problems)}; they answer, but {problems[0]}"
        known: Future[str | None] = Future()
        known.set_result(why)
        return known

    def metrics_text(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return self.metrics.text(self.entries(), self.corrections())

    def close(self) -> None:
        """Finish all queued work, write the state of every stream, and release the folder; see `unsaved`."""
        self._closing.set()
        self._ticker.join()
        for closing in (self.texts, self.batcher, self.calls, self.reports, self.bodies):
            closing.close()
        written = {stream: stream.close() for stream in self._streams.values()}
        wait(written.values())
        self.unsaved = {
            stream.name: why
            for stream, closed in written.items()
            if (why := stream.degraded or (closed.exception() and repr(closed.exception())))
        }
        self._pool.shutdown()
        self._lock_file.close()

    def _open(self, name: str) -> Stream:
        return Stream(name, self._folder / name, self.batcher, self.texts, self._pool, self.metrics)

    def _remove(self, name: str) -> None:
        """Move the files of a stream away, take it out of the list only then, and remove them."""
        with self._lock:
            if name not in self._streams and name not in self._unusable:
                raise NotFoundError(f"there is no stream {name[:80]!r} to delete.")
            gone = move_away(self._folder, name)
            self._streams.pop(name, None)
            self._unusable.pop(name, None)
        remove_for_good(gone)

    def check_room(self, name: str, client: str) -> None:
        """Raise ExistsError or TooManyError if a client may not create a stream with this name."""
        if name in self._streams or name in self._unusable:
            raise ExistsError(f"there already is a stream {name!r}; use it, or delete it first.")
        of_client = sum(stream.client == client for stream in list(self._streams.values()))
        self._check_streams(len(self._streams) + len(self._unusable), client, of_client)

    def _tick(self) -> None:
        while not self._closing.wait(self.limits.sync_s):
            for stream in list(self._streams.values()):
                stream.tick()
