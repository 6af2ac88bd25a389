"""From anything that holds an image to the pixels a model wants: Pillow and NumPy only."""

import io
import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from acclimate.arrays import HostArray
from acclimate.errors import ImageError, ModelError

MAX_PIXELS = 178_956_970  # where Pillow, too, speaks of a decompression bomb
RESAMPLING = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}  # Pillow's own numbers


def open_image(source: Any, max_pixels: int = MAX_PIXELS, formats: tuple[str, ...] | None = None) -> Image.Image:
    """Read an image as 8-bit RGB, upright.

    Args:
        source: a path, encoded bytes, a Pillow image, or an array (h, w), (h, w, 3) or (h, w, 4) of bytes or of floats
            from 0 to 1. Of an animation, the first frame.
        max_pixels: encoded images that hold more are refused before they are decoded.
        formats: Pillow's names of the kinds of files to accept; all that Pillow reads when not given.

    Raises:
        ImageError: it cannot be read; the message says why.
    """
    if isinstance(source, np.ndarray):
        return _from_array(source)
    if isinstance(source, Image.Image):
        return _upright_rgb(source)
    try:
        if isinstance(source, (str, os.PathLike)):
            with open(source, "rb") as file:
                source = file.read()
        if not source:
            raise ImageError("the file is empty")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Pillow warns of is either harmless or refused below
            with Image.open(io.BytesIO(source), formats=formats) as image:
                if image.width * image.height > max_pixels:
                    raise ImageError(f"{image.width} x {image.height} pixels are too many (decompression bomb?)")
                return _upright_rgb(image)
    except ImageError:
        raise
    except Image.DecompressionBombError as error:
        raise ImageError("too many pixels (decompression bomb?)") from error
    except UnidentifiedImageError as error:
        raise ImageError("not an image, or of a kind that Pillow cannot read") from error
    except OSError as error:
        raise ImageError(error.strerror or str(error)) from error
    except Exception as error:  # decoders meet hostile bytes, and not all of them fail with OSError
        raise ImageError(f"damaged ({type(error).__name__}: {error})") from error


@dataclass(frozen=True)
class Preprocess:
    """What a model wants done to an image before it looks.

    Attributes:
        height: of the model's input.
        width: of the model's input.
        short_side: resize so that the shorter side has this length, then crop the centre; None resizes both sides to
            the input's size at once.
        resample: name of Pillow's filter.
        mean: of each channel, after scaling to 0..1.
        std: of each channel.
    """

    height: int
    width: int
    short_side: int | None
    resample: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def __call__(self, image: Image.Image) -> HostArray:
        """Pixels (3, height, width), float32, of an upright RGB image."""
        size = (self.width, self.height)
        if self.short_side is not None:
            width, height = image.size
            short = min(width, height)
            size = (int(self.short_side * width / short), int(self.short_side * height / short))
        image = image.resize(size, Image.Resampling(RESAMPLING[self.resample]))
        pixels: HostArray = np.asarray(image, np.float32) / np.float32(255.0)
        pixels = _centre(pixels, self.height, self.width)
        pixels = (pixels - np.asarray(self.mean, np.float32)) / np.asarray(self.std, np.float32)
        return np.ascontiguousarray(pixels.transpose(2, 0, 1))

    def as_json(self) -> dict[str, Any]:
        """The fields, for a config file."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Preprocess":
        """From a config file's fields."""
        return cls(**{**fields, "mean": tuple(fields["mean"]), "std": tuple(fields["std"])})

    @classmethod
    def from_processor(cls, config: Mapping[str, Any]) -> "Preprocess":
        """From the preprocessor_config.json of a transformers model."""
        size, crop = config["size"], config.get("crop_size")
        if isinstance(size, int):
            size = {"shortest_edge": size}
        if isinstance(crop, int):
            crop = {"height": crop, "width": crop}
        filters = {number: name for name, number in RESAMPLING.items()}
        short_side = size.get("shortest_edge")
        if short_side is None and config.get("do_center_crop") and crop not in (None, size):
            raise ModelError("this model resizes and crops in a way acclimate does not know; convert it by hand.")
        target = crop if short_side is not None and config.get("do_center_crop", True) and crop else size
        if "height" not in target:
            raise ModelError("this model takes images of any shape, which acclimate does not support.")
        return cls(
            height=target["height"],
            width=target["width"],
            short_side=short_side,
            resample=filters[int(config.get("resample", RESAMPLING["bicubic"]))],
            mean=tuple(config["image_mean"]),
            std=tuple(config["image_std"]),
        )


def _upright_rgb(image: Image.Image) -> Image.Image:
    upright = ImageOps.exif_transpose(image)
    if upright.mode in ("I", "F") or upright.mode.startswith("I;"):  # 16 bits and more: `convert` would clip them
        values = np.asarray(upright, np.float32)
        top = 65535.0 if upright.mode != "F" or values.max(initial=0) > 255 else 255.0
        return Image.fromarray(np.clip(values * (255.0 / top), 0, 255).astype(np.uint8)).convert("RGB")
    if upright.mode == "P" and "transparency" in upright.info:
        upright = upright.convert("RGBA")
    return upright.convert("RGB")


def _from_array(array: HostArray) -> Image.Image:
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)) or 0 in array.shape:
        raise ImageError(f"an image array must be (h, w), (h, w, 3) or (h, w, 4), got {array.shape}")
    if array.dtype.kind == "f":
        array = np.clip(np.nan_to_num(array) * 255.0, 0, 255).round().astype(np.uint8)
    if array.dtype != np.uint8:
        raise ImageError(f"an image array must hold bytes, or floats from 0 to 1, got {array.dtype}")
    return Image.fromarray(array[:, :, 0] if array.ndim == 3 and array.shape[2] == 1 else array).convert("RGB")


def _centre(pixels: HostArray, height: int, width: int) -> HostArray:
    """Cut (height, width) out of the middle of (h, w, 3); what the image does not cover is black."""
    top, left = (pixels.shape[0] - height) // 2, (pixels.shape[1] - width) // 2
    if top < 0 or left < 0:
        around = (
            (max(0, -top), max(0, height - pixels.shape[0] + top)),
            (max(0, -left), max(0, width - pixels.shape[1] + left)),
            (0, 0),
        )
        pixels = np.pad(pixels, around)
        top, left = max(top, 0), max(left, 0)
    return pixels[top : top + height, left : left + width]
