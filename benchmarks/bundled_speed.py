"""The speed of the bundled model on a CPU, now and before, and the cost of the whole job beyond it.

    python benchmarks/bundled_speed.py [--old FOLDER] [--new FOLDER]

New: the bundled model, whose layers multiply 8-bit integers. Old: the same 4-bit weights, unpacked as they are used,
and float32 products. Either can be another model's folder. They take turns, and the fastest turn counts.

The whole job is `acclimate classify`: it reads JPEG files of 500 x 375, prepares, encodes and adapts, in two passes,
and writes csv. Encoder only: the same images, prepared, in memory, through the image tower and nothing else.

The old graph is built with onnx; without that package, and without --old, only the whole job is measured.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter

os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")  # set before NumPy is imported, like the command line

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

import acclimate
from acclimate.classifier import Classifier
from acclimate.encoders.onnx import OnnxEncoder
from acclimate.images.opening import open_image
from acclimate.sources.source import open_source
from classify_overhead import classify_into, draw_photos

BUNDLED = Path(acclimate.__file__).parent / "encoders" / "bundled"
BATCHES = (1, 8, 32)
THREADS = (1, 2)
METHODS = ("zero-shot", "tda", "accord")
# Loads a model, encodes a batch of 32, and prints by how many MB the peak of the process's memory has risen.
MEMORY = """
import re, sys, numpy, onnxruntime
from pathlib import Path
from acclimate.encoders.onnx import OnnxEncoder
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
before = peak()
encoder = OnnxEncoder(sys.argv[1], "cpu")
encoder.encode_images([numpy.zeros((3, 128, 128), numpy.float32)] * 32)
print(peak() - before)
"""


def write_old_model(folder: Path, new: Path) -> None:
    """Return an ONNX folder with a tower as it was: the same 4-bit weights, and float32 products."""
    from tower_graph import float_tower, read_graph, write_graph

    tower, keys = read_graph(new / "image.onnx")
    write_graph(folder / "image.onnx", float_tower(tower), keys)
    for name in ("text.onnx", "tokenizer.json", "acclimate.json"):
        shutil.copy(new / name, folder / name)


def fastest(sides: dict[str, Callable[[], object]], turns: int) -> dict[str, float]:
    """Return the seconds of the fastest turn of each side; one more turn comes first, which does not count."""
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(turns + 1):
        for side, run in sides.items():
            began = perf_counter()
            run()
            seconds[side].append(perf_counter() - began)
    return {side: min(values[1:]) for side, values in seconds.items()}


def compare(models: dict[str, Path], pixels: list[np.ndarray], turns: int) -> None:
    """Print the speed, the time to load and the memory of both models."""
    print(f"images/s, fastest of {turns} turns")
    print(f"{'':24}{'old':>9}{'new':>9}{'ratio':>9}")
    for threads in THREADS:
        encoders = {side: OnnxEncoder(folder, "cpu", threads=threads) for side, folder in models.items()}
        for batch in BATCHES:
            repeats = max(1, 8 // batch)  # single images are fast: a turn has eight

            def encode(encoder: OnnxEncoder, batch: int = batch, repeats: int = repeats) -> None:
                for _ in range(repeats):
                    encoder.encode_images(pixels[:batch])

            sides = {side: (lambda encoder=each: encode(encoder)) for side, each in encoders.items()}
            rates = {side: batch * repeats / value for side, value in fastest(sides, turns).items()}
            row(f"batch {batch}, {threads} thread{'s' * (threads > 1)}", rates["old"], rates["new"])
    loads = {side: (lambda folder=folder: OnnxEncoder(folder, "cpu")) for side, folder in models.items()}
    seconds = fastest(loads, turns)
    row("load, seconds", seconds["old"], seconds["new"], digits=2)
    memory = {}
    for side, folder in models.items():
        ended = subprocess.run([sys.executable, "-c", MEMORY, str(folder)], check=True, capture_output=True, text=True)
        memory[side] = float(ended.stdout)
    row("memory, MB", memory["old"], memory["new"], digits=0)
    print()


def row(name: str, old: float, new: float, digits: int = 1) -> None:
    """Print a row."""
    print(f"{name:24}{old:9.{digits}f}{new:9.{digits}f}{new / old:9.2f}")


def whole_job(work: Path, encoder: OnnxEncoder, labels: int, turns: int) -> None:
    """Print what the whole job costs beyond the encoder."""
    samples = open_source(str(work / "photos"))
    pixels = [encoder.prepare(open_image(sample.read())) for sample in samples]
    names = [f"thing {i}" for i in range(labels)]

    def encode_only() -> None:
        for start in range(0, len(pixels), 32):
            encoder.encode_images(pixels[start : start + 32])

    def classify(method: str) -> Callable[[], object]:
        def run() -> None:
            classifier = Classifier(names, encoder, method=method, cache=work / "cache")
            classify_into(work / method, classifier, samples)

        return run

    sides: dict[str, Callable[[], object]] = {
        "preparing, one thread": lambda: [encoder.prepare(open_image(sample.read())) for sample in samples],
        "encoder only": encode_only,
        **{method: classify(method) for method in METHODS},
    }
    seconds = fastest(sides, turns)
    print(f"the whole job: {len(samples)} images, {labels} labels, fastest of {turns} turns")
    print(f"{'':24}{'images/s':>9}{'x encoder only':>16}")
    for side, value in seconds.items():
        share = "" if side.startswith("preparing") else f"{seconds['encoder only'] / value:16.3f}"
        print(f"{side:24}{len(samples) / value:9.1f}{share}")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--old", type=Path, help="a folder with the model to compare with")
    parser.add_argument("--new", type=Path, default=BUNDLED, help="a folder with the model that is measured")
    parser.add_argument("--images", type=int, default=320, help="of the whole job")
    parser.add_argument("--labels", type=int, default=100)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        (work / "photos").mkdir()
        draw_photos(work / "photos", options.images)
        encoder = OnnxEncoder(options.new, "cpu")
        pixels = [encoder.prepare(open_image(path)) for path in sorted((work / "photos").iterdir())[: max(BATCHES)]]
        if options.old is None and find_spec("onnx") is None:
            print("Without the old graph, which is built with onnx: pip install onnx, or pass --old.", end="\n\n")
        else:
            if options.old is None:
                write_old_model(work / "old", options.new)
            compare({"old": options.old or work / "old", "new": options.new}, pixels, options.turns)
        whole_job(work, encoder, options.labels, options.turns)


if __name__ == "__main__":
    main()
