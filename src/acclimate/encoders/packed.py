"""Weights that a file keeps in 4 bits, unpacked to the 8 bits that onnxruntime multiplies with.

A layer `k` of the file, with a weight (outputs, inputs) in groups of inputs, consists of

- `k.q` (outputs, inputs / 2): codes, two per byte, low half first;
- `k.z` (outputs, groups / 2): the zero points of the groups, packed likewise;
- `k.s` (outputs, groups): the scales of the groups, so that weight = (q - z) * s;
- `k.m` (inputs,): factors by which the graph has divided the inputs in the layer before, where that costs nothing.

The weight times the factors is rounded to whole numbers from -63 to 63, with one scale per output. These are 7 of the 8
bits: CPUs without instructions for 8-bit products add pairs of them in 16 bits, and 255 * 63 * 2 fits. So all CPUs get
the same sums. Elementwise float32 arithmetic makes the codes the same everywhere, too.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from acclimate.arrays import HostArray

CODES = 63  # largest code of a weight


def unpack_weights(path: Path) -> dict[str, HostArray]:
    """The 8-bit weights `k.w` (inputs, outputs) of all layers of a file."""
    arrays = load_file(path)
    keys = [name.removesuffix(".m") for name in arrays if name.endswith(".m")]
    with ThreadPoolExecutor() as pool:
        weights = pool.map(lambda key: unpack_weight(*(arrays[f"{key}.{part}"] for part in "qzsm"))[0], keys)
        return {f"{key}.w": weight for key, weight in zip(keys, weights, strict=True)}


def unpack_weight(
    codes: HostArray, zeros: HostArray, scales: HostArray, factors: HostArray
) -> tuple[HostArray, HostArray]:
    """The 8-bit weight (inputs, outputs) of a layer, and the scale (outputs,) of each output."""
    outputs, groups = scales.shape
    grouped = _halves(codes, outputs).reshape(outputs, groups, -1)
    grouped -= _halves(zeros, outputs)[:, :, None]
    grouped *= scales.astype(np.float32)[:, :, None]
    weight = grouped.reshape(outputs, -1)
    weight *= factors.astype(np.float32)
    scale = np.maximum(weight.max(axis=1), -weight.min(axis=1)) / np.float32(CODES)
    weight /= scale[:, None]
    return np.ascontiguousarray(np.rint(weight, out=weight).astype(np.int8).T), scale


def _halves(packed: HostArray, rows: int) -> HostArray:
    """The 4-bit values (rows, n) of bytes, as float32."""
    packed = packed.reshape(rows, -1)
    values = np.empty((rows, packed.shape[1], 2), np.float32)
    values[:, :, 0], values[:, :, 1] = packed & 15, packed >> 4
    return values.reshape(rows, -1)
