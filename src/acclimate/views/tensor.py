"""Views of many images as batched PyTorch operations on the device of the pixels.

Executes the same plans as `augment` does with Pillow. Pixels are bytes, which each operation rounds as Pillow does;
where pixels are interpolated, by crops, rotations, shears and translations, some differ from Pillow's by one.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch.nn.functional import affine_grid, grid_sample, interpolate

from acclimate.arrays import HostArray
from acclimate.views.augment import GEOMETRIC, MAX_DEPTH, OPERATIONS, POSTERIZE_BITS, ModelInput, ViewPlan

Tensor = Any  # torch.Tensor
BUDGET_BYTES = 2**31  # memory that views which are made at once may take
BYTES_PER_PIXEL = 8  # memory for each pixel of a chain while it is processed
ROUNDING = 0.01  # grey levels that protect integers from rounding errors before they are truncated


def make_views(
    images: Sequence[Tensor], plans: Sequence[ViewPlan], target: ModelInput, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Make n views of each of B images, (B, n, 3, h, w), normalised for the model.

    Args:
        images: uint8 pixels (3, H, W) on one device, of any sizes.
        plans: one per image, drawn for its size, all of n views.
        target: size and normalisation of the model's input.
        dtype: type of the views.
    """
    crops = torch.cat([resized_crops(image, plan, target) for image, plan in zip(images, plans, strict=True)])
    whole = ViewPlan(*(np.concatenate([getattr(plan, each.name) for plan in plans]) for each in fields(ViewPlan)))
    views = torch.empty(crops.shape, dtype=dtype, device=crops.device)
    limit = max(1, BUDGET_BYTES // (BYTES_PER_PIXEL * crops[0].numel() * whole.weights.shape[1]))
    gain = torch.from_numpy(target.gain[:, None, None]).to(crops.device)
    offset = torch.from_numpy(target.offset[:, None, None]).to(crops.device)
    for start in range(0, len(crops), limit):
        some = slice(start, start + limit)
        layers = [crops[some], *_chains(crops[some], whole, some).unbind(1)]
        weights = torch.from_numpy(whole.weights[some]).to(crops.device)[..., None, None, None]
        mixed = sum(weights[:, number] * layer for number, layer in enumerate(layers))
        views[some] = torch.addcmul(offset, mixed, gain)
    return views.view(len(images), -1, *views.shape[1:])


def resized_crops(image: Tensor, plan: ViewPlan, target: ModelInput) -> Tensor:
    """Return the crops of an image, uint8 (n, 3, h, w), resized and flipped."""
    pixels = image[None].float()
    resized = [
        interpolate(
            pixels[:, :, top:bottom, left:right], (target.height, target.width), mode="bilinear", antialias=True
        )
        for left, top, right, bottom in plan.boxes.tolist()
    ]
    crops = torch.cat(resized).round_().to(torch.uint8)
    flips = torch.from_numpy(plan.flips).to(image.device)[:, None, None, None]
    return torch.where(flips, crops.flip(3), crops)


def _chains(crops: Tensor, plan: ViewPlan, some: slice) -> Tensor:
    """Apply the chains of some of a plan's views to their crops, uint8 (n, 3, h, w): uint8 (n, C, 3, h, w)."""
    depths = plan.depths[some]
    operations = plan.operations[some].reshape(-1, MAX_DEPTH)
    amounts = plan.amounts[some].reshape(-1, MAX_DEPTH)
    layers = crops.repeat_interleave(depths.shape[1], dim=0)
    for step in range(MAX_DEPTH):
        for number, name in enumerate(OPERATIONS):
            rows = np.flatnonzero((depths.reshape(-1) > step) & (operations[:, step] == number))
            if len(rows):
                chosen = torch.from_numpy(rows).to(crops.device)
                layers[chosen] = operate(name, layers[chosen], amounts[rows, step])
    return layers.view(*depths.shape, *crops.shape[1:])


def operate(name: str, images: Tensor, amounts: HostArray) -> Tensor:
    """Apply an operation to images, uint8 (n, 3, h, w), by an amount (n,) for each; see `augment.OPERATE`."""
    if name in GEOMETRIC:
        return move_pixels(name, images, amounts)
    if name == "posterize":
        return images & (256 - 2 ** (8 - POSTERIZE_BITS))
    if name == "solarize":
        thresholds = torch.from_numpy(amounts).to(images.device)[:, None, None, None]
        return torch.where(images < thresholds, images, 255 - images)
    pixels = images.flatten(2).long()
    tables = _autocontrast(pixels) if name == "autocontrast" else _equalize(pixels)
    return tables.gather(2, pixels).view(images.shape)


def move_pixels(name: str, images: Tensor, amounts: HostArray) -> Tensor:
    """Rotate, shear or translate images, uint8 (n, 3, h, w); pixels from outside are black.

    An affine map takes a position in the result to one in the image, both from -1 to 1 as `grid_sample` has them.
    """
    height, width = images.shape[2:]
    ratio = height / width
    angles, x_shears, y_shears, x_shifts, y_shifts = (amounts * (name == each) for each in GEOMETRIC)
    cos = np.cos(np.radians(angles))
    sin = np.sin(np.radians(angles))
    x_row = [cos, (x_shears - sin) * ratio, x_shears * ratio + 2 * np.trunc(x_shifts) / width]
    y_row = [(y_shears + sin) / ratio, cos, y_shears / ratio + 2 * np.trunc(y_shifts) / height]
    maps = np.array([x_row, y_row], np.float32).transpose(2, 0, 1).copy()
    grid = affine_grid(torch.from_numpy(maps).to(images.device), list(images.shape), align_corners=False)
    moved = grid_sample(images.float(), grid, padding_mode="border", align_corners=False)
    return (moved + ROUNDING).to(torch.uint8) * (grid.abs().amax(dim=-1) < 1)[:, None]


def _autocontrast(pixels: Tensor) -> Tensor:
    """Return tables, uint8 (n, 3, 256), that stretch each channel of pixels (n, 3, m) to 0..255."""
    shades = torch.arange(256, dtype=torch.float64, device=pixels.device)
    low = pixels.amin(dim=2, keepdim=True).double()
    high = pixels.amax(dim=2, keepdim=True).double()
    gain = torch.full_like(low, 255) / (high - low)  # `255 / tensor` would round twice
    stretched = (shades * gain - low * gain).clamp(0, 255)
    return torch.where(high > low, stretched, shades).byte()


def _equalize(pixels: Tensor) -> Tensor:
    """Return tables, uint8 (n, 3, 256), that equalise the histogram of each channel of pixels (n, 3, m)."""
    shades = torch.arange(256, device=pixels.device)
    counts = torch.zeros((*pixels.shape[:2], 256), dtype=torch.int32, device=pixels.device)
    counts.scatter_add_(2, pixels, torch.ones((1, 1, 1), dtype=torch.int32, device=pixels.device).expand(pixels.shape))
    below = counts.cumsum(dim=-1) - counts
    # All pixels but those of the brightest value: the most that are below a value which is not above all of them.
    step = below.where(below < pixels.shape[2], 0).amax(dim=-1, keepdim=True) // 255
    spread = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, spread, shades).byte()
