"""Compare packed towers on a pack of labelled test images: cosines to the first tower's features, and accuracies.

python training/compare_towers.py ../shared/eval ../shared/model/tower-int4.npz tower-int8.npz --keys keys.npz
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from acclimate import FeatureStream, build_head, create, load_encoder
from calibrate import normalise
from images import read_pack
from tower_model import Arrays, Tower, with_keys

METHODS, ORDERS, BATCH = ("zero-shot", "tda", "halves"), 5, 128


def encode(arrays: Arrays, keys: Arrays, pixels: np.ndarray, device: str) -> np.ndarray:
    """Features (n, 768) of images (n, 3, s, s) as bytes."""
    tower, batches = Tower(arrays, device), torch.from_numpy(pixels).split(BATCH)
    with torch.inference_mode():
        return torch.cat([with_keys(*tower(normalise(batch.to(device))), keys).cpu() for batch in batches]).numpy()


def accuracy(method: str, stream: FeatureStream) -> float:
    """Accuracy of a method in percent, averaged over some orders."""
    shares = []
    for seed in range(1 if method == "zero-shot" else ORDERS):
        order = np.random.default_rng(seed).permutation(len(stream))
        logits = create(method, stream.head).step(stream.features[order])
        shares.append(np.mean(logits.argmax(axis=1) == stream.labels[order]))
    return 100 * float(np.mean(shares))


def main() -> None:
    """Print a table for each tower."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pack", type=Path, help="folder of labelled test images")
    parser.add_argument("towers", type=Path, nargs="+", help="packed towers, .npz")
    parser.add_argument("--keys", type=Path, required=True, help="file written by fit_keys.py")
    parser.add_argument("--every", type=int, default=1, help="use every n-th image")
    parser.add_argument("--device", default="cpu", help="device to compute on")
    options = parser.parse_args()
    keys = dict(np.load(options.keys))
    pixels, rows = read_pack(options.pack, 128, options.every)
    datasets, names = (np.array([row[column] for row in rows]) for column in ("dataset", "class_name"))
    encoder = load_encoder()
    parts = {}
    for dataset in np.unique(datasets):
        classes = sorted(set(names[datasets == dataset].tolist()))
        labels = np.searchsorted(classes, names[datasets == dataset])
        parts[dataset] = datasets == dataset, build_head(encoder, classes), labels
    expected = None
    for path in options.towers:
        features = encode(dict(np.load(path)), keys, pixels, options.device)
        expected = features if expected is None else expected
        halves = [2 * (features[:, part] * expected[:, part]).sum(1) for part in (slice(512), slice(512, None))]
        print(f"{path}: cosine for texts, for images: mean", *(f"{cosines.mean():.4f}" for cosines in halves), end="")
        print("; least", *(f"{cosines.min():.4f}" for cosines in halves))
        figures = []
        for dataset, (mask, head, labels) in parts.items():
            best, before = ((each[mask] @ head.class_vectors.T).argmax(1) for each in (features, expected))
            stream = FeatureStream(features[mask], head, labels=labels)
            cosine = halves[0][mask]
            figures.append([100 * np.mean(best == before), *(accuracy(method, stream) for method in METHODS)])
            values = " ".join(f"{value:6.2f}" for value in figures[-1])
            print(f"  {dataset:12} cosine {cosine.mean():.4f} {cosine.min():.4f}  same, {', '.join(METHODS)}: {values}")
        print(f"  {'mean':39} same, {', '.join(METHODS)}:", *(f"{value:6.2f}" for value in np.mean(figures, axis=0)))


if __name__ == "__main__":
    main()
