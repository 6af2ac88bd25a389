"""The encoder that all streams share: images are prepared in threads and encoded in batches."""

import os
from base64 import b64decode
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from threading import Condition, Lock, Thread
from time import monotonic, perf_counter
from typing import Any, NamedTuple, TypeVar

import numpy as np

from acclimate.arrays import HostArray
from acclimate.encoders import Encoder
from acclimate.errors import ImageError, InputError, ModelError
from acclimate.evidence import Head
from acclimate.images import open_image, thumbnail
from acclimate.prompts import LearnedPrompts, build_head, negative_vectors
from acclimate.prompts.learned import PREFIX
from acclimate.reading import Preparer
from acclimate.serve.errors import BusyError
from acclimate.serve.limits import Limits
from acclimate.serve.metrics import Metrics
from acclimate.views import Kind

# File formats accepted from clients: common ones that Pillow decodes itself, without calling another program.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
RECENT = 32  # heads for the labels of single requests that are kept in memory
Result = TypeVar("Result")


class Encoded(NamedTuple):
    """The images of a request: features (n, d), or (n, V, d) for V views; n thumbnails, or none if not requested."""

    features: HostArray
    thumbnails: tuple[bytes, ...]


@dataclass
class _Request:
    images: list[Any]  # the model inputs of each image, and once it is encoded its features
    names: Sequence[str]  # of the files, "" for those without
    thumbnails: list[bytes]
    left: int  # images that are not encoded yet
    future: Future[Encoded] = field(default_factory=Future)

    def fail(self, error: Exception) -> None:
        with suppress(InvalidStateError):  # another image failed first, or the request was cancelled
            self.future.set_exception(error)


