"""The first half of the walk: read ahead -> prepare -> encode -> (views). Written once, used everywhere."""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, TypeVar, cast

import numpy as np
from PIL import Image

from acclimate.arrays import HostArray, move
from acclimate.encoders import Encoder
from acclimate.encoders.preprocess import Preprocess
from acclimate.errors import ImageError, InputError, reason
from acclimate.images import open_image
from acclimate.views import KINDS, Kind
from acclimate.views.augment import ModelInput, make_views
from acclimate.views.generated import Generator as ImageGenerator
from acclimate.views.plan import AREA, LARGE, draw_plan

PREFETCH = 3  # batches that are read while one is encoded
OnError = Literal["raise", "skip"]  # what becomes of an image that cannot be read
Item = TypeVar("Item")
Result = TypeVar("Result")


class Batch(NamedTuple):
    """A batch of encoded images, of which r could be read."""

    start: int  # position of the first image in the stream
    names: list[str]
    errors: list[str | None]  # why each image could not be read; None if it could
    features: HostArray  # (r, d), or (r, V, d) for V views, as the encoder gives them
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


def default_workers() -> int:
    """The number of reading threads where none is given."""
    return min(8, (os.cpu_count() or 1) + 1)


def gpu_of(encoder: Encoder) -> str | None:
    """The GPU an encoder runs on; None if it runs on none."""
    device = str(getattr(encoder, "device", "cpu"))
    return device if device.startswith("cuda") else None


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
        self.encoder, self.views, self.seed, self.kind, self.upright = encoder, views, seed, kind, upright
        self.device, self.generator = device or gpu_of(encoder), generator
        self._target = ModelInput.of(encoder.prepare) if views > 1 else None

    @property
    def travels(self) -> bool:
        """Whether it can be pickled, to prepare images in another process; it does not encode them there."""
        on_cpu = self._target is None or (self.device is None and self.generator is None)
        return on_cpu and isinstance(self.encoder.prepare, Preprocess)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of what is made of an image, (V, 3, height, width), if it travels."""
        pixels = cast(Preprocess, self.encoder.prepare)
        return self.views, 3, pixels.height, pixels.width

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "encoder": SimpleNamespace(prepare=self.encoder.prepare)}  # without the weights

    def __call__(self, index: int, image: Image.Image, name: str = "") -> list[Any]:
        """What the encoder takes for the views of an RGB image, the first of which is the image itself."""
        plain = self.encoder.prepare(image)
        if self._target is None:
            return [plain]
        generated = []
        if self.generator is not None:
            made = self.generator.generate(image, name, (self.views - 1) // 2, self.seed)
            generated = [self.encoder.prepare(each) for each in made]
        size, augmented = (self._target.width, self._target.height), self.views - 1 - len(generated)
        smallest = LARGE if self.kind == "large-crop" else AREA[0]
        plan = draw_plan(self.seed, index, augmented, image.size, size, self.kind == "augmix", smallest)
        views: Any
        if self.device is None:
            views = make_views(image, plan, self._target)
        else:
            import torch

            from acclimate.views.tensor import make_views as make_views_on_device

            pixels = torch.as_tensor(np.array(image).transpose(2, 0, 1), device=self.device)
            views = make_views_on_device([pixels], [plan], self._target)[0]
        # PyTorch models, which have a `device`, take tensors as they are; all others are given what `prepare` gives.
        like = plain if isinstance(views, np.ndarray) or not hasattr(self.encoder, "device") else views
        return [move(plain, like), *move(views, like), *(move(each, like) for each in generated)]

    def encode(self, prepared: Sequence[list[Any]]) -> HostArray:
        """Features (n, d), or (n, V, d) for many views, of n prepared images."""
        inputs = [view for each in prepared for view in each]
        dim = self.encoder.dim
        features = self.encoder.encode_images(inputs) if inputs else np.empty((0, dim), np.float32)
        return features if self.views == 1 else features.reshape(-1, self.views, dim)


def encode_ahead(
    images: Iterable[Any],
    prepare: Preparer,
    *,
    batch_size: int = 32,
    workers: int | None = None,
    start: int = 0,
    on_error: OnError = "skip",
) -> Iterator[Batch]:
    """Encode images in order, batch by batch; reading and preparing run ahead in threads.

    Args:
        images: paths, encoded bytes, arrays, Pillow images, or objects with `read` (encoded bytes) and `name`.
        prepare: how images are prepared, and by which encoder they are encoded.
        batch_size: images, counting views, that the encoder is given at once.
        workers: threads; `default_workers()` when not given.
        start: position of the first of `images` in the whole stream.
        on_error: "raise" an ImageError that names an image which cannot be read, or "skip" it: its batch says why.
    """
    workers = workers or default_workers()
    size = max(1, batch_size // prepare.views)
    # Views are large, 38 MB per image at 224 pixels, so no more of them wait than keep workers and encoder busy.
    ahead = workers + (PREFETCH * size if prepare.views == 1 else size)
    prepared = read_ahead(partial(_read, prepare), enumerate(images, start), workers, ahead)
    try:
        while batch := list(islice(prepared, size)):
            errors = [str(each.inputs) if isinstance(each.inputs, ImageError) else None for each in batch]
            if on_error == "raise" and (unreadable := [place for place, error in enumerate(errors) if error]):
                name = batch[unreadable[0]].name or f"image {start + unreadable[0]}"
                raise ImageError(f"{name:.200} cannot be read: {errors[unreadable[0]]}")
            features = prepare.encode([each.inputs for each in batch if not isinstance(each.inputs, ImageError)])
            yield Batch(start, [each.name for each in batch], errors, features, [each.truth for each in batch])
            start += len(batch)
    finally:
        prepared.close()


class _Prepared(NamedTuple):
    name: str
    truth: str | None
    inputs: list[Any] | ImageError  # of the model; or why there are none


def _read(prepare: Preparer, item: tuple[int, Any]) -> _Prepared:
    index, image = item
    name = os.fspath(image) if isinstance(image, (str, os.PathLike)) else getattr(image, "name", "")
    name = name if isinstance(name, str) else ""
    truth = getattr(image, "label", None)
    truth = truth if isinstance(truth, str) else None
    try:
        read = getattr(image, "read", None)
        opened = open_image(read() if callable(read) else image, upright=prepare.upright)
        return _Prepared(name, truth, prepare(index, opened, name))
    except ImageError as error:
        return _Prepared(name, truth, error)
    except OSError as error:
        return _Prepared(name, truth, ImageError(reason(error)))
    except (MemoryError, OverflowError) as error:
        return _Prepared(name, truth, ImageError(f"there is not enough memory to prepare it ({error})"))
