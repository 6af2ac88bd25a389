"""Write the image tower as `image.onnx`, `image.safetensors` and its configuration, compared with it in PyTorch.

    python training/export_tower.py tower-tuned.npz --keys keys.npz --images ../shared/eval --to MODEL/

The folder has the text tower already. A rounding error that changes a few 8-bit codes is amplified by the layers after
it, so that the graph and PyTorch agree up to the noise that rounding to 8 bits makes, and not to the last bits.
"""

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from acclimate.encoders.onnx import CONFIG, FILES, FORMAT, PACKED, VERSION, OnnxEncoder
from acclimate.encoders.preprocess import Preprocess
from images import MEAN, STD, normalise, read_pack
from text_model import TextSize
from tower_graph import write_graph
from tower_model import Tower, with_keys


def run(encoder: OnnxEncoder, pixels: np.ndarray, batch: int = 32, rounds: int = 3) -> tuple[np.ndarray, float]:
    """Return the features of images (n, 3, size, size), and images per second (the best of some rounds)."""
    features = []
    fastest = float("inf")
    for start in [*range(0, len(pixels), batch)] * rounds:
        began = time.perf_counter()
        features.append(encoder.encode_images(list(pixels[start : start + batch])))
        fastest = min(fastest, (time.perf_counter() - began) / len(features[-1]))
    return np.concatenate(features)[: len(pixels)], 1 / fastest


def main() -> None:
    """Write the graph and the configuration, and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tower", type=Path, help="a packed tower, .npz")
    parser.add_argument("--keys", type=Path, required=True, help="file written by fit_keys.py")
    parser.add_argument("--images", type=Path, required=True, help="a pack of images to compare on")
    parser.add_argument("--to", type=Path, required=True, help="the model's folder")
    options = parser.parse_args()
    arrays = dict(np.load(options.tower))
    keys = dict(np.load(options.keys))
    tower = Tower(arrays)
    text = TextSize()
    write_graph(options.to / "image.onnx", arrays, keys)
    config = {
        "format": FORMAT,
        "version": VERSION,
        "source": "OpenAI CLIP ViT-B/16, compressed",
        "dim": len(arrays["mu"]) + len(keys["b"]),
        "context": text.context,
        "pad_id": text.pad,
        "logit_scale": round(float(keys["scale"]), 4),
        "logit_bias": 0.0,
        "preprocess": asdict(Preprocess(tower.size, tower.size, tower.size, "bicubic", MEAN, STD)),
    }
    (options.to / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")

    images = normalise(read_pack(options.images, tower.size, every=60)[0])
    with torch.inference_mode():
        expected = with_keys(*tower(torch.from_numpy(images)), keys).numpy()
    features, speed = run(OnnxEncoder(options.to, "cpu"), images)
    cosines = (features * expected).sum(-1)
    size = sum((options.to / name).stat().st_size for name in (*FILES, PACKED) if (options.to / name).is_file())
    print(f"{options.to}: {size / 1e6:.1f} MB, {speed:.1f} images/s")
    print(f"cosine to PyTorch's features: mean {cosines.mean():.5f}, least {cosines.min():.5f}")
    assert cosines.mean() > 0.99, "the graph differs from the PyTorch model"
    assert cosines.min() > 0.97, "the graph differs from the PyTorch model"


if __name__ == "__main__":
    main()
