"""What the methods of the paper cost: seconds per 1,000 images, and the ratio to TDA and to zero-shot.

    python benchmarks/paper_speed.py [--device cuda] [--images 256] [--classes 1000]

One encoder of the size of CLIP ViT-B/16 with random weights, which has true times and no accuracy, classifies drawn
photos into ImageNet's classes, end to end: reading, preparing, views, encoding, adapting. Each method is timed one
image at a time, as in the paper, and in batches. TPT is also timed as it was published: prompts padded to 77 tokens and
nothing shared between images. DiffTPT has AugMix views here: to make images with a diffusion model, which the paper's
time includes, is not timed. The paper's times are for ImageNet with a ResNet-50 on one RTX 6000.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from acclimate import Classifier, create
from acclimate.bench.datasets import DATASETS
from acclimate.encoders import load_encoder
from classify_overhead import draw_photos
from tiny_models import save_random_clip

VIEWS = 64


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    name: str
    method: str
    views: int = 1
    batch: int = 1  # images encoded at once
    padded: bool = False  # prompts of full length
    share: int = 1  # of the images, one in so many is timed
    paper: int = 0  # minutes for the 50,000 images of ImageNet


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="auto")
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--classes", type=int, default=1000)
    given = parser.parse_args()
    rows = [
        Row("zero-shot", "zero-shot", paper=12),
        Row("TDA", "tda", paper=16),
        Row("TDA, 64 views", "tda", VIEWS, share=4),
        Row("CoCoOp", "cocoop"),
        Row("TPT", "tpt", VIEWS, share=4, paper=770),
        Row("TPT as published", "tpt", VIEWS, padded=True, share=4, paper=770),
        Row("DiffTPT", "difftpt", VIEWS, share=4, paper=2085),
        Row("zero-shot, batched", "zero-shot", batch=64),
        Row("TDA, batched", "tda", batch=64),
        Row("CoCoOp, batched", "cocoop", batch=64),
        Row("TPT, batched", "tpt", VIEWS, batch=8, share=4),
    ]
    with tempfile.TemporaryDirectory() as folder:
        draw_photos(Path(folder), given.images)
        photos = sorted(Path(folder).glob("*.jpg"))
        names = tuple(dict.fromkeys(DATASETS["imagenet"].class_names))[: given.classes]
        encoder = load_encoder(f"local:{save_random_clip(Path(folder) / 'clip', names)}", given.device)
        print(f"{len(names)} classes, {given.images} photos, {getattr(encoder, 'device', 'cpu')}, {VIEWS} views")
        print(f"{'':20} {'s per 1,000':>12} {'x zero-shot':>12} {'x TDA':>8} {'paper, x TDA':>13}", flush=True)
        seconds: dict[str, float] = {}
        for row in rows:
            seconds[row.name] = timed(row, encoder, names, photos[: max(8, given.images // row.share)])
            kind = ", batched" if row.batch > 1 else ""
            ratios = [seconds[row.name] / seconds.get(base + kind, seconds[row.name]) for base in ("zero-shot", "TDA")]
            paper = f"{row.paper / 16:13.1f}" if row.paper else ""
            print(f"{row.name:20} {seconds[row.name]:12.2f} {ratios[0]:12.2f} {ratios[1]:8.2f} {paper}", flush=True)


def timed(row: Row, encoder: Any, names: Sequence[str], photos: Sequence[Path]) -> float:
    """Seconds per 1,000 photos, after a first batch that is not counted."""
    size = row.batch * row.views
    classifier = Classifier(names, encoder, method="zero-shot", views=row.views, batch_size=size, cache=False)
    encoder.text_tower().shortens = not row.padded
    classifier.adapter = create(row.method, classifier.head, text=encoder)
    if classifier.adapter.kind == "few-shot":
        classifier.adapter.seen = {"": len(names)}  # what it has learnt does not change its cost
    for part in (photos[: row.batch], photos):
        began = perf_counter()
        count = sum(1 for _ in classifier.stream(part))
    return 1000 * (perf_counter() - began) / count


if __name__ == "__main__":
    main()
