"""Views of one image as batched PyTorch operations on the device of the pixels.

Executes the same plans as `augment` does with Pillow. Pixels (n, 3, h, w) are integers 0..255 stored as floats, rounded
after each operation as Pillow does.
"""

from typing import Any

import numpy as np
import torch
from torch.nn.functional import grid_sample

from acclimate.arrays import HostArray
from acclimate.views.augment import ModelInput
from acclimate.views.plan import GEOMETRIC, MAX_DEPTH, OPERATIONS, POSTERIZE_BITS, ViewPlan

Tensor = Any  # torch.Tensor


def make_views(image: Tensor, plan: ViewPlan, target: ModelInput) -> Tensor:
    """Make float32 views (n, 3, h, w) of an image, normalised for the model.

    Args:
        image: uint8 pixels (3, H, W) on any device.
        plan: drawn for an image of this size.
        target: size and normalisation of the model's input.
    """
    crops = resized_crops(image, plan, target)
    count, per_view = plan.depths.shape
    chains = torch.repeat_interleave(crops, per_view, dim=0)
    operations, amounts = plan.operations.reshape(-1, MAX_DEPTH), plan.amounts.reshape(-1, MAX_DEPTH)
    for step in range(MAX_DEPTH):
        unfinished = plan.depths.reshape(-1) > step
        for names, operate in GROUPS.items():
            chosen = np.flatnonzero(unfinished & np.isin(operations[:, step], [OPERATIONS.index(n) for n in names]))
            if len(chosen):
                rows = torch.as_tensor(chosen, device=image.device)
                chains[rows] = operate(chains[rows], operations[chosen, step], amounts[chosen, step])
    weights = torch.as_tensor(plan.weights, device=image.device)
    mixed = torch.einsum("nk,nkchw->nchw", weights[:, 1:], chains.reshape(count, per_view, *crops.shape[1:]))
    mixed += weights[:, 0, None, None, None] * crops
    gain, offset = (torch.as_tensor(x, device=image.device)[:, None, None] for x in (target.gain, target.offset))
    return mixed * gain + offset


def resized_crops(image: Tensor, plan: ViewPlan, target: ModelInput) -> Tensor:
    """Crops (n, 3, h, w), resized and flipped: one matrix product per axis handles crops of all sizes."""
    _, height, width = image.shape
    left, top, right, bottom = (torch.as_tensor(side, device=image.device) for side in plan.boxes.T)
    rows = resize_weights(top, bottom, height, target.height)
    columns = resize_weights(left, right, width, target.width)
    flips = torch.as_tensor(plan.flips, device=image.device)[:, None, None]
    columns = torch.where(flips, columns.flip(1), columns)
    # Rounded between the axes as in Pillow, some versions of which enlarge the axes in the other order.
    narrow = torch.einsum("nxw,chw->nchx", columns, image.float()).add_(0.5).floor_()
    return torch.einsum("nyh,nchx->ncyx", rows, narrow).add_(0.5).floor_()


def resize_weights(begin: Tensor, end: Tensor, size: int, out: int) -> Tensor:
    """Matrices (n, out, size) that resize the part from `begin` to `end` (n,) of an axis to `out` pixels.

    Pillow's bilinear filter: a triangle, two output pixels wide when the image shrinks, truncated at the ends.
    """
    scale = ((end - begin) / out)[:, None, None]
    centre = begin[:, None, None] + (torch.arange(out, device=begin.device)[:, None] + 0.5) * scale
    position = torch.arange(size, device=begin.device)
    weights = (1 - ((position + 0.5 - centre) / scale.clamp(min=1)).abs()).clamp(min=0)
    weights = weights * ((position >= begin[:, None, None]) & (position < end[:, None, None]))
    return weights / weights.sum(dim=-1, keepdim=True)


def autocontrast(images: Tensor, operations: HostArray, amounts: HostArray) -> Tensor:
    """Stretch each channel to 0..255."""
    low, high = (limit.double()[..., None] for limit in torch.aminmax(images.flatten(2), dim=2))
    values = torch.arange(256, device=images.device)
    gain = torch.full_like(low, 255) / (high - low)  # `255 / tensor` would round twice
    stretched = (values * gain - low * gain).clamp(0, 255).floor()
    return look_up(torch.where(high > low, stretched, values.double()), images)


def equalize(images: Tensor, operations: HostArray, amounts: HostArray) -> Tensor:
    """Equalise the histogram of each channel."""
    values = torch.arange(256, device=images.device)
    channels = images.flatten(0, 1).flatten(1).long()
    offset = 256 * torch.arange(len(channels), device=images.device)[:, None]
    counts = torch.bincount((channels + offset).flatten(), minlength=256 * len(channels)).reshape(-1, 256)
    brightest = channels.amax(dim=1, keepdim=True)
    step = (counts.sum(dim=1, keepdim=True) - counts.gather(1, brightest)) // 255
    below = counts.cumsum(dim=1) - counts
    spread = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    return look_up(torch.where(step > 0, spread, values).reshape(*images.shape[:2], 256), images)


def posterize(images: Tensor, operations: HostArray, amounts: HostArray) -> Tensor:
    """Keep the highest bits."""
    coarse = 2 ** (8 - POSTERIZE_BITS)
    return (images / coarse).floor() * coarse


def solarize(images: Tensor, operations: HostArray, amounts: HostArray) -> Tensor:
    """Invert the pixels at or above a threshold."""
    threshold = torch.as_tensor(amounts, device=images.device)[:, None, None, None]
    return torch.where(images < threshold, images, 255 - images)


def move_pixels(images: Tensor, operations: HostArray, amounts: HostArray) -> Tensor:
    """Rotate, shear or translate each image with bilinear interpolation; pixels from outside are black."""
    height, width = images.shape[2:]
    coefficients = affine(operations, amounts, width, height)
    a, b, c, d, e, f = torch.as_tensor(coefficients, dtype=images.dtype, device=images.device)[..., None, None]
    x = torch.arange(width, device=images.device) + 0.5
    y = torch.arange(height, device=images.device)[:, None] + 0.5
    x, y = a * x + b * y + c, d * x + e * y + f
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    grid = torch.stack([2 * x / width - 1, 2 * y / height - 1], dim=-1)
    moved = grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
    # Pillow truncates; the small addend protects integers from rounding errors.
    return (moved + 1e-3).floor() * inside[:, None]


def affine(operations: HostArray, amounts: HostArray, width: int, height: int) -> HostArray:
    """Coefficients (6, n) of the maps from output to input pixels: x' = a x + b y + c, y' = d x + e y + f."""

    def only(name: str) -> HostArray:
        return np.where(operations == OPERATIONS.index(name), amounts, 0.0)

    angle = np.radians(only("rotate"))
    cos, sin = np.cos(angle), np.sin(angle)
    x, y = width / 2, height / 2
    x_row = (cos, only("shear_x") - sin, only("translate_x") + x - cos * x + sin * y)
    y_row = (only("shear_y") + sin, cos, only("translate_y") + y - sin * x - cos * y)
    return np.stack(x_row + y_row)


def look_up(tables: Tensor, images: Tensor) -> Tensor:
    """Map the values of images (n, 3, h, w) through tables (n, 3, 256)."""
    return tables.to(images.dtype).gather(2, images.flatten(2).long()).reshape(images.shape)


GROUPS = {
    ("autocontrast",): autocontrast,
    ("equalize",): equalize,
    ("posterize",): posterize,
    ("solarize",): solarize,
    GEOMETRIC: move_pixels,
}
