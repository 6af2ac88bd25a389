"""Views of one image with Pillow and NumPy, and the random choices behind views, drawn separately from the pixels.

A plan is drawn on the host from the seed and the index of the image, so it does not depend on workers, batches or
devices. Pillow and PyTorch (`tensor`) execute the same plan, and their results differ only in the rounding of pixels.
Pillow and NumPy release the interpreter lock in worker threads.

The settings are those of the paper's experiments, which follow test-time prompt tuning (Shu et al., NeurIPS 2022): a
random resized crop and a flip, then AugMix (Hendrycks et al., ICLR 2020) at severity 1 with three chains of one to
three operations. Views that are crops alone have the same crops and flips, and no chains.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from acclimate.arrays import HostArray, to_host
from acclimate.errors import ModelError

GEOMETRIC = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
OPERATIONS = ("autocontrast", "equalize", "posterize", "solarize", *GEOMETRIC)
CHAINS = 3
MAX_DEPTH = 3
AREA = (0.08, 1.0)  # range of the share of an image that a random resized crop shows
RATIO = (3 / 4, 4 / 3)  # range of its width over its height
TRIES = 10  # attempts to fit it into the image
LARGE = 0.5  # the smallest area of a large crop
POSTERIZE_BITS = 4  # the only value at severity 1
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
class ViewPlan:
    """The random choices for n views of one image, each of C chains: three with AugMix, none without.

    Attributes:
        boxes: (n, 4) left, top, right and bottom of the crop.
        flips: (n,) whether the crop is mirrored.
        depths: (n, C) number of operations of each chain.
        operations: (n, C, 3) indices into `OPERATIONS` by chain and step.
        amounts: (n, C, 3) strength of each operation: degrees, a threshold, a slope or pixels.
        weights: (n, 1 + C) weights of the crop and of the results of the chains; they add up to 1.
    """

    boxes: HostArray
    flips: HostArray
    depths: HostArray
    operations: HostArray
    amounts: HostArray
    weights: HostArray


def draw_plan(
    seed: int,
    index: int,
    count: int,
    image_size: tuple[int, int],
    view_size: tuple[int, int],
    augmix: bool = True,
    smallest: float = AREA[0],
) -> ViewPlan:
    """Draw a plan. A plan of fewer views is the beginning of a plan of more views.

    Args:
        seed: seed of the whole stream.
        index: position of the image in the stream.
        count: number of views n.
        image_size: width and height of the image.
        view_size: width and height of a view.
        augmix: whether AugMix follows the crop and the flip.
        smallest: the least share of the image that a crop shows.
    """
    cells = CHAINS * MAX_DEPTH
    # One row of uniform numbers per view, split into columns by their use.
    widths = (TRIES, TRIES, 2, 1, 1, CHAINS, CHAINS, cells, cells, cells)
    uniforms = np.random.default_rng([seed, index]).random((count, sum(widths)))
    area, ratio, corner, flip, blend, shares, depth, operation, level, sign = np.split(
        uniforms, np.cumsum(widths)[:-1], axis=1
    )
    grid = (count, CHAINS, MAX_DEPTH)
    operations = (len(OPERATIONS) * operation).astype(np.int64).reshape(grid)
    signs = np.where(sign.reshape(grid) < 0.5, -1.0, 1.0)
    # The weights of the chains are drawn from Dirichlet(1, 1, 1): exponential variates, divided by their sum.
    exponentials = -np.log1p(-shares)
    mixture = exponentials / exponentials.sum(axis=1, keepdims=True)
    amounts = _amounts(operations, 0.1 + 0.9 * level.reshape(grid), signs, *view_size)
    weights = np.concatenate([blend, (1 - blend) * mixture], axis=1) if augmix else np.ones((count, 1))
    chains = CHAINS if augmix else 0
    return ViewPlan(
        boxes=_crops(smallest + (AREA[1] - smallest) * area, ratio, corner, *image_size),
        flips=flip[:, 0] < 0.5,
        depths=1 + (MAX_DEPTH * depth).astype(np.int64)[:, :chains],
        operations=operations[:, :chains],
        amounts=amounts[:, :chains],
        weights=weights.astype(np.float32),
    )


def _crops(area: HostArray, ratio: HostArray, corner: HostArray, width: int, height: int) -> HostArray:
    """Return boxes (n, 4) of random area and aspect ratio: the first that fits, or else the largest centred box."""
    low, high = (math.log(limit) for limit in RATIO)
    areas = width * height * area
    ratios = np.exp(low + (high - low) * ratio)
    widths = np.rint(np.sqrt(areas * ratios))
    heights = np.rint(np.sqrt(areas / ratios))
    fits = (widths >= 1) & (widths <= width) & (heights >= 1) & (heights <= height)
    rows = np.arange(len(area))
    first = fits.argmax(axis=1)
    found = fits.any(axis=1)
    whole_width = min(width, round(height * RATIO[1]))
    whole_height = min(height, round(width / RATIO[0]))
    crop_width = np.where(found, widths[rows, first], whole_width)
    crop_height = np.where(found, heights[rows, first], whole_height)
    left = np.floor(np.where(found, corner[:, 0] * (width - crop_width + 1), (width - whole_width) // 2))
    top = np.floor(np.where(found, corner[:, 1] * (height - crop_height + 1), (height - whole_height) // 2))
    return np.stack([left, top, left + crop_width, top + crop_height], axis=1).astype(np.int64)


def _amounts(operations: HostArray, levels: HostArray, signs: HostArray, width: int, height: int) -> HostArray:
    """Return the strengths of operations (n, 3, 3) at levels from 0.1 to 1, out of 10 on AugMix's scale."""
    by_name = {
        "solarize": 256 - np.trunc(25.6 * levels),
        "rotate": signs * np.trunc(3 * levels),
        "shear_x": signs * 0.03 * levels,
        "shear_y": signs * 0.03 * levels,
        "translate_x": signs * np.trunc(width / 30 * levels),
        "translate_y": signs * np.trunc(height / 30 * levels),
    }
    return np.select([operations == OPERATIONS.index(name) for name in by_name], list(by_name.values()), 0.0)


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
