"""The first half of the walk: read ahead -> prepare -> encode -> (views). Written once, used everywhere."""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import cached_property, partial
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeVar, cast, get_args

import numpy as np
from PIL import Image

from acclimate.arrays import Array, HostArray, as_floats, move, unit_rows
from acclimate.encoders import Encoder
from acclimate.encoders.preprocess import Preprocess
from acclimate.errors import ImageError, InputError
from acclimate.images.opening import PreparedImage, date_taken, open_image, unreadable
from acclimate.run import Batch
from acclimate.views import KINDS, Kind
from acclimate.views.augment import AREA, LARGE, ModelInput, ViewPlan, draw_plan, make_views
from acclimate.views.generated import Generator as ImageGenerator

PREFETCH_BATCHES = 3  # batches that are read while one is encoded
OnError = Literal["raise", "skip"]  # "skip": the batch of an unreadable image says why it cannot be read
Decoder = Literal["auto", "pillow", "nvjpeg"]  # decoder of JPEGs
Item = TypeVar("Item")
Result = TypeVar("Result")


class ReadImage(NamedTuple):
    """An image on its way to the encoder.

    Attributes:
        position: position in the stream.
        name: name in its source; "" if it has none.
        truth: true label, if the source provides it.
        source: what it is read from; None once it was read.
        error: reason why it cannot be read.
        inputs: the encoder's input for each view; or for a GPU, uint8 pixels (3, h, w) that are not normalised yet.
        jpeg: (n,) uint8, content of a JPEG file that a GPU decodes.
        pixel_count: size of that JPEG.
        whole: uint8 (3, H, W), the decoded image of which a GPU makes views.
        taken: time at which it was taken, if it says.
    """

    position: int
    name: str
    truth: str | None
    source: Any = None
    error: str | None = None
    inputs: Any = None
    jpeg: HostArray | None = None
    pixel_count: int = 0
    whole: HostArray | None = None
    taken: str | None = None


def read_ahead(
    work: Callable[[Item], Result], items: Iterable[Item], workers: int, ahead: int
) -> Generator[Result, None, None]:
    """Yield the results of `work` in the order of the items; threads do it for up to `ahead` of them in advance."""
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
    """Return the default number of reading threads."""
    return min(8, (os.cpu_count() or 1) + 1)


def default_batch_size(encoder: Encoder) -> int:
    """Return the default number of images that an encoder is given at once."""
    return 32 if gpu_of(encoder) is None else 256


def gpu_of(encoder: Encoder) -> str | None:
    """Return the GPU an encoder runs on; None if it runs on none."""
    device = str(getattr(encoder, "device", "cpu"))
    return device if device.startswith("cuda") else None


def precision_of(encoder: Encoder) -> str:
    """Return the precision in which an encoder computes features: "float32" if it does not say."""
    return str(getattr(encoder, "precision", "float32"))


