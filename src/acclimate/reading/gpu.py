"""The first half of the walk where the model runs on a GPU: three stages at the same time, each ahead of the next.

1. Files are read in processes. JPEGs that nvJPEG decodes stay as they are; all else is decoded and prepared there.
2. JPEGs are decoded and resized on the GPU, prepared pixels are brought there, and views are made.
3. Batches are encoded.

The last two have CUDA streams and threads of their own: the second has two, one of which prepares the images that it
has decoded while the other decodes. Streams wait for each other by events, and threads do not wait for streams, except
that nvJPEG does. The images are taken from their iterator in the thread of the caller.
"""

import os
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from functools import cache, partial
from itertools import chain, cycle, islice
from multiprocessing import current_process
from threading import local
from typing import Any, NamedTuple

import numpy as np
import torch

from acclimate.arrays import Array, namespace
from acclimate.errors import ImageError
from acclimate.images.opening import limit_pixels, open_image, pixel_limit, unreadable
from acclimate.reading.jpeg import decode_each, turn
from acclimate.reading.out_of_memory import Halving
from acclimate.reading.processes import Processes
from acclimate.reading.readers import Found, Reader, Source
from acclimate.reading.resize import prepare_batch, upload
from acclimate.reading.walk import Preparer, about, precision_of, read_ahead
from acclimate.sources.source import read_file

PIECE = 256  # images that are decoded at once, at most
CHUNK = 16  # images that a process is given at once, at most
FEW = 32  # images for which no process is started
DECODERS = 2  # threads that have pieces decoded and prepared
# that wait for such a thread or are in it; and that wait to be encoded or are
PIECES = 3
BATCHES = 2
ROOM = 2**29  # bytes of decoded images that are on the GPU at once
ENDED = "its reader ended unexpectedly: it ran out of memory, or crashed"
Tensor = Any  # torch.Tensor


class Item(NamedTuple):
    """An image, its place in the stream, and the slot of the shared memory that is kept for it."""

    place: int
    name: str
    truth: str | None
    image: Any
    slot: int | None


class Pending(NamedTuple):
    """An array that a CUDA stream may still be computing."""

    array: Array
    event: Any = None

    @classmethod
    def of(cls, array: Array) -> "Pending":
        """An array that the current stream computes."""
        if not getattr(array, "is_cuda", False):
            return cls(array)
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(array.device))
        return cls(array, event)

    def take(self) -> Array:
        """The array, for which the current stream waits."""
        if self.event is not None:
            stream = torch.cuda.current_stream(self.array.device)
            stream.wait_event(self.event)
            self.array.record_stream(stream)
        return self.array


class Part(NamedTuple):
    """Images with why they cannot be read, and for the r that can: the model's inputs, or features (r, ...)."""

    items: list[Item]
    errors: list[str | None]
    made: Pending


def encode_on_gpu(
    images: Iterable[Any],
    prepare: Preparer,
    *,
    size: int,
    inputs: int,
    workers: int,
    start: int,
    device: str,
) -> Generator[tuple[list[Item], list[str | None], Array], None, None]:
    """Encode images in order: those of each batch, why they cannot be read, and the features (r, ...) of the others.

    Args:
        images: as for `encode_ahead`.
        prepare: how images are prepared, and by which encoder they are encoded.
        size: images of a batch.
        inputs: images, counting views, that the encoder is given at once.
        workers: processes that read.
        start: position of the first of `images` in the whole stream.
        device: of the encoder.
    """
    numbered = enumerate(images, start)
    first = list(islice(numbered, FEW + 1))
    in_threads = len(first) <= FEW or current_process().daemon  # which may not start processes
    walk = _Walk(prepare, size, inputs, workers, device, in_threads)
    with closing(walk), closing(walk.run(chain(first, numbered))) as batches:
        for items, errors, made in batches:
            yield items, errors, made.take()


