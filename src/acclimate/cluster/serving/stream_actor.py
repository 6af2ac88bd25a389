"""The process of one stream: a `Stream` over its files on shared storage."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

from acclimate.cluster.serving.remote_encoder import RemoteBatcher, RemoteEncoder
from acclimate.cluster.serving.reports import Reporter
from acclimate.cluster.serving.service_settings import STREAM, Model, Settings
from acclimate.errors import AcclimateError
from acclimate.evidence import Head
from acclimate.files import remove_leftovers
from acclimate.methods import Adapter, duplicate
from acclimate.predict import Predictions
from acclimate.serve.http_errors import NotFoundError, StorageError, UnusableError
from acclimate.serve.logs import logger
from acclimate.serve.prometheus import Metrics
from acclimate.serve.service import claim_folder, move_away, remove_for_good
from acclimate.serve.stream import Stream
from acclimate.serve.texts import Texts

LOCK = "lock"  # the file in a stream's folder that its process holds
LOCK_S = 10.0  # time limit to wait for a process that had the stream before
WORK_THREADS = 2  # one for the stream's work, one for reads


class StreamActor:
    """One stream, in a process that Ray starts again if it dies: from the last snapshot and the journal.

    Every method joins the stream's queue when it is called, in the order of the calls. If the files cannot be used,
    every method raises UnusableError, and `describe` says why.

    Raises:
        NotFoundError: there is no such stream.
        StorageError: another process has this stream and does not give it up.
    """

    def __init__(self, settings: Settings, name: str, model: Model) -> None:
        settings.begin()
        self._settings = settings
        self._name = name
        self._folder = settings.streams / name
        limits = settings.limits
        metrics = Metrics()
        if not self._folder.is_dir():
            raise NotFoundError(f"there is no stream {name[:80]!r}; create it first.")
        self._locks = [
            claim_folder(settings.data, settings.streams, shared=True),
            claim_stream(self._folder),
        ]
        encoder = RemoteEncoder(settings, model)
        texts = Texts(encoder, limits, settings.data / "texts")
        self._stream: Stream | None = None
        self._why = ""
        try:
            remove_leftovers(self._folder)
            pool = ThreadPoolExecutor(WORK_THREADS, "acclimate-stream")
            self._stream = Stream(name, self._folder, RemoteBatcher(encoder, settings), texts, pool, metrics)
            fields = {"stream": name, "replayed_samples": self._stream.history.replayed}
            logger.info("stream opened", extra={"fields": fields})
        except AcclimateError as error:  # the files, the model or the method cannot be used
            self._why = str(error)
            logger.error("stream damaged", extra={"fields": {"stream": name, "reason": self._why}})
        metrics.watch_degraded(lambda: int(self._degraded() is not None))
        self._reporter = Reporter(settings, STREAM + name, lambda: self._measured(metrics), self._degraded)
        self._closing = Event()
        Thread(target=self._tick, name="acclimate-tick", daemon=True).start()

    async def classify(self, images: Sequence[bytes | str], options: Mapping[str, Any]) -> Predictions:
        """Call `Stream.classify`."""
        stream = self._opened()
        answers = await asyncio.wrap_future(stream.classify(images, **options))
        await asyncio.to_thread(_sync, stream)
        return answers

    async def correct(self, *args: Any) -> int:
        """Call `Stream.correct`."""
        return await asyncio.wrap_future(self._opened().correct(*args))

    async def head_of(self, *args: Any) -> Head | None:
        """Call `Stream.head_of`."""
        return await asyncio.wrap_future(await asyncio.to_thread(self._opened().head_of, *args))

    async def read_state(self, content: bytes) -> Adapter:
        """Call `Stream.read_state`."""
        return await asyncio.to_thread(self._opened().read_state, content)

    async def enqueue(self, method: str, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Call `Stream.enqueue` with the name of a method."""
        stream = self._opened()
        # What other processes send can only be read; an adapter is going to be changed.
        own = [duplicate(each) if isinstance(each, Adapter) else each for each in args]
        answer = await asyncio.wrap_future(stream.enqueue(getattr(Stream, method), *own, **options))
        await asyncio.to_thread(_sync, stream)
        return answer

    async def enqueue_read(self, method: str) -> Any:
        """Call `Stream.enqueue_read` with the name of a method."""
        return await asyncio.wrap_future(self._opened().enqueue_read(getattr(Stream, method)))

    async def describe(self) -> dict[str, Any]:
        """Call `Stream.describe`; only `name` and `broken` if the files cannot be used."""
        if self._stream is None:
            return {"name": self._name, "broken": self._why}
        self._stream.check_open()
        return self._stream.describe()

    async def end(self) -> None:
        """Finish what is queued and remove the stream's files; if that fails, the stream goes on as before."""
        if self._stream is None:
            await asyncio.to_thread(self._remove)
        else:
            await asyncio.wrap_future(self._stream.enqueue(Stream.end, self._remove))
        await asyncio.to_thread(self._stop)

    async def close(self) -> str | None:
        """Finish what is queued and write a snapshot; returns why it could not be written. Then the process may end."""
        if self._stream is not None:
            await asyncio.wrap_future(self._stream.close())
        await asyncio.to_thread(self._stop)
        return self._degraded()

    def _opened(self) -> Stream:
        if self._stream is None:
            raise UnusableError(f"the stream {self._name!r} cannot be used: {self._why}")
        return self._stream

    def _degraded(self) -> str | None:
        return None if self._stream is None else self._stream.degraded

    def _measured(self, metrics: Metrics) -> bytes:
        if self._stream is None:
            return metrics.text({}, 0)
        return metrics.text(self._stream.history.entries(), len(self._stream.history.corrected))

    def _remove(self) -> None:
        if not self._folder.is_dir():
            raise NotFoundError(f"there is no stream {self._name[:80]!r} to delete.")
        remove_for_good(move_away(self._settings.streams, self._name))

    def _stop(self) -> None:
        self._closing.set()
        self._reporter.close()
        self._reporter.report()  # what it has counted since the last time
        for lock in self._locks:
            lock.close()

    def _tick(self) -> None:
        while not self._closing.wait(self._settings.limits.sync_s):
            if self._stream is not None:
                self._stream.tick()


def _sync(stream: Stream) -> None:
    """Have the journal outlive this machine, whose file system may keep what is written to itself for a while.

    The service on one machine does so once a second: there, what survives the process survives.
    """
    with suppress(OSError):  # `Stream.tick` meets it as well, and says that the stream is degraded
        stream.history.sync()


def claim_stream(folder: Path, seconds: float = LOCK_S) -> Any:
    """Lock a stream for this process, after waiting for the process that had it before.

    A process that is cut off from the others may still write to the files while Ray starts its successor: two that
    append to one journal would damage it.

    Raises:
        StorageError: another process does not give the stream up.
    """
    file = open(folder / LOCK, "a")  # noqa: SIM115 (held until the process ends)
    latest = monotonic() + seconds
    with suppress(ImportError):
        import fcntl

        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if monotonic() > latest:
                    file.close()
                    raise StorageError(
                        f"another process still has the stream {folder.name!r}; try again in a moment."
                    ) from error
                sleep(0.1)
    return file
