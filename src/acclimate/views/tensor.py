"""Views of many images as batched PyTorch operations on the device of the pixels.

Executes the same plans as `augment` does with Pillow, with the same pixels: bytes, which each operation rounds as
Pillow does. What is chosen by a plan is looked up on the host and uploaded, so nothing waits for the device.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch.nn.functional import grid_sample

from acclimate.arrays import HostArray
from acclimate.resize import Parts, resize_parts, upload
from acclimate.views.augment import ModelInput
from acclimate.views.plan import GEOMETRIC, MAX_DEPTH, OPERATIONS, POSTERIZE_BITS, ViewPlan

Tensor = Any  # torch.Tensor
BUDGET = 2**31  # bytes that views which are made at once may take
PIXEL = 16  # bytes for each pixel of a chain while it is processed
COLOURS = len(OPERATIONS) - len(GEOMETRIC)  # the first operations change colours, the others move pixels
LANES = 16  # counts of a histogram that neighbouring pixels are added to, so that few wait for another
JUST = 1e-9  # protects integers from rounding errors before they are truncated


def make_views(
    images: Sequence[Tensor], plans: Sequence[ViewPlan], target: ModelInput, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Make n views of each of B images, (B, n, 3, h, w), normalised for the model.

    Args:
        images: uint8 pixels (3, H, W) on one device, of any sizes.
        plans: one per image, drawn for its size, all of n views.
        target: size and normalisation of the model's input.
        dtype: of the views.
    """
    device, count = images[0].device, len(plans[0].flips)
    owners = np.repeat(np.arange(len(images)), count)
    whole = ViewPlan(*(np.concatenate([getattr(plan, each.name) for plan in plans]) for each in fields(ViewPlan)))
    views = torch.empty((len(owners), 3, target.height, target.width), dtype=dtype, device=device)
    size = max(1, BUDGET // (PIXEL * 3 * target.height * target.width * whole.weights.shape[1]))
    for begin in range(0, len(owners), size):
        some = slice(begin, begin + size)
        plan = ViewPlan(*(getattr(whole, each.name)[some] for each in fields(ViewPlan)))
        crops = resized_crops(images, owners[some], plan, target)
        _mix(crops, _chains(crops, plan), plan.weights, target, views[some])
    return views.view(len(images), count, *views.shape[1:])


def resized_crops(images: Sequence[Tensor], owners: HostArray, plan: ViewPlan, target: ModelInput) -> Tensor:
    """Crops, uint8 (n, 3, h, w), of the images that `owners` (n,) names, resized and flipped."""
    size = np.broadcast_to([target.width, target.height], (len(owners), 2))
    parts = Parts(owners, plan.boxes, size, np.zeros_like(size), plan.flips)
    return resize_parts(images, parts, target.width, target.height, "bilinear")


def recolour(images: Tensor, operations: HostArray, amounts: HostArray) -> Tensor:
    """Change the colours of images, uint8 (n, 3, h, w), each by a table of its channels' values.

    Args:
        images: one per operation.
        operations: (n,) indices into `OPERATIONS`, in ascending order.
        amounts: (n,) strength of each.
    """
    stretched, equalized, posterized, _ = np.bincount(operations, minlength=COLOURS).tolist()
    pixels = images.flatten(2)
    counts = _histograms(pixels[: stretched + equalized])
    shades = torch.arange(256, dtype=torch.uint8, device=images.device)
    threshold = upload(amounts[stretched + equalized + posterized :], images.device)[:, None, None]
    tables = [
        _autocontrast(counts[:stretched]),
        _equalize(counts[stretched:]),
        (shades & (256 - 2 ** (8 - POSTERIZE_BITS))).expand(posterized, 3, 256),
        torch.where(shades < threshold, shades, 255 - shades).expand(-1, 3, 256),
    ]
    return torch.cat(tables).gather(2, pixels.long()).view(images.shape)


def move_pixels(images: Tensor, operations: HostArray, amounts: HostArray) -> Tensor:
    """Rotate, shear or translate images, uint8 (n, 3, h, w); pixels from outside are black. As `recolour`."""
    height, width = images.shape[2:]
    a, b, c, d, e, f = upload(affine(operations, amounts, width, height), images.device)[..., None, None]
    x = torch.arange(width, dtype=a.dtype, device=images.device) + 0.5
    y = torch.arange(height, dtype=a.dtype, device=images.device)[:, None] + 0.5
    # grid_sample's coordinates go from -1 to 1.
    grid = torch.empty((len(images), height, width, 2), dtype=a.dtype, device=images.device)
    torch.addcmul(2 / width * (b * y + c) - 1, 2 / width * a, x, out=grid[..., 0])
    torch.addcmul(2 / height * (e * y + f) - 1, 2 / height * d, x, out=grid[..., 1])
    inside = ((grid >= -1) & (grid < 1)).all(dim=-1)
    pixels = images + torch.tensor(JUST, dtype=a.dtype)
    moved = grid_sample(pixels, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return moved.to(torch.uint8).mul_(inside[:, None])


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


def _chains(crops: Tensor, plan: ViewPlan) -> Tensor:
    """What the chains make of crops, uint8 (n, 3, h, w): uint8 (n, C, 3, h, w)."""
    count, per_view = plan.depths.shape
    chains = torch.empty((count * per_view, *crops.shape[1:]), dtype=torch.uint8, device=crops.device)
    operations, amounts = plan.operations.reshape(-1, MAX_DEPTH), plan.amounts.reshape(-1, MAX_DEPTH)
    for step in range(MAX_DEPTH):
        order = np.argsort(operations[:, step], kind="stable")
        order = order[plan.depths.reshape(-1)[order] > step]
        recoloured = np.searchsorted(operations[order, step], COLOURS)
        for rows, operate in ((order[:recoloured], recolour), (order[recoloured:], move_pixels)):
            if len(rows):
                places = upload(rows, crops.device)
                pixels = chains[places] if step else crops[places // per_view]  # every chain has a first step
                chains[places] = operate(pixels, operations[rows, step], amounts[rows, step])
    return chains.view(count, per_view, *crops.shape[1:])


def _mix(crops: Tensor, chains: Tensor, weights: HostArray, target: ModelInput, views: Tensor) -> None:
    """Write the weighted sums of crops (n, 3, h, w) and chains (n, C, 3, h, w), normalised, to `views`."""
    device = crops.device
    factors = upload(weights[:, :, None] * target.gain, device)[..., None, None]  # (n, 1 + C, 3, 1, 1)
    mixed = upload(target.offset, device)[:, None, None]
    layers = [crops, *chains.unbind(1)]
    for number, layer in enumerate(layers):
        out = views if number == len(layers) - 1 else None
        mixed = torch.addcmul(mixed, layer, factors[:, number], out=out)


def _histograms(pixels: Tensor) -> Tensor:
    """How often each of 256 values occurs in each channel of pixels, uint8 (n, 3, m): (n, 3, 256)."""
    count, channels, size = pixels.shape
    lanes = torch.arange(size, device=pixels.device) % LANES * 256
    counts = torch.zeros((count, channels, LANES * 256), dtype=torch.int32, device=pixels.device)
    one = torch.ones((1, 1, 1), dtype=counts.dtype, device=pixels.device)
    counts.scatter_add_(2, pixels + lanes, one.expand(pixels.shape))
    return counts.view(count, channels, LANES, 256).sum(dim=2)


def _autocontrast(counts: Tensor) -> Tensor:
    """Tables, uint8 (n, 3, 256), that stretch each channel with these counts to 0..255."""
    shades = torch.arange(256, dtype=torch.float64, device=counts.device)
    low = (counts > 0).byte().argmax(dim=-1, keepdim=True).double()
    high = 255 - (counts.flip(-1) > 0).byte().argmax(dim=-1, keepdim=True).double()
    gain = torch.full_like(low, 255) / (high - low)  # `255 / tensor` would round twice
    stretched = (shades * gain - low * gain).clamp(0, 255)
    return torch.where(high > low, stretched, shades).byte()


def _equalize(counts: Tensor) -> Tensor:
    """Tables, uint8 (n, 3, 256), that equalise the histogram of each channel with these counts."""
    shades = torch.arange(256, device=counts.device)
    sums = counts.cumsum(dim=-1)
    below = sums - counts
    total = sums[..., -1:]
    # The brightest value that occurs is the last that has fewer pixels below it than there are.
    step = below.where(below < total, 0).amax(dim=-1, keepdim=True) // 255
    spread = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, spread, shades).byte()
