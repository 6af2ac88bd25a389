"""The encoder that all streams share: images are prepared in threads and encoded in batches; work queues."""

import json
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from threading import Condition, Lock, Thread
from time import monotonic, perf_counter
from typing import Any, TypeVar

import numpy as np
from PIL import Image

from acclimate.arrays import HostArray
from acclimate.encoders import Encoder
from acclimate.errors import ImageError, ModelError
from acclimate.images import open_image
from acclimate.prompts import class_vectors
from acclimate.serve.errors import BusyError
from acclimate.serve.limits import Limits
from acclimate.serve.metrics import Metrics

# File formats accepted from clients: common ones that Pillow decodes itself, without calling another program.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
Result = TypeVar("Result")
RECENT = 32  # lists of labels whose vectors are kept in memory


@dataclass(frozen=True)
class Encoded:
    """The encoded images of one request.

    Attributes:
        features: (n, d) float32.
        thumbnails: n small JPEG files; empty if they were not requested.
    """

    features: HostArray
    thumbnails: tuple[bytes, ...]


@dataclass
class _Request:
    rows: list[Any]
    thumbnails: list[bytes]
    left: int
    future: Future[Encoded] = field(default_factory=Future)

    def fail(self, error: Exception) -> None:
        with suppress(InvalidStateError):  # another image failed first, or the request was cancelled
            self.future.set_exception(error)


@dataclass(frozen=True)
class _Texts:
    """The text side of an encoder, without the fingerprint that would put its vectors on disk."""

    encode_text: Callable[[Sequence[str]], HostArray]
    fingerprint: str = ""


