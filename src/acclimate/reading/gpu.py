"""The first half of the walk where the model runs on a CUDA GPU.

DataLoader workers read the files: a plain JPEG stays encoded, and Pillow decodes and prepares everything else. Then one
thread has nvJPEG decode a batch, resizes the images and makes their views on a CUDA stream of its own, and launches the
image tower on another, while the caller adapts to the batch before.

The pixels of the Pillow path are those of a CPU. JPEGs that nvJPEG decodes and PyTorch resizes differ from them by less
than one grey level in the mean, and by a few levels at sharp edges.
"""

import gc
import os
import signal
import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from itertools import chain, groupby, islice
from multiprocessing import current_process
from typing import Any

import numpy as np
import torch
from torch.nn.functional import interpolate, pad
from torch.utils.data import DataLoader

from acclimate.arrays import Array, HostArray, to_host
from acclimate.encoders.preprocess import Preprocess
from acclimate.errors import ImageError, RunError, lacking
from acclimate.images.opening import PreparedImage, date_taken, examine_image, open_image, read_path, unreadable
from acclimate.reading.walk import Preparer, ReadImage, describe, precision_of, read_ahead
from acclimate.sources.source import read_file
from acclimate.views.augment import ModelInput
from acclimate.views.tensor import make_views

CHUNK_IMAGES = 32  # images that a worker reads at once
FEW_IMAGES = 32  # up to so many images, no worker process is started
PREFETCH_CHUNKS = 4  # chunks that each worker reads ahead
PREFETCH_BATCHES = 2  # batches that are encoded ahead of the caller
MAX_WORKERS = {"nvjpeg": 4, "pillow": 32}  # default number of processes, at most one per core
DECODED_PIXELS = 2**27  # pixels that are decoded at once, up to the end of an image
INSTALL = "install torchvision of the release that matches PyTorch, built for CUDA"
Tensor = Any  # torch.Tensor


@cache
def lacking_for_nvjpeg(device: str) -> str:
    """Return why JPEGs cannot be decoded on a device; "" if they can: one is decoded there to find out."""
    if why := lacking("torchvision", "torchvision"):
        return why
    try:
        from torchvision.io import encode_jpeg

        decode_jpegs([encode_jpeg(torch.zeros((3, 16, 16), dtype=torch.uint8))], device)
    except Exception as error:  # a build without nvJPEG, or one for another driver, fails in many ways
        return f"needs torchvision with nvJPEG, which fails here ({str(error).splitlines()[0]}); {INSTALL}"
    return ""


def decode_jpegs(contents: Sequence[Tensor], device: str) -> list[Tensor]:
    """Decode JPEGs (bytes,) to RGB images (3, H, W) on a device, all of them or none."""
    from torchvision.io import ImageReadMode, decode_jpeg

    return list(decode_jpeg(list(contents), mode=ImageReadMode.RGB, device=device))


def decode_each(contents: Sequence[Tensor], device: str) -> list[Tensor | None]:
    """Decode JPEGs; the result is None for those that the GPU cannot decode."""
    try:
        return [*decode_jpegs(contents, device)]
    except RuntimeError:
        if len(contents) == 1:
            return [None]
    return [image for content in contents for image in decode_each([content], device)]


def resize_and_crop(images: Sequence[Tensor], preprocess: Preprocess) -> Tensor:
    """Resize and crop images, uint8 (3, H, W) of any sizes, as a model wants them: (n, 3, h, w) from 0 to 255."""
    parts = []
    order = sorted(range(len(images)), key=lambda i: images[i].shape)
    for shape, same in groupby(order, key=lambda i: images[i].shape):
        width, height, left, top = preprocess.window(shape[2], shape[1])
        device = images[0].device
        columns = resize_weights(shape[2], width, left, preprocess.width, preprocess.resample, device)
        rows = resize_weights(shape[1], height, top, preprocess.height, preprocess.resample, device)
        pixels = torch.stack([images[i] for i in same]).to(columns.dtype) @ columns
        pixels = rows.T @ pixels.round_().clamp_(0, 255)  # Pillow, too, rounds after each axis
        parts.append(pixels.round_().clamp_(0, 255))
    return reordered(parts, order)


