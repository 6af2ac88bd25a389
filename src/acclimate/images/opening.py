"""Open an image safely: from anything that holds one to 8-bit RGB."""

import io
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib import import_module
from typing import Any, cast

import numpy as np
from array_api_compat import is_array_api_obj
from PIL import Image, UnidentifiedImageError

from acclimate.arrays import HostArray, to_host
from acclimate.errors import ImageError, lacking, reason
from acclimate.files import read_regular
from acclimate.images.decode_cost import (
    BYTES_PER_PIXEL,
    EXAMINERS,
    HOW_TO_ALLOW,
    PEAK_FACTORS,
    SIGNATURES,
    HeaderFile,
    check_exif,
    read_tags,
)

CHANNELS = (1, 3, 4)
FLOAT_TOLERANCE = 0.01  # floats that were resized may overshoot 0 and 1
MAX_PIXELS = 178_956_970  # Pillow's own limit for decompression bombs
COMMON_FORMATS = ("JPEG", "PNG", "WebP", "GIF", "BMP", "TIFF", "AVIF", "HEIC")  # formats that messages name
FORMATS = tuple(SIGNATURES)  # Pillow reads more: some call other programs, some are slow, few are photos
MAX_BYTES = 256 * 2**20  # largest file
MAX_ASPECT = 16  # largest ratio of an image's sides; longer images are reduced to their centre
STRIP_PIXELS = 2**18  # pixels that are converted at once
ORIENTATION_TAG = 0x0112  # EXIF's orientation
EXIF_TAG = 0x8769  # where the directory with the tags of cameras begins
ORIGINAL_TIME_TAG = 0x9003  # time at which a photo was taken, in that directory
TIME_TAG = 0x0132  # the same time in the first directory, unless a program has set it
TURNINGS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# what Pillow's decoders say of a file that ends too early
CUT_OFF = re.compile("truncated|could not create decoder object|(broken|unrecognized) data stream")
URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)


def limit_pixels(count: int | None) -> None:
    """Refuse larger images from now on, in this process (None: none): Pillow has one limit, and allows twice as many.

    It holds for what is made of images, too, so it must be more than a model takes.
    """
    Image.MAX_IMAGE_PIXELS = None if count is None else (count + 1) // 2


def pixel_limit() -> int | None:
    """Return the pixels of the largest image that Pillow opens in this process; None if it opens any."""
    return None if Image.MAX_IMAGE_PIXELS is None else 2 * Image.MAX_IMAGE_PIXELS


@cache
def lacking_for_heif() -> str:
    """Return why Pillow cannot open HEIC images; "" if it can: pillow-heif is registered if it is installed."""
    if not (why := lacking("pillow_heif", "pillow-heif", "heic")):
        import_module("pillow_heif").register_heif_opener()
    return why


@dataclass(frozen=True)
class PreparedImage:
    """Pixels (3, h, w) that somebody else has prepared for a model: resized, cropped and normalised."""

    pixels: Any


@dataclass(frozen=True)
class Examined:
    """An image file whose cost is known and bounded, not yet decoded.

    Attributes:
        content: the file.
        kind: Pillow's name for the kind of file; it is opened as no other.
        pixels: what decoding takes, in pixels of 8 bytes of memory at its peak; at least width times height.
        image: the opened image.
    """

    content: bytes
    kind: str
    pixels: int
    image: Image.Image

    def decode(self, upright: bool = True) -> Image.Image:
        """Decode to 8-bit RGB, at most `MAX_ASPECT` times as long as wide; ImageError if it cannot be read."""
        with _reading():
            self.image.load()
            image = _centre(self.image)
            if image.mode != "RGB":  # otherwise nobody else has it, so it needs no copy
                image = _rgb(image)
            return _turn(image, self.image) if upright else image

    def is_plain_jpeg(self, upright: bool = True) -> bool:
        """Return True if a decoder on a GPU gives the image that Pillow gives, up to rounding.

        Such decoders would make an image of a file that is cut off, and decode progressive JPEGs one by one. Images in
        other colours than YCbCr, and those that must be cut or turned, are left to Pillow, too. ImageError if its EXIF
        cannot be read.
        """
        image = self.image
        if self.kind != "JPEG" or not self.content.endswith(b"\xff\xd9"):  # the end-of-image marker
            return False
        ids = [component[0] for component in getattr(image, "layer", ())]
        ycbcr = image.mode == "RGB" and image.info.get("adobe_transform") != 0 and ids != list(b"RGB")
        if not ycbcr or "progressive" in image.info or max(image.size) > MAX_ASPECT * min(image.size):
            return False
        with _reading():
            return not upright or _turning(image) is None


