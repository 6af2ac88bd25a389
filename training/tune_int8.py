"""Tune a calibrated tower, with all roundings in place, to give the features that the 4-bit tower gives in float32.

    python training/tune_int8.py tower-int8.npz --teacher ../shared/model/tower-int4.npz --keys keys.npz \
        --pack ../shared/train --to tower-tuned.npz

The weights stay 4-bit codes with a scale and a zero point for each group; gradients pass through the roundings as if
they were not there. Scales of groups and of inputs, biases and norms are learned too. The student should agree with
its teacher in the features, in the keys, in the probabilities of many class names, and in the tokens after each block,
for images that are cropped and changed randomly. No labels are used. Needs a GPU.
"""

import argparse
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from acclimate import load_encoder
from augment import augment
from calibrate import normalise
from images import read_pack
from tower_model import LEVELS, Arrays, Tower, linears, pack, round_rows, unpack, unpack_weight, with_keys

HELD_OUT, NAMES, SCALE = 512, 2048, 75.0  # images, class names, and the logit scale of the text half of a feature
RATES = {"w": 1.0, "s": 15.0, "xs": 15.0, "b": 2.0, "norm": 2.0}  # learning rates of parts, relative to the weights'


class Rounded(torch.autograd.Function):
    """Rounds inputs to codes from 0 to 255 and back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
        """Inputs, rounded."""
        ctx.save_for_backward(x, scale, zero)
        return (x / scale).round_().clamp_(-zero, LEVELS - zero).mul_(scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        """Gradients pass to the inputs that are not clipped; the scale's are those of "Learned Step Size"."""
        x, scale, zero = ctx.saved_tensors
        steps = x / scale
        codes = steps.round().clamp_(-zero, LEVELS - zero)
        inside = (codes - steps).abs() <= 0.5
        toward = torch.where(inside, codes - steps, codes)
        return gradient * inside, (gradient * toward).sum(), None


def through(exact: Tensor, rounded: Tensor) -> Tensor:
    """The rounded values, with the gradient of the exact ones."""
    return exact + (rounded - exact).detach()


class Student(Tower):
    """A tower with learned parameters: `learned` by name, scales as logarithms."""

    def __init__(self, arrays: Arrays, device: str) -> None:
        super().__init__(arrays, device)
        self.arrays, self.learned, self.fixed = arrays, {}, {}
        for key in linears(arrays):
            scales, rows = self.weights[f"{key}.s"], len(self.weights[f"{key}.s"])
            self.fixed[key] = torch.from_numpy(unpack(arrays[f"{key}.z"])).to(device).view(rows, -1, 1).float()
            self.learned[f"{key}.w"] = unpack_weight(arrays, key).to(device)
            self.learned[f"{key}.s"] = scales.log()[:, :, None]
            if f"{key}.xs" in arrays:
                self.learned[f"{key}.xs"] = self.weights[f"{key}.xs"].log()
        for name in arrays:
            if name.endswith(".b") or (name.endswith(".w") and f"{name[:-1]}b" in arrays):
                self.learned[name] = self.weights[name].clone()
        for value in self.learned.values():
            value.requires_grad_()

    def group(self, name: str) -> str:
        """The kind of a learned parameter: a key of `RATES`."""
        key, _, kind = name.rpartition(".")
        return kind if key in self.fixed else "norm"

    def codes(self, key: str) -> tuple[Tensor, Tensor]:
        """The 4-bit codes (outputs, groups, length) of a layer, with gradient, and its scales as stored."""
        scale = self.learned[f"{key}.s"].exp()
        scale = through(scale, scale.half().float())
        steps = self.learned[f"{key}.w"].view(*scale.shape[:2], -1) / scale + self.fixed[key]
        return through(steps, steps.round().clamp(0, 15)), scale

    def refresh(self) -> None:
        """Compute the weights from the learned parameters."""
        for name, value in self.learned.items():
            if self.group(name) in ("b", "norm"):
                self.weights[name] = through(value, value.half().float())
        for key, zero in self.fixed.items():
            codes, scale = self.codes(key)
            weight = ((codes - zero) * scale).flatten(1)
            if f"{key}.xs" in self.learned:
                factors = self.weights[f"{key}.m"]
                rounded, row = round_rows((weight * factors).detach())
                weight = through(weight * factors, rounded * row)
                self.weights[f"{key}.xs"] = self.learned[f"{key}.xs"].exp()
            self.weights[f"{key}.w"] = weight

    def packed(self) -> dict[str, np.ndarray]:
        """The packed file."""
        made = dict(self.arrays)
        with torch.no_grad():
            for name, value in self.learned.items():
                if self.group(name) in ("b", "norm"):
                    made[name] = value.half().cpu().numpy()
            for key in self.fixed:
                codes, scale = self.codes(key)
                made[f"{key}.q"] = pack(codes.round().cpu().numpy())
                made[f"{key}.s"] = scale.half().cpu().numpy().reshape(made[f"{key}.s"].shape)
                if f"{key}.xs" in self.learned:
                    made[f"{key}.xs"] = np.float32(float(self.learned[f"{key}.xs"].exp()))
        return made

    def _linear(self, x: Tensor, key: str) -> Tensor:
        if f"{key}.xs" in self.learned:
            x = Rounded.apply(self._divided(x, key), self.weights[f"{key}.xs"], self.weights[f"{key}.xz"])
        return F.linear(x, self.weights[f"{key}.w"], self.weights[f"{key}.b"])


