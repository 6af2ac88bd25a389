"""Images as Python code gives them: one, several of them, and names of sources that list them."""

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from array_api_compat import is_array_api_obj
from PIL import Image

from acclimate.errors import InputError
from acclimate.sources.folder import is_pattern
from acclimate.sources.source import PREFIXES, open_source
from acclimate.sources.table import is_list
from acclimate.sources.video import is_video


def is_one(images: Any) -> bool:
    """Return True if this is a single image: a path, encoded bytes, a Pillow image, an array, or something with `read`.

    Examples:
        >>> is_one("photo.jpg"), is_one(["photo.jpg"]), is_one("photos/*.jpg")
        (True, False, False)
    """
    if isinstance(images, (str, os.PathLike)):
        return not _lists_images(images)
    if is_array_api_obj(images):
        return len(images.shape) < 4
    return isinstance(images, (bytes, bytearray, memoryview, Image.Image)) or hasattr(images, "read")


def each_image(images: Any) -> Iterator[Any]:
    """Yield the images one by one; those of a folder, a video, a pattern, a list file or another source in its place.

    Args:
        images: one image (see `is_one`), a source (see `open_source`), an array of images (n, ...), or any of these in
            an iterable, which is read as the images are needed.
    """
    several: Iterable[Any] = [images] if is_one(images) or isinstance(images, (str, os.PathLike)) else images
    if not isinstance(several, Iterable) or isinstance(several, Mapping):
        raise InputError(
            "pass an image (a path, encoded bytes, a Pillow image or an array) or several of them, "
            f"got {type(images).__name__}."
        )
    for image in several:
        if isinstance(image, (str, os.PathLike)) and _lists_images(image):
            yield from open_source(image)
        else:
            yield image


def _lists_images(name: str | os.PathLike[str]) -> bool:
    spec = os.fspath(name)
    if spec.partition(":")[0] in PREFIXES or os.path.isdir(spec) or is_list(spec) or is_video(spec):  # noqa: PTH112
        return True
    return is_pattern(spec) and not os.path.exists(spec)  # noqa: PTH110 (pathlib raises an error for a long name)