def reordered(parts: Sequence[Tensor], positions: Sequence[int]) -> Tensor:
    """Join parts of a batch, whose rows have these positions in it, to one tensor in the order of the positions."""
    together = torch.cat(list(parts))
    order = np.argsort(positions)
    if (order[:-1] < order[1:]).all():
        return together
    return together[torch.from_numpy(order).to(together.device)]


@lru_cache(maxsize=64)
def resize_weights(size: int, resized: int, start: int, kept: int, resample: str, device: Any) -> Tensor:
    """Return the weights (size, kept) with which an axis is resized, and then cut or padded with black from `start`.

    They are PyTorch's own, found by resizing an identity matrix. So two matrix products resize a batch on a GPU.
    On a GPU they are float16, which holds all grey levels exactly.
    """
    weights = interpolate(torch.eye(size, device=device)[None, None], (size, resized), mode=resample, antialias=True)
    cut = pad(weights[0, 0], (-start, start + kept - resized))  # negative margins cut, positive ones are black
    return cut.half() if device.type == "cuda" else cut


@dataclass(frozen=True)
class Chunk:
    """Images that a worker has read; DataLoader would take a list apart to pin what is in it."""

    images: list[ReadImage]


class ImageReader:
    """A dataset for DataLoader, whose indices are the images that are to be read.

    Args:
        preparer: how images are prepared.
    """

    def __init__(self, preparer: Preparer) -> None:
        self.preparer = preparer
        self.preprocess: Any = preparer.encoder.prepare
        target = ModelInput.of(self.preprocess)
        self.gain = target.gain[:, None, None]
        self.offset = target.offset[:, None, None]

    def chunks(self, numbered: Iterator[tuple[int, Any]], batch_images: int) -> Iterator[list[ReadImage]]:
        """Yield what each worker is given at once; no chunk belongs to two batches."""
        while batch := list(islice(numbered, batch_images)):
            tasks = [self._task(index, image) for index, image in batch]
            yield from (tasks[start : start + CHUNK_IMAGES] for start in range(0, len(tasks), CHUNK_IMAGES))

    def _task(self, index: int, image: Any) -> ReadImage:
        """Describe an image for a worker; what cannot be sent to another process is read here."""
        task = ReadImage(index, *describe(image), source=image)
        read = getattr(image, "read", None)
        if isinstance(read, partial) and read.func is read_file:
            return task
        if callable(read):
            try:
                with unreadable():
                    task = task._replace(source=read())
            except ImageError as error:
                return task._replace(source=None, error=str(error))
        return task if isinstance(task.source, (str, os.PathLike, bytes, bytearray)) else self.read(task)

    def __getitem__(self, task: ReadImage) -> ReadImage:
        return task if task.source is None else self.read(task, self.preparer.decoder == "nvjpeg")

    def read(self, task: ReadImage, keep_jpeg: bool = False) -> ReadImage:
        """Read an image; unless it is a plain JPEG that is to be kept encoded, decode and prepare it with Pillow."""
        source = task.source
        read = getattr(source, "read", None)
        task = task._replace(source=None, jpeg=None)
        try:
            with unreadable():
                if isinstance(source, PreparedImage):  # all are normalised on the GPU
                    normalised = to_host(self.preparer.accept(source))
                    return task._replace(inputs=(normalised - self.offset) / self.gain)
                source = read() if callable(read) else source
                source = read_path(source) if isinstance(source, (str, os.PathLike)) else source
                if keep_jpeg and isinstance(source, (bytes, bytearray)):
                    examined = examine_image(bytes(source))
                    if examined.is_plain_jpeg(self.preparer.upright):
                        return task._replace(
                            jpeg=np.frombuffer(bytearray(source), np.uint8),
                            pixel_count=examined.pixels,
                            taken=date_taken(examined.image),
                        )
                image = open_image(source, upright=self.preparer.upright)
                whole = np.asarray(image).transpose(2, 0, 1) if self.preparer.views > 1 else None
                inputs = self.preprocess.pixels(image).transpose(2, 0, 1)
                return task._replace(inputs=inputs, whole=whole, taken=date_taken(image))
        except ImageError as error:
            return task._replace(error=str(error))


