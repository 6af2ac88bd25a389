"""Views of many images as batched PyTorch operations on the device of the pixels.

Executes the same plans as `augment` does with Pillow, with the same pixels: bytes, which each operation rounds as
Pillow does. Only rotations and shears, which interpolate in float32, round one pixel in some thousand the other way.
What a plan chooses is looked up on the host and uploaded, so nothing waits for the device.
"""

from collections.abc import Callable, Iterator, Sequence
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
Operate = Callable[[Tensor, HostArray, HostArray], Tensor]
BUDGET = 2**31  # bytes that views which are made at once may take
PIXEL = 10  # bytes for each pixel of a chain while it is processed
COLOURS = len(OPERATIONS) - len(GEOMETRIC)  # the first operations change colours, the others move pixels
JUST = 1e-4  # protects integers from rounding errors before they are truncated


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
    limit = max(1, BUDGET // (PIXEL * 3 * target.height * target.width * whole.weights.shape[1]))
    pieces = -(-len(owners) // limit)
    for piece in range(pieces):
        some = slice(*(len(owners) * edge // pieces for edge in (piece, piece + 1)))
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
    indices = pixels.long()
    shades = torch.arange(256, dtype=torch.uint8, device=images.device)
    threshold = upload(amounts[stretched + equalized + posterized :], images.device)[:, None, None]
    tables = [
        _autocontrast(pixels[:stretched]),
        _equalize(indices[stretched : stretched + equalized]),
        (shades & (256 - 2 ** (8 - POSTERIZE_BITS))).expand(posterized, 3, 256),
        torch.where(shades < threshold, shades, 255 - shades).expand(-1, 3, 256),
    ]
    return torch.cat(tables).gather(2, indices).view(images.shape)


def interpolate(images: Tensor, operations: HostArray, amounts: HostArray) -> Tensor:
    """Rotate or shear images, uint8 (n, 3, h, w); pixels from outside are black. As `recolour`."""
    height, width = images.shape[2:]
    a, b, c, d, e, f = affine(operations, amounts, width, height)[..., None]
    # The coordinates of grid_sample go from -1 to 1. Those of the centre of each row, and their slopes:
    y = np.arange(height) + 0.5
    x_row, y_row = 2 / width * (a * width / 2 + b * y + c) - 1, 2 / height * (d * width / 2 + e * y + f) - 1
    rows, slopes = np.stack([x_row, y_row]), np.stack([2 / width * a, 2 / height * d])
    lines = upload(np.concatenate([rows, slopes], axis=2).astype(np.float32), images.device)[..., None]
    x = torch.arange(width, device=images.device) + (0.5 - width / 2)
    grid = torch.addcmul(lines[:, :, :-1], lines[:, :, -1:], x)  # (2, n, h, w)
    moved = grid_sample(images + JUST, grid.permute(1, 2, 3, 0), padding_mode="border", align_corners=False)
    inside = torch.maximum(*grid.abs_()) < 1
    return moved.to(torch.uint8).mul_(inside[:, None])


def translate(images: Tensor, operations: HostArray, amounts: HostArray) -> Tensor:
    """Translate images, uint8 (n, 3, h, w), by whole pixels; pixels from outside are black. As `recolour`."""
    height, width = images.shape[2:]
    pixels = amounts.astype(np.int64)
    x, y = (np.where(operations == OPERATIONS.index(name), pixels, 0) for name in ("translate_x", "translate_y"))
    columns, rows = x[:, None] + np.arange(width), y[:, None] + np.arange(height)
    places = np.concatenate([columns.clip(0, width - 1), rows.clip(0, height - 1) * width], axis=1)
    inside = np.concatenate([(columns >= 0) & (columns < width), (rows >= 0) & (rows < height)], axis=1)
    places, inside = (upload(each, images.device)[:, None, None] for each in (places, inside))
    places = places[..., width:].mT + places[..., :width]  # (n, 1, h, w)
    inside = inside[..., width:].mT & inside[..., :width]
    return images.flatten(2).gather(2, places.flatten(2).expand(-1, 3, -1)).view(images.shape).mul_(inside)


def affine(operations: HostArray, amounts: HostArray, width: int, height: int) -> HostArray:
    """Coefficients (6, n) of the maps from output to input pixels: x' = a x + b y + c, y' = d x + e y + f."""

    def only(name: str) -> HostArray:
        return np.where(operations == OPERATIONS.index(name), amounts, 0.0)

    angle = np.radians(only("rotate"))
    cos, sin = np.cos(angle), np.sin(angle)
    x, y = width / 2, height / 2
    x_row = (cos, only("shear_x") - sin, x - cos * x + sin * y)
    y_row = (only("shear_y") + sin, cos, y - sin * x - cos * y)
    return np.stack(x_row + y_row)


def kinds(operations: HostArray, amounts: HostArray) -> Iterator[tuple[Operate, HostArray]]:
    """Functions that do operations (n,) of these amounts, and the indices of those that each of them does."""
    moves = operations >= OPERATIONS.index("translate_x")
    moves |= (operations == OPERATIONS.index("rotate")) & (amounts == 0)  # a quarter of the rotations
    colours = operations < COLOURS
    for operate, does in ((recolour, colours), (translate, moves), (interpolate, ~(colours | moves))):
        chosen = np.flatnonzero(does)
        if len(chosen):
            yield operate, chosen[np.argsort(operations[chosen], kind="stable")]


def _chains(crops: Tensor, plan: ViewPlan) -> Tensor:
    """What the chains make of crops, uint8 (n, 3, h, w): uint8 (n, C, 3, h, w)."""
    count, per_view = plan.depths.shape
    chains = torch.empty((count * per_view, *crops.shape[1:]), dtype=torch.uint8, device=crops.device)
    operations, amounts = plan.operations.reshape(-1, MAX_DEPTH), plan.amounts.reshape(-1, MAX_DEPTH)
    for step in range(MAX_DEPTH):
        unfinished = np.flatnonzero(plan.depths.reshape(-1) > step)
        for operate, chosen in kinds(operations[unfinished, step], amounts[unfinished, step]):
            rows = unfinished[chosen]
            places = upload(rows, crops.device)
            # Every chain has a first step.
            pixels = _words(chains)[places] if step else _words(crops)[places // per_view]
            pixels = pixels.view(torch.uint8).view(-1, *crops.shape[1:])
            done = operate(pixels, operations[rows, step], amounts[rows, step])
            _words(chains).index_copy_(0, places, _words(done))
    return chains.view(count, per_view, *crops.shape[1:])


def _words(pixels: Tensor) -> Tensor:
    """The bytes of each image (n, 3, h, w) as rows, of integers that are copied faster if they can be formed."""
    rows = pixels.flatten(1)
    return rows.view(torch.int64) if rows.shape[1] % 8 == 0 else rows


def _mix(crops: Tensor, chains: Tensor, weights: HostArray, target: ModelInput, views: Tensor) -> None:
    """Write the weighted sums of crops (n, 3, h, w) and chains (n, C, 3, h, w), normalised, to `views`."""
    device = crops.device
    factors = upload(weights[:, :, None] * target.gain, device)[..., None, None]  # (n, 1 + C, 3, 1, 1)
    mixed = upload(target.offset, device)[:, None, None]
    layers = [crops, *chains.unbind(1)]
    for number, layer in enumerate(layers):
        out = views if number == len(layers) - 1 else None
        mixed = torch.addcmul(mixed, layer, factors[:, number], out=out)


def _autocontrast(pixels: Tensor) -> Tensor:
    """Tables, uint8 (n, 3, 256), that stretch each channel of pixels (n, 3, m) to 0..255."""
    shades = torch.arange(256, dtype=torch.float64, device=pixels.device)
    low, high = (limit(dim=2, keepdim=True).double() for limit in (pixels.amin, pixels.amax))
    gain = torch.full_like(low, 255) / (high - low)  # `255 / tensor` would round twice
    stretched = (shades * gain - low * gain).clamp(0, 255)
    return torch.where(high > low, stretched, shades).byte()


def _equalize(values: Tensor) -> Tensor:
    """Tables, uint8 (n, 3, 256), that equalise the histogram of each channel of values (n, 3, m)."""
    shades = torch.arange(256, device=values.device)
    counts = torch.zeros((*values.shape[:2], 256), dtype=torch.int32, device=values.device)
    counts.scatter_add_(2, values, torch.ones((1, 1, 1), dtype=torch.int32, device=values.device).expand(values.shape))
    below = counts.cumsum(dim=-1) - counts
    # All pixels but those of the brightest value: the most that are below a value which is not above all of them.
    others = below.where(below < values.shape[2], 0).amax(dim=-1, keepdim=True)
    step = others // 255
    spread = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, spread, shades).byte()
