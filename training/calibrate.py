"""Choose the factors and scales with which the image tower computes in 8 bits, from training images.

    python training/calibrate.py ../shared/model/tower-int4.npz --pack ../shared/train --to tower-int8.npz

Each layer is calibrated on its own: it should give the outputs that it gives in float32 for a sample of its inputs, the
class tokens and some patches of plain and changed images. A factor for each input moves the range of inputs that vary
much into the weights ("SmoothQuant"); the layer before divides by it, at no cost. Only the hidden neurons of an MLP
have a nonlinearity in between: a few of them are much larger than the others, and are divided by powers of two. What
the outputs lose in the mean is added to the bias. Scales are fixed, not computed from the images at hand, so that the
feature of an image does not depend on its batch.

In the last block only the first layer sees all tokens; the other layers see one token per image and stay as they are.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from augment import augment
from images import MEAN, STD, read_pack
from tower_model import LEVELS, Arrays, Tower, linears, round_rows, unpack_weight

# images per batch, and patches per image that are sampled besides the class token
BATCH = 64
PATCHES = 3
STRENGTHS = (0.4, 0.5, 0.6, 0.7)
LIMITS = (3.0, 4.0, 6.0, 8.0, 12.0, 16.0)  # candidate limits of hidden neurons
# ranges are compared on that many inputs, and one of so many outputs
ROWS = 2048
OUTPUTS = 4
SHRINKS = (1.0, 0.9, 0.8)  # no less: the range must hold for unusual images, too


class Recorder(Tower):
    """A tower that keeps a sample of the inputs of every layer: the class token and random patches."""

    def __init__(self, arrays: Arrays) -> None:
        super().__init__(arrays)
        self.inputs: dict[str, list[Tensor]] = {}
        self.generator = torch.Generator().manual_seed(0)

    def _linear(self, x: Tensor, key: str) -> Tensor:
        at = torch.randint(1, max(x.shape[1], 2), (PATCHES,), generator=self.generator).clamp(max=x.shape[1] - 1)
        self.inputs.setdefault(key, []).append(x[:, [0, *at.tolist()]].flatten(0, 1))
        return super()._linear(x, key)


def normalise(pixels: Tensor) -> Tensor:
    """Normalise images (n, 3, h, w), 0 to 255, for the model."""
    mean, std = (torch.tensor(values, device=pixels.device)[:, None, None] for values in (MEAN, STD))
    return (pixels.float() / 255 - mean) / std


def sample_inputs(arrays: Arrays, pixels: Tensor) -> dict[str, Tensor]:
    """Return a sample (n, inputs) of the inputs of every layer for images as bytes, half of them changed."""
    tower = Recorder(arrays)
    generator = torch.Generator().manual_seed(0)
    for i, batch in enumerate(pixels.split(BATCH)):
        tower(normalise(augment(batch, generator) if i % 2 else batch))
    return {key: torch.cat(rows) for key, rows in tower.inputs.items()}


def smoothing(x: Tensor, weight: Tensor, strength: float) -> Tensor:
    """Return factors (inputs,) between the ranges of the inputs x (n, inputs) and of the weight (outputs, inputs)."""
    largest = x.abs().amax(0).clamp(min=1e-4)
    m = largest**strength / weight.abs().amax(0).clamp(min=1e-4) ** (1 - strength)
    return (m / m.log().mean().exp()).clamp(1e-2, 1e2).half().float()


def scale_and_zero(low: float, high: float) -> tuple[float, int]:
    """Return the scale and the code of zero for inputs from `low` (at most 0) to `high`."""
    scale = (high - low) / LEVELS
    return scale, round(-low / scale)


def round_inputs(x: Tensor, scale: float, zero: int) -> Tensor:
    """Return inputs after rounding to bytes."""
    return (((x / scale).round() + zero).clamp(0, LEVELS) - zero) * scale


def output_error(x: Tensor, codes: Tensor, expected: Tensor, scale: float, zero: int) -> float:
    """Return the squared error of the outputs for inputs x (n, inputs) and a rounded weight, over their variance."""
    error = round_inputs(x, scale, zero) @ codes.T - expected
    return float(error.square().sum() / (expected - expected.mean(0)).square().sum())


def limiting(x: Tensor, limit: float) -> Tensor:
    """Return factors (inputs,), powers of two, that bring inputs x (n, inputs) near a limit where they exceed it."""
    return 2 ** (x.abs().amax(0) / limit).log2().round().clamp(min=0)


def choose_range(x: Tensor, weight: Tensor, m: Tensor) -> tuple[float, Tensor, float, int]:
    """Return relative output error, factors, scale and zero of a layer with inputs x (n, inputs) and given factors."""
    codes, row = (part[::OUTPUTS] for part in round_rows(weight * m))
    smoothed = x / m
    codes = codes * row
    ends = [min(float(smoothed.min()), -1e-6), float(smoothed.max())]
    smoothed = smoothed[:ROWS]
    expected = x[:ROWS] @ weight[::OUTPUTS].T
    shrinks = [1.0, 1.0]
    for end in (0, 1, 0, 1):
        trials = []
        for shrinks[end] in SHRINKS:
            scale, zero = scale_and_zero(ends[0] * shrinks[0], ends[1] * shrinks[1])
            trials.append((output_error(smoothed, codes, expected, scale, zero), shrinks[end], scale, zero))
        error, shrinks[end], scale, zero = min(trials)
    return error, m, scale, zero


def calibrate(x: Tensor, weight: Tensor, hidden: bool) -> tuple[float, Tensor, float, int]:
    """Return the best of `choose_range` for a layer with inputs x (n, inputs); `hidden` for the neurons of an MLP."""
    if hidden:
        choices = [choose_range(x, weight, limiting(x, limit)) for limit in LIMITS]
    else:
        choices = [choose_range(x, weight, smoothing(x, weight, strength)) for strength in STRENGTHS]
    return min(choices, key=lambda choice: choice[0])


def mean_error(x: Tensor, weight: Tensor, m: Tensor, scale: float, zero: int) -> Tensor:
    """Return the mean error of the outputs (outputs,) over inputs x (n, inputs)."""
    codes, row = round_rows(weight * m)
    return (x @ weight.T - round_inputs(x / m, scale, zero) @ (codes * row).T).mean(0)


def calibrated(arrays: Arrays, inputs: dict[str, Tensor]) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Return the packed file with factors and scales, and the relative error of each layer."""
    made = dict(arrays)
    errors = {}
    last = f"blocks.{int(arrays['meta'][1]) - 1}"
    for key in linears(arrays):
        block, _, name = key.rpartition(".")
        if block == last and name != "qkv":
            continue
        x = inputs[key]
        weight = unpack_weight(arrays, key)
        errors[key], m, scale, zero = calibrate(x, weight, name == "f2")
        lost = mean_error(x, weight, m, scale, zero).numpy()
        made[f"{key}.b"] = (arrays[f"{key}.b"] + lost).astype(np.float16)
        factors = m.numpy()
        made |= {f"{key}.m": factors.astype(np.float16), f"{key}.xs": np.float32(scale), f"{key}.xz": np.uint8(zero)}
        if name in ("qkv", "f1"):
            for part in "wb":
                norm = f"{block}.{'n1' if name == 'qkv' else 'n2'}.{part}"
                made[norm] = (arrays[norm] / factors).astype(np.float16)
        elif name == "o":  # divide the values that attention mixes
            values = slice(-len(factors), None)
            for part in "sb":
                before = made[f"{block}.qkv.{part}"].astype(np.float32)
                before[values] /= factors.reshape(-1, *[1] * (before.ndim - 1))
                made[f"{block}.qkv.{part}"] = before.astype(np.float16)
    return made, errors


def main() -> None:
    """Calibrate all layers and write the packed file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tower", type=Path, help="a packed tower, .npz")
    parser.add_argument("--pack", type=Path, required=True, help="folder of training images")
    parser.add_argument("--to", type=Path, required=True, help="packed tower to write")
    parser.add_argument("--every", type=int, default=32, help="use every n-th image")
    options = parser.parse_args()
    arrays = dict(np.load(options.tower))
    pixels, _ = read_pack(options.pack, int(arrays["meta"][0]), options.every)
    shuffled = torch.from_numpy(np.random.default_rng(0).permutation(pixels))
    with torch.inference_mode():
        made, errors = calibrated(arrays, sample_inputs(arrays, shuffled))
    for name in ("qkv", "o", "f1", "f2"):
        listed = [f"{100 * error:.2f}" for key, error in errors.items() if key.endswith(f".{name}")]
        print(f"{name}: error of the outputs by block, % of their variance: {' '.join(listed)}")
    divided = {key: int((made[f"{key}.m"] != 1).sum()) for key in errors if key.endswith(".f2")}
    print("divided neurons:", ", ".join(f"{count} in {key}" for key, count in divided.items() if count))
    np.savez(options.to, **made)


if __name__ == "__main__":
    main()
