"""The first half of the walk: read ahead -> prepare -> encode -> (views). Written once, used everywhere."""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import cached_property, partial
from itertools import islice
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, TypeVar, cast

import numpy as np
from PIL import Image

from acclimate.arrays import Array, move
from acclimate.encoders import Encoder
from acclimate.encoders.preprocess import Bytes, Preprocess
from acclimate.errors import ImageError, InputError
from acclimate.images.opening import open_image, unreadable
from acclimate.reading.jpeg import choose_decoder
from acclimate.views import KINDS, Kind
from acclimate.views.augment import ModelInput, make_views
from acclimate.views.generated import Generator as ImageGenerator
from acclimate.views.plan import AREA, LARGE, ViewPlan, draw_plan

PREFETCH = 3  # batches that are read while one is encoded
MOST_PROCESSES = 32  # that read for a GPU where no number is given
OnError = Literal["raise", "skip"]  # what becomes of an image that cannot be read
Decoder = Literal["auto", "pillow", "nvjpeg"]  # what decodes JPEGs
Item = TypeVar("Item")
Result = TypeVar("Result")


class Batch(NamedTuple):
    """A batch of encoded images, of which r could be read."""

    start: int  # position of the first image in the stream
    names: list[str]
    errors: list[str | None]  # why each image could not be read; None if it could
    features: Array  # (r, d), or (r, V, d) for V views, as the encoder gives them: for a GPU, there
    truths: list[str | None]  # the true label of each image, if its source provides it

    @property
    def readable(self) -> list[int]:
        """Positions in the stream of the images that could be read."""
        return [self.start + place for place, error in enumerate(self.errors) if error is None]


def read_ahead(
    work: Callable[[Item], Result], items: Iterable[Item], workers: int, ahead: int
) -> Generator[Result, None, None]:
    """Results of `work` in the order of the items, done in threads, with `ahead` of them under way or waiting."""
    items = iter(items)
    pool = ThreadPoolExecutor(workers, thread_name_prefix="acclimate-read")
    try:
        pending: deque[Future[Result]] = deque(pool.submit(work, item) for item in islice(items, ahead))
        while pending:
            result = pending.popleft().result()
            pending.extend(pool.submit(work, item) for item in islice(items, 1))
            yield result
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def default_workers(processes: bool = False) -> int:
    """The number of reading threads, or of reading processes, where none is given."""
    if not processes:
        return min(8, (os.cpu_count() or 1) + 1)
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST_PROCESSES, usable)


def default_batch_size(encoder: Encoder) -> int:
    """The number of images that an encoder is given at once, where none is given."""
    return 32 if gpu_of(encoder) is None else 256


def gpu_of(encoder: Encoder) -> str | None:
    """The GPU an encoder runs on; None if it runs on none."""
    device = str(getattr(encoder, "device", "cpu"))
    return device if device.startswith("cuda") else None


def precision_of(encoder: Encoder) -> str:
    """In which an encoder computes features: "float32" if it does not say."""
    return str(getattr(encoder, "precision", "float32"))


