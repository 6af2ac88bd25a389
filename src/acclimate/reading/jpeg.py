"""JPEGs decoded on a GPU, by nvJPEG through torchvision."""

import io
from collections.abc import Sequence
from functools import cache
from typing import Any

from PIL import Image

from acclimate.errors import InputError, lacking

Tensor = Any  # torch.Tensor
TURNS = {  # whether height and width are swapped, and which axes are reversed then
    Image.Transpose.FLIP_LEFT_RIGHT: (False, (2,)),
    Image.Transpose.FLIP_TOP_BOTTOM: (False, (1,)),
    Image.Transpose.ROTATE_90: (True, (1,)),
    Image.Transpose.ROTATE_180: (False, (1, 2)),
    Image.Transpose.ROTATE_270: (True, (2,)),
    Image.Transpose.TRANSPOSE: (True, ()),
    Image.Transpose.TRANSVERSE: (True, (1, 2)),
}
NEEDS = "needs a model on a CUDA GPU that resizes, crops and normalises images as CLIP does, without generated views"
INSTALL = "install torchvision of the release that matches PyTorch, built for CUDA"


@cache
def lacking_for_nvjpeg(device: str) -> str:
    """Why JPEGs cannot be decoded on a device; "" if they can: one is decoded there to find out."""
    if why := lacking("torchvision", "torchvision"):
        return why
    import torch

    content = io.BytesIO()
    Image.new("RGB", (16, 16)).save(content, "JPEG")
    try:
        decode_batch([torch.frombuffer(bytearray(content.getvalue()), dtype=torch.uint8)], device)
    except Exception as error:  # a build without nvJPEG, or one for another driver, fails in many ways
        return f"needs torchvision with nvJPEG, which fails here ({str(error).splitlines()[0]}); {INSTALL}"
    return ""


def choose_decoder(asked: str, device: str | None) -> str:
    """The decoder that is used, "nvjpeg" or "pillow", where JPEGs could be decoded on a GPU, or on none.

    Raises:
        InputError: nvJPEG was asked for, and cannot be used.
    """
    if asked not in ("auto", "pillow", "nvjpeg"):
        raise InputError(f"unknown decoder {asked!r}; choose from auto, pillow, nvjpeg.")
    if asked == "pillow" or (asked == "auto" and device is None):
        return "pillow"
    why = NEEDS if device is None else lacking_for_nvjpeg(device)
    if why and asked == "nvjpeg":
        raise InputError(f"the decoder nvjpeg {why}; or choose the decoder pillow.")
    return "pillow" if why else "nvjpeg"


def decode_batch(contents: Sequence[Tensor], device: str) -> list[Tensor]:
    """Decode JPEGs (bytes,) to RGB images (3, H, W) on a device, all of them or none."""
    from torchvision.io import ImageReadMode, decode_jpeg

    return list(decode_jpeg(list(contents), ImageReadMode.RGB, device=device))


def decode_each(contents: Sequence[Tensor], device: str) -> list[Tensor | None]:
    """Decode JPEGs; None in the place of those that the GPU cannot decode."""
    try:
        return [*decode_batch(contents, device)]
    except RuntimeError:
        if len(contents) == 1:
            return [None]
    return [decoded for content in contents for decoded in decode_each([content], device)]


def turn(image: Tensor, how: Image.Transpose | None) -> Tensor:
    """Turn an image (3, H, W) as Pillow's `transpose` does."""
    if how is None:
        return image
    swapped, axes = TURNS[how]
    return (image.transpose(1, 2) if swapped else image).flip(axes).contiguous()
