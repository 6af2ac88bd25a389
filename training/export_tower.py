"""Write the image tower as `image.onnx` and its configuration, compared with the same weights in float32 PyTorch.

python training/export_tower.py ../shared/model/tower-int4.npz --keys keys.npz --images ../shared/eval --to MODEL/
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from acclimate.encoders.onnx import CONFIG, FORMAT, VERSION
from acclimate.encoders.preprocess import Preprocess
from images import MEAN, STD, normalise, read_pack
from text_model import TextSize
from tower_graph import FLOAT32, write_graph
from tower_model import Tower, with_keys


def run(path: Path, pixels: np.ndarray, batch: int = 32, rounds: int = 3) -> tuple[np.ndarray, float]:
    """The features that the graph computes, and images per second (the best of some rounds)."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    features, fastest = [], float("inf")
    for start in [*range(0, len(pixels), batch)] * rounds:
        began = time.perf_counter()
        features.append(session.run(["features"], {"pixels": pixels[start : start + batch]})[0])
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
    arrays, keys = dict(np.load(options.tower)), dict(np.load(options.keys))
    tower = Tower(arrays)
    images = normalise(read_pack(options.images, tower.size, every=60)[0])
    noise = np.random.default_rng(0).standard_normal((16, 3, tower.size, tower.size), np.float32)
    with torch.inference_mode():
        expected, expected_noise = (with_keys(*tower(torch.from_numpy(x)), keys).numpy() for x in (images, noise))
    options.to.mkdir(parents=True, exist_ok=True)
    path = options.to / "image.onnx"
    write_graph(path, arrays, keys, FLOAT32)
    features, speed = run(path, images)
    cosine, off = (features * expected).sum(-1).min(), np.abs(run(path, noise, rounds=1)[0] - expected_noise).max()
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, {speed:.1f} images/s, least cosine {cosine:.5f} on images")
    assert cosine > 0.9999, "the graph differs from the PyTorch model"
    assert off < 2e-3, "the graph differs from the PyTorch model"
    size = TextSize()
    config = {
        "format": FORMAT,
        "version": VERSION,
        "source": "OpenAI CLIP ViT-B/16, compressed",
        "dim": expected.shape[1],
        "context": size.context,
        "pad_id": size.pad,
        "logit_scale": round(float(keys["scale"]), 4),
        "logit_bias": 0.0,
        "preprocess": Preprocess(tower.size, tower.size, tower.size, "bicubic", MEAN, STD).as_json(),
    }
    (options.to / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
