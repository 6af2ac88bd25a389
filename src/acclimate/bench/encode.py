"""Features of images and of their views, read and augmented ahead of the encoder in threads."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from PIL import Image

from acclimate.arrays import HostArray, move
from acclimate.encoders import Encoder
from acclimate.errors import ImageError, InputError, MissingExtraError
from acclimate.images import open_image
from acclimate.views.augment import ModelInput, make_views
from acclimate.views.plan import draw_plan

MakeViews = Callable[[int, Image.Image], Any]  # position in the stream, image -> views (n, 3, h, w)


def iter_view_batches(
    images: Sequence[Any],
    encoder: Encoder,
    views: int = 64,
    seed: int = 0,
    workers: int | None = None,
    batch_images: int = 4,
    first: int = 0,
    device: str | None = None,
) -> Iterator[tuple[HostArray, list[str | None]]]:
    """Encode images in order, a batch at a time; the answers depend on neither workers nor batches, beyond rounding.

    Args:
        images: paths, encoded bytes or whatever `open_image` takes.
        encoder: anything with the members of `Encoder`.
        views: per image: the image as the model prepares it, then `views - 1` AugMix views; 1 for the image alone.
        seed: of the views. Image i of the stream has the views of (seed, i), however the stream is cut or restarted.
        workers: threads that read and augment; one more than there are cores, up to 8, when not given.
        batch_images: images (each with all its views) given to the encoder at once.
        first: position in the whole stream of the first of `images`, for a run that goes on where another stopped.
        device: where PyTorch makes the views ("cuda"); Pillow makes them in the workers when not given.

    Yields:
        Features (b, views, d) of the readable images of a batch, as the encoder gives them (not unit rows); and for
        every image of the batch None, or the reason why it could not be read. So `b` is the number of Nones.
    """
    if views < 1 or batch_images < 1:
        raise InputError(f"views and batch_images must be at least 1, got {views} and {batch_images}.")
    prepare = partial(_prepare, encoder, _maker(encoder, views - 1, seed, device))
    workers = workers or min(8, (os.cpu_count() or 1) + 1)
    pool = ThreadPoolExecutor(workers, thread_name_prefix="acclimate-views")
    # Views are large, 38 MB an image at 224 pixels, so no more of them wait than keep workers and encoder busy.
    prepared = _in_order(pool, prepare, enumerate(images, first), workers + batch_images)
    try:
        while batch := list(islice(prepared, batch_images)):
            errors = [str(each) if isinstance(each, ImageError) else None for each in batch]
            inputs = [view for each in batch if not isinstance(each, ImageError) for view in each]
            features = encoder.encode_images(inputs) if inputs else np.empty((0, encoder.dim), np.float32)
            yield features.reshape(-1, views, encoder.dim), errors
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _in_order(
    pool: ThreadPoolExecutor, work: Callable[..., Any], items: Iterable[tuple[int, Any]], ahead: int
) -> Iterator[Any]:
    """Results of `work` in the order of the items, with `ahead` of them under way or waiting."""
    items = iter(items)
    pending: deque[Future[Any]] = deque(pool.submit(work, *item) for item in islice(items, ahead))
    while pending:
        result = pending.popleft().result()
        pending.extend(pool.submit(work, *item) for item in islice(items, 1))
        yield result


def _prepare(encoder: Encoder, make: MakeViews | None, index: int, source: Any) -> list[Any] | ImageError:
    """What the encoder takes for an image and its views, or the reason why there is nothing."""
    try:
        image = open_image(source)
    except ImageError as error:
        return error
    plain = encoder.prepare(image)
    if make is None:
        return [plain]
    views = make(index, image)
    # PyTorch models, which have a `device`, take tensors as they are; all else is given what `prepare` gives.
    like = plain if isinstance(views, np.ndarray) or not hasattr(encoder, "device") else views
    return [move(plain, like), *move(views, like)]


def _maker(encoder: Encoder, count: int, seed: int, device: str | None) -> MakeViews | None:
    """A function that makes `count` views of the image at a position, with Pillow or with PyTorch."""
    if not count:
        return None
    target = ModelInput.of(encoder.prepare)
    size = (target.width, target.height)
    if device is None:
        return lambda index, image: make_views(image, draw_plan(seed, index, count, image.size, size), target)
    try:
        import torch

        from acclimate.views import tensor
    except ImportError as error:
        raise MissingExtraError("views on a device need PyTorch: pip install 'acclimate[torch]'.") from error

    def make(index: int, image: Image.Image) -> Any:
        pixels = torch.as_tensor(np.array(image).transpose(2, 0, 1), device=device)
        return tensor.make_views(pixels, draw_plan(seed, index, count, image.size, size), target)

    return make
