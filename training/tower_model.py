"""The image tower of the bundled model in PyTorch: CLIP's ViT-B/16 with narrow MLPs and unpacked weights.

A linear layer `k` of a packed file has 4-bit weights. If the file has `k.xs` for it, its products are made of integers:

    x_codes = clip(round(x / k.xs) + k.xz, 0, 255)
    w_codes[i, j] = round(w[i, j] * k.m[j] / w_scale[i])
    y[i] = sum_j (x_codes[j] - k.xz) * w_codes[i, j] * (k.xs * w_scale[i]) + k.b[i]

where `k.m` is a factor for each input, by which the inputs have been divided: in the file, in the layer before, or for
the second layer of an MLP by the tower itself, where the factors are powers of two and most of them 1.

CPUs without instructions for 8-bit products add the products of inputs 2j and 2j + 1 in 16 bits. The scale of a row is
the least for which that cannot overflow, whatever the inputs are: w_codes of the same sign add up to at most 128.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

HEADS = 12
PATCH = 16
EPSILON = 1e-5
# largest code of an input and of a weight
LEVELS = 255
CODES = 127
Arrays = Mapping[str, np.ndarray]


class Tower:
    """The tower of a packed file; the README of that file describes the layout, and the text above its 8-bit layers.

    Args:
        arrays: arrays of the packed file.
        device: device to compute on.
    """

    def __init__(self, arrays: Arrays, device: str | torch.device = "cpu") -> None:
        self.size, self.layers, _, _ = map(int, arrays["meta"])
        self.weights = {name: floats(values).to(device) for name, values in arrays.items()}
        for key in linears(arrays):
            weight = unpack_weight(arrays, key).to(device)
            if f"{key}.xs" in arrays:
                weight, scale = round_rows(weight * self.weights[f"{key}.m"])
                self.weights[f"{key}.ys"] = self.weights[f"{key}.xs"] * scale[:, 0]
            self.weights[f"{key}.w"] = weight
        for key in ("patch", "proj"):
            self.weights[f"{key}.w"] = self.weights[f"{key}.q"] * self.weights[f"{key}.s"]

    def __call__(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Map pixels (n, 3, size, size) to unit features (n, 512) and the summary (n, 1536) that keys come from.

        The summary is the class token after the last block, concatenated with the mean of the patches before it.
        """
        side = self.size // PATCH
        patches = pixels.unflatten(2, (side, PATCH)).unflatten(4, (side, PATCH)).permute(0, 2, 4, 1, 3, 5)
        x = patches.flatten(3).flatten(1, 2) @ self.weights["patch.w"].T
        x = self._norm(torch.cat([self.weights["cls"].expand(len(x), -1, -1), x], 1) + self.weights["pos"], "pre")
        for i in range(self.layers):
            heads = self._linear(self._norm(x, f"blocks.{i}.n1"), f"blocks.{i}.qkv").unflatten(-1, (3, HEADS, -1))
            query, key, value = heads.permute(2, 0, 3, 1, 4)
            if i == self.layers - 1:  # the other tokens are not used after this
                patch_mean = x[:, 1:].mean(1)
                x = x[:, :1]
                query = query[:, :, :1]
            mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
            x = x + self._linear(mixed, f"blocks.{i}.o")
            hidden = F.silu(self._linear(self._norm(x, f"blocks.{i}.n2"), f"blocks.{i}.f1"))
            x = x + self._linear(hidden, f"blocks.{i}.f2")
        token = self._norm(x[:, 0], "post")
        features = F.normalize(F.normalize(token @ self.weights["proj.w"].T, dim=-1) - self.weights["mu"], dim=-1)
        return features, torch.cat([token, patch_mean], 1)

    def _linear(self, x: Tensor, key: str) -> Tensor:
        weight = self.weights[f"{key}.w"]
        bias = self.weights[f"{key}.b"]
        if f"{key}.xs" not in self.weights:
            return F.linear(x, weight, bias)
        scale = self.weights[f"{key}.xs"]
        zero = self.weights[f"{key}.xz"]
        x = x / self.weights[f"{key}.m"] if key.endswith(".f2") else x
        codes = ((x / scale).round() + zero).clamp(0, LEVELS) - zero
        return F.linear(codes, weight) * self.weights[f"{key}.ys"] + bias  # sums below 2**24 are exact

    def _norm(self, x: Tensor, key: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.weights[f"{key}.w"], self.weights[f"{key}.b"], EPSILON)


def with_keys(features: Tensor, summary: Tensor, keys: Arrays) -> Tensor:
    """Return the features (n, 768) of the bundled model: for texts, and image keys, weighted by the share in `keys`."""
    weight, bias = (floats(keys[name]).to(summary.device) for name in ("w", "b"))
    share = float(keys["share"])
    return torch.cat(
        [(1 - share) ** 0.5 * features, share**0.5 * F.normalize(F.linear(summary, weight, bias), dim=-1)], 1
    )


def linears(arrays: Arrays) -> list[str]:
    """Return the names of the layers with 4-bit weights."""
    return [name.removesuffix(".z") for name in arrays if name.endswith(".z")]


def unpack_weight(arrays: Arrays, key: str) -> Tensor:
    """Return the weight (outputs, inputs) of a 4-bit layer."""
    rows, inputs = map(int, arrays[f"{key}.shape"])
    codes, zeros = (floats(unpack(arrays[f"{key}.{name}"])).view(rows, -1) for name in "qz")
    scales = floats(arrays[f"{key}.s"]).view(rows, -1, 1)
    return ((codes.view(*scales.shape[:2], -1) - zeros[:, :, None]) * scales).view(rows, inputs)


def round_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round a weight (outputs, inputs) to 8 bits: whole numbers, and the scale (outputs, 1) of each row."""
    pairs = weight.unflatten(1, (-1, 2))
    largest = torch.maximum(pairs.clamp(min=0).sum(2), -pairs.clamp(max=0).sum(2)).amax(1, keepdim=True)
    scale = largest / CODES
    return (weight / scale).round(), scale


def floats(values: np.ndarray) -> Tensor:
    """Return an array as a float32 tensor."""
    return torch.from_numpy(np.asarray(values, np.float32))


def unpack(packed: np.ndarray) -> np.ndarray:
    """Unpack two 4-bit values per byte, low half first."""
    return np.stack([packed & 15, packed >> 4], -1)


def pack(codes: np.ndarray) -> np.ndarray:
    """Pack 4-bit values (an even number of them) into bytes, low half first."""
    low, high = codes.astype(np.uint8).reshape(-1, 2).T
    return low | high << 4
