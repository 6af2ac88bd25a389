"""The encoder that all streams share: images are decoded in processes of their own and encoded in batches."""

import os
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from math import ceil
from threading import Condition, Lock, Thread
from time import monotonic, perf_counter
from typing import Any, NamedTuple, TypeVar

import numpy as np

from acclimate.arrays import HostArray, to_host
from acclimate.encoders import Encoder
from acclimate.errors import ImageError, ModelError
from acclimate.reading.walk import Preparer
from acclimate.serve.decoding import Decoders, DecodeTask, portable
from acclimate.serve.http_errors import BusyError
from acclimate.serve.limits import Limits
from acclimate.serve.prometheus import Metrics
from acclimate.serve.queues import FairQueue, leaves_enough
from acclimate.views import Kind

TOTAL_QUEUE_FACTOR = 4  # total queue capacity = factor * capacity per client
READY_BATCHES = 2  # batches of prepared images that may wait for the encoder; their clients pause when they do
MIN_CLIENT_IMAGES = 4  # images that a client may always have in the queue
TARGET_BATCH_S = 0.25  # batch sizes are chosen to take this long
MAX_RETRY_S = 60  # upper bound of the Retry-After of a refused client
Result = TypeVar("Result")


class Encoded(NamedTuple):
    """The images of a request: features (n, d), or (n, V, d) for V views; n thumbnails, or none if not requested."""

    features: HostArray
    thumbnails: tuple[bytes, ...]


@dataclass(eq=False)
class _Request:
    client: str
    prepare: Preparer
    names: Sequence[str]  # file names, "" for images without one
    rows: list[Any]  # the features of each image, once it is encoded
    thumbnails: list[bytes]
    left: int  # images that are not encoded yet
    pixels: int = 0  # sum over its images so far
    future: Future[Encoded] = field(default_factory=Future)

    def fail(self, error: Exception) -> None:
        with suppress(InvalidStateError):  # another image failed first, or the request was cancelled
            self.future.set_exception(error)


@dataclass(eq=False)
class _Image:
    request: _Request
    position: int  # index within the request
    content: Any  # the file or its base64; then what the model takes
    index: int  # position in the stream
    came: float = field(default_factory=monotonic)


