"""What is done on the host for an image that a GPU encodes: a JPEG is read, anything else is decoded and prepared.

It runs in processes of its own, and this module is all that they import; or in threads, for few images.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from PIL import Image

from acclimate.arrays import HostArray
from acclimate.encoders.preprocess import Bytes
from acclimate.errors import ImageError
from acclimate.images.opening import BaselineJpeg, examine_image, read_path, unreadable

Source = str | bytes | Callable[[], bytes]  # a path, a file's content, or what returns it


class Found(NamedTuple):
    """What was read of an image: why it cannot be read, or bytes in a slot of the memory or, without room there, here.

    Attributes:
        error: why it cannot be read; None if it can.
        jpeg: of a JPEG that a GPU decodes; the bytes are the file then, and otherwise the pixels (3, h, w) of the
            model's input.
        size: of the bytes.
        content: (size,) uint8; None if they are in the slot.
        image: (H, W, 3) uint8, the whole image, if it was asked for and Pillow decoded it.
    """

    error: str | None = None
    jpeg: BaselineJpeg | None = None
    size: int = 0
    content: HostArray | None = None
    image: HostArray | None = None


@dataclass(frozen=True)
class Reader:
    """Reads images.

    Attributes:
        prepare: makes the model's input of an image.
        upright: whether images are turned as their EXIF orientation says.
        jpegs: whether JPEGs that a GPU can decode are left as they are.
        whole: whether images that are decoded here are wanted as a whole, too.
    """

    prepare: Bytes
    upright: bool = True
    jpegs: bool = False
    whole: bool = False

    def __call__(self, source: Source, slot: memoryview | None = None) -> Found:
        """Read an image from where it is."""
        try:
            with unreadable():
                if isinstance(source, str):
                    content = read_path(source)
                else:
                    content = source if isinstance(source, bytes) else source()
                examined = examine_image(content)
                if self.jpegs and (jpeg := examined.baseline_jpeg(self.upright)):
                    return _place(np.frombuffer(content, np.uint8), slot)._replace(jpeg=jpeg)
                return self.prepared(examined.decode(self.upright), slot)
        except ImageError as error:
            return Found(str(error))

    def prepared(self, image: Image.Image, slot: memoryview | None = None) -> Found:
        """Prepare an RGB image."""
        found = _place(self.prepare(image).reshape(-1), slot)
        return found._replace(image=np.asarray(image)) if self.whole else found


def _place(content: HostArray, slot: memoryview | None) -> Found:
    """Put bytes into a slot if there is one that holds them."""
    size = len(content)
    if slot is None or size > len(slot):
        return Found(size=size, content=content)
    slot[:size] = content.data
    return Found(size=size)
