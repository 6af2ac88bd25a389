"""Open an image safely: from anything that holds one to 8-bit RGB."""

import io
import os
import re
import warnings
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
from array_api_compat import is_array_api_obj
from PIL import Image, ImageOps, UnidentifiedImageError

from acclimate.arrays import HostArray, to_host
from acclimate.errors import ImageError, lacking, reason

CHANNELS = (1, 3, 4)
TOLERANCE = 0.01  # beyond 0 and 1, for floats that were resized with an interpolation that overshoots
MAX_PIXELS = 178_956_970  # Pillow's own limit for decompression bombs
COMMON = ("JPEG", "PNG", "WebP", "GIF", "BMP", "TIFF", "AVIF", "HEIC")  # named where an image is of no known kind
HEIF = re.compile(rb"....ftyp(hei|hev|mif1|msf1)", re.DOTALL)  # how HEIC files begin
URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)


def limit_pixels(count: int) -> None:
    """Refuse larger images from now on, in this process: Pillow has one limit, of which it allows the double.

    It holds for what is made of images, too, so it must be more than a model takes.
    """
    Image.MAX_IMAGE_PIXELS = (count + 1) // 2


def pixel_limit() -> int | None:
    """The pixels of the largest image that Pillow opens in this process; None if it opens any."""
    return None if Image.MAX_IMAGE_PIXELS is None else 2 * Image.MAX_IMAGE_PIXELS


@cache
def lacking_for_heif() -> str:
    """Why Pillow cannot open HEIC images; "" if it can: it is taught to if pillow-heif is installed."""
    if not (why := lacking("pillow_heif", "pillow-heif", "heic")):
        import_module("pillow_heif").register_heif_opener()
    return why


def open_image(
    source: Any, max_pixels: int | None = None, formats: tuple[str, ...] | None = None, upright: bool = True
) -> Image.Image:
    """Read an image as 8-bit RGB.

    Args:
        source: a path, encoded bytes, a Pillow image, or an array (h, w), (h, w, c) or (c, h, w) of bytes or of floats
            from 0 to 1, with 1, 3 or 4 channels; PyTorch tensors are arrays. Of an animation, the first frame.
        max_pixels: encoded images that hold more are refused before they are decoded; without it, those that hold
            more than Pillow allows, 179 million (twice `PIL.Image.MAX_IMAGE_PIXELS`).
        formats: Pillow's names of the kinds of files to accept; all that Pillow reads when not given.
        upright: turn it as its EXIF orientation says; published benchmarks take the pixels as they are stored.

    Raises:
        ImageError: it cannot be read; the message says why.
    """
    if is_array_api_obj(source):
        return _from_array(to_host(source))
    if isinstance(source, Image.Image):
        return _rgb(source, upright)
    try:
        if isinstance(source, (str, os.PathLike)):
            if URL.match(os.fspath(source)):
                raise ImageError("a URL is not downloaded; download the image, and pass its path")
            with open(source, "rb") as file:
                source = file.read()
        if not source:
            raise ImageError("the file is empty")
        if HEIF.match(source) and formats is None and (why := lacking_for_heif()):
            raise ImageError(f"a HEIC image, which {why}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Pillow warns of is either harmless or refused below
            with Image.open(io.BytesIO(source), formats=formats) as image:
                if max_pixels is not None and image.width * image.height > max_pixels:
                    raise ImageError(too_large(f"{image.width} x {image.height}", max_pixels))
                return _rgb(image, upright)
    except ImageError:
        raise
    except Image.DecompressionBombError as error:
        held = re.search("[0-9]+", str(error))
        raise ImageError(too_large(_millions(int(held[0])) if held else "too many", pixel_limit() or 0)) from error
    except UnidentifiedImageError as error:
        raise ImageError(f"not an image of a kind that can be read ({', '.join(formats or COMMON)})") from error
    except OSError as error:
        raise ImageError(reason(error)) from error
    except Exception as error:  # decoders meet hostile bytes, and not all of them fail with OSError
        raise ImageError(f"damaged ({type(error).__name__}: {error})") from error


def _millions(pixels: int) -> str:
    return f"{pixels / 1e6:.3g} million"


def too_large(held: str, limit: int) -> str:
    """Why an image that holds too many pixels is refused."""
    return f"{held} pixels: more than {_millions(limit)}; make it smaller, or raise --max-pixels"


def _rgb(image: Image.Image, upright: bool) -> Image.Image:
    if upright:
        image = ImageOps.exif_transpose(image)
    if image.mode in ("I", "F") or image.mode.startswith("I;"):  # 16 bits and more: `convert` would clip them
        values = np.asarray(image, np.float32)
        top = 65535.0 if image.mode != "F" or values.max(initial=0) > 255 else 255.0
        return Image.fromarray(np.clip(values * (255.0 / top), 0, 255).astype(np.uint8)).convert("RGB")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")


def _from_array(array: HostArray) -> Image.Image:
    if array.ndim == 3 and array.shape[2] not in CHANNELS and array.shape[0] in CHANNELS:
        array = array.transpose(1, 2, 0)
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in CHANNELS) or 0 in array.shape:
        raise ImageError(f"an image array must be (h, w), (h, w, 3 or 4) or (3 or 4, h, w), got {array.shape}")
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise ImageError("the floats of an image must be numbers, got NaN or infinity")
        low, high = float(array.min()), float(array.max())
        if low < -TOLERANCE or high > 1 + TOLERANCE:
            raise ImageError(
                f"the floats of an image must lie between 0 and 1, before normalising, got {low:g} to {high:g}"
            )
        array = np.clip(array * 255.0, 0, 255).round().astype(np.uint8)
    if array.dtype != np.uint8:
        raise ImageError(f"an image array must hold bytes, or floats from 0 to 1, got {array.dtype}")
    return Image.fromarray(array[:, :, 0] if array.ndim == 3 and array.shape[2] == 1 else array).convert("RGB")


def thumbnail(image: Image.Image, pixels: int) -> bytes:
    """A small JPEG of an image, its longer side at most `pixels`; without metadata, transparent parts white."""
    small = image.convert("RGBA")
    small.thumbnail((pixels, pixels))
    flat = Image.new("RGB", small.size, "white")  # a new image: where and with what it was taken is not passed on
    flat.paste(small, mask=small)
    buffer = io.BytesIO()
    flat.save(buffer, "JPEG", quality=80, optimize=True)
    return buffer.getvalue()
