"""Memory while a million images are answered from their run, in both passes: what the process holds for itself.

    python benchmarks/classify_memory.py [--images 1000000]

The features, of 768 dimensions, are drawn around the class vectors of ten labels and written as a run of the bundled
model; `acclimate classify` answers it into a csv file. What counts is RssAnon: pages of files that are mapped belong to
the system, which takes them back when it needs them. It is compared with `LIMIT_GIB`.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from acclimate.classifier import Classifier
from acclimate.run import Batch, Run, RunWriter

LIMIT_GIB = 1.5
BATCH = 256
LABELS = ("cat", "dog", "horse", "bird", "car", "ship", "tree", "house", "flower", "chair")


def anonymous_gib(process: int) -> float:
    """Return the memory that a process holds for itself now; 0.0 when it has ended."""
    try:
        found = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    except OSError:
        return 0.0
    return int(found[1]) / 2**20 if found else 0.0


def write_drawn_run(path: Path, images: int) -> None:
    """Write a run of features that are drawn around class vectors."""
    classifier = Classifier(LABELS)
    vectors = classifier.head.class_vectors
    rng = np.random.default_rng(0)
    run = Run.create(path, classifier.about_features)
    run.save()
    writer = RunWriter(run)
    for start in range(0, images, BATCH):
        rows = min(BATCH, images - start)
        features = vectors[rng.integers(0, len(LABELS), rows)] + 0.1 * rng.standard_normal((rows, vectors.shape[1]))
        features = (features / np.linalg.norm(features, axis=1, keepdims=True)).astype(np.float32)
        names = [f"photos/{start + row:07}.jpg" for row in range(rows)]
        writer.append(Batch(start, names, [None] * rows, features, [None] * rows))
    writer.close(complete=True)


def main() -> None:
    """Print the peak."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=1_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        write_drawn_run(work / "drawn.run", options.images)
        command = [sys.executable, "-m", "acclimate", "classify", "drawn.run", "--labels", ",".join(LABELS)]
        began = time.perf_counter()
        child = subprocess.Popen([*command, "--out", "answers.csv"], cwd=work, env=os.environ)
        peak = 0.0
        while child.poll() is None:
            peak = max(peak, anonymous_gib(child.pid))
            time.sleep(0.05)
        seconds = time.perf_counter() - began
        assert child.returncode == 0
        size = (work / "answers.csv").stat().st_size / 1e6
        print(f"{options.images:,} images of {len(LABELS)} labels in two passes: {seconds:.0f} s, {size:.0f} MB of csv")
        print(f"peak of the anonymous memory: {peak:.2f} GiB, of at most {LIMIT_GIB} GiB")
        assert peak <= LIMIT_GIB, "it takes too much memory"


if __name__ == "__main__":
    main()
