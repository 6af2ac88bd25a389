"""Features of images and of their views, read and augmented ahead of the encoder in threads."""

from collections.abc import Iterator, Sequence
from typing import Any

from acclimate.arrays import HostArray
from acclimate.encoders import Encoder


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
    """Encode images in order, a batch at a time; the answer depends on neither workers nor batches, beyond rounding.

    Args:
        images: paths, encoded bytes or whatever `open_image` takes.
        encoder: anything with the members of `Encoder`.
        views: per image: the image as the model prepares it, then `views - 1` AugMix views; 1 for the image alone.
        seed: of the views. Image i of the stream has the views of (seed, i), however the stream is cut or restarted.
        workers: threads that read and augment; as many as there are cores, and one, up to 8, when not given.
        batch_images: images (each with all its views) given to the encoder at once.
        first: position in the whole stream of the first of `images`, for a run that goes on where another stopped.
        device: where PyTorch makes the views ("cuda"); Pillow makes them in the workers when not given.

    Yields:
        Features (b, views, d) of the readable images of a batch as the encoder gives them (not scaled to unit length), and for
        every image of the batch the reason why it could not be read, or None. So `b` is the number of Nones.
    """
    raise NotImplementedError