class _Walk:
    def __init__(self, prepare: Preparer, size: int, inputs: int, workers: int, device: str, in_threads: bool) -> None:
        self.prepare = prepare
        self.inputs = inputs
        self.workers = workers
        self.device = torch.device(device)
        how: Any = prepare.encoder.prepare  # Bytes
        self.preprocess = how.preprocess
        self.reader = Reader(how, prepare.upright, prepare.decoder == "nvjpeg", prepare.views > 1)
        self.halving = Halving()
        self.shape = (3, self.preprocess.height, self.preprocess.width)
        self.pieces = split(size, PIECE)
        self.chunks = [split(piece, 1 if in_threads else min(CHUNK, -(-piece // 8))) for piece in self.pieces]
        self.ahead = 2 * workers  # chunks
        slots = 0 if in_threads else self.ahead * max(map(max, self.chunks)) + (1 + PIECES) * max(self.pieces)
        self.slots, slot = deque(range(slots)), int(np.prod(self.shape))
        begin = partial(limit_pixels, pixel_limit())
        self.processes = None if in_threads else Processes(self.reader, begin, slots, slot)
        memory = self.processes.memory if self.processes else bytearray(1)
        self.memory = torch.frombuffer(memory, dtype=torch.uint8)[: slots * slot].view(slots, slot)
        # nvJPEG has a stream of its own and does not wait for what uses memory that it is given again. So its images
        # are all that is allocated in the first stream, and each thread keeps them until they are prepared.
        self.decoding, self.preparing, self.encoding = streams(self.device)
        self.kept = local()

    def run(self, images: Iterator[tuple[int, Any]]) -> Generator[Part, None, None]:
        """The batches with their features."""
        with (
            closing(read_ahead(self.read, self._chunks(images), self.workers, self.ahead)) as chunks,
            closing(read_ahead(self.make_inputs, self._pieces(chunks), DECODERS, PIECES)) as pieces,
            closing(read_ahead(self.encode, self._batches(pieces), 1, BATCHES)) as batches,
        ):
            try:
                yield from batches
            finally:
                self.close()  # threads need not wait for what a process still does

    def close(self) -> None:
        """End the processes."""
        if self.processes is not None:
            self.processes.close()

    def _chunks(self, images: Iterator[tuple[int, Any]]) -> Iterator[list[Item]]:
        for length in cycle(chain.from_iterable(self.chunks)):
            items = []
            for index, image in islice(images, length):
                slot = self.slots.popleft() if self.slots else None
                items.append(Item(index, *about(image), image, slot))
            if not items:
                return
            yield items

    def _pieces(self, chunks: Iterator[list[tuple[Item, Found]]]) -> Iterator[list[tuple[Item, Found]]]:
        for number in cycle(map(len, self.chunks)):
            if not (piece := list(chain.from_iterable(islice(chunks, number)))):
                return
            yield piece

    def _batches(self, pieces: Iterator[Part]) -> Iterator[list[Part]]:
        while batch := list(islice(pieces, len(self.pieces))):
            yield batch

    def read(self, chunk: list[Item]) -> list[tuple[Item, Found]]:
        """Stage 1, in a thread per process."""
        given = [self._given(item.image) for item in chunk]
        tasks = [(each, item.slot) for each, item in zip(given, chunk, strict=True) if not isinstance(each, Found)]
        if self.processes is None:
            answers = iter([self.reader(source) for source, _ in tasks])
        else:
            answers = iter([answer or Found(ENDED) for answer in (self.processes(tasks) if tasks else ())])
        found = [each if isinstance(each, Found) else next(answers) for each in given]
        return list(zip(chunk, found, strict=True))

    def _given(self, image: Any) -> Source | Found:
        """What a process reads an image from; what was read if that must be done here."""
        read = getattr(image, "read", None)
        if isinstance(read, partial) and read.func is read_file:  # of a file, and can be pickled
            return read
        try:
            with unreadable():
                image = read() if callable(read) else image
                if isinstance(image, (str, os.PathLike)):
                    return os.fspath(image)
                if isinstance(image, (bytes, bytearray, memoryview)):
                    return bytes(image)
                return self.reader.prepared(open_image(image, upright=self.prepare.upright))
        except ImageError as error:
            return Found(str(error))

    def make_inputs(self, piece: list[tuple[Item, Found]]) -> Part:
        """Stage 2: what the encoder takes for the images that can be read, (r, 3, h, w) or (r, V, 3, h, w)."""
        items = [item for item, _ in piece]
        found = [each for _, each in piece]
        made: list[tuple[list[int], Tensor]] = []  # places in the piece, and their inputs
        with self._in(self.preparing):
            refused: list[int] = []
            for places in self._groups([place for place, each in enumerate(found) if each.jpeg], found):
                images = self._decode([self._bytes(*piece[place]) for place in places])
                refused += [place for place, image in zip(places, images, strict=True) if image is None]
                turned = []
                good = []
                for place, image in zip(places, images, strict=True):
                    if image is not None and (jpeg := found[place].jpeg) is not None:
                        turned.append(turn(image, jpeg.turning))
                        good.append(place)
                if good:
                    made.append((good, self._inputs([items[place] for place in good], turned)))
                    self.kept.images = Pending.of(made[-1][1]).event, images
            for place, each in zip(refused, self._by_pillow([piece[place] for place in refused]), strict=True):
                found[place] = each
            prepared = [place for place, each in enumerate(found) if not each.error and not each.jpeg]
            for places in self._groups(prepared, found):
                plain = self._upload([(items[place], found[place]) for place in places])
                whole = [image for place in places if (image := found[place].image) is not None]
                turned = [upload(image.transpose(2, 0, 1), self.device) for image in whole]
                made.append((places, self._inputs([items[place] for place in places], turned, plain)))
            inputs = Pending.of(self._in_order(made))
        self.slots.extend(item.slot for item in items if item.slot is not None)
        return Part(items, [each.error for each in found], inputs)

    def encode(self, pieces: list[Part]) -> Part:
        """Stage 3: the features of a batch, (r, d) or (r, V, d)."""
        items = [item for piece in pieces for item in piece.items]
        errors = [error for piece in pieces for error in piece.errors]
        encoder = self.prepare.encoder
        views = self.prepare.views
        with self._in(self.encoding):
            parts = [taken for piece in pieces if len(taken := piece.made.take())]
            inputs = parts[0] if len(parts) == 1 else torch.cat(parts) if parts else None
            if inputs is None:
                features: Array = torch.empty((0, encoder.dim), device=self.device)
            else:
                blocks = (inputs if views == 1 else inputs.flatten(0, 1)).split(self.inputs)
                encoded = [encoder.encode_images(block) for block in blocks]
                features = encoded[0] if len(encoded) == 1 else namespace(encoded[0]).concat(encoded)
            if views > 1:
                features = features.reshape(len(features) // views, views, encoder.dim)
            return Part(items, errors, Pending.of(features))

    def _groups(self, places: Sequence[int], found: Sequence[Found]) -> Iterator[list[int]]:
        """Cut places into groups whose whole images have room."""
        group = list[int]()
        used = 0
        for place in places:
            jpeg = found[place].jpeg
            image = found[place].image
            need = 3 * jpeg.width * jpeg.height if jpeg else 0 if image is None else image.nbytes
            if group and used + need > ROOM:
                yield group
                group = []
                used = 0
            group.append(place)
            used += need
        if group:
            yield group

    def _decode(self, contents: list[Tensor]) -> list[Tensor | None]:
        prepared, _ = getattr(self.kept, "images", (None, None))
        if prepared is not None:
            prepared.synchronize()
        self.kept.images = None, None
        with self._in(self.decoding):
            images = decode_each(contents, str(self.device))
        if self.preparing is not None:
            self.preparing.wait_stream(self.decoding)
        return images

    def _by_pillow(self, refused: list[tuple[Item, Found]]) -> list[Found]:
        """What Pillow makes of JPEGs that nvJPEG refuses, in threads."""
        if not refused:
            return []
        reader = replace(self.reader, jpegs=False)
        with ThreadPoolExecutor(self.workers) as pool:
            return list(pool.map(reader, [bytes(self._bytes(*each).numpy()) for each in refused]))

    def _bytes(self, item: Item, found: Found) -> Tensor:
        if found.content is None:
            return self.memory[item.slot, : found.size]
        content = found.content
        return torch.from_numpy(content if content.flags.writeable else content.copy())

    def _upload(self, prepared: list[tuple[Item, Found]]) -> Tensor:
        """Prepared pixels (k, 3, h, w) on the device, by way of memory from which it can copy by itself."""
        pixels = torch.empty((len(prepared), self.memory.shape[1]), dtype=torch.uint8, pin_memory=self._cuda)
        slots = [item.slot for item, found in prepared if found.content is None]
        if len(slots) == len(prepared):
            torch.index_select(self.memory, 0, torch.tensor(slots), out=pixels)
        else:
            for row, each in zip(pixels, prepared, strict=True):
                row.copy_(self._bytes(*each))
        return pixels.view(-1, *self.shape).to(self.device, non_blocking=True)

    def _inputs(self, items: Sequence[Item], images: Sequence[Tensor], plain: Tensor | None = None) -> Tensor:
        """All inputs of k images, some at a time if the GPU runs out of memory; see `_views`."""

        def make(part: slice) -> Tensor:
            pixels = prepare_batch(images[part], self.preprocess) if plain is None else plain[part]
            return self._views(items[part], images[part], pixels)

        return self.halving(make, len(items))

    def _views(self, items: Sequence[Item], images: Sequence[Tensor], plain: Tensor) -> Tensor:
        """All inputs of images: the plain one (k, 3, h, w), or, normalised, this and other views (k, V, 3, h, w)."""
        if (target := self.prepare.target) is None:
            return plain
        from acclimate.views.tensor import make_views

        plans = [
            self.prepare.plan(item.place, (image.shape[2], image.shape[1]))
            for item, image in zip(items, images, strict=True)
        ]
        views = make_views(images, plans, target, dtype=getattr(torch, precision_of(self.prepare.encoder)))
        gain, offset = (upload(each[:, None, None], self.device) for each in (target.gain, target.offset))
        return torch.cat([(plain * gain + offset).to(views.dtype)[:, None], views], dim=1)

    def _in_order(self, made: list[tuple[list[int], Tensor]]) -> Tensor:
        if not made:
            return torch.empty(0, device=self.device)
        if len(made) == 1:
            return made[0][1]
        order = np.argsort([place for places, _ in made for place in places])
        return torch.cat([inputs for _, inputs in made])[upload(order, self.device)]

    @property
    def _cuda(self) -> bool:
        return bool(self.device.type == "cuda")

    def _in(self, stream: Any) -> AbstractContextManager[Any]:
        return nullcontext() if stream is None else torch.cuda.stream(stream)


@cache
def streams(device: Any) -> tuple[Any, Any, Any]:
    """Streams of a GPU to decode, prepare and encode in; a CPU has none. What the tower waits for comes first."""
    if device.type != "cuda":
        return None, None, None
    return torch.cuda.Stream(device, -1), torch.cuda.Stream(device, -1), torch.cuda.Stream(device)


def split(count: int, most: int) -> list[int]:
    """Lengths of as few parts as there must be, of at most so many each, and about equal.

    Examples:
        >>> split(600, 256)
        [200, 200, 200]
    """
    parts = -(-count // most)
    return [count * (part + 1) // parts - count * part // parts for part in range(parts)]
