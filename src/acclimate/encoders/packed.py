"""Weights that a file keeps in 4 bits, unpacked to the 8 bits that onnxruntime multiplies with.

A layer `k` of the file, with a weight (inputs, outputs) in groups of inputs, consists of

- `k.q` (inputs, outputs / 2): codes, the first half of the outputs in the low bits, the second in the high bits;
- `k.z` (groups, outputs) and `k.s` (groups, outputs): zero points and scales, so that weight = (q - z) * s;
- `k.m` (inputs,): factors by which the graph has divided the inputs, where possible in the layer before;
- `k.ws` (outputs,): the scales of the outputs.

The weight times the factors over the scales is rounded to whole numbers of 8 bits. CPUs without instructions for 8-bit
products add those of inputs 2j and 2j + 1 in 16 bits; the scales are such that this cannot overflow, so that all CPUs
get the same sums. The rounded weights are the same everywhere, too: they result from one float32 operation after
another.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from acclimate.arrays import HostArray


def unpack_weights(path: Path) -> dict[str, HostArray]:
    """The 8-bit weights `k.w` (inputs, outputs) of all layers of a file."""
    from safetensors.numpy import load_file

    arrays = load_file(path)
    keys = [name.removesuffix(".q") for name in arrays if name.endswith(".q")]
    with ThreadPoolExecutor() as pool:
        weights = pool.map(lambda key: unpack(*(arrays[f"{key}.{part}"] for part in ("q", "z", "s", "m", "ws"))), keys)
        return {f"{key}.w": weight for key, weight in zip(keys, weights, strict=True)}


def unpack(codes: HostArray, zeros: HostArray, scales: HostArray, factors: HostArray, outputs: HostArray) -> HostArray:
    """The 8-bit weight (inputs, outputs) of a layer, made group by group so that all of it stays in a CPU's cache."""
    (inputs, half), groups = codes.shape, len(zeros)
    size = inputs // groups
    weight = np.empty((inputs, 2 * half), np.int8)
    zeros = zeros.astype(np.float32)
    scales = scales.astype(np.float32)
    factors = factors.astype(np.float32)[:, None]
    values = np.empty((size, 2 * half), np.float32)
    for group in range(groups):
        rows = slice(group * size, (group + 1) * size)
        np.bitwise_and(codes[rows], 15, out=values[:, :half], casting="unsafe")
        np.right_shift(codes[rows], 4, out=values[:, half:], casting="unsafe")
        values -= zeros[group]
        values *= scales[group]
        values *= factors[rows]
        values /= outputs
        weight[rows] = np.rint(values, out=values)
    return weight
