"""The cost of the methods of the paper: seconds per 1,000 images, and the ratio to zero-shot and to TDA.

    python benchmarks/paper_speed.py [--device cuda] [--images 256] [--classes 1000] [--out docs/results/paper_speed.md]

One encoder of the size of CLIP ViT-B/16 with random weights, which has true times and no accuracy, classifies drawn
photos into ImageNet's classes, end to end: reading, preparing, views, encoding, adapting. Each method is timed one
image at a time, as in the paper, and in batches.
"""

import argparse
import platform
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from acclimate import Classifier, create
from acclimate.bench.results import hardware, write_page
from acclimate.encoders import load_encoder
from acclimate.sources.datasets import DATASETS
from classify_overhead import draw_photos
from peak_memory import peak_memory_mb
from tiny_models import save_random_clip

VIEWS = 64
NOTES = """
- Times are end to end: reading a JPEG file of 500 x 375 pixels, preparing it, making views, encoding, adapting.
  *Adapting* is the method's own part: zero-shot logits, caches, and for TPT, DiffTPT and CoCoOp all passes through the
  text tower.
- *One image at a time* is the paper's protocol, *batched* ours: 64 images are encoded at once (TPT: 8 with 64 views).
- *TPT as published* pads every prompt to 77 tokens, as the authors' code does. *TPT* leaves the padding out; batched,
  it also shares the first pass through the text tower among the images of a batch. The answers are the same.
- *DiffTPT* has crops in place of generated images here. Making images with a diffusion model, most of the paper's
  time, is not timed.
- The paper's ratios are for ImageNet with a ResNet-50 on one RTX 6000: 12, 16, 770 and 2,085 minutes for 50,000 images.
  There the passes through the text tower dominate. A GPU that is many times faster waits for the processor in between,
  one image at a time most of all, so the ratios of the methods that compute most are smaller.
"""


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    name: str
    method: str
    views: int = 1
    batch: int = 1  # images encoded at once
    padded: bool = False  # prompts of full length
    share: int = 1  # one image in so many is timed
    paper: int = 0  # minutes for the 50,000 images of ImageNet


ROWS = (
    Row("zero-shot", "zero-shot", paper=12),
    Row("TDA", "tda", paper=16),
    Row("TDA, 64 views", "tda", VIEWS, share=4),
    Row("CoCoOp", "cocoop"),
    Row("TPT", "tpt", VIEWS, share=4, paper=770),
    Row("TPT as published", "tpt", VIEWS, padded=True, share=4, paper=770),
    Row("DiffTPT, 128 views", "difftpt", 2 * VIEWS, share=4, paper=2085),
    Row("zero-shot", "zero-shot", batch=64),
    Row("TDA", "tda", batch=64),
    Row("CoCoOp", "cocoop", batch=64),
    Row("TPT", "tpt", VIEWS, batch=8, share=4),
)


class Cost(NamedTuple):
    """The cost of a row: seconds per 1,000 images, seconds of that in the method, and peak memory in MB."""

    seconds: float
    adapting: float
    memory: float


def main() -> None:
    """Print the table, and write it as a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--out", type=Path, help="write a page with the table here")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        draw_photos(Path(folder), given.images)
        photos = sorted(Path(folder).glob("*.jpg"))
        known = DATASETS["imagenet"].class_names[: given.classes]
        names = [name if name not in known[:index] else f"{name} (2)" for index, name in enumerate(known)]
        encoder = load_encoder(f"local:{save_random_clip(Path(folder) / 'clip', known)}", given.device)
        device = str(encoder.device)
        columns = (
            "s per 1,000 images",
            "of it adapting",
            "peak memory, MB",
            "x zero-shot",
            "x TDA",
            "in the paper, x TDA",
        )
        heading = f"| images at a time | method | {' | '.join(columns)} |"
        lines = [heading, "| --- | --- |" + " ---: |" * len(columns)]
        print("\n".join(lines), flush=True)
        base: dict[tuple[str, bool], float] = {}
        for row in ROWS:
            cost = measure(row, encoder, names, photos[: max(8, given.images // row.share)], device)
            base[row.name, row.batch > 1] = cost.seconds
            ratios = [cost.seconds / base.get((name, row.batch > 1), cost.seconds) for name in ("zero-shot", "TDA")]
            figures = (
                f"{cost.seconds:.2f} | {cost.adapting:.2f} | {cost.memory:,.0f} | {ratios[0]:.2f} | {ratios[1]:.2f}"
            )
            paper = f"{row.paper / 16:.1f}" if row.paper else ""
            lines.append(f"| {'one' if row.batch == 1 else 'batched'} | {row.name} | {figures} | {paper} |")
            print(lines[-1], flush=True)
    if given.out:
        about = f"{given.classes} classes, {VIEWS} views, {given.images} photos (a quarter of them with views)."
        command = (
            f"python benchmarks/paper_speed.py --device {given.device} --images {given.images} --out {given.out.name}"
        )
        where = f"{hardware(device)}; Python {platform.python_version()}"
        parts = [
            "# What the methods of the paper cost",
            f"`{command}`: {about} {where}.",
            "\n".join(lines),
            NOTES.strip(),
        ]
        write_page(parts, given.out)


def measure(row: Row, encoder: Any, names: Sequence[str], photos: Sequence[Path], device: str) -> Cost:
    """Return the cost of a row, after a first batch that is not counted."""
    size = row.batch * row.views
    views = {"views": row.views, "views_kind": "augmix" if row.method == "tda" else "crop"}
    classifier = Classifier(names, encoder, method="zero-shot", **views, batch_size=size, cache=False)
    encoder.text_tower().shortens = not row.padded
    adapter = classifier.adapter = create(row.method, classifier.head, encoder=encoder)
    if adapter.kind == "few-shot":
        adapter.seen = {"": len(names)}  # what it has learnt does not change its cost
    spent = [0.0]
    adapt = adapter.adapt

    def watched(*arguments: Any) -> Any:
        began = perf_counter()
        step = adapt(*arguments)
        spent[0] += perf_counter() - began
        return step

    adapter.adapt = watched
    _reset_peak(device)
    for part in (photos[: row.batch], photos):
        began = perf_counter()
        spent[0] = 0.0
        count = sum(1 for _ in classifier.stream(part))
    per_thousand = 1000 / count
    return Cost(per_thousand * (perf_counter() - began), per_thousand * spent[0], peak_memory_mb(device) or 0.0)


def _reset_peak(device: str) -> None:
    if device.startswith("cuda"):
        import torch

        torch.cuda.reset_peak_memory_stats(device)


if __name__ == "__main__":
    main()
