"""Memory while 100,000 small images are classified: it must not grow, in the first pass or in the second.

python benchmarks/classify_memory.py
"""

import argparse
import io
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from acclimate.classifier import Classifier
from acclimate.classify.outputs import ResultFile
from acclimate.classify.run import Classification
from acclimate.encoders import load_encoder
from acclimate.encoders.convert import convert
from acclimate.sources.source import open_source
from tiny_models import save_tiny_model


def resident_mb() -> float:
    """Return the memory of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def main() -> None:
    """Print the peaks of both halves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=100_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        save_tiny_model("clip", work / "torch")
        convert(load_encoder(f"local:{work / 'torch'}", "cpu"), work / "onnx")
        rng = np.random.default_rng(0)
        for folder in range(100):
            (work / "photos" / f"{folder:02}").mkdir(parents=True)
        for i in range(options.images):
            buffer = io.BytesIO()
            Image.fromarray(rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(buffer, "PNG", compress_level=1)
            (work / "photos" / f"{i % 100:02}" / f"{i}.png").write_bytes(buffer.getvalue())
        samples = open_source(str(work / "photos"))
        labels = [f"thing {i}" for i in range(20)]
        classifier = Classifier(labels, f"onnx:{work / 'onnx'}", device="cpu", cache=work / "cache")
        peaks = dict.fromkeys(("first half", "second half", "second pass"), 0.0)
        ends = {}

        def watch(rows, final) -> None:
            part = "second pass" if final else "second half" if rows[-1].index >= len(samples) // 2 else "first half"
            peaks[part] = max(peaks[part], resident_mb())
            ends[part] = perf_counter()

        output = ResultFile(work / "out.csv", top_k=3)
        run = Classification(classifier=classifier, samples=samples, output=output, emit=watch, checkpoint_every=5.0)
        began = perf_counter()
        assert run.run()
        finished = perf_counter()
        print(f"{run.summary.images} images, {(work / 'out.csv').stat().st_size / 1e6:.1f} MB of csv")
        print(f"first pass {ends['second half'] - began:.1f} s, second pass {finished - ends['second half']:.1f} s")
        for part, peak in peaks.items():
            print(f"peak of the {part}: {peak:.1f} MB, {peak / peaks['first half']:.3f} of the first half's")
        assert max(peaks.values()) <= 1.05 * peaks["first half"], "memory grew"


if __name__ == "__main__":
    main()
