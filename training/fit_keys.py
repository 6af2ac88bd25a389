"""Make image keys: numbers beside the text-like features by which images are compared with each other alone.

    python training/fit_keys.py ../shared/model/tower-int4.npz --pack ../shared/train --text STUDENT/ --to keys.npz

Zero-shot answers compare an image with texts; an adapter's cache compares it with other images of the stream. One space
for both serves the second poorly: a tower taught by texts puts all satellite tiles, say, close together whatever they
show, and says of two images only what the texts have said already. So half of a feature's length is a second space, to
which texts have no access (their vectors are zero there, and zero-shot answers stay what they were): the class token
and the mean of the patches, whitened, so that what all images of a kind have in common counts for little. Nothing is
fitted to labels.

The logit scale is then set where the images' classes are likeliest. Both are done on random crops, because the tower
was trained on the whole images. Minutes on two cores.
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

SHARE = 0.5  # of a feature's squared length that belongs to the key
FLOOR = 0.1  # of the largest spread, added to every spread: directions that hardly vary are mostly noise
SCALES = range(40, 101, 5)


def crop(pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A random part of each image (n, 3, s, s), at least half of it, resized back and flipped at random."""
    n = len(pixels)
    side = np.sqrt(rng.uniform(0.5, 1.0, n)).astype(np.float32)
    theta = np.zeros((n, 2, 3), np.float32)
    theta[:, 0, 0], theta[:, 1, 1] = side * rng.choice([-1, 1], n), side
    theta[:, :, 2] = rng.uniform(-1, 1, (n, 2)) * (1 - side)[:, None]
    grid = F.affine_grid(torch.from_numpy(theta), list(pixels.shape), align_corners=False)
    resized = F.grid_sample(torch.from_numpy(pixels).float(), grid, mode="bicubic", align_corners=False)
    return resized.clamp(0, 255).numpy()


def look(tower: dict[str, np.ndarray], pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Text-like features (n, 512) and summaries (n, 1536) of random crops."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tower.onnx"
        write_graph(path, tower, None, ROUNDED)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    said = []
    for start in range(0, len(pixels), 64):
        cropped = crop(pixels[start : start + 64], rng)
        said.append(session.run(["features", "summary"], {"pixels": normalise(cropped)}))
    features, summaries = zip(*said, strict=True)
    return np.concatenate(features), np.concatenate(summaries)


def whiten(summaries: np.ndarray, dim: int) -> dict[str, np.ndarray]:
    """Weight (dim, 1536) and bias (dim,) of the whitening of the `dim` strongest directions."""
    mean, spread = summaries.mean(axis=0, dtype=np.float64), summaries.std(axis=0, dtype=np.float64)
    centred = (summaries - mean) / spread
    variances, directions = np.linalg.eigh(centred.T @ centred / len(centred))
    lengths = np.sqrt(variances[::-1][:dim])
    weight = (directions[:, ::-1][:, :dim] / (lengths + FLOOR * lengths[0]) / spread[:, None]).T
    return {"w": weight.astype(np.float16), "b": -weight @ mean}


def surprise(features: np.ndarray, sources: np.ndarray, names: np.ndarray, text: Path) -> dict[int, float]:
    """Mean negative log-likelihood by logit scale; each source among its own classes, and all sources alike."""
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
    """Whiten, set the scale, write both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tower", type=Path, help="a packed tower, .npz")
    parser.add_argument("--pack", type=Path, required=True, help="folder of labelled images")
    parser.add_argument("--text", type=Path, required=True, help="folder written by distil_text.py")
    parser.add_argument("--to", type=Path, required=True, help="where to write the keys' read-out, .npz")
    parser.add_argument("--dim", type=int, default=256, help="length of a key")
    parser.add_argument("--every", type=int, default=8, help="look at one image in so many")
    options = parser.parse_args()
    tower = dict(np.load(options.tower))
    pixels, index = read_pack(options.pack, int(tower["meta"][0]), options.every)
    features, summaries = look(tower, pixels)
    sources, names = (np.array([row[column] for row in index]) for column in ("source", "class_name"))
    by_scale = surprise(features, sources, names, options.text)
    print(f"{len(pixels)} images; surprise by logit scale: {', '.join(f'{s}: {v:.4f}' for s, v in by_scale.items())}")
    scale = min(by_scale, key=by_scale.__getitem__) / (1 - SHARE) ** 0.5
    np.savez(options.to, **whiten(summaries, options.dim), share=SHARE, scale=scale)
    print(f"keys of {options.dim} numbers, logit scale {scale:.1f} over the whole feature -> {options.to}")


if __name__ == "__main__":
    main()