class Preparer:
    """Makes what an encoder takes of an image: the image as the model wants it, then other views of it.

    Args:
        encoder: the model.
        views: per image: itself and `views - 1` others.
        seed: of the views. Image i of a stream has the views of (seed, i), however the stream is cut or restarted.
        device: where PyTorch makes the views; the encoder's GPU when not given. Without either, Pillow makes them.
        kind: of the views: "augmix" (random crops and flips, then AugMix), "crop" (the crops and flips alone),
            "large-crop" (of at least half of the image, which Tip-Adapter is fitted to) or "diffusion" (crops and
            flips, then generated images, prepared as the image itself is: `(views - 1) // 2` of them, so that of
            DiffTPT's 128 views 64 are crops and 63 are generated).
        generator: of the generated images.
        upright: whether images are turned as their EXIF orientation says when they are read.
        decoder: of JPEGs: "pillow", which gives the same pixels everywhere, "nvjpeg", on the encoder's GPU, or "auto":
            nvJPEG if it is there. Generated views and encoders with a preprocessing of their own need Pillow.

    Raises:
        InputError: the views or the decoder cannot be made or used.
    """

    def __init__(
        self,
        encoder: Encoder,
        views: int = 1,
        seed: int = 0,
        device: str | None = None,
        *,
        kind: Kind = "augmix",
        generator: ImageGenerator | None = None,
        upright: bool = True,
        decoder: Decoder = "auto",
    ) -> None:
        if views < 1:
            raise InputError(f"views must be at least 1, got {views}.")
        if kind not in KINDS:
            raise InputError(f"unknown kind of views {kind!r}; choose from {', '.join(KINDS)}.")
        if kind == "diffusion" and views == 2:
            raise InputError("two views leave no room for a generated image; diffusion views need at least 3.")
        if kind == "diffusion" and views > 1 and generator is None:
            how = "pass a folder made by `acclimate generate`, or choose another kind of views"
            raise InputError(f"diffusion views need generated images; {how}.")
        if kind != "diffusion" and generator is not None:
            raise InputError(f"{kind} views have no generated images; choose diffusion views to use some.")
        self.encoder = encoder
        self.views = views
        self.seed = seed
        self.kind = kind
        self.upright = upright
        self.device = device or gpu_of(encoder)
        self.generator = generator
        self._asked = decoder
        self.target = ModelInput.of(self._prepare) if views > 1 else None
        if decoder != "auto":
            _ = self.decoder  # refused now, if at all

    @property
    def _prepare(self) -> Any:
        """How an image is prepared. Views are normalised where they are made, and so is the image beside them."""
        own = self.encoder.prepare
        return own.preprocess if self.views > 1 and isinstance(own, Bytes) else own

    @property
    def gpu(self) -> str | None:
        """The GPU on which images are decoded, resized and encoded; None if that is done on the host, but encoding."""
        known = isinstance(self.encoder.prepare, Bytes) and self.generator is None
        return gpu_of(self.encoder) if known else None

    @cached_property
    def decoder(self) -> Decoder:
        """What decodes JPEGs: "pillow" or "nvjpeg"."""
        gpu = self.gpu
        if gpu is not None:
            from acclimate.reading.resize import FILTERS

            gpu = gpu if self.encoder.prepare.preprocess.resample in FILTERS else None  # type: ignore[attr-defined]
        return cast(Decoder, choose_decoder(self._asked, gpu))

    @property
    def travels(self) -> bool:
        """Whether it can be pickled, to prepare images in another process; it does not encode them there."""
        on_cpu = self.target is None or (self.device is None and self.generator is None)
        return on_cpu and isinstance(self._prepare, (Preprocess, Bytes))

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of what is made of an image, (V, 3, height, width), if it travels."""
        pixels = self._prepare.preprocess if isinstance(self._prepare, Bytes) else self._prepare
        return self.views, 3, pixels.height, pixels.width

    @property
    def dtype(self) -> "np.dtype[Any]":
        """The type of what is made of an image, if it travels."""
        return np.dtype(np.uint8 if isinstance(self._prepare, Bytes) else np.float32)

    def plan(self, index: int, size: tuple[int, int], generated: int = 0) -> ViewPlan:
        """The random choices for the views, but the image itself and generated ones, of an image (width, height)."""
        target = cast(ModelInput, self.target)
        smallest = LARGE if self.kind == "large-crop" else AREA[0]
        count = self.views - 1 - generated
        view = (target.width, target.height)
        return draw_plan(self.seed, index, count, size, view, self.kind == "augmix", smallest)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "encoder": SimpleNamespace(prepare=self.encoder.prepare)}  # without the weights

    def __call__(self, index: int, image: Image.Image, name: str = "") -> list[Any]:
        """What the encoder takes for the views of an RGB image, the first of which is the image itself."""
        plain = self._prepare(image)
        if self.target is None:
            return [plain]
        generated = []
        if self.generator is not None:
            made = self.generator.generate(image, name, (self.views - 1) // 2, self.seed)
            generated = [self._prepare(each) for each in made]
        plan = self.plan(index, image.size, len(generated))
        views: Any
        if self.device is None:
            views = make_views(image, plan, self.target)
        else:
            import torch

            from acclimate.views.tensor import make_views as make_views_on_device

            pixels = torch.as_tensor(np.array(image).transpose(2, 0, 1), device=self.device)
            views = make_views_on_device([pixels], [plan], self.target)[0]
        # PyTorch models, which have a `device`, take tensors as they are; all others are given what `prepare` gives.
        like = plain if isinstance(views, np.ndarray) or not hasattr(self.encoder, "device") else views
        return [move(plain, like), *move(views, like), *(move(each, like) for each in generated)]

    def encode(self, prepared: Sequence[list[Any]]) -> Array:
        """Features (n, d), or (n, V, d) for many views, of n prepared images."""
        inputs = [view for each in prepared for view in each]
        dim = self.encoder.dim
        features = self.encoder.encode_images(inputs) if inputs else np.empty((0, dim), np.float32)
        return features if self.views == 1 else features.reshape(-1, self.views, dim)


def encode_ahead(
    images: Iterable[Any],
    prepare: Preparer,
    *,
    batch_size: int | None = None,
    workers: int | None = None,
    start: int = 0,
    on_error: OnError = "skip",
) -> Iterator[Batch]:
    """Encode images in order, batch by batch; reading and preparing run ahead: in threads, or for a GPU in processes.

    Args:
        images: paths, encoded bytes, arrays, Pillow images, or objects with `read` (encoded bytes) and `name`.
        prepare: how images are prepared, and by which encoder they are encoded.
        batch_size: images, counting views, that the encoder is given at once; `default_batch_size(encoder)` when not
            given.
        workers: threads or processes; `default_workers()` when not given.
        start: position of the first of `images` in the whole stream.
        on_error: "raise" an ImageError that names an image which cannot be read, or "skip" it: its batch says why.
    """
    workers = workers or default_workers(processes=prepare.gpu is not None)
    batch_size = batch_size or default_batch_size(prepare.encoder)
    size = max(1, batch_size // prepare.views)
    if prepare.gpu is not None:
        from acclimate.reading.gpu import encode_on_gpu

        reading: dict[str, Any] = {"size": size, "inputs": batch_size, "workers": workers, "device": prepare.gpu}
        with closing(encode_on_gpu(images, prepare, start=start, **reading)) as batches:
            for items, errors, features in batches:
                names = [item.name for item in items]
                _check(names, errors, start, on_error)
                yield Batch(start, names, errors, features, [item.truth for item in items])
                start += len(items)
        return
    # Views are large, 38 MB per image at 224 pixels, so no more of them wait than keep workers and encoder busy.
    ahead = workers + (PREFETCH * size if prepare.views == 1 else size)
    prepared = read_ahead(partial(_read, prepare), enumerate(images, start), workers, ahead)
    with closing(prepared):
        while batch := list(islice(prepared, size)):
            names = [each.name for each in batch]
            errors = [str(each.inputs) if isinstance(each.inputs, ImageError) else None for each in batch]
            _check(names, errors, start, on_error)
            features = prepare.encode([each.inputs for each in batch if not isinstance(each.inputs, ImageError)])
            yield Batch(start, names, errors, features, [each.truth for each in batch])
            start += len(batch)


def _check(names: Sequence[str], errors: Sequence[str | None], start: int, on_error: OnError) -> None:
    """Raise the first error of a batch if errors are to be raised."""
    if on_error == "raise" and (bad := [place for place, error in enumerate(errors) if error]):
        name = names[bad[0]] or f"image {start + bad[0]}"
        raise ImageError(f"{name:.200} cannot be read: {errors[bad[0]]}")


class _Prepared(NamedTuple):
    name: str
    truth: str | None
    inputs: list[Any] | ImageError  # of the model; or why there are none


def about(image: Any) -> tuple[str, str | None]:
    """The name of an image, "" if it has none, and its true label, if its source provides it."""
    name = os.fspath(image) if isinstance(image, (str, os.PathLike)) else getattr(image, "name", "")
    truth = getattr(image, "label", None)
    return name if isinstance(name, str) else "", truth if isinstance(truth, str) else None


def _read(prepare: Preparer, item: tuple[int, Any]) -> _Prepared:
    index, image = item
    name, truth = about(image)
    try:
        with unreadable():
            read = getattr(image, "read", None)
            opened = open_image(read() if callable(read) else image, upright=prepare.upright)
            return _Prepared(name, truth, prepare(index, opened, name))
    except ImageError as error:
        return _Prepared(name, truth, error)