class Batcher:
    """Encodes the images of all streams in one thread, one batch at a time.

    A batch starts when it is full, when its first image has waited for `limits.wait_s`, or when no other image is being
    prepared: an image never waits for others that cannot come.

    Args:
        encoder: the model; it encodes the labels, too.
        limits: `batch`, `wait_s`, `queue`, `pixels`, `workers` and `thumbnail`.
        metrics: counts batches and unreadable images.
        cache: folder for encoded labels.
    """

    def __init__(self, encoder: Encoder, limits: Limits, metrics: Metrics, cache: Path | None = None) -> None:
        self.encoder, self.limits = encoder, limits
        self._metrics, self._cache = metrics, cache
        self._pool = ThreadPoolExecutor(limits.workers or (os.cpu_count() or 1) + 1, "acclimate-prepare")
        self._change = Condition()
        self._ready: deque[tuple[_Request, int, Any]] = deque()
        self._waiting = 0  # images that are being prepared or ready
        self._closed = False
        self._texts = Lock()  # tokenizers are not thread-safe
        self._recent: dict[str, HostArray] = {}
        self._thread = Thread(target=self._run, name="acclimate-encode", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Number of images in the queue."""
        return self._waiting

    def submit(self, images: Sequence[bytes], thumbnails: bool = False) -> Future[Encoded]:
        """Queue image files for encoding; cancelling the future removes them from the queue.

        Raises:
            BusyError: too many images are waiting. The future raises ImageError if an image cannot be read.
        """
        with self._change:
            if self._closed or self._waiting + len(images) > self.limits.queue:
                why = "the service is shutting down" if self._closed else f"{self._waiting} images are already waiting"
                raise BusyError(f"{why}; try again in a moment.")
            self._waiting += len(images)
        request = _Request([None] * len(images), [b""] * len(images) if thumbnails else [], len(images))
        for position, image in enumerate(images):
            self._pool.submit(self._prepare, request, position, image)
        return request.future

    def class_vectors(self, labels: Sequence[str], templates: Any, keep: bool = True) -> HostArray:
        """Unit vectors (K, d) of labels; stored on disk, or with `keep=False` only the most recent in memory."""
        with self._texts:
            if keep:
                return class_vectors(self.encoder, labels, templates, self._cache)
            key = json.dumps([labels, templates])
            vectors = self._recent.pop(key, None)
            if vectors is None:
                vectors = class_vectors(_Texts(self.encoder.encode_text), labels, templates)
            self._recent[key] = vectors
            if len(self._recent) > RECENT:
                del self._recent[next(iter(self._recent))]
            return vectors

    def close(self) -> None:
        """Accept no more images, and return when all accepted ones are encoded."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        self._pool.shutdown(wait=True)
        self._thread.join()

    def _prepare(self, request: _Request, position: int, content: bytes) -> None:
        prepared = None
        try:
            if not request.future.done():
                image = open_image(content, self.limits.pixels, FORMATS)
                prepared = self.encoder.prepare(image)
                if request.thumbnails:
                    request.thumbnails[position] = _thumbnail(image, self.limits.thumbnail)
        except ImageError as error:
            named = ImageError(f"image {position} cannot be read: {error}")
            named.index = position
            request.fail(named)
            self._metrics.unreadable()
        except Exception as error:
            request.fail(error)
        with self._change:
            if prepared is None:
                self._waiting -= 1
            else:
                self._ready.append((request, position, prepared))
            self._change.notify_all()

    def _run(self) -> None:
        while batch := self._next_batch():
            wanted = [each for each in batch if not each[0].future.done()]
            if wanted:
                self._encode(wanted)

    def _next_batch(self) -> list[tuple[_Request, int, Any]]:
        """Wait for the next batch; it is empty when the batcher is closed and has no more work."""
        with self._change:
            while not self._ready and not (self._closed and not self._waiting):
                self._change.wait()
            latest = monotonic() + self.limits.wait_s
            while len(self._ready) < min(self.limits.batch, self._waiting) and (left := latest - monotonic()) > 0:
                self._change.wait(left)
            batch = [self._ready.popleft() for _ in range(min(self.limits.batch, len(self._ready)))]
            self._waiting -= len(batch)
            return batch

    def _encode(self, batch: Sequence[tuple[_Request, int, Any]]) -> None:
        began = perf_counter()
        try:
            features = np.asarray(self.encoder.encode_images([image for *_, image in batch]), np.float32)
        except Exception as error:
            for request, *_ in batch:
                request.fail(ModelError(f"the model failed on a batch of {len(batch)} images: {error}"))
            return
        self._metrics.encoded(len(batch), perf_counter() - began)
        for (request, position, _), row in zip(batch, features, strict=True):
            request.rows[position] = row
            request.left -= 1
            if not request.left:
                with suppress(InvalidStateError):  # the request was cancelled
                    request.future.set_result(Encoded(np.stack(request.rows), tuple(request.thumbnails)))


class WorkQueue:
    """Work of one stream, done in order, one piece at a time; many queues share a pool of threads.

    Args:
        pool: executes the work.
    """

    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self._lock = Lock()
        self._queue: deque[tuple[Callable[[Any], Any], Future[Any], Future[Any]]] = deque()
        self._running = False

    def put(self, work: Callable[[Any], Result], needs: Future[Any] | None = None) -> Future[Result]:
        """Queue work behind everything that was queued before.

        Args:
            work: called with the result of `needs`. If `needs` fails, so does the returned future.
            needs: awaited without occupying a thread.

        Returns:
            A future of the result. Cancelling it before the work starts removes the work and cancels `needs`.
        """
        if needs is None:
            needs = Future()
            needs.set_result(None)
        answer: Future[Result] = Future()
        with self._lock:
            self._queue.append((work, needs, answer))
        needs.add_done_callback(lambda _: self._wake())
        answer.add_done_callback(lambda done: needs.cancel() if done.cancelled() else None)
        return answer

    def _wake(self) -> None:
        with self._lock:
            if self._running or not self._next_is_ready():
                return
            self._running = True
        self._pool.submit(self._run)

    def _next_is_ready(self) -> bool:
        return bool(self._queue) and self._queue[0][1].done()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._running = self._next_is_ready()
                if not self._running:
                    return
                work, needs, answer = self._queue.popleft()
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(work(needs.result()))
                except BaseException as error:
                    answer.set_exception(error)


def _thumbnail(image: Image.Image, side: int) -> bytes:
    small = image.copy()
    small.thumbnail((side, side))
    buffer = BytesIO()
    small.save(buffer, "JPEG", quality=75)
    return buffer.getvalue()
