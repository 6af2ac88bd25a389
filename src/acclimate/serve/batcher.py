"""The encoder shared by all streams: images are prepared in threads and encoded in batches."""

import json
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from threading import Condition, Lock, Thread
from time import monotonic, perf_counter
from typing import Any

import numpy as np
from PIL import Image

from acclimate.arrays import HostArray
from acclimate.encoders import Encoder
from acclimate.errors import BusyError, ImageError, ModelError
from acclimate.images import open_image
from acclimate.prompts import class_vectors
from acclimate.serve.events import Events
from acclimate.serve.limits import Limits

# Kinds of files to accept from strangers: common ones, decoded by Pillow itself and never by another program.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")

RECENT = 32  # lists of labels whose vectors are kept in memory


@dataclass(frozen=True)
class Encoded:
    """What became of a request's images.

    Attributes:
        features: (n, d) float32.
        thumbnails: n small JPEG files, or none if they were not asked for.
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
        with suppress(InvalidStateError):  # another image failed first, or nobody waits any more
            self.future.set_exception(error)


@dataclass(frozen=True)
class _Texts:
    """The text side of an encoder, without the fingerprint that would put its vectors on disk."""

    encode_text: Callable[[Sequence[str]], HostArray]
    fingerprint: str = ""


class Batcher:
    """One thread that encodes what all streams ask for, a batch at a time.

    A batch is sent off when it is full, when its first image has waited for `limits.wait_s`, or when no other image is
    on its way: nobody waits for company that cannot come.

    Args:
        encoder: the model; also used to encode labels.
        limits: `batch`, `wait_s`, `queue`, `pixels`, `workers` and `thumbnail`.
        cache: folder for encoded labels.
        events: told of every batch.
    """

    def __init__(self, encoder: Encoder, limits: Limits, cache: Path | None = None, events: Events | None = None):
        self.encoder, self.limits = encoder, limits
        self._cache, self._events = cache, events or Events()
        self._pool = ThreadPoolExecutor(limits.workers or (os.cpu_count() or 1) + 1, "acclimate-prepare")
        self._change = Condition()
        self._ready: deque[tuple[_Request, int, Any]] = deque()
        self._waiting = 0  # images that are being prepared or ready
        self._closed = False
        self._texts = Lock()  # tokenizers cannot be used from two threads at once
        self._recent: dict[str, HostArray] = {}
        self._thread = Thread(target=self._work, name="acclimate-encode", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Images in the queue."""
        return self._waiting

    def submit(self, images: Sequence[bytes], thumbnails: bool = False) -> Future[Encoded]:
        """Ask for the features of encoded images; cancelling the future takes them out of the queue.

        Raises:
            BusyError: too many images are waiting. The future raises ImageError for an image that cannot be read.
        """
        with self._change:
            if self._closed or self._waiting + len(images) > self.limits.queue:
                why = "the service is shutting down" if self._closed else f"{self._waiting} images are waiting already"
                raise BusyError(f"{why}; send it again in a moment.")
            self._waiting += len(images)
        request = _Request([None] * len(images), [b""] * len(images) if thumbnails else [], len(images))
        for place, image in enumerate(images):
            self._pool.submit(self._prepare, request, place, image)
        return request.future

    def class_vectors(self, labels: Sequence[str], templates: Any, keep: bool = True) -> HostArray:
        """Unit vectors (K, d) of labels; kept on disk, or else only the last few in memory."""
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
        """Take nothing more, and return when all that was taken is done."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        self._pool.shutdown(wait=True)
        self._thread.join()

    def _prepare(self, request: _Request, place: int, content: bytes) -> None:
        prepared = None
        try:
            if not request.future.done():
                image = open_image(content, self.limits.pixels, FORMATS)
                prepared = self.encoder.prepare(image)
                if request.thumbnails:
                    request.thumbnails[place] = _thumbnail(image, self.limits.thumbnail)
        except ImageError as error:
            named = ImageError(f"image {place} cannot be read: {error}")
            named.index = place
            request.fail(named)
        except Exception as error:
            request.fail(error)
        with self._change:
            if prepared is None:
                self._waiting -= 1
            else:
                self._ready.append((request, place, prepared))
            self._change.notify_all()

    def _work(self) -> None:
        while batch := self._gather():
            wanted = [(request, place, image) for request, place, image in batch if not request.future.done()]
            if wanted:
                self._encode(wanted)

    def _gather(self) -> list[tuple[_Request, int, Any]]:
        """The next batch; empty when closed and drained."""
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
        self._events.encoded(len(batch), perf_counter() - began)
        for (request, place, _), row in zip(batch, features, strict=True):
            request.rows[place] = row
            request.left -= 1
            if not request.left:
                with suppress(InvalidStateError):  # nobody waits any more
                    request.future.set_result(Encoded(np.stack(request.rows), tuple(request.thumbnails)))


def _thumbnail(image: Image.Image, side: int) -> bytes:
    small = image.copy()
    small.thumbnail((side, side))
    buffer = BytesIO()
    small.save(buffer, "JPEG", quality=75)
    return buffer.getvalue()