class Preparer:
    """The way from an image to an encoder's input: the image as the model wants it, then other views of it.

    Args:
        encoder: the model.
        views: number of views of an image: itself and `views - 1` others.
        seed: seed of the views. Image i of a stream has the views of (seed, i), however the stream is cut or restarted.
        device: where PyTorch makes the views; the encoder's GPU when not given. Without either, Pillow makes them.
        kind: kind of the views: "augmix" (random crops and flips, then AugMix), "crop" (the crops and flips alone),
            "large-crop" (of at least half of the image, which Tip-Adapter is fitted to) or "diffusion" (crops and
            flips, then generated images, prepared as the image itself is: `(views - 1) // 2` of them, so that of
            DiffTPT's 128 views 64 are crops and 63 are generated).
        generator: source of the generated images.
        upright: whether images are turned as their EXIF orientation says when they are read.
        decoder: decoder of JPEGs: "pillow", which gives the same pixels everywhere, "nvjpeg", on the encoder's GPU, or
            "auto": nvJPEG if it is there. Generated views and encoders with a preprocessing of their own need Pillow.

    Attributes:
        decoder: "pillow" or "nvjpeg".
        gpu: the GPU on which images are resized and encoded; None if threads prepare them, for any encoder.

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
            raise InputError(
                "diffusion views need generated images; pass a folder made by `acclimate generate`, "
                "or choose another kind of views."
            )
        if kind != "diffusion" and generator is not None:
            raise InputError(f"{kind} views have no generated images; choose diffusion views to use some.")
        self.encoder = encoder
        self.views = views
        self.seed = seed
        self.kind = kind
        self.upright = upright
        self.device = device or gpu_of(encoder)
        self.generator = generator
        prepare = encoder.prepare
        self.gpu = gpu_of(encoder) if isinstance(prepare, Preprocess) and generator is None else None
        # PyTorch resizes what nvJPEG has decoded, with these two filters.
        nvjpeg_fits = isinstance(prepare, Preprocess) and prepare.resample in ("bilinear", "bicubic")
        self.decoder = choose_decoder(decoder, self.gpu if nvjpeg_fits else None)
        self.target = ModelInput.of(prepare) if views > 1 else None

    @property
    def about(self) -> dict[str, Any]:
        """Encoder and settings of reading that features are made with, as a run records them."""
        return {
            "fingerprint": self.encoder.fingerprint,
            "dim": self.encoder.dim,
            "decoder": self.decoder,
            "precision": precision_of(self.encoder),
            "device": str(getattr(self.encoder, "device", "cpu")),
            "views": self.views,
            "views_kind": self.kind if self.views > 1 else "",
        }

    def plan(self, index: int, size: tuple[int, int], generated: int = 0) -> ViewPlan:
        """Draw the random choices for the views of an image of this width and height, but itself and generated ones."""
        target = cast(ModelInput, self.target)
        return draw_plan(
            self.seed,
            index,
            count=self.views - 1 - generated,
            image_size=size,
            view_size=(target.width, target.height),
            augmix=self.kind == "augmix",
            smallest=LARGE if self.kind == "large-crop" else AREA[0],
        )

    def __call__(self, index: int, image: Image.Image, name: str = "") -> list[Any]:
        """Return the encoder's inputs for the views of an RGB image, the first of which is the image itself."""
        original = self.encoder.prepare(image)
        if self.target is None:
            return [original]
        generated = []
        if self.generator is not None:
            count = (self.views - 1) // 2
            generated = [*map(self.encoder.prepare, self.generator.generate(image, name, count, self.seed))]
        plan = self.plan(index, image.size, len(generated))
        if self.device is None:
            views: Any = make_views(image, plan, self.target)
        else:
            import torch

            from acclimate.views.tensor import make_views as make_views_on_device

            pixels = torch.as_tensor(np.array(image).transpose(2, 0, 1), device=self.device)
            views = make_views_on_device([pixels], [plan], self.target)[0]
        # PyTorch models, which have a `device`, take tensors as they are; all others are given what `prepare` gives.
        like = original if isinstance(views, np.ndarray) or not hasattr(self.encoder, "device") else views
        return [move(original, like), *move(views, like), *(move(each, like) for each in generated)]

    @cached_property
    def _own_input(self) -> Any:
        """Input of the encoder for an empty image, by which others are compared."""
        return self.encoder.prepare(Image.new("RGB", (64, 64)))

    def accept(self, image: PreparedImage) -> Any:
        """Return an image that was prepared elsewhere as the encoder's input; ImageError if it is not of that shape."""
        if self.views > 1:
            raise ImageError("other views cannot be made of pixel_values; pass the image itself")
        shape = tuple(image.pixels.shape)
        wanted = tuple(self._own_input.shape)
        if shape != wanted:
            raise ImageError(f"its pixel_values have the shape {shape}, and the model takes {wanted}")
        return move(image.pixels, self._own_input)

    def encode(self, prepared: Sequence[list[Any]]) -> Array:
        """Return the features (n, d), or (n, V, d) for many views, of n prepared images."""
        inputs = [view for each in prepared for view in each]
        features = self.encoder.encode_images(inputs) if inputs else np.empty((0, self.encoder.dim), np.float32)
        return features if self.views == 1 else features.reshape(-1, self.views, self.encoder.dim)


