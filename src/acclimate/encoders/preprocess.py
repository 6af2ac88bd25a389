"""Image preprocessing of a model: resize, crop, normalise, with Pillow and NumPy only."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from acclimate.arrays import HostArray
from acclimate.errors import ModelError


@dataclass(frozen=True)
class Preprocess:
    """The way from an image to the pixels that a model expects.

    Attributes:
        height: height of the model's input.
        width: width of the model's input.
        short_side: length to which the shorter side is resized before the centre is cropped; None resizes both sides
            to the size of the input instead.
        resample: name of Pillow's resampling filter.
        mean: mean of each channel, on the scale 0 to 1.
        std: standard deviation of each channel.
        crop: where the centre begins if an odd number of pixels is cut off: "floor", or "round" as in torchvision,
            with which CLIP and open_clip prepare images.
    """

    height: int
    width: int
    short_side: int | None
    resample: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    crop: str = "floor"

    def __call__(self, image: Image.Image) -> HostArray:
        """Return the float32 pixels (3, height, width) of an RGB image."""
        scaled = self.pixels(image).astype(np.float32) / np.float32(255.0)
        normalised = (scaled - np.asarray(self.mean, np.float32)) / np.asarray(self.std, np.float32)
        return np.ascontiguousarray(normalised.transpose(2, 0, 1))

    def pixels(self, image: Image.Image) -> HostArray:
        """Return the uint8 pixels (height, width, 3) of an RGB image, resized and cropped."""
        *size, left, top = self.window(*image.size)
        image = image.resize((size[0], size[1]), Image.Resampling[self.resample.upper()])
        image = image.crop((left, top, left + self.width, top + self.height))  # black where the image is smaller
        return np.asarray(image)

    def window(self, width: int, height: int) -> tuple[int, int, int, int]:
        """Return the width and height an image of this size is resized to, and the left and top of the input in it."""
        size = (self.width, self.height)
        if self.short_side is not None:
            short = min(width, height)
            size = (int(self.short_side * width / short), int(self.short_side * height / short))
        return *size, self._margin(size[0] - self.width), self._margin(size[1] - self.height)

    def _margin(self, excess: int) -> int:
        """Return the pixels to cut off before the centre; negative if the image is padded because it is too small."""
        if self.crop == "floor":
            return excess // 2
        return round(excess / 2) if excess > 0 else -(-excess // 2)  # torchvision pads the end more

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Preprocess":
        """Read the fields of a configuration file, as `dataclasses.asdict` gives them."""
        return cls(**{**fields, "mean": tuple(fields["mean"]), "std": tuple(fields["std"])})

    @classmethod
    def from_processor(cls, config: Mapping[str, Any]) -> "Preprocess":
        """Read the settings of an image processor of transformers; ModelError for what acclimate does not do.

        Note:
            The centre is cropped as in the preprocessing that CLIP models were trained with, which is torchvision's.
            The processors of transformers begin one pixel earlier where 3, 7, 11, ... pixels are cut off.
        """
        size = config.get("size") or {}
        crop = config.get("crop_size")
        known = ("do_center_crop", "do_convert_rgb", "do_normalize", "do_rescale", "do_resize")
        asked = [name for name, value in config.items() if name.startswith("do_") and value and name not in known]
        if config.get("do_resize") is False:
            asked.append("do_resize: false")
        if asked:
            raise ModelError(f"the image processor asks for {', '.join(asked)}, which acclimate does not support.")
        short_side = size.get("shortest_edge")
        target = crop if short_side is not None and config.get("do_center_crop", True) and crop else size
        if "height" not in target:
            raise ModelError("acclimate does not support models that take images of any shape; use another model.")
        # Pixels are scaled to 0 to 1 before they are normalised; another scale, or none, is one of mean and std.
        scale = 255 * config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 255.0
        normalize = config.get("do_normalize", True)
        mean, std = (config["image_mean"], config["image_std"]) if normalize else ((0.0,) * 3, (1.0,) * 3)
        return cls(
            height=target["height"],
            width=target["width"],
            short_side=short_side,
            resample=Image.Resampling(int(config.get("resample", Image.Resampling.BICUBIC))).name.lower(),
            mean=(mean[0] / scale, mean[1] / scale, mean[2] / scale),
            std=(std[0] / scale, std[1] / scale, std[2] / scale),
            crop="round",
        )

    @classmethod
    def from_torchvision(cls, transform: Any) -> "Preprocess | None":
        """Read the transform that open_clip and CLIP make of torchvision's parts; None for any other."""
        named = []
        for step in getattr(transform, "transforms", ()):
            own = type(step).__module__.startswith("torchvision.")
            named.append((type(step).__name__ if own else str(getattr(step, "__name__", "")), step))
        names = [name for name, _ in named if name not in ("_convert_to_rgb", "_convert_image_to_rgb")]
        if names not in (["Resize", "CenterCrop", "ToTensor", "Normalize"], ["Resize", "ToTensor", "Normalize"]):
            return None
        steps = dict(named)
        resize = steps["Resize"]
        normalize = steps["Normalize"]
        size = (resize.size,) if isinstance(resize.size, int) else tuple(resize.size)
        crop = tuple(steps["CenterCrop"].size) if "CenterCrop" in steps else size
        if resize.max_size is not None or len(crop) != 2 or (len(size) > 1 and size != crop):
            return None
        return cls(
            height=crop[0],
            width=crop[1],
            short_side=size[0] if len(size) == 1 else None,
            resample=Image.Resampling[str(resize.interpolation.value).upper()].name.lower(),
            mean=tuple(normalize.mean),
            std=tuple(normalize.std),
            crop="round",
        )