def disagreement(teacher: Tower, student: Tower, pixels: Tensor, keys: Arrays, texts: Tensor) -> dict[str, Tensor]:
    """The parts of the loss for normalised pixels (n, 3, s, s)."""
    dim = texts.shape[1]
    with torch.no_grad():
        expected = teacher.states(pixels)
        spreads = [each.flatten(0, 1).std(0) + 1e-2 for each in expected]
        features = with_keys(*teacher.head(expected), keys)
        likely = (SCALE * 2**0.5 * features[:, :dim] @ texts.T).log_softmax(1)
    states = student.states(pixels)
    given = with_keys(*student.head(states), keys)
    errors = [((a - b) / s).square().mean() for a, b, s in zip(states, expected, spreads, strict=True)]
    guess = (SCALE * 2**0.5 * given[:, :dim] @ texts.T).log_softmax(1)
    cosines = 2 * given * features
    return {
        "texts": 4 * (1 - cosines[:, :dim].sum(1).mean()),
        "keys": 2 * (1 - cosines[:, dim:].sum(1).mean()),
        "names": 1.5 * F.kl_div(guess, likely, log_target=True, reduction="batchmean"),
        "tokens": 0.5 * torch.stack(errors).mean(),
    }


def tune(
    student: Student, teacher: Tower, pixels: Tensor, keys: Arrays, texts: Tensor, options: argparse.Namespace
) -> None:
    """Tune the student on images as bytes."""
    generator = torch.Generator(pixels.device).manual_seed(options.seed)
    by_group: dict[str, list[Tensor]] = {group: [] for group in RATES}
    for name, value in student.learned.items():
        by_group[student.group(name)].append(value)
    groups = [{"params": by_group[group], "rate": options.rate * rate} for group, rate in RATES.items()]
    optimiser = torch.optim.AdamW(groups, lr=options.rate, betas=(0.9, 0.99), weight_decay=0.0)
    began = time.monotonic()
    for step in range(options.steps):
        share = min(1.0, (step + 1) / 20) * 0.5 * (1 + math.cos(math.pi * step / options.steps))
        for each in optimiser.param_groups:
            each["lr"] = share * each["rate"]
        chosen = torch.randint(len(pixels), (options.batch,), generator=generator, device=pixels.device)
        student.refresh()
        parts = disagreement(teacher, student, normalise(augment(pixels[chosen], generator)), keys, texts)
        optimiser.zero_grad(set_to_none=True)
        sum(parts.values()).backward()
        optimiser.step()
        if step % 100 == 0:
            print(f"{step:5}", *(f"{name} {part.detach():.4f}" for name, part in parts.items()), flush=True)
    print(f"{options.steps} steps in {time.monotonic() - began:.0f} s")


@torch.no_grad()
def held_out(teacher: Tower, packed: Arrays, pixels: Tensor, keys: Arrays, texts: Tensor) -> str:
    """The disagreement of a packed tower on plain and on changed images, in words."""
    student, generator = Tower(packed, pixels.device), torch.Generator(pixels.device).manual_seed(1)
    described = []
    for name, images in (("plain", pixels), ("changed", augment(pixels, generator))):
        parts = disagreement(teacher, student, normalise(images), keys, texts)
        described.append(f"{name}: " + " ".join(f"{part} {float(value):.4f}" for part, value in parts.items()))
    return "; ".join(described)


def main() -> None:
    """Tune and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tower", type=Path, help="packed tower written by calibrate.py")
    parser.add_argument("--teacher", type=Path, required=True, help="the packed tower to agree with")
    parser.add_argument("--keys", type=Path, required=True, help="file written by fit_keys.py")
    parser.add_argument("--pack", type=Path, required=True, help="folder of training images")
    parser.add_argument("--to", type=Path, required=True, help="packed tower to write")
    parser.add_argument("--steps", type=int, default=1400, help="how long to tune")
    parser.add_argument("--rate", type=float, default=3e-5, help="learning rate of the weights")
    parser.add_argument("--batch", type=int, default=256, help="images per step")
    parser.add_argument("--seed", type=int, default=0, help="seed of the images and their changes")
    parser.add_argument("--device", default="cuda", help="device to compute on")
    options = parser.parse_args()
    arrays, keys = dict(np.load(options.tower)), dict(np.load(options.keys))
    teacher = Tower(dict(np.load(options.teacher)), options.device)
    pixels, rows = read_pack(options.pack, teacher.size)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(pixels))
    images = torch.from_numpy(pixels[order]).to(options.device)
    held = min(HELD_OUT, len(images) // 4)
    texts = class_texts(sorted({row["class_name"] for row in rows}), rng).to(options.device)
    print("calibrated,", held_out(teacher, arrays, images[:held], keys, texts))
    torch.set_float32_matmul_precision("high")
    student = Student(arrays, options.device)
    tune(student, teacher, images[held:], keys, texts, options)
    torch.set_float32_matmul_precision("highest")
    packed = student.packed()
    np.savez(options.to, **packed)
    print("tuned,", held_out(teacher, packed, images[:held], keys, texts))


def class_texts(names: list[str], rng: np.random.Generator) -> Tensor:
    """Unit vectors (n, 512) of class names of the pack, at most `NAMES` of them."""
    chosen = [names[i] for i in rng.permutation(len(names))[:NAMES]]
    vectors = load_encoder().encode_text([f"a photo of a {name}." for name in chosen])[:, :512]
    return F.normalize(torch.from_numpy(np.asarray(vectors, np.float32)), dim=-1)


if __name__ == "__main__":
    main()
