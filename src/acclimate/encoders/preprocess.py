"""Image preprocessing of a model: resize, crop, normalise, with Pillow and NumPy only."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from PIL import Image

from acclimate.arrays import HostArray
from acclimate.errors import ModelError

RESAMPLING = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}  # Pillow's numbers


@dataclass(frozen=True)
class Preprocess:
    """Turns an image into the pixels that a model expects.

    Attributes:
        height: height of the model's input.
        width: width of the model's input.
        short_side: length to which the shorter side is resized before the centre is cropped; None resizes both sides
            to the size of the input instead.
        resample: name of Pillow's resampling filter.
        mean: mean of each channel, on the scale 0 to 1.
        std: standard deviation of each channel.

    Examples:
        >>> from PIL import Image
        >>> preprocess = Preprocess(224, 224, 224, "bicubic", mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
        >>> preprocess(Image.new("RGB", (640, 480))).shape
        (3, 224, 224)
    """

    height: int
    width: int
    short_side: int | None
    resample: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def __call__(self, image: Image.Image) -> HostArray:
        """Return the float32 pixels (3, height, width) of an upright RGB image."""
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
        """Return the fields for a configuration file."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Preprocess":
        """Read the fields of a configuration file."""
        return cls(**{**fields, "mean": tuple(fields["mean"]), "std": tuple(fields["std"])})

    @classmethod
    def from_processor(cls, config: Mapping[str, Any]) -> "Preprocess":
        """Read the preprocessor_config.json of a transformers model."""
        size, crop = config["size"], config.get("crop_size")
        if isinstance(size, int):
            size = {"shortest_edge": size}
        if isinstance(crop, int):
            crop = {"height": crop, "width": crop}
        filters = {number: name for name, number in RESAMPLING.items()}
        short_side = size.get("shortest_edge")
        if short_side is None and config.get("do_center_crop") and crop not in (None, size):
            raise ModelError("acclimate does not support how this model resizes and crops images; use another model.")
        target = crop if short_side is not None and config.get("do_center_crop", True) and crop else size
        if "height" not in target:
            raise ModelError("acclimate does not support models that take images of any shape; use another model.")
        return cls(
            height=target["height"],
            width=target["width"],
            short_side=short_side,
            resample=filters[int(config.get("resample", RESAMPLING["bicubic"]))],
            mean=tuple(config["image_mean"]),
            std=tuple(config["image_std"]),
        )


def _centre(pixels: HostArray, height: int, width: int) -> HostArray:
    """Crop the centre (height, width) of (h, w, 3), with black borders where the image is smaller."""
    top, left = (pixels.shape[0] - height) // 2, (pixels.shape[1] - width) // 2
    if top < 0 or left < 0:
        padding = (
            (max(0, -top), max(0, height - pixels.shape[0] + top)),
            (max(0, -left), max(0, width - pixels.shape[1] + left)),
            (0, 0),
        )
        pixels = np.pad(pixels, padding)
        top, left = max(top, 0), max(left, 0)
    return pixels[top : top + height, left : left + width]
