"""Images in the rows, tuples and batches that `datasets`, PyTorch's `DataLoader` and webdataset give."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from array_api_compat import is_array_api_obj
from PIL import Image

from acclimate.errors import InputError
from acclimate.images.decode_cost import SIGNATURES
from acclimate.images.opening import PreparedImage

PIXELS = "pixel_values"  # where the processors of transformers put what they have prepared


def images_in(item: Any) -> Iterator[Any]:
    """Yield the images that an item of an iterable holds: the item itself, unless it is a row, a tuple or a batch.

    Args:
        item: a row (a mapping) or a tuple with one image among other things, a batch of rows in columns, an array of
            images (n, ...), or pixels that were prepared, as a mapping with `pixel_values` (3, h, w) or (n, 3, h, w).
    """
    if isinstance(item, Mapping) and PIXELS in item:
        pixels = item[PIXELS]
        batch = [pixels] if is_array_api_obj(pixels) and len(pixels.shape) == 3 else pixels
        yield from map(PreparedImage, batch)
    elif isinstance(item, Mapping) and set(item) == {"bytes", "path"}:  # an image that `datasets` has not decoded
        yield item["path"] if item["bytes"] is None else item["bytes"]
    elif isinstance(item, (Mapping, tuple, list)):
        image = image_of(item)
        for each in image if isinstance(image, list) else [image]:
            yield from images_in(each)
    elif is_array_api_obj(item) and len(item.shape) == 4:
        yield from item
    else:
        yield item


def image_of(row: Mapping[Any, Any] | Sequence[Any]) -> Any:
    """Return the image, or the column of images, of a row or a tuple: what is named "image", or the only one there is.

    Raises:
        InputError: there is none, or there are several.

    Examples:
        >>> image_of({"file": b"P6 1 1 255 123", "label": 3})
        b'P6 1 1 255 123'
        >>> image_of(("photo.jpg", 3))
        'photo.jpg'
    """
    if isinstance(row, Mapping):
        for name in (PIXELS, "image"):
            if name in row:
                return row[name]
        found = [name for name, value in row.items() if _is_image(value)]
    else:
        found = [index for index, value in enumerate(row) if _is_image(value)]
        found = found or [index for index, value in enumerate(row) if isinstance(value, (str, os.PathLike))]
    if len(found) != 1:
        names = ", ".join(map(repr, found or (row if isinstance(row, Mapping) else range(len(row)))))
        raise InputError(
            f"{'several' if found else 'none'} of {names:.200} in a {type(row).__name__} is an image; pass the image "
            f"alone, such as {'row' if isinstance(row, Mapping) else 'item'}[{(found or ['image'])[0]!r}]."
        )
    return row[found[0]]


def _is_image(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and _is_image(value[0])
    if isinstance(value, Mapping):
        return set(value) == {"bytes", "path"}
    if isinstance(value, (bytes, bytearray)):
        return any(begins.match(value) for begins in SIGNATURES.values())
    if is_array_api_obj(value):
        return len(value.shape) in (3, 4)
    return isinstance(value, Image.Image) or hasattr(value, "read")