def choose_decoder(asked: str, gpu: str | None) -> Decoder:
    """Return the decoder that is used, "nvjpeg" or "pillow", where JPEGs could be decoded on a GPU, or on none.

    Raises:
        InputError: nvJPEG was asked for, and cannot be used.
    """
    if asked not in get_args(Decoder):
        raise InputError(f"unknown decoder {asked!r}; choose from {', '.join(get_args(Decoder))}.")
    if asked == "pillow" or (asked == "auto" and gpu is None):
        return "pillow"
    why = "needs a model on a CUDA GPU that resizes, crops and normalises images as CLIP does, without generated views"
    if gpu is not None:
        from acclimate.reading.gpu import lacking_for_nvjpeg

        why = lacking_for_nvjpeg(gpu)
    if why and asked == "nvjpeg":
        raise InputError(f"the decoder nvjpeg {why}; or choose the decoder pillow.")
    return "pillow" if why else "nvjpeg"


def encode_ahead(
    images: Iterable[Any],
    preparer: Preparer,
    *,
    batch_size: int | None = None,
    workers: int | None = None,
    start: int = 0,
    on_error: OnError = "skip",
) -> Iterator[Batch]:
    """Encode images in order, batch by batch; reading and preparing run ahead: in threads, or for a GPU in processes.

    Args:
        images: paths, encoded bytes, arrays, Pillow images, prepared images, or objects with `read` (encoded bytes)
            and `name`.
        preparer: how images are prepared, and by which encoder they are encoded.
        batch_size: images, counting views, that the encoder is given at once; `default_batch_size(encoder)` when not
            given.
        workers: threads or processes that read; `default_workers()` threads, or up to one process per core, when not
            given.
        start: position of the first of `images` in the whole stream.
        on_error: "raise" an ImageError that names an image which cannot be read, or "skip" it: its batch says why.
    """
    size = max(1, (batch_size or default_batch_size(preparer.encoder)) // preparer.views)
    numbered = enumerate(images, start)
    if preparer.gpu is None:
        encoded = _encode_in_threads(numbered, preparer, size, workers or default_workers())
    else:
        from acclimate.reading.gpu import encode_on_gpu

        encoded = encode_on_gpu(numbered, preparer, size, workers, preparer.gpu)
    with closing(encoded):
        for read, features in encoded:
            bad = [image for image in read if image.error]
            if bad and on_error == "raise":
                name = bad[0].name or f"image {bad[0].position}"
                raise ImageError(f"{name:.200} cannot be read: {bad[0].error}")
            yield Batch(
                start=read[0].position,
                names=[image.name for image in read],
                errors=[image.error for image in read],
                features=unit_rows(as_floats(features, "features"), "features") if len(features) else features,
                truths=[image.truth for image in read],
                taken=[image.taken for image in read],
            )


def _encode_in_threads(
    numbered: Iterator[tuple[int, Any]], preparer: Preparer, size: int, workers: int
) -> Generator[tuple[list[ReadImage], Array], None, None]:
    # Views are large, 38 MB per image at 224 pixels, so no more of them wait than keep workers and encoder busy.
    ahead = workers + (PREFETCH_BATCHES * size if preparer.views == 1 else size)
    with closing(read_ahead(partial(_read, preparer), numbered, workers, ahead)) as prepared:
        while batch := list(islice(prepared, size)):
            yield batch, preparer.encode([image.inputs for image in batch if image.error is None])


def _read(preparer: Preparer, item: tuple[int, Any]) -> ReadImage:
    index, image = item
    task = ReadImage(index, *describe(image))
    try:
        with unreadable():
            if isinstance(image, PreparedImage):
                return task._replace(inputs=[preparer.accept(image)])
            read = getattr(image, "read", None)
            opened = open_image(read() if callable(read) else image, upright=preparer.upright)
            return task._replace(inputs=preparer(index, opened, task.name), taken=date_taken(opened))
    except ImageError as error:
        return task._replace(error=str(error))


def describe(image: Any) -> tuple[str, str | None]:
    """Return the name of an image, "" if it has none, and its true label, if its source provides it."""
    name = os.fspath(image) if isinstance(image, (str, os.PathLike)) else getattr(image, "name", "")
    truth = getattr(image, "label", None)
    return name if isinstance(name, str) else "", truth if isinstance(truth, str) else None
