"""Fit image keys: the part of a feature that is used only to compare images with each other.

    python training/fit_keys.py ../shared/model/tower-int4.npz --pack ../shared/train --text STUDENT/ --to keys.npz

Zero-shot predictions compare an image with texts; the cache of an adapter compares it with other images of the stream.
One space serves the second purpose poorly: a tower trained on texts puts all satellite images, for example, close
together whatever they show, and two images are similar only if their texts are. So half of the squared length of a
feature belongs to a second space in which text vectors are zero, which leaves zero-shot predictions unchanged: the
class token and the mean of the patches, whitened, so that what all images of a kind have in common carries little
weight. No labels are used.

The logit scale is then chosen to maximise the likelihood of the images' classes. Both use random crops, because the
tower was trained on the whole images. Takes minutes on two cores.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch.nn import functional as F

from images import normalise, read_pack
from text_model import read_text_encoder
from tower_graph import ROUNDED, write_graph

SHARE = 0.5  # share of a feature's squared length that belongs to the key
FLOOR = 0.1  # this fraction of the largest spread is added to every spread: directions with little variation are noise
SCALES = range(40, 101, 5)


def crop(pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Crop each image (n, 3, s, s) randomly to at least half of its area, resize it back, and flip it randomly."""
    n = len(pixels)
    side = np.sqrt(rng.uniform(0.5, 1.0, n)).astype(np.float32)
    theta = np.zeros((n, 2, 3), np.float32)
    theta[:, 0, 0] = side * rng.choice([-1, 1], n)
    theta[:, 1, 1] = side
    theta[:, :, 2] = rng.uniform(-1, 1, (n, 2)) * (1 - side)[:, None]
    grid = F.affine_grid(torch.from_numpy(theta), list(pixels.shape), align_corners=False)
    resized = F.grid_sample(torch.from_numpy(pixels).float(), grid, mode="bicubic", align_corners=False)
    return resized.clamp(0, 255).numpy()


def encode_crops(tower: dict[str, np.ndarray], pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return text-like features (n, 512) and summaries (n, 1536) of random crops."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tower.onnx"
        write_graph(path, tower, None, ROUNDED)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    outputs = []
    for start in range(0, len(pixels), 64):
        cropped = crop(pixels[start : start + 64], rng)
        outputs.append(session.run(["features", "summary"], {"pixels": normalise(cropped)}))
    features, summaries = zip(*outputs, strict=True)
    return np.concatenate(features), np.concatenate(summaries)


def whiten(summaries: np.ndarray, dim: int) -> dict[str, np.ndarray]:
    """Return weight (dim, 1536) and bias (dim,) that whiten the `dim` strongest directions."""
    mean = summaries.mean(axis=0, dtype=np.float64)
    spread = summaries.std(axis=0, dtype=np.float64)
    centred = (summaries - mean) / spread
    variances, directions = np.linalg.eigh(centred.T @ centred / len(centred))
    lengths = np.sqrt(variances[::-1][:dim])
    weight = (directions[:, ::-1][:, :dim] / (lengths + FLOOR * lengths[0]) / spread[:, None]).T
    return {"w": weight.astype(np.float16), "b": -weight @ mean}


def negative_log_likelihood(
    features: np.ndarray, sources: np.ndarray, names: np.ndarray, text: Path
) -> dict[int, float]:
    """Return the mean negative log-likelihood by logit scale: each source with its own classes and equal weight."""
    encode = read_text_encoder(text)
    total = dict.fromkeys(SCALES, 0.0)
    chosen = [source for source in np.unique(sources) if len(set(names[sources == source])) > 2]
    for source in chosen:
        classes = sorted(set(names[sources == source]))
        labels = torch.from_numpy(np.searchsorted(classes, names[sources == source]))
        cosines = (
            torch.from_numpy(features[sources == source]) @ encode([f"a photo of a {name}." for name in classes]).T
        )
        for scale in SCALES:
            total[scale] += float(F.cross_entropy(scale * cosines, labels)) / len(chosen)
    return total


def main() -> None:
    """Fit the whitening and the scale, and write both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tower", type=Path, help="a packed tower, .npz")
    parser.add_argument("--pack", type=Path, required=True, help="folder of labelled images")
    parser.add_argument("--text", type=Path, required=True, help="folder written by distil_text.py")
    parser.add_argument("--to", type=Path, required=True, help=".npz file to write the weights of the keys to")
    parser.add_argument("--dim", type=int, default=256, help="length of a key")
    parser.add_argument("--every", type=int, default=8, help="use every n-th image")
    options = parser.parse_args()
    tower = dict(np.load(options.tower))
    pixels, index = read_pack(options.pack, int(tower["meta"][0]), options.every)
    features, summaries = encode_crops(tower, pixels)
    sources, names = (np.array([row[column] for row in index]) for column in ("source", "class_name"))
    by_scale = negative_log_likelihood(features, sources, names, options.text)
    listed = ", ".join(f"{scale}: {value:.4f}" for scale, value in by_scale.items())
    print(f"{len(pixels)} images; negative log-likelihood by logit scale: {listed}")
    scale = min(by_scale, key=by_scale.__getitem__) / (1 - SHARE) ** 0.5
    np.savez(options.to, **whiten(summaries, options.dim), share=SHARE, scale=scale)
    print(f"keys of {options.dim} numbers, logit scale {scale:.1f} over the whole feature -> {options.to}")


if __name__ == "__main__":
    main()
