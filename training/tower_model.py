"""The image tower of the bundled model in PyTorch: CLIP's ViT-B/16 with narrow MLPs and unpacked weights."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

HEADS, PATCH, EPSILON = 12, 16, 1e-5
Arrays = Mapping[str, np.ndarray]


class Tower:
    """The tower of a packed file; the README of that file describes the layout.

    Args:
        arrays: arrays of the packed file.
        device: device to compute on.
    """

    def __init__(self, arrays: Arrays, device: str = "cpu") -> None:
        self.size, self.layers, _, group = map(int, arrays["meta"])
        self.weights = {name: _floats(values).to(device) for name, values in arrays.items()}
        for key in [name.removesuffix(".z") for name in arrays if name.endswith(".z")]:
            rows, inputs = map(int, arrays[f"{key}.shape"])
            codes, zeros = (_unpack(arrays[f"{key}.{name}"]).reshape(rows, -1) for name in "qz")
            codes = _floats(codes).view(rows, -1, group) - _floats(zeros)[:, :, None]
            weight = codes * _floats(arrays[f"{key}.s"]).view(rows, -1, 1)
            self.weights[f"{key}.w"] = weight.view(rows, inputs).to(device)
        for key in ("patch", "proj"):
            self.weights[f"{key}.w"] = self.weights[f"{key}.q"] * self.weights[f"{key}.s"]

    def __call__(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Pixels (n, 3, size, size) -> unit features (n, 512), and the summary (n, 1536) that keys are computed from.

        The summary is the class token after the last block, concatenated with the mean of the patches before it.
        """
        side = self.size // PATCH
        patches = pixels.unflatten(2, (side, PATCH)).unflatten(4, (side, PATCH)).permute(0, 2, 4, 1, 3, 5)
        x = patches.flatten(3).flatten(1, 2) @ self.weights["patch.w"].T
        x = self._norm(torch.cat([self.weights["cls"].expand(len(x), -1, -1), x], 1) + self.weights["pos"], "pre")
        for i in range(self.layers):
            patch_mean = x[:, 1:].mean(1)
            heads = self._linear(self._norm(x, f"blocks.{i}.n1"), f"blocks.{i}.qkv").unflatten(-1, (3, HEADS, -1))
            mixed = F.scaled_dot_product_attention(*heads.permute(2, 0, 3, 1, 4)).transpose(1, 2).flatten(2)
            x = x + self._linear(mixed, f"blocks.{i}.o")
            hidden = F.silu(self._linear(self._norm(x, f"blocks.{i}.n2"), f"blocks.{i}.f1"))
            x = x + self._linear(hidden, f"blocks.{i}.f2")
        token = self._norm(x[:, 0], "post")
        features = F.normalize(
            F.normalize((token @ self.weights["proj.w"].T).float(), dim=-1) - self.weights["mu"], dim=-1
        )
        return features, torch.cat([token, patch_mean], 1).float()

    def _linear(self, x: Tensor, key: str) -> Tensor:
        return F.linear(x, self.weights[f"{key}.w"], self.weights[f"{key}.b"])

    def _norm(self, x: Tensor, key: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.weights[f"{key}.w"], self.weights[f"{key}.b"], EPSILON)


def with_keys(features: Tensor, summary: Tensor, keys: Arrays) -> Tensor:
    """The features (n, 768) of the bundled model: for texts, and image keys, weighted by the share in `keys`."""
    weight, bias = (_floats(keys[name]).to(summary.device) for name in ("w", "b"))
    share = float(keys["share"])
    return torch.cat(
        [(1 - share) ** 0.5 * features, share**0.5 * F.normalize(F.linear(summary, weight, bias), dim=-1)], 1
    )


def _floats(values: np.ndarray) -> Tensor:
    return torch.from_numpy(np.asarray(values, np.float32))


def _unpack(packed: np.ndarray) -> np.ndarray:
    """Unpack two 4-bit values per byte, low half first."""
    return np.stack([packed & 15, packed >> 4], -1)