class BatchEncoder:
    """Decodes, resizes and encodes batches of images that were read.

    Args:
        reader: the reader of the images, which decodes with Pillow what nvJPEG refuses.
        device: where the work is done.
    """

    def __init__(self, reader: ImageReader, device: str) -> None:
        self.preparer = reader.preparer
        self.reader = reader
        self.device = torch.device(device)
        self.dtype = getattr(torch, precision_of(reader.preparer.encoder))
        self.preparing, self.encoding = streams(self.device)
        if self.encoding is not None:
            self.encoding.wait_stream(torch.cuda.current_stream(self.device))  # the model was loaded there
        with torch.cuda.stream(self.preparing):
            self.gain = self._upload(reader.gain)
            self.offset = self._upload(reader.offset)

    def __call__(self, batch: Sequence[ReadImage]) -> tuple[list[ReadImage], Array, Any]:
        """Return the images, the features of those that could be read, and the event after which these are there."""
        encoder = self.preparer.encoder
        with torch.cuda.stream(self.preparing):
            positions: list[int] = []
            parts: list[Tensor] = []
            jpegs = [image for image in batch if image.jpeg is not None]
            rooms = np.cumsum([image.pixel_count for image in jpegs]) // DECODED_PIXELS
            for room in np.unique(rooms):
                group = [image for image, own in zip(jpegs, rooms, strict=True) if own == room]
                positions += self._from_jpegs(group, parts)
            decoded = set(positions)
            batch = [
                self.reader.read(image._replace(source=image.jpeg.tobytes()))
                if image.jpeg is not None and image.position not in decoded
                else image
                for image in batch
            ]
            if prepared := [image for image in batch if image.inputs is not None]:
                pixels = self._upload(np.stack([image.inputs for image in prepared if image.inputs is not None]))
                whole = [self._upload(image.whole) for image in prepared if image.whole is not None]
                parts.append(self._views(prepared, whole, pixels))
                positions += [image.position for image in prepared]
            inputs = reordered(parts, positions).flatten(0, 1) if parts else None
        with torch.cuda.stream(self.encoding):
            features = torch.empty((0, encoder.dim), device=self.device)
            if inputs is not None:
                if self.encoding is not None:
                    self.encoding.wait_stream(self.preparing)
                    inputs.record_stream(self.encoding)
                features = encoder.encode_images(inputs)
            if self.preparer.views > 1:
                features = features.reshape(-1, self.preparer.views, encoder.dim)
            done = self.encoding.record_event() if self.encoding is not None else None
        return batch, features, done

    def _from_jpegs(self, group: list[ReadImage], parts: list[Tensor]) -> list[int]:
        """Append the views (n, V, 3, h, w) of the n JPEGs that nvJPEG can decode to `parts`; return their positions."""
        decoded = decode_each([torch.from_numpy(image.jpeg) for image in group], str(self.device))
        images = [image for image, pixels in zip(group, decoded, strict=True) if pixels is not None]
        if images:
            wholes = [pixels for pixels in decoded if pixels is not None]
            parts.append(self._views(images, wholes, resize_and_crop(wholes, self.reader.preprocess)))
            if self.preparing is not None:
                # nvJPEG writes on a stream of its own, and does not wait for kernels that still read memory which it
                # is given anew. So the decoded images are kept until they have been resized.
                self.preparing.synchronize()
        return [image.position for image in images]

    def _views(self, images: Sequence[ReadImage], wholes: Sequence[Tensor], pixels: Tensor) -> Tensor:
        """Normalise the model's inputs (n, 3, h, w) and make the other views: (n, V, 3, h, w)."""
        views = torch.addcmul(self.offset, pixels, self.gain).to(self.dtype)[:, None]
        if self.preparer.target is not None:
            sizes = [(whole.shape[2], whole.shape[1]) for whole in wholes]
            plans = [self.preparer.plan(image.position, size) for image, size in zip(images, sizes, strict=True)]
            views = torch.cat([views, make_views(wholes, plans, self.preparer.target, self.dtype)], dim=1)
        return views

    def _upload(self, array: HostArray) -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        return tensor.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else tensor


