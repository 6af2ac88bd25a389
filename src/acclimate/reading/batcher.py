"""The images of many callers at once: they are decoded in processes of their own and encoded in batches."""

import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf
from threading import Condition, Thread
from time import monotonic, perf_counter
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from acclimate.arrays import HostArray, to_host
from acclimate.encoders import Encoder
from acclimate.errors import BusyError, ImageError, ModelError
from acclimate.reading.sandbox import Decoder, DecodeTask, portable
from acclimate.reading.walk import Preparer
from acclimate.views import Kind

TOTAL_QUEUE_FACTOR = 4  # total queue capacity = factor * capacity per client
READY_BATCHES = 2  # batches of prepared images that may wait for the encoder; their clients pause when they do
MIN_CLIENT_IMAGES = 4  # images that a client may always have in the queue
TARGET_BATCH_S = 0.25  # batch sizes are chosen to take this long
CHEAP_S = 1.0  # processor time after which an image counts as large
CHEAP_VIEW_S = 0.02  # additional processor time for each view
SLACK_S = 1.0  # decoder time that a client may have used in addition to that of the one that has used the least
HALF_LIFE_S = 30.0  # decoder time of all clients after which half of that of a client is forgotten


class Encoded(NamedTuple):
    """The images of a request: features (n, d), or (n, V, d) for V views; n thumbnails, or none if not requested."""

    features: HostArray
    thumbnails: tuple[bytes, ...]


@dataclass(eq=False)
class _Request:
    client: str
    prepare: Preparer
    names: Sequence[str]  # names of the images in messages
    rows: list[Any]  # the features of each image, once it is encoded
    thumbnail: int  # its longest side in pixels; 0 for none
    thumbnails: list[bytes]
    left: int  # images that are not encoded yet, counting views
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
    cost: int = 0  # pixels, once they are known


def count(images: Iterable[_Image]) -> int:
    """Return the number of images, counting views."""
    return sum(image.request.prepare.views for image in images)


class DecodeQueue:
    """Images that wait for a decoder, and the choice of the next one. Its user holds a lock.

    Clients take turns: first those with the fewest images at the decoders and, among them, those that have not recently
    used more decoder time than others. No client has all decoders.

    An image is cheap until its header, or the time that it takes, shows that it is large; then it waits again, for one
    of the places of large images. These leave one decoder free for cheap ones, and have no more pixels together than
    the largest image. Cheap images have half as many together, so that the memory of all decoders is bounded.

    Args:
        workers: number of decoders.
        pixels: cost of the largest image.
    """

    def __init__(self, workers: int, pixels: int) -> None:
        self.pixels = pixels
        self.cheap_pixels = pixels // (2 * workers)
        self._places = max(1, workers - 1)  # largest number of large images, or of images of one client
        self._waiting: dict[tuple[str, bool], deque[_Image]] = {}  # waiting images of each client; True for large ones
        self.decoding: dict[_Image, float] = {}  # images at the decoders, and when they were taken
        self._used: dict[str, float] = {}  # recent decoder time by client, in seconds

    def put(self, image: _Image) -> None:
        """Add an image, whose cost may be unknown."""
        self._waiting.setdefault((image.request.client, image.cost > self.cheap_pixels), deque()).append(image)

    def take(self) -> _Image | None:
        """Remove and return the next image; None if no image may be decoded now."""
        running = Counter(image.request.client for image in self.decoding)
        large = [image.cost for image in self.decoding if image.cost > self.cheap_pixels]
        room = self.pixels - sum(large) if len(large) < self._places else 0
        fair = SLACK_S + min((self._used.get(client, 0.0) for client, _ in self._waiting), default=0.0)
        for key in sorted(self._waiting, key=lambda key: (running[key[0]], self._used.get(key[0], 0.0) > fair)):
            images = self._waiting[key]
            if images[0].cost > self.cheap_pixels and images[0].cost > room:
                room = 0  # no other large image overtakes it
            elif running[key[0]] < self._places:
                image = images.popleft()
                del self._waiting[key]
                if images:
                    self._waiting[key] = images  # moves to the end: the others are next
                self.decoding[image] = monotonic()
                return image
        return None

    def end(self, image: _Image) -> None:
        """Note that an image has left its decoder."""
        took = monotonic() - self.decoding.pop(image)
        left = 0.5 ** (took / HALF_LIFE_S)
        self._used = {client: used * left for client, used in self._used.items() if used > 0.001}
        self._used[image.request.client] = self._used.get(image.request.client, 0.0) + took

    def drop(self, request: _Request) -> None:
        """Remove the waiting images of a request."""
        for key in [(request.client, True), (request.client, False)]:
            kept = deque(image for image in self._waiting.pop(key, ()) if image.request is not request)
            if kept:
                self._waiting[key] = kept