class Batcher:
    """Encodes the images of all streams in one thread, one batch at a time.

    A batch starts when it is full, when its first image has waited for `limits.wait_s`, or when no other image is being
    prepared: an image never waits for others that cannot come. Each view of an image counts as an image, in the queue
    and in a batch; the images of a batch have the same number of views. The folder `cache` is for encoded labels.
    """

    def __init__(
        self,
        encoder: Encoder,
        limits: Limits,
        metrics: Metrics,
        cache: Path | None = None,
        prompts: LearnedPrompts | None = None,
    ) -> None:
        self.encoder, self.limits, self.prompts = encoder, limits, prompts
        self._metrics, self._cache = metrics, cache
        self._pool = ThreadPoolExecutor(limits.workers or (os.cpu_count() or 1) + 1, "acclimate-prepare")
        self._change = Condition()
        self._ready: list[tuple[_Request, int, Preparer]] = []  # request, position of the image in it, how it is made
        self.waiting = 0  # images in the queue, counting views
        self._closed = False
        self._texts = Lock()  # tokenizers are not thread-safe
        self._negatives: HostArray | None = None
        self._recent_head = lru_cache(RECENT)(partial(build_head, encoder, cache=False))
        self.preparer = lru_cache(None)(lambda views, kind: Preparer(encoder, views, kind=kind))
        self._thread = Thread(target=self._run, name="acclimate-encode", daemon=True)
        self._thread.start()

    def submit(
        self,
        images: Sequence[bytes | str],
        *,
        names: Sequence[str] = (),
        thumbnails: bool = False,
        views: int = 1,
        kind: Kind = "augmix",
        start: int = 0,
    ) -> Future[Encoded]:
        """Queue image files, or these as base64, to be encoded with `views` of this kind.

        `start` is the position of the first image in its stream, on which its views depend. BusyError is raised if too
        many images are waiting; the future raises ImageError if an image cannot be read, and cancelling it removes them
        from the queue.
        """
        with self._change:
            if self._closed or self.waiting + len(images) * views > self.limits.queue:
                why = "the service is shutting down" if self._closed else f"{self.waiting} images are already waiting"
                raise BusyError(f"{why}; try again in a moment.")
            self.waiting += len(images) * views
        names = names or [""] * len(images)
        request = _Request([None] * len(images), names, [b""] * len(images) if thumbnails else [], len(images))
        for position, image in enumerate(images):
            self._pool.submit(self._prepare, request, position, image, self.preparer(views, kind), start + position)
        return request.future

    def head(self, labels: Sequence[str], templates: Any) -> Head:
        """The head of a stream's labels; their vectors are stored on disk.

        Learned prompts are given by their name, and have to be those that the service was started with.
        """
        if isinstance(templates, str) and templates.startswith(PREFIX):
            if self.prompts is None or self.prompts.name != templates:
                raise InputError(
                    "the stream has learned prompts, which this service was not started with; start it with "
                    "--prompts learned:FILE to add labels."
                )
            templates = self.prompts
        with self._texts:
            return build_head(self.encoder, labels, templates, self._cache)

    def negatives(self) -> HostArray:
        """Vectors (M, d) of nouns that stand for everything else, for streams that recognise foreign images."""
        with self._texts:
            if self._negatives is None:
                self._negatives = negative_vectors(self.encoder, self._cache)
            return self._negatives

    def head_for_request(self, labels: tuple[str, ...], template: str) -> Head:
        """The head of the labels of a single request; only the most recent are kept, in memory."""
        with self._texts:
            return self._recent_head(labels, template)

    def close(self) -> None:
        """Accept no more images, and return when all accepted ones are encoded."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        self._pool.shutdown(wait=True)
        self._thread.join()

    def _prepare(self, request: _Request, position: int, content: bytes | str, prepare: Preparer, index: int) -> None:
        try:
            if not request.future.done():
                image = open_image(_decoded(content), self.limits.pixels, FORMATS)
                request.images[position] = prepare(index, image)
                if request.thumbnails:
                    request.thumbnails[position] = thumbnail(image, self.limits.thumbnail)
        except ImageError as error:
            name = f" ({request.names[position]})" if request.names[position] else ""
            request.fail(ImageError(f"image {position}{name} cannot be read: {error}"))
            self._metrics.unreadable()
        except Exception as error:
            request.fail(error)
        with self._change:
            if request.future.done():
                self.waiting -= prepare.views
            else:
                self._ready.append((request, position, prepare))
            self._change.notify_all()

    def _run(self) -> None:
        while batch := self._next_batch():
            wanted = [each for each in batch if not each[0].future.done()]
            if wanted:
                self._encode(wanted)

    def _next_batch(self) -> list[tuple[_Request, int, Preparer]]:
        """Wait for the next batch; it is empty when the batcher is closed and has no more work."""
        with self._change:
            while not self._ready and not (self._closed and not self.waiting):
                self._change.wait()
            latest = monotonic() + self.limits.wait_s
            while not self._enough() and (left := latest - monotonic()) > 0:
                self._change.wait(left)
            views = self._ready[0][2].views if self._ready else 1
            size = max(1, self.limits.batch // views)
            batch = [each for each in self._ready if each[2].views == views][:size]
            taken = {id(each) for each in batch}
            self._ready = [each for each in self._ready if id(each) not in taken]
            self.waiting -= len(batch) * views
            return batch

    def _enough(self) -> bool:
        """Whether the images that are ready fill a batch, or no others are being prepared."""
        return sum(prepare.views for *_, prepare in self._ready) >= min(self.limits.batch, self.waiting)

    def _encode(self, batch: Sequence[tuple[_Request, int, Preparer]]) -> None:
        began, prepare = perf_counter(), batch[0][2]
        try:
            inputs = [request.images[position] for request, position, _ in batch]
            features = np.asarray(prepare.encode(inputs), np.float32)
        except Exception as error:
            for request, *_ in batch:
                request.fail(ModelError(f"the model failed on a batch of {len(batch)} images: {error}"))
            return
        self._metrics.encoded(len(batch) * prepare.views, perf_counter() - began)
        for (request, position, _), row in zip(batch, features, strict=True):
            request.images[position] = row
            request.left -= 1
            if not request.left:
                with suppress(InvalidStateError):  # the request was cancelled
                    request.future.set_result(Encoded(np.stack(request.images), tuple(request.thumbnails)))


def _decoded(content: bytes | str) -> bytes:
    try:
        return b64decode(content, validate=True) if isinstance(content, str) else content
    except ValueError:
        raise ImageError("it is not base64; URLs are not fetched, send the image itself.") from None


class WorkQueue:
    """Work of one stream, done in order, one piece at a time; many queues share a pool of threads."""

    def __init__(self, pool: Executor) -> None:
        self.lock = Lock()  # held while work is done
        self._pool = pool
        self._change = Lock()
        self._queue: deque[tuple[Callable[[Any], Any], Future[Any], Future[Any]]] = deque()
        self._running = False

    def put(self, work: Callable[[Any], Result], needs: Future[Any] | None = None) -> Future[Result]:
        """Queue work behind everything that was queued before; returns a future of its result.

        The work is called with the result of `needs`, which is awaited without occupying a thread. If `needs` fails, so
        does the returned future; cancelling that before the work starts removes the work and cancels `needs`.
        """
        if needs is None:
            needs = Future()
            needs.set_result(None)
        answer: Future[Result] = Future()
        with self._change:
            self._queue.append((work, needs, answer))
        needs.add_done_callback(lambda _: self._wake())
        answer.add_done_callback(lambda done: needs.cancel() if done.cancelled() else None)
        return answer

    def _wake(self) -> None:
        with self._change:
            if self._running or not self._next_is_ready():
                return
            self._running = True
        self._pool.submit(self._run)

    def _next_is_ready(self) -> bool:
        return bool(self._queue) and self._queue[0][1].done()

    def _run(self) -> None:
        while True:
            with self._change:
                self._running = self._next_is_ready()
                if not self._running:
                    return
                work, needs, answer = self._queue.popleft()
            if answer.set_running_or_notify_cancel():
                try:
                    with self.lock:
                        result = work(needs.result())
                    answer.set_result(result)
                except BaseException as error:
                    answer.set_exception(error)