def examine_image(content: bytes, max_pixels: int | None = None, formats: Sequence[str] | None = None) -> Examined:
    """Find out what decoding an image file takes, in time and in memory, and refuse what takes too much.

    Nothing is decoded: the structure of the file is read once, in far less time than decoding takes.

    Args:
        content: the file.
        max_pixels: decoding may take as much memory as that of a photo of so many pixels, and time in proportion;
            at most, and without it, as many as Pillow allows, 179 million (twice `PIL.Image.MAX_IMAGE_PIXELS`), which
            `limit_pixels` changes.
        formats: names among `FORMATS` of the kinds of files to accept; all of them when not given.

    Raises:
        ImageError: it cannot be read, or takes too much; the message says why.

    Examples:
        >>> from acclimate.images.opening import examine_image
        >>> examined = examine_image(b"P6 3 2 255 " + bytes(18))
        >>> examined.pixels, examined.decode().size
        (6, (3, 2))
    """
    if not content:
        raise ImageError("the file is empty")
    kind = next((kind for kind, begins in SIGNATURES.items() if begins.match(content)), "")
    if kind not in (FORMATS if formats is None else formats):
        known = ", ".join(formats or COMMON_FORMATS)
        raise ImageError(f"not an image of a kind that can be read ({known})")
    if kind == "HEIF" and (why := lacking_for_heif()):
        raise ImageError(f"a HEIC image, which {why}")
    limit = min(each for each in (max_pixels, pixel_limit(), sys.maxsize) if each is not None)
    with _reading():
        peak = EXAMINERS[kind](content, limit) if kind in EXAMINERS else 0
        file = HeaderFile(content)
        image = Image.open(file, formats=(kind,))
        file.checking = False
        size = image.width * image.height
        pixels = max(int(size * PEAK_FACTORS.get(kind, 1.0)), -(-peak // BYTES_PER_PIXEL))
        if pixels > limit:
            raise ImageError(too_large(f"{image.width} x {image.height}", limit, pixels / size))
        return Examined(content, kind, pixels, image)


def open_image(
    source: Any, max_pixels: int | None = None, formats: Sequence[str] | None = None, upright: bool = True
) -> Image.Image:
    """Read an image as 8-bit RGB.

    Args:
        source: a path, encoded bytes, a Pillow image, or an array (h, w), (h, w, c) or (c, h, w) of bytes or of floats
            from 0 to 1, with 1, 3 or 4 channels; PyTorch tensors are arrays. Of an animation, the first frame.
        max_pixels: see `examine_image`, which checks paths and bytes.
        formats: see `examine_image`; images of other kinds can be opened with Pillow, and passed on.
        upright: turn it as its EXIF orientation says; published benchmarks take the pixels as they are stored.

    Returns:
        At most 16 times as long as it is wide, or as wide as it is long: of more, the centre.

    Raises:
        ImageError: it cannot be read; the message says why.
    """
    if isinstance(source, (str, os.PathLike)):
        source = read_path(source)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return examine_image(bytes(source), max_pixels, formats).decode(upright)
    with _reading():
        if isinstance(source, Image.Image):
            image = _rgb(_centre(source))
            return _turn(image, source) if upright else image
        if is_array_api_obj(source):
            return _centre(_from_array(to_host(source)))
    raise ImageError(f"an image is a path, encoded bytes, a Pillow image or an array, got {type(source).__name__}")


def date_taken(image: Image.Image) -> str | None:
    """Return when a photo was taken, as ISO 8601 in the time of its camera; None if its EXIF does not say.

    Examples:
        >>> from PIL import Image
        >>> photo = Image.new("RGB", (8, 8))
        >>> exif = photo.getexif()
        >>> exif[0x0132] = "2024:05:12 07:33:10"
        >>> photo.info["exif"] = exif.tobytes()
        >>> date_taken(photo)
        '2024-05-12T07:33:10'
    """
    with suppress(Exception):  # damaged EXIF does not make an image unreadable
        exif = image.info["exif"].removeprefix(b"Exif\0\0")
        first = read_tags(exif)
        others = read_tags(exif, first[EXIF_TAG]) if EXIF_TAG in first else {}
        text = others.get(ORIGINAL_TIME_TAG) or first[TIME_TAG]
        return datetime.strptime(text.strip("\0 "), "%Y:%m:%d %H:%M:%S").isoformat()
    return None


def read_path(path: str | os.PathLike[str]) -> bytes:
    """Return the content of an image file; ImageError if it cannot be read."""
    if URL.match(os.fspath(path)):
        raise ImageError("a URL is not downloaded; download the image, and pass its path")
    with _reading():
        return read_regular(path, MAX_BYTES)


@contextmanager
def unreadable() -> Iterator[None]:
    """Turn what reading and preparing an image may cause within the block into an ImageError."""
    try:
        yield
    except OSError as error:
        raise ImageError(reason(error)) from error
    except (MemoryError, OverflowError) as error:
        raise ImageError(f"there is not enough memory to prepare it ({error})") from error


@contextmanager
def _reading() -> Iterator[None]:
    """Turn whatever an image causes within the block into an ImageError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Pillow warns of is either harmless or refused below
            yield
    except ImageError:
        raise
    except Image.DecompressionBombError as error:
        found = re.search(r"\((\d+) pixels", str(error))
        raise ImageError(too_large(f"{int(found[1]):,}" if found else "too many", pixel_limit() or 0)) from error
    except UnidentifiedImageError as error:
        raise ImageError("the file begins like an image, but is cut off or damaged; copy it again") from error
    except OSError as error:
        cut_off = "the file is cut off or damaged; copy it again" if CUT_OFF.search(str(error)) else ""
        raise ImageError(cut_off or reason(error)) from error
    except MemoryError as error:
        raise ImageError("there is not enough memory for it; make it smaller") from error
    except Exception as error:  # decoders meet hostile bytes, and not all of them fail with OSError
        raise ImageError(f"damaged ({type(error).__name__}: {error})") from error


def too_large(held: str, limit: int, factor: float = 1.0) -> str:
    """Return why an image with too many pixels, or with `factor` times the memory of others, is refused."""
    taking = f", which take as much memory as {factor:,.1f} times as many" if factor >= 1.05 else ""
    return f"{held} pixels{taking}: more than {limit / 1e6:.3g} million; make it smaller, or {HOW_TO_ALLOW}"


def _centre(image: Image.Image) -> Image.Image:
    """Return the middle of a very long image: scaled to the size of a model, the whole would be far too large."""
    most = MAX_ASPECT * min(image.size)
    if max(image.size) <= most:
        return image
    left, top = (max(0, (side - most) // 2) for side in image.size)
    return image.crop((left, top, left + min(most, image.width), top + min(most, image.height)))


def _rgb(image: Image.Image) -> Image.Image:
    """Return a copy in 8-bit RGB, made strip by strip: with the image itself, two images in memory and no more."""
    wide = image.mode != "F" or cast("tuple[float, float]", image.getextrema())[1] > 255
    top = 65535.0 if wide else 255.0
    rows = max(1, STRIP_PIXELS // image.width)
    if image.mode == "RGB" or image.height <= rows:
        return _strip_rgb(image, top)
    whole = Image.new("RGB", image.size)
    whole.info = image.info
    for row in range(0, image.height, rows):
        strip = image.crop((0, row, image.width, min(row + rows, image.height)))
        whole.paste(_strip_rgb(strip, top), (0, row))
    return whole


def _strip_rgb(image: Image.Image, top: float) -> Image.Image:
    if image.mode in ("I", "F") or image.mode.startswith("I;"):  # `convert` would clip 16 bits and more
        values = np.clip(np.asarray(image, np.float32) * (255.0 / top), 0, 255)
        return Image.fromarray(values.astype(np.uint8)).convert("RGB")
    transparent = image.mode == "P" and "transparency" in image.info
    return (image.convert("RGBA") if transparent else image).convert("RGB")


def _turning(image: Image.Image) -> Image.Transpose | None:
    """Return the turn that an image's EXIF asks for; the EXIF is checked before Pillow reads it."""
    check_exif(image.info.get("exif") or b"")
    if profile := image.info.get("Raw profile type exif"):  # a PNG has it in hexadecimal
        check_exif(bytes.fromhex("".join(profile.split("\n")[3:])))
    return TURNINGS.get(image.getexif().get(ORIENTATION_TAG, 1))


def _turn(image: Image.Image, source: Image.Image) -> Image.Image:
    how = _turning(source)
    return image if how is None else image.transpose(how)


def _from_array(array: HostArray) -> Image.Image:
    if array.ndim == 3 and array.shape[2] not in CHANNELS and array.shape[0] in CHANNELS:
        array = array.transpose(1, 2, 0)
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in CHANNELS) or 0 in array.shape:
        raise ImageError(f"an image array must be (h, w), (h, w, 3 or 4) or (3 or 4, h, w), got {array.shape}")
    if array.dtype.kind == "f":
        low = float(array.min())
        high = float(array.max())
        if not (low >= -FLOAT_TOLERANCE and high <= 1 + FLOAT_TOLERANCE):  # NaN is refused, too
            raise ImageError(
                f"the floats of an image must lie between 0 and 1, before normalising, got {low:g} to {high:g}; "
                'what was prepared for the model is passed as {"pixel_values": pixels}'
            )
        array = np.clip(array * 255.0, 0, 255).round().astype(np.uint8)
    if array.dtype != np.uint8:
        raise ImageError(f"an image array must hold bytes, or floats from 0 to 1, got {array.dtype}")
    return Image.fromarray(array[:, :, 0] if array.ndim == 3 and array.shape[2] == 1 else array).convert("RGB")


def thumbnail(image: Image.Image, pixels: int) -> bytes:
    """Return a small JPEG of an image, its longer side at most `pixels`; no metadata, transparent parts white."""
    small = image.convert("RGBA")
    small.thumbnail((pixels, pixels))
    flat = Image.new("RGB", small.size, "white")  # a new image: where and with what it was taken is not passed on
    flat.paste(small, mask=small)
    buffer = io.BytesIO()
    flat.save(buffer, "JPEG", quality=80, optimize=True)
    return buffer.getvalue()