class Batcher:
    """Encoder of the images of all callers: one thread, one batch at a time.

    A batch starts when it is full, when its first image has waited for `wait_s`, or when no other image is being
    prepared: an image never waits for others that cannot come. Each view of an image counts as an image, in the queue
    and in a batch. Where the encoder is slow, batches are small: an image never waits long for one that runs.

    Clients have equal shares of the decoders' time (`DecodeQueue`); few images are decoded ahead of the batches.

    Args:
        encoder: the model.
        workers: number of processes that decode images; 0 for one more than there are cores.
        pixels: cost of the largest image.
        decode_s: processor time to decode and prepare an image, in seconds.
        batch: largest number of images that are encoded at once, counting views.
        wait_s: time that an image waits for others to share its batch, in seconds.
        queue: images of one client that may wait, counting views.
        on_encoded: is called with the size of each batch and the seconds that it took.
        on_unreadable: is called for each image that cannot be read.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        workers: int = 0,
        pixels: int = 40_000_000,
        decode_s: float = 5.0,
        batch: int = 32,
        wait_s: float = 0.005,
        queue: int = 512,
        on_encoded: Callable[[int, float], object] = lambda images, seconds: None,
        on_unreadable: Callable[[], object] = lambda: None,
    ) -> None:
        self.encoder = encoder
        self._decode_s = decode_s
        self._batch = batch
        self._wait_s = wait_s
        self._queue = queue
        self._on_encoded = on_encoded
        self._on_unreadable = on_unreadable
        workers = workers or (os.cpu_count() or 1) + 1
        self._pool = ThreadPoolExecutor(workers, "acclimate-decode")  # each thread waits for a process
        self._decoders = [Decoder(pixels) for _ in range(workers)]
        self._idle = self._decoders.copy()
        self._change = Condition()
        self._received = DecodeQueue(workers, pixels)
        self._ready: list[_Image] = []
        self._requests: set[_Request] = set()  # not yet answered
        self._size = batch  # images per batch, counting views
        self._closed = False
        self.preparer = lru_cache(None)(lambda views, kind: Preparer(encoder, views, kind=kind))
        self._thread = Thread(target=self._run, name="acclimate-encode", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Number of images that are not encoded yet, counting views."""
        return sum(request.left for request in tuple(self._requests))

    @property
    def full(self) -> bool:
        """True if no client may send many images now."""
        return self.waiting >= TOTAL_QUEUE_FACTOR * self._queue

    def submit(
        self,
        images: Sequence[bytes | str],
        *,
        names: Sequence[str] = (),
        thumbnail: int = 0,
        views: int = 1,
        kind: Kind = "augmix",
        start: int = 0,
        client: str = "",
    ) -> Future[Encoded]:
        """Queue image files, or these as base64, to be encoded with `views` of this kind.

        A text is a file in base64. `start` is the position of the first image in its stream, on which its views depend;
        `thumbnail` the longest side of the thumbnails in pixels, 0 for none. BusyError is raised if too many images are
        waiting; the future raises ImageError if an image cannot be read, and cancelling it removes them from the queue.
        """
        names = [f"image {i} ({name})" if name else f"image {i}" for i, name in enumerate(names or [""] * len(images))]
        request = _Request(
            client=client,
            prepare=self.preparer(views, kind),
            names=names,
            rows=[None] * len(images),
            thumbnail=thumbnail,
            thumbnails=[b""] * len(images),
            left=len(images) * views,
        )
        with self._change:
            if self._closed:
                raise BusyError("the service is shutting down; try again in a moment.")
            mine = sum(each.left for each in self._requests if each.client == client)
            room = TOTAL_QUEUE_FACTOR * self._queue - self.waiting - request.left
            if mine + request.left > min(self._queue, max(room, MIN_CLIENT_IMAGES)):
                raise BusyError(
                    f"{self.waiting} images are already waiting, {mine} of them yours; try again in a moment."
                )
            self._requests.add(request)
            for position, content in enumerate(images):
                self._received.put(_Image(request, position, content, start + position))
            self._start_decoding()
        request.future.add_done_callback(lambda _: self._forget(request))
        return request.future

    def warm_up(self) -> None:
        """Start a decoder before there is an image."""
        self._decoders[-1].start()

    def close(self, timeout_s: float = 30.0) -> None:
        """Accept no more images, and return when all accepted ones are encoded; those that take longer fail."""
        with self._change:
            self._closed = True
            self._change.notify_all()
            self._change.wait_for(lambda: not self._requests, timeout_s)
        for request in tuple(self._requests):
            request.fail(TimeoutError())
        for decoder in self._decoders:
            decoder.close()
        self._pool.shutdown()
        self._thread.join(timeout_s)

    def _forget(self, request: _Request) -> None:
        """Remove what is left of a request that was answered or cancelled."""
        with self._change:
            self._requests.discard(request)
            if request.left:
                self._received.drop(request)
                self._ready = [image for image in self._ready if image.request is not request]
                self._start_decoding()
            self._change.notify_all()

    def _start_decoding(self) -> None:
        """Let the decoders that are free work, unless enough images are ready."""
        if count(self._ready) < READY_BATCHES * self._size:
            while len(self._received.decoding) < len(self._decoders) and (image := self._received.take()):
                self._pool.submit(self._decode, image)

    def _decode(self, image: _Image) -> None:
        """Decode an image for the model; one that turns out to be large waits again, for its place."""
        request = image.request
        prepare = request.prepare
        large = image.cost > self._received.cheap_pixels
        task = DecodeTask(
            image.content,
            portable(prepare),
            image.index,
            request.thumbnail,
            most=self._received.pixels if large else self._received.cheap_pixels,
            seconds=min(self._decode_s, inf if large else CHEAP_S + CHEAP_VIEW_S * prepare.views),
        )
        pixels = None
        decoder = self._idle.pop()
        try:
            image.cost, pixels, request.thumbnails[image.position] = decoder.decode(task)
            if pixels is not None:
                image.content = prepare(image.index, Image.fromarray(pixels)) if task.prepare is None else list(pixels)
        except ImageError as error:
            request.fail(ImageError(f"{request.names[image.position]} {error}"))
            self._on_unreadable()
        except Exception as error:
            request.fail(error)
        self._idle.append(decoder)
        with self._change:
            self._received.end(image)
            if not request.future.done():
                if pixels is None:
                    self._received.put(image)
                else:
                    self._ready.append(image)
            self._change.notify_all()
            self._start_decoding()

    def _run(self) -> None:
        while batch := self._next_batch():
            self._encode(batch)

    def _next_batch(self) -> list[_Image]:
        """Wait for the next batch; it is empty when the batcher is closed and has no more work."""
        batch = list[_Image]()
        with self._change:
            while not batch and (self._requests or not self._closed):
                self._change.wait_for(lambda: self._ready or (self._closed and not self._requests))
                self._change.wait_for(lambda: count(self._ready) >= min(self._size, self.waiting), self._wait_s)
                for image in self._ready:
                    if not batch or count([*batch, image]) <= self._size:
                        batch.append(image)
                self._ready = [image for image in self._ready if image not in batch]
            self._start_decoding()
        return batch

    def _encode(self, batch: Sequence[_Image]) -> None:
        began = perf_counter()
        inputs = [view for image in batch for view in image.content]
        try:
            features = to_host(self.encoder.encode_images(inputs)).astype(np.float32)
        except Exception as error:
            for image in batch:
                image.request.fail(ModelError(f"the model failed on a batch of {len(inputs)} images: {error}"))
            return
        took = perf_counter() - began
        size = max(1, round(TARGET_BATCH_S * len(inputs) / took))
        self._size = min(self._batch, size, (self._size + size + 1) // 2)  # shrinks at once, grows gradually
        self._on_encoded(len(inputs), took)
        for image in batch:
            request = image.request
            views = request.prepare.views
            request.rows[image.position] = features[:views]
            features = features[views:]
            request.left -= views
            if not request.left:
                rows = np.stack(request.rows) if views > 1 else np.concatenate(request.rows)
                with suppress(InvalidStateError):  # the request was cancelled
                    request.future.set_result(Encoded(rows, tuple(request.thumbnails) if request.thumbnail else ()))
