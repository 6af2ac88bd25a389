"""Views of many images as batched PyTorch operations on the device of the pixels.

Executes the same plans as `augment` does with Pillow, with the same pixels: bytes, which each operation rounds as
Pillow does. Only rotations and shears, which interpolate in float32, round one pixel in some thousand the other way.
What a plan chooses is looked up on the host and uploaded, so nothing waits for the device.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.nn.functional import grid_sample

from acclimate.arrays import HostArray
from acclimate.reading.resize import Parts, resize_parts, upload_all
from acclimate.views.augment import ModelInput
from acclimate.views.plan import GEOMETRIC, MAX_DEPTH, OPERATIONS, POSTERIZE_BITS, ViewPlan

Tensor = Any  # torch.Tensor
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
    device = images[0].device
    count = len(plans[0].flips)
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


def recolour(images: Tensor, threshold: Tensor, *, stretched: int, equalized: int, posterized: int) -> Tensor:
    """Change the colours of images, uint8 (n, 3, h, w), each by a table of its channels' values.

    Args:
        images: those to stretch to 0..255 first, then those to equalise, to posterise and to solarise.
        threshold: (m,) from which values on the last m images are inverted.
        stretched: number of images to stretch.
        equalized: to equalise.
        posterized: to posterise.
    """
    pixels = images.flatten(2)
    indices = pixels.long()
    shades = torch.arange(256, dtype=torch.uint8, device=images.device)
    tables = [
        _autocontrast(pixels[:stretched]),
        _equalize(indices[stretched : stretched + equalized]),
        (shades & (256 - 2 ** (8 - POSTERIZE_BITS))).expand(posterized, 3, 256),
        torch.where(shades < threshold[:, None, None], shades, 255 - shades).expand(-1, 3, 256),
    ]
    return torch.cat(tables).gather(2, indices).view(images.shape)


def interpolate(images: Tensor, lines: Tensor) -> Tensor:
    """Rotate or shear images, uint8 (n, 3, h, w), along `lines`; pixels from outside are black."""
    width = images.shape[3]
    x = torch.arange(width, device=images.device) + (0.5 - width / 2)
    grid = torch.addcmul(lines[:, :, :-1, None], lines[:, :, -1:, None], x)  # (2, n, h, w)
    moved = grid_sample(images + JUST, grid.permute(1, 2, 3, 0), padding_mode="border", align_corners=False)
    inside = torch.maximum(*grid.abs_()) < 1
    return moved.to(torch.uint8).mul_(inside[:, None].view(torch.uint8))


def translate(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The pixels of images, uint8 (n, 3, h, w), at rows (n, h) and columns (n, w); black if one of them is outside."""
    height, width = images.shape[2:]
    places = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None]
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None]
    moved = images.flatten(2).gather(2, places.flatten(1)[:, None].expand(-1, 3, -1)).view(images.shape)
    return moved.mul_(inside[:, None].view(torch.uint8))


def lines(operations: HostArray, amounts: HostArray, width: int, height: int) -> HostArray:
    """Where rotated and sheared images (n,) have their pixels from: float32 (2, n, height + 1).

    First x, then y, in the coordinates of grid_sample, which go from -1 to 1: those of the centre of each row, and at
    last by how much they increase from one pixel of a row to the next.
    """
    angle, x_shear, y_shear = (
        np.where(operations == OPERATIONS.index(name), amounts, 0.0)[:, None]
        for name in ("rotate", "shear_x", "shear_y")
    )
    cos = np.cos(np.radians(angle))
    sin = np.sin(np.radians(angle))
    y = np.arange(height) + 0.5
    from_centre = y - height / 2
    x_line = np.concatenate([x_shear * y - sin * from_centre, cos], axis=1) * (2 / width)
    y_line = np.concatenate([y_shear * (width / 2) + cos * from_centre, y_shear + sin], axis=1) * (2 / height)
    lines: HostArray = np.stack([x_line, y_line]).astype(np.float32)
    return lines


def kinds(
    operations: HostArray, amounts: HostArray, width: int, height: int
) -> Iterator[tuple[Callable[..., Tensor], HostArray, list[HostArray]]]:
    """How to do operations (n,) of these amounts on images (3, height, width).

    Yields:
        A function, the indices of the operations that it does, and what it takes besides their images.
    """
    colours = operations < COLOURS
    moves = operations >= OPERATIONS.index("translate_x")
    moves |= (operations == OPERATIONS.index("rotate")) & (amounts == 0)  # a quarter of the rotations
    chosen = np.flatnonzero(colours)
    if len(chosen):
        chosen = chosen[np.argsort(operations[chosen], kind="stable")]
        stretched, equalized, posterized, solarized = np.bincount(operations[chosen], minlength=COLOURS).tolist()
        counts = {"stretched": stretched, "equalized": equalized, "posterized": posterized}
        yield partial(recolour, **counts), chosen, [amounts[chosen[len(chosen) - solarized :]]]
    chosen = np.flatnonzero(moves)
    if len(chosen):
        by = amounts[chosen, None].astype(np.int64)
        vertical = operations[chosen, None] == OPERATIONS.index("translate_y")
        yield translate, chosen, [np.arange(height) + by * vertical, np.arange(width) + by * ~vertical]
    chosen = np.flatnonzero(~(colours | moves))
    if len(chosen):
        yield interpolate, chosen, [lines(operations[chosen], amounts[chosen], width, height)]


def _chains(crops: Tensor, plan: ViewPlan) -> Tensor:
    """What the chains make of crops, uint8 (n, 3, h, w): uint8 (n, C, 3, h, w)."""
    count, per_view = plan.depths.shape
    height, width = crops.shape[2:]
    operations = plan.operations.reshape(-1, MAX_DEPTH)
    amounts = plan.amounts.reshape(-1, MAX_DEPTH)
    work: list[tuple[int, Callable[..., Tensor], list[HostArray]]] = []
    for step in range(MAX_DEPTH):
        rows = np.flatnonzero(plan.depths.reshape(-1) > step)
        for operate, chosen, needs in kinds(operations[rows, step], amounts[rows, step], width, height):
            # Every chain has a first step, which begins with the crop.
            work.append((step, operate, [rows[chosen] // (1 if step else per_view), rows[chosen], *needs]))
    numbers = iter(upload_all([each for _, _, arrays in work for each in arrays], crops.device))
    chains = torch.empty((count * per_view, *crops.shape[1:]), dtype=torch.uint8, device=crops.device)
    for step, operate, arrays in work:
        places, rows, *needs = islice(numbers, len(arrays))
        pixels = _words(chains if step else crops)[places].view(torch.uint8).view(-1, *crops.shape[1:])
        _words(chains).index_copy_(0, rows, _words(operate(pixels, *needs)))
    return chains.view(count, per_view, *crops.shape[1:])


def _words(pixels: Tensor) -> Tensor:
    """The bytes of each image (n, 3, h, w) as rows, of integers that are copied faster if they can be formed."""
    rows = pixels.flatten(1)
    return rows.view(torch.int64) if rows.shape[1] % 8 == 0 else rows


def _mix(crops: Tensor, chains: Tensor, weights: HostArray, target: ModelInput, views: Tensor) -> None:
    """Write the weighted sums of crops (n, 3, h, w) and chains (n, C, 3, h, w), normalised, to `views`."""
    factors, mixed = upload_all([weights[:, :, None] * target.gain, target.offset], crops.device)
    # (n, 1 + C, 3, 1, 1) and (3, 1, 1)
    factors = factors[..., None, None]
    mixed = mixed[:, None, None]
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