def encode_on_gpu(
    numbered: Iterator[tuple[int, Any]], preparer: Preparer, batch_images: int, workers: int | None, device: str
) -> Generator[tuple[list[ReadImage], Array], None, None]:
    """Yield the images of each batch, and the features of those that could be read; see `encode_ahead`.

    Args:
        numbered: images as for `encode_ahead`, with their positions in the stream.
        preparer: how images are prepared, and by which encoder they are encoded.
        batch_images: images of a batch, each with all of its views.
        workers: processes that read; one per core when not given, up to `MAX_WORKERS`.
        device: device of the encoder.
    """
    first = list(islice(numbered, FEW_IMAGES + 1))
    reader = ImageReader(preparer)
    encode = BatchEncoder(reader, device)
    if len(first) <= FEW_IMAGES or not hasattr(os, "fork") or current_process().daemon:
        workers = 0
    elif workers is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        workers = min(MAX_WORKERS[preparer.decoder], cores)
    batches = _read_batches(reader, chain(first, numbered), batch_images, workers)
    with _frozen_objects(), closing(read_ahead(encode, batches, 1, PREFETCH_BATCHES)) as encoded:
        for read, features, done in encoded:
            if done is not None and getattr(features, "is_cuda", False):
                stream = torch.cuda.current_stream(encode.device)
                stream.wait_event(done)
                features.record_stream(stream)
            yield read, features


@contextmanager
def _frozen_objects() -> Iterator[None]:
    """Hide all present objects from the garbage collector, unless the caller has done so for good.

    Images that wait in the pipeline make it look through everything from time to time, a million objects of PyTorch and
    a model, which takes about 0.3 s; meanwhile neither the GPU nor the readers are given work.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _ignore_interrupts(_: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process ends the workers


def _read_batches(
    reader: ImageReader, numbered: Iterator[tuple[int, Any]], batch_images: int, workers: int
) -> Iterator[list[ReadImage]]:
    """Yield batches of images that DataLoader workers have read.

    Workers are forked, so that they start at once and a script needs no `if __name__ == "__main__"`; they never touch
    the GPU. Pinning memory has DataLoader receive what they send in a thread.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of forks beside threads, PyTorch of many workers
        loader = DataLoader(
            reader,
            batch_sampler=reader.chunks(numbered, batch_images),
            num_workers=workers,
            collate_fn=Chunk,
            generator=torch.Generator(),  # leaves PyTorch's own random numbers as they are
            multiprocessing_context="fork" if workers else None,
            prefetch_factor=PREFETCH_CHUNKS if workers else None,
            pin_memory=workers > 0 and torch.cuda.is_available(),
            worker_init_fn=_ignore_interrupts,
        )
        chunks = iter(loader)
    batch: list[ReadImage] = []
    try:
        for chunk in chunks:
            batch += chunk.images
            if len(batch) == batch_images:
                yield batch
                batch = []
    except RuntimeError as error:
        raise RunError(f"images could not be read: {error}; try it with fewer --workers.") from error
    if batch:
        yield batch


@cache
def streams(device: Any) -> tuple[Any, Any]:
    """Return the CUDA streams of a device for preparing and for encoding; None for a CPU, which has none."""
    return (torch.cuda.Stream(device, -1), torch.cuda.Stream(device)) if device.type == "cuda" else (None, None)