class Batcher:
    """Encoder of the images of all streams: one thread, one batch at a time.

    A batch starts when it is full, when its first image has waited for `limits.wait_s`, or when no other image is being
    prepared: an image never waits for others that cannot come. Each view of an image counts as an image, in the queue
    and in a batch; the images of a batch have the same number of views. Where the encoder is slow, batches are small:
    an image never waits long for one that runs. It is decoded meanwhile, however many of another client are ready.

    Clients take turns, at the decoders and in the batches. None has all decoders, so that the single image of another
    always finds one.
    """

    def __init__(self, encoder: Encoder, limits: Limits, metrics: Metrics) -> None:
        self.encoder = encoder
        self.limits = limits
        self._metrics = metrics
        self._workers = limits.workers or (os.cpu_count() or 1) + 1
        self._pool = ThreadPoolExecutor(self._workers, "acclimate-decode")  # each thread waits for a process
        self._decoders = Decoders(limits.pixels, limits.decode_s, limits.decoding_pixels)
        self._change = Condition()
        self._received: FairQueue[_Image] = FairQueue()
        self._decoding: Counter[str] = Counter()  # images per client
        self._ready: FairQueue[_Image] = FairQueue()
        self.waiting = 0  # images that wait, are decoded or are ready, counting views
        self._waiting: Counter[str] = Counter()  # the same per client
        self._requests: set[_Request] = set()  # not yet answered
        self._size = limits.batch  # images per batch, counting views
        self._pace = self._last = 0.0  # seconds per image, counting views; when the last batch was done
        self._closed = False
        self.preparer = lru_cache(None)(lambda views, kind: Preparer(encoder, views, kind=kind))
        self._thread = Thread(target=self._run, name="acclimate-encode", daemon=True)
        self._thread.start()

    @property
    def full(self) -> bool:
        """True if no client may send many images now."""
        return self.waiting >= TOTAL_QUEUE_FACTOR * self.limits.queue

    def submit(
        self,
        images: Sequence[bytes | str],
        *,
        names: Sequence[str] = (),
        thumbnails: bool = False,
        views: int = 1,
        kind: Kind = "augmix",
        start: int = 0,
        client: str = "",
    ) -> Future[Encoded]:
        """Queue image files, or these as base64, to be encoded with `views` of this kind.

        A text is a file in base64. `start` is the position of the first image in its stream, on which its views depend.
        BusyError is raised if too many images are waiting; the future raises ImageError if an image cannot be read, and
        cancelling it removes them from the queue.
        """
        names = names or [""] * len(images)
        pictures = [b""] * len(images) if thumbnails else []
        request = _Request(client, self.preparer(views, kind), names, [None] * len(images), pictures, len(images))
        with self._change:
            if self._closed:
                raise BusyError("the service is shutting down; try again in a moment.")
            count = len(images) * views
            mine = self._waiting[client]
            most = self.limits.queue
            room = leaves_enough(mine + count, self.waiting + count, TOTAL_QUEUE_FACTOR * most, MIN_CLIENT_IMAGES)
            if mine + count > most or not room:
                seconds = min(MAX_RETRY_S, max(1, ceil(self.waiting * self._pace)))
                whose = f"{mine} images of yours" if mine + count > most else f"{self.waiting} images"
                raise BusyError(f"{whose} are already waiting; try again in {seconds} s.", seconds)
            self._waiting[client] += count
            self.waiting += count
            self._requests.add(request)
            for position, content in enumerate(images):
                self._received.put(client, _Image(request, position, content, start + position))
            self._start_decoding()
        request.future.add_done_callback(lambda _: self._forget(request))
        return request.future

    def warm_up(self) -> None:
        """Start a decoder in the background, before there is an image."""
        self._pool.submit(self._decoders.warm_up)

    def close(self) -> None:
        """Accept no more images, and return when all accepted ones are encoded, or at the latest when they time out."""
        latest = monotonic() + self.limits.timeout_s
        with self._change:
            self._closed = True
            self._change.notify_all()
            self._change.wait_for(lambda: not self.waiting, self.limits.timeout_s)
            late = list(self._requests) if self.waiting else []
        for request in late:
            request.fail(TimeoutError())
        self._decoders.close()
        self._pool.shutdown()
        self._thread.join(max(0.0, latest - monotonic()))

    def _forget(self, request: _Request) -> None:
        """Remove what is left of a request that was answered or cancelled."""
        with self._change:
            self._requests.discard(request)
            if request.left:
                queues = (self._received, self._ready)
                count = sum(queue.drop(request.client, lambda each: each.request is request) for queue in queues)
                self._leave(request, count)
                self._start_decoding()

    def _leave(self, request: _Request, images: int = 1) -> None:
        """Count images of a request as no longer waiting."""
        views = images * request.prepare.views
        self.waiting -= views
        self._waiting -= Counter({request.client: views})  # drops clients without any
        self._change.notify_all()

    def _start_decoding(self) -> None:
        """Let the decoders that are free work, unless enough images are ready.

        If those are of other clients, a client may have one even so, as long as memory allows it.
        """
        most = max(1, self._workers - 1)
        full = 2 * READY_BATCHES * self.limits.batch
        while self._decoding.total() < self._workers and (ready := self._ready_views()).total() < full:
            pausing = {client for client, count in self._decoding.items() if count >= most}
            if ready.total() >= READY_BATCHES * self._size:
                pausing |= self._decoding.keys() | ready.keys()
            image = self._received.take(pausing=pausing)
            if image is None:
                return
            self._decoding[image.request.client] += 1
            self._pool.submit(self._decode, image)

    def _ready_views(self) -> Counter[str]:
        """Return the number of ready images per client, counting views."""
        found: Counter[str] = Counter()
        for each in self._ready:
            found[each.request.client] += each.request.prepare.views
        return found

    def _decode(self, image: _Image) -> None:
        request = image.request
        position = image.position
        prepare = image.request.prepare
        try:
            if not request.future.done():
                small = self.limits.thumbnail if request.thumbnails else 0
                task = DecodeTask(image.content, portable(prepare), image.index, small)
                admit = partial(self._admit, request)
                unwanted = request.future.done
                image.content, picture = self._decoders.decode(task, prepare, request.client, admit, unwanted)
                if small:
                    request.thumbnails[position] = picture
        except ImageError as error:
            name = f" ({request.names[position]})" if request.names[position] else ""
            request.fail(ImageError(f"image {position}{name} {error}"))
            self._metrics.unreadable()
        except Exception as error:
            request.fail(error)
        with self._change:
            self._decoding -= Counter([request.client])
            if request.future.done():
                self._leave(request)
            else:
                self._ready.put(request.client, image)
                self._change.notify_all()
            self._start_decoding()

    def _admit(self, request: _Request, pixels: int) -> None:
        """Refuse an image whose request has too many pixels."""
        with self._change:
            request.pixels += pixels
            if request.pixels > self.limits.request_pixels:
                most = f"{self.limits.request_pixels / 1e6:.3g} million pixels"
                raise ImageError(f"is one too many: the request has more than {most}; send fewer images at once")

    def _run(self) -> None:
        while batch := self._next_batch():
            wanted = [each for each in batch if not each.request.future.done()]
            if wanted:
                self._encode(wanted)

    def _next_batch(self) -> list[_Image]:
        """Wait for the next batch; it is empty when the batcher is closed and has no more work."""
        with self._change:
            while self.waiting or not self._closed:
                if not len(self._ready):
                    self._change.wait()
                    continue
                latest = monotonic() + self.limits.wait_s
                while not self._enough() and (left := latest - monotonic()) > 0:
                    self._change.wait(left)
                if first := self._ready.take():
                    return self._fill([first], first.request.prepare.views)
            return []

    def _fill(self, batch: list[_Image], views: int) -> list[_Image]:
        """Add images with as many views to a batch until it is full, or there are no more."""
        while (len(batch) + 1) * views <= self._size:
            more = self._ready.take(lambda image: image.request.prepare.views == views)
            if more is None:
                break
            batch.append(more)
        for image in batch:
            self._leave(image.request)
        self._start_decoding()
        return batch

    def _enough(self) -> bool:
        """Return True if the images that are ready fill a batch, or no others are being prepared."""
        return self._ready_views().total() >= min(self._size, self.waiting)

    def _encode(self, batch: Sequence[_Image]) -> None:
        began = perf_counter()
        prepare = batch[0].request.prepare
        try:
            features = to_host(prepare.encode([image.content for image in batch])).astype(np.float32)
        except Exception as error:
            for image in batch:
                image.request.fail(ModelError(f"the model failed on a batch of {len(batch)} images: {error}"))
            return
        count = len(batch) * prepare.views
        took = perf_counter() - began
        size = max(1, round(TARGET_BATCH_S * count / took))
        self._size = min(self.limits.batch, size, (self._size + size + 1) // 2)  # shrinks at once, grows gradually
        self._metrics.encoded(count, took)
        self._measure(count, min(image.came for image in batch))
        for image, row in zip(batch, features, strict=True):
            request = image.request
            request.rows[image.position] = row
            request.left -= 1
            if not request.left:
                with suppress(InvalidStateError):  # the request was cancelled
                    request.future.set_result(Encoded(np.stack(request.rows), tuple(request.thumbnails)))

    def _measure(self, images: int, came: float) -> None:
        """Note the time that images took, of which the first came then; time without work does not count."""
        now = monotonic()
        took = (now - max(came, self._last)) / images
        self._pace = 0.8 * self._pace + 0.2 * took if self._pace else took
        self._last = now


_Piece = tuple[Callable[[Any], Any], Future[Any], Future[Any]]  # work, what it needs, its answer


class WorkQueue:
    """Work of one stream, done in order, one piece at a time; many queues share a pool of threads.

    Work that only reads does not wait for all of the queue: the two are done in turns. `after` is called after each
    piece of other work, before its result is known.
    """

    def __init__(self, pool: Executor, after: Callable[[], None] = lambda: None) -> None:
        self._pool = pool
        self._after = after
        self._change = Lock()
        self._queue: deque[_Piece] = deque()
        self._reads: deque[_Piece] = deque()
        self._running = False
        self._has_read = False  # True if the last piece of work was a read

    def put(
        self, work: Callable[[Any], Result], needs: Future[Any] | None = None, *, reads: bool = False
    ) -> Future[Result]:
        """Queue work behind everything that was queued before, or what only `reads` behind others of its kind.

        Returns a future of its result. The work is called with the result of `needs`, which is awaited without
        occupying a thread. If `needs` fails, so does the returned future; cancelling that before the work starts
        removes the work and cancels `needs`.
        """
        if needs is None:
            needs = Future()
            needs.set_result(None)
        answer: Future[Result] = Future()
        with self._change:
            (self._reads if reads else self._queue).append((work, needs, answer))
        needs.add_done_callback(lambda _: self._wake())
        answer.add_done_callback(lambda done: needs.cancel() if done.cancelled() else None)
        return answer

    def _wake(self) -> None:
        with self._change:
            if self._running or not self._ready():
                return
            self._running = True
        self._start()

    def _ready(self) -> list[deque[_Piece]]:
        """Return the queues whose next work can be done now: reads first, unless the last work was a read."""
        ready = [each for each in (self._reads, self._queue) if each and each[0][1].done()]
        return ready[::-1] if self._has_read else ready

    def _run(self) -> None:
        with self._change:
            queue = self._ready()[0]
            self._has_read = queue is self._reads
            work, needs, answer = queue.popleft()
        if answer.set_running_or_notify_cancel():
            try:
                try:
                    result = work(needs.result())
                finally:
                    if queue is self._queue:
                        self._after()
                answer.set_result(result)
            except BaseException as error:
                answer.set_exception(error)
        with self._change:
            self._running = bool(self._ready())
            if not self._running:
                return
        self._start()

    def _start(self) -> None:
        """Do the next piece of work, behind that of other queues which waits for a thread."""
        try:
            self._pool.submit(self._run)
        except RuntimeError:  # the pool was shut down, and the answer is still awaited
            self._run()
