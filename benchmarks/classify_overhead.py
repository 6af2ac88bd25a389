"""The cost of classifying beyond the encoder, and of adapting beyond zero-shot.

One encoder (a random ViT in ONNX, about the cost of a small CLIP), the same JPEG files, three sides that take turns:

- encoder only: prepared pixels, in memory, through the image tower and nothing else (the floor);
- zero-shot: the whole run: reading, preparing, encoding, scoring and writing csv;
- TDA: the same with adapting, in two passes.

    python benchmarks/classify_overhead.py
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from acclimate.classifier import Classifier
from acclimate.classify.classification import Classification
from acclimate.classify.table import Table
from acclimate.encoders import load_encoder
from acclimate.encoders.convert import convert
from acclimate.images.opening import open_image
from acclimate.run import Run
from acclimate.sources.source import Sample, open_source
from tiny_models import save_tiny_model


def draw_photos(folder: Path, count: int) -> None:
    """Write JPEG files of 500 x 375 pixels with photo-like detail."""
    rng = np.random.default_rng(0)
    for i in range(count):
        coarse = Image.fromarray(rng.integers(0, 255, (24, 32, 3), dtype=np.uint8)).resize((500, 375))
        fine = rng.integers(-12, 12, (375, 500, 3))
        pixels = np.clip(np.asarray(coarse, int) + fine, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{i:04}.jpg", quality=90)


def classify_into(work: Path, classifier: Classifier, samples: Sequence[Sample]) -> None:
    """Classify images as the command does, into a new table beside a run."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    Classification(
        classifier=classifier,
        run=Run.create(work / "answers.run", classifier.about_features),
        encode=partial(classifier.encoded, samples, "skip"),
        expected=len(samples),
        table=Table(work / "answers.csv", top_k=3),
    ).answer()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=96)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--labels", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        save_tiny_model("clip", work / "torch", size=128, width=768, layers=12, patch=16)
        convert(load_encoder(f"local:{work / 'torch'}", "cpu"), work / "onnx")
        (work / "photos").mkdir()
        draw_photos(work / "photos", options.images)
        encoder = load_encoder(f"onnx:{work / 'onnx'}", "cpu")
        samples = open_source(str(work / "photos"))
        pixels = [encoder.prepare(open_image(sample.read())) for sample in samples]
        labels = [f"thing {i}" for i in range(options.labels)]

        def encode_only() -> None:
            for start in range(0, len(pixels), 32):
                encoder.encode_images(pixels[start : start + 32])

        def classify(method: str):
            def run() -> None:
                classifier = Classifier(labels, encoder, method=method, cache=work / "cache")
                classify_into(work / method, classifier, samples)

            return run

        sides = {"encoder only": encode_only, "zero-shot": classify("zero-shot"), "TDA": classify("tda")}
        times: dict[str, list[float]] = {side: [] for side in sides}
        for turn in range(options.turns + 1):
            for side, run in sides.items():
                began = perf_counter()
                run()
                if turn:
                    times[side].append(perf_counter() - began)
    seconds = {side: float(np.median(values)) for side, values in times.items()}
    print(f"{options.images} images, {options.labels} labels, batches of 32, medians of {options.turns} turns")
    print(f"{'':14}{'images/s':>10}{'x encoder only':>16}{'x zero-shot':>13}")
    for side, value in seconds.items():
        share = seconds["encoder only"] / value
        against = value / seconds["zero-shot"]
        print(f"{side:14}{options.images / value:10.1f}{share:16.3f}{against:13.3f}")


if __name__ == "__main__":
    main()
