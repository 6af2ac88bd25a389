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

from pathlib import Path

import numpy as np

from acclimate.arrays import HostArray


def unpack_weights(path: Path) -> dict[str, HostArray]:
    """Return the 8-bit weights `k.w` (inputs, outputs) of all layers of a file."""
    from safetensors.numpy import load_file

    arrays = load_file(path)
    keys = [name.removesuffix(".q") for name in arrays if name.endswith(".q")]
    return {f"{key}.w": unpack(*(arrays[f"{key}.{part}"] for part in ("q", "z", "s", "m", "ws"))) for key in keys}


def unpack(codes: HostArray, zeros: HostArray, scales: HostArray, factors: HostArray, outputs: HostArray) -> HostArray:
    """Return the 8-bit weight (inputs, outputs) of a layer."""
    values = np.concatenate([codes & 15, codes >> 4], axis=1).astype(np.float32)
    groups = values.reshape(len(zeros), -1, values.shape[1])  # (groups, inputs of a group, outputs)
    groups -= zeros[:, None].astype(np.float32)
    groups *= scales[:, None].astype(np.float32)
    values *= factors[:, None].astype(np.float32)
    values /= outputs
    return np.rint(values).astype(np.int8)
