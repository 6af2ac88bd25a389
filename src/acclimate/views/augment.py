"""Views of one image with Pillow and NumPy, both of which release the interpreter lock in worker threads."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from acclimate.arrays import HostArray, to_host
from acclimate.errors import ModelError
from acclimate.views.plan import OPERATIONS, POSTERIZE_BITS, ViewPlan

AFFINE = Image.Transform.AFFINE
BILINEAR = Image.Resampling.BILINEAR

# Each operation on an RGB image, by a given amount; pixels from outside the image are black.
OPERATE: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "autocontrast": lambda image, _: ImageOps.autocontrast(image),
    "equalize": lambda image, _: ImageOps.equalize(image),
    "posterize": lambda image, _: ImageOps.posterize(image, POSTERIZE_BITS),
    "solarize": lambda image, amount: ImageOps.solarize(image, int(amount)),
    "rotate": lambda image, amount: image.rotate(amount, BILINEAR),
    "shear_x": lambda image, amount: image.transform(image.size, AFFINE, (1, amount, 0, 0, 1, 0), BILINEAR),
    "shear_y": lambda image, amount: image.transform(image.size, AFFINE, (1, 0, 0, amount, 1, 0), BILINEAR),
    # Translations are by whole pixels: no interpolation is needed.
    "translate_x": lambda image, amount: image.crop((int(amount), 0, int(amount) + image.width, image.height)),
    "translate_y": lambda image, amount: image.crop((0, int(amount), image.width, int(amount) + image.height)),
}


@dataclass(frozen=True)
class ModelInput:
    """The size of a model's input, and the affine map that normalises pixels of this size.

    Attributes:
        width: width of the input.
        height: height of the input.
        gain: (3,) factor for the pixels 0..255 of each channel.
        offset: (3,) offset added to the product.
    """

    width: int
    height: int
    gain: HostArray
    offset: HostArray

    @classmethod
    def of(cls, prepare: Callable[[Image.Image], Any]) -> "ModelInput":
        """Measure it by preparing a black and a white image.

        Args:
            prepare: the method `prepare` of an encoder, whose `preprocess`, if it has one, normalises what it gives.

        Raises:
            ModelError: `prepare` does not return pixels (3, h, w).
        """
        prepare = getattr(prepare, "preprocess", prepare)
        black, white = (to_host(prepare(Image.new("RGB", (64, 64), shade))) for shade in ("black", "white"))
        if black.ndim != 3 or black.shape[0] != 3:
            raise ModelError(f"views need an encoder that prepares pixels (3, h, w), got {black.shape}; use one view.")
        _, height, width = black.shape
        offset = black[:, height // 2, width // 2]  # the centre: small images may have borders
        return cls(width, height, (white[:, height // 2, width // 2] - offset) / np.float32(255.0), offset)


def make_views(image: Image.Image, plan: ViewPlan, target: ModelInput) -> HostArray:
    """Make float32 views (n, 3, h, w) of an RGB image, normalised for the model.

    The authors normalise the crop and the chains before they mix them. Normalising is an affine map and the weights
    add up to 1, so mixing first and normalising once gives the same result.
    """
    views = np.empty((len(plan.flips), 3, target.height, target.width), np.float32)
    gain = target.gain[:, None, None]
    offset = target.offset[:, None, None]
    for i, view in enumerate(views):
        crop = image.crop(tuple(plan.boxes[i].tolist())).resize((target.width, target.height), BILINEAR)
        if plan.flips[i]:
            crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        mixed = plan.weights[i, 0] * np.asarray(crop)
        for chain, depth in enumerate(plan.depths[i].tolist()):
            layer = crop
            for step in range(depth):
                operate = OPERATE[OPERATIONS[plan.operations[i, chain, step]]]
                layer = operate(layer, float(plan.amounts[i, chain, step]))
            mixed += plan.weights[i, 1 + chain] * np.asarray(layer)
        view[:] = mixed.transpose(2, 0, 1) * gain + offset
    return views
