"""Pillow's resizing on any device, for parts of many images at once.

Pillow resizes the horizontal axis, then the vertical one, with integer weights of 22 bits, and rounds after each. The
weighted sums are taken by `embedding_bag` in float64, which holds them exactly: the pixels are Pillow's.

Note:
    Since version 13, Pillow resizes the vertical axis first where that is less work. Its pixels differ by 1 there.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch.nn.functional import embedding_bag

from acclimate.arrays import HostArray

Tensor = Any  # torch.Tensor
BUDGET = 2**31  # bytes of the tables, sums and pictures that are made at once
# bytes for each pixel: of an image, after the first axis, and after both
TABLE = 24
NARROW = 60
PICTURE = 30
WASTE = 1.25  # how much taller than the shortest the tallest of the images may be that share a table
UNIT = 2.0**-22  # of Pillow's weights


@dataclass(frozen=True)
class Parts:
    """What is to be made of images: n pictures of one size.

    Attributes:
        owners: (n,) index of the image.
        boxes: (n, 4) left, top, right and bottom of the part of the image that is resized.
        sizes: (n, 2) width and height that it is resized to.
        corners: (n, 2) left and top of the picture in what it was resized to; outside of it the picture is black.
        flips: (n,) whether the picture is mirrored.
    """

    owners: HostArray
    boxes: HostArray
    sizes: HostArray
    corners: HostArray
    flips: HostArray

    def __getitem__(self, chosen: Any) -> "Parts":
        return Parts(*(each[chosen] for each in vars(self).values()))


def prepare_batch(images: Sequence[Tensor], preprocess: Any) -> Tensor:
    """Resize and crop images as a model wants them: uint8 pixels (n, 3, h, w), those of `Preprocess.pixels`.

    Args:
        images: uint8 pixels (3, H, W) on one device, of any sizes.
        preprocess: an `acclimate.encoders.preprocess.Preprocess` whose filter is one of `FILTERS`.
    """
    shapes = [(image.shape[2], image.shape[1]) for image in images]
    windows = np.array([preprocess.window(*shape) for shape in shapes], np.int64).reshape(-1, 4)
    boxes = np.concatenate([np.zeros((len(images), 2), np.int64), np.array(shapes, np.int64).reshape(-1, 2)], axis=1)
    parts = Parts(np.arange(len(images)), boxes, windows[:, :2], windows[:, 2:], np.zeros(len(images), bool))
    return resize_parts(images, parts, preprocess.width, preprocess.height, preprocess.resample)


def resize_parts(images: Sequence[Tensor], parts: Parts, width: int, height: int, resample: str) -> Tensor:
    """Make pictures, uint8 (n, 3, height, width), of parts of images, uint8 (3, H, W) on one device."""
    if not len(parts.owners):
        return torch.empty((0, 3, height, width), dtype=torch.uint8)
    used = _used(len(images), parts, width, height, resample)
    chunks = list(_chunks(parts.owners, used, width, height))
    made = [_resize(images, parts[chunk], used, width, height, resample) for chunk in chunks]
    order = np.concatenate(chunks)
    pictures = made[0] if len(made) == 1 else torch.cat(made)
    if (order[1:] > order[:-1]).all():
        return pictures
    return pictures.index_select(0, upload(np.argsort(order), pictures.device))


def upload(values: HostArray, device: Any) -> Tensor:
    """Copy host values to a device without waiting for it."""
    tensor = torch.from_numpy(np.array(values, order="C"))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def upload_all(arrays: Sequence[HostArray], device: Any) -> list[Tensor]:
    """Host arrays on a device, in one copy that nothing waits for."""
    begins = np.cumsum([0, *(16 * (each.nbytes // 16 + 1) for each in arrays)]).tolist()  # aligned, and not empty
    packed = np.zeros(begins[-1], np.uint8)
    for each, begin in zip(arrays, begins, strict=False):
        packed[begin : begin + each.nbytes] = np.frombuffer(each.tobytes(), np.uint8)
    there = upload(packed, device)
    return [
        there[begin : begin + each.nbytes].view(torch.from_numpy(each[:0].copy()).dtype).view(each.shape)
        for each, begin in zip(arrays, begins, strict=False)
    ]


def resize_weights(
    lengths: Tensor, sizes: Tensor, positions: Tensor, taps: int, resample: str
) -> tuple[Tensor, Tensor]:
    """Which pixels of an axis make each pixel that it is resized to: indices and weights (..., m, taps).

    Args:
        lengths: (..., 1) pixels of the axis, float64.
        sizes: (..., 1) pixels that they are resized to.
        positions: (..., m) which of those; none of the pixels contributes to one that is outside.
        taps: weights per position, see `_taps`; those that are not needed are 0.
        resample: one of `FILTERS`.
    """
    weigh, support = FILTERS[resample]
    scale = lengths / sizes
    stretch = scale.clamp(min=1)
    centre = (positions + 0.5) * scale
    low = (centre - support * stretch + 0.5).trunc().clamp_(min=0)
    high = torch.minimum((centre + support * stretch + 0.5).trunc(), lengths)
    source = low[..., None] + torch.arange(taps, dtype=low.dtype, device=low.device)
    weights = weigh(((source - centre[..., None] + 0.5) * stretch.reciprocal()[..., None]).abs_())
    weights *= source < high[..., None]
    weights /= weights.sum(dim=-1, keepdim=True)
    weights = (weights / UNIT + weights.sign() / 2).trunc_() * UNIT
    inside = (positions >= 0) & (positions < sizes)
    return torch.minimum(source, lengths[..., None] - 1).long(), weights.where(inside[..., None], 0.0)


def _taps(lengths: HostArray, sizes: HostArray, resample: str) -> int:
    """The largest number of pixels that make one pixel."""
    return math.ceil(2 * FILTERS[resample][1] * max(1.0, float((lengths / sizes).max())))


def _used(count: int, parts: Parts, width: int, height: int, resample: str) -> HostArray:
    """Left, top, right and bottom of what is needed of each of `count` images: (count, 4)."""
    begin = parts.boxes[:, :2]
    end = parts.boxes[:, 2:]
    scale = (end - begin) / parts.sizes
    reach = FILTERS[resample][1] * np.maximum(scale, 1.0) + 1
    first = np.floor(begin + parts.corners * scale - reach).clip(begin, end - 1)
    size = np.array([width, height])
    last = np.ceil(begin + (parts.corners + size) * scale + reach).clip(first + 1, end)
    used = np.zeros((count, 4), np.int64)
    used[:, :2] = np.iinfo(np.int64).max
    np.minimum.at(used[:, :2], parts.owners, first.astype(np.int64))
    np.maximum.at(used[:, 2:], parts.owners, last.astype(np.int64))
    return used


def _chunks(owners: HostArray, used: HostArray, width: int, height: int) -> Iterator[HostArray]:
    """Indices of the parts that are made together: within the budget, and of images about as tall."""
    wide, tall = (used[owners, 2:] - used[owners, :2]).T
    order = np.lexsort((owners, wide, tall))
    wide = wide[order]
    tall = tall[order]
    first = np.diff(owners[order], prepend=-1) != 0
    costs = TABLE * wide * tall * first + (NARROW * tall + PICTURE * height) * width
    chunk: list[int] = []
    spent = 0
    limit = 0.0
    for part, high, cost in zip(order.tolist(), tall.tolist(), costs.tolist(), strict=True):
        if chunk and (spent + cost > BUDGET or high > limit):
            yield np.array(chunk)
            chunk = []
        if not chunk:
            spent = 0
            limit = WASTE * high
        chunk.append(part)
        spent += cost
    yield np.array(chunk)


def _resize(images: Sequence[Tensor], parts: Parts, used: HostArray, width: int, height: int, resample: str) -> Tensor:
    """`resize_parts` for one chunk."""
    device = images[0].device
    tall = int((used[parts.owners, 3] - used[parts.owners, 1]).max())
    table, rows = _table(images, list(dict.fromkeys(parts.owners.tolist())), used, tall)
    lengths = parts.boxes[:, 2:] - parts.boxes[:, :2]
    begins = parts.boxes[:, :2] - used[parts.owners, :2]
    begins[:, 0] += rows[parts.owners]
    begins[:, 1] += tall * np.arange(len(begins))
    flips = np.stack([parts.flips, np.zeros_like(parts.flips)], axis=1)
    window = np.broadcast_to([width, height], lengths.shape)
    numbers = np.stack([lengths, parts.sizes, parts.corners, begins, flips, window]).astype(np.float64)
    length, size, corner, begin, flip, last = upload(numbers.transpose(0, 2, 1)[..., None], device)  # (2, n, 1) each
    positions = torch.arange(max(width, height), dtype=length.dtype, device=device)
    positions = torch.where(flip > 0, last - 1 - positions, positions) + corner
    taps = [_taps(lengths[:, axis], parts.sizes[:, axis], resample) for axis in (0, 1)]
    indices, weights = resize_weights(length, size, positions, max(taps), resample)
    indices += begin[..., None].long()

    def add_up(pixels: Tensor, axis: int, out: int) -> Tensor:
        """The weighted sums (n * out, k) of rows of pixels (m, k), rounded."""
        chosen, factors = (each[axis, :, :out, : taps[axis]].flatten(0, 1) for each in (indices, weights))
        sums = embedding_bag(chosen, pixels, per_sample_weights=factors, mode="sum").add_(0.5)
        return (sums if resample in POSITIVE else sums.clamp_(0, 255)).to(torch.uint8)

    count = len(begins)
    narrow = add_up(table, 0, width).view(count, width, 3, tall)
    del table
    turned = torch.empty((count, tall, 3, width), dtype=torch.float64, device=device).copy_(narrow.permute(0, 3, 2, 1))
    pictures = add_up(turned.view(-1, 3 * width), 1, height).view(count, height, 3, width)
    return pictures.permute(0, 2, 1, 3).contiguous()


def _table(images: Sequence[Tensor], chosen: list[int], used: HostArray, tall: int) -> tuple[Tensor, HostArray]:
    """The used columns of the chosen images as rows (m, 3 * tall), and the first row of each image."""
    widths = used[chosen, 2] - used[chosen, 0]
    begins = np.zeros(len(images), np.int64)
    begins[chosen] = np.cumsum(widths) - widths
    table = torch.empty((int(widths.sum()), 3, tall), dtype=torch.float64, device=images[0].device)
    for (_, window), same in groupby(chosen, lambda i: (images[i].shape, tuple(used[i].tolist()))):
        members = list(same)
        left, top, right, bottom = window
        begin = int(begins[members[0]])
        wide = right - left
        high = bottom - top
        if len(members) == 1:
            pixels = images[members[0]][:, top:bottom, left:right].permute(2, 0, 1)
            table[begin : begin + wide, :, :high].copy_(pixels)
        else:
            pixels = torch.stack([images[i] for i in members])[:, :, top:bottom, left:right].permute(0, 3, 1, 2)
            table[begin : begin + len(members) * wide].view(-1, wide, 3, tall)[..., :high].copy_(pixels)
    return table.view(-1, 3 * tall), begins


def _bilinear(x: Tensor) -> Tensor:
    return (1 - x).clamp_(min=0)


def _hamming(x: Tensor) -> Tensor:
    return torch.sinc(x) * (0.54 + 0.46 * torch.cos(math.pi * x)) * (x < 1)


def _bicubic(x: Tensor) -> Tensor:
    near = (1.5 * x - 2.5) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * -0.5
    return torch.where(x < 1, near, far * (x < 2))


def _lanczos(x: Tensor) -> Tensor:
    return torch.sinc(x) * torch.sinc(x / 3) * (x < 3)


# Pillow's filters that are 0 where they end: weights of distances, and where they end.
FILTERS: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "bilinear": (_bilinear, 1.0),
    "hamming": (_hamming, 1.0),
    "bicubic": (_bicubic, 2.0),
    "lanczos": (_lanczos, 3.0),
}
POSITIVE = ("bilinear", "hamming")  # no weight is negative, so no sum is outside 0..255
