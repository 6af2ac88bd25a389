"""What the cluster costs: whole jobs beside `classify`, Ray per block, and how many images the one place answers.

    python benchmarks/cluster.py --to docs/results/cluster.md
    python benchmarks/cluster.py --quick --only place

A local Ray on this machine, started and stopped here. Whatever is timed needs a machine that does nothing else.
"""

import argparse
import csv
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # set before NumPy is imported; Ray does the same for its workers
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # loopback only; set before Ray is imported
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import numpy as np

from acclimate import Classifier
from acclimate.bench.results import hardware, markdown_table, write_page
from acclimate.run import Batch, Run, RunWriter
from acclimate.sources.source import Sample
from adapter_speed import make_features, unit_class_vectors
from gpu_parts.photos import draw_photos

METHODS = ("tda", "accord", "dota")
CLASSES = (10, 100, 1000)
DIM = 512
PART_IMAGES = 1024
# Images/s of an encoder: a core with the bundled model, and one H200 with ViT-B/16 through Ray (cluster_gpu.md)
ENCODERS = {"cores of 42/s": 42, "H200 of 7,791/s": 7791}
JOBS = {
    "classify": ["classify"],
    "1 encoder with 2 cores": ["cluster", "classify", "--workers", "1", "--cpus", "2"],
    "2 encoders with 1 core each": ["cluster", "classify", "--workers", "2", "--cpus", "1"],
}
Section = tuple[str, str, Sequence[str], list[tuple[str, ...]]]  # title, about, columns, rows


class Drawn:
    """An encoder of drawn class vectors, which does nothing with images."""

    fingerprint = "drawn"
    dim = DIM
    logit_scale = 100.0
    logit_bias = 0.0

    def __init__(self, vectors: np.ndarray) -> None:
        self.vectors = vectors

    @staticmethod
    def prepare(image: Any) -> np.ndarray:
        """Nothing."""
        return np.zeros(1, np.float32)

    def encode_images(self, images: list[np.ndarray]) -> np.ndarray:
        """The same feature for every image."""
        return np.ones((len(images), DIM), np.float32)

    def encode_text(self, texts: list[str]) -> np.ndarray:
        """The vectors of labels that are numbers."""
        return self.vectors[[int(text) for text in texts]]


def whole(quick: bool) -> Section:
    """Time commands for few and for many images: the difference is the rate, what is left is the start."""
    few, many, turns = (32, 96, 1) if quick else (128, 1152, 2)
    seconds: dict[tuple[str, int], float] = {}
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        for count in (few, many):
            draw_photos(work / str(count), count, 2)
        (work / "labels.txt").write_text("\n".join(f"thing {number}" for number in range(100)))
        for turn in range(turns):
            for way, command in JOBS.items():
                for count in (few, many):
                    out = work / f"{way} {count} {turn}{'.csv' if way == 'classify' else ''}".replace(" ", "-")
                    words = [*command, str(work / str(count)), "--labels", str(work / "labels.txt"), "--out", str(out)]
                    words += ["--method", "tda", "--passes", "1"]
                    began = perf_counter()
                    subprocess.run([sys.executable, "-m", "acclimate", *words], check=True, capture_output=True)
                    took = perf_counter() - began
                    seconds[way, count] = min(took, seconds.get((way, count), took))
    rates = {way: (many - few) / (seconds[way, many] - seconds[way, few]) for way in JOBS}
    rows = [
        (way, f"{rate:.1f}", f"{rate / rates['classify']:.2f}", f"{seconds[way, few] - few / rate:.1f}")
        for way, rate in rates.items()
    ]
    about = (
        "The bundled model, 100 labels, tda, one pass, JPEG files of 500 x 375, as commands. The encoders share the "
        "cores with the process that answers, and with Ray itself. The rate is that of the images after the first "
        "ones; what starting and ending take has a column of its own."
    )
    return "A whole job", about, ("", "images/s", "x classify", "s to start and end"), rows


def overhead(quick: bool) -> Section:
    """Time blocks of a few images of one pixel, with an encoder that does nothing."""
    import io
    from functools import partial

    from PIL import Image

    from acclimate.classify.task import Encoding
    from acclimate.cluster.connection import connect
    from acclimate.cluster.encoding import Encoder, Encoders
    from acclimate.cluster.machines import Pool
    from acclimate.cluster.run_folder import Block, RunFolder

    images, blocks = 4, 24 if quick else 300
    content = io.BytesIO()
    Image.new("RGB", (1, 1)).save(content, "PNG")
    samples = [Sample(f"{place:09}.png", partial(bytes, content.getvalue())) for place in range(images)]
    todo = [Block(number, number * images, samples) for number in range(blocks)]
    encoder = Drawn(unit_class_vectors(np.random.default_rng(0), 2, DIM))
    classifier = Classifier(["0", "1"], encoder, templates="{}", cache=False, batch_size=images)
    rows = []
    with tempfile.TemporaryDirectory() as name, connect(num_cpus=2, object_store_memory=2**29):
        folder = RunFolder(Path(name, "alone.run"))
        folder.claim()
        alone = Encoder(folder, "run", **Encoder.options(classifier, Encoding(model=encoder), Pool()))
        alone.make(todo[0])  # loads the model
        began = perf_counter()
        for block in todo[1:]:
            alone.make(block)
        in_process = 1e3 * (perf_counter() - began) / (blocks - 1)
        rows.append(("in one process", f"{in_process:.2f}", "", ""))
        for count in (1, 2):
            pool = Pool(encoders=count, gpus=0.0)
            folder = RunFolder(Path(name, f"{count}.run"))
            folder.claim()
            how = Encoder.options(classifier, Encoding(model=encoder), pool)
            began = perf_counter()
            encoders = Encoders(todo, pool, lambda: False, folder=folder, run_id="run", **how)
            encoders.wait_for(0)
            first = perf_counter()
            for block in todo:
                encoders.wait_for(block.number)
            each = 1e3 * (perf_counter() - first) / (blocks - 1)
            encoders.close()
            cells = f"{each:.2f}", f"{1e3 * (each - in_process) / PART_IMAGES:.1f}", f"{first - began:.1f}"
            rows.append((f"{count} encoder{'s' * (count > 1)}", *cells))
    about = (
        f"An encoder that does nothing, and blocks of {images} images of one pixel: what a block costs whatever is in "
        f"it, the file of its part included. A real block has {PART_IMAGES:,} images, over which this is spread."
    )
    return "What Ray costs per block", about, ("", "ms per block", "us of Ray per image", "s to the first block"), rows


def place(quick: bool) -> Section:
    """Time the one place that answers, when the parts are there: read, adapt, second pass, parquet files."""
    from acclimate.classify.classification import Classification
    from acclimate.cluster.cluster_run import ParquetFolder
    from acclimate.cluster.storage import Storage

    rows = []
    for classes in CLASSES[: 1 if quick else None]:
        rng = np.random.default_rng(classes)
        vectors = unit_class_vectors(rng, classes, DIM)
        encoder = Drawn(vectors)
        images = PART_IMAGES * (2 if quick or classes == 1000 else 4)
        repeat = -(-images // (2 * classes))
        features = np.concatenate([make_features(rng, vectors, repeat, sharp) for sharp in (True, False)])
        features = features[rng.permutation(len(features))][:images]
        for batch in (32, 256):
            with tempfile.TemporaryDirectory() as name:
                run = drawn_run(Path(name, "drawn.run"), features, batch)
                for method in METHODS:
                    rates: dict[int, float] = {}
                    for turn, passes in enumerate((1, 2, 1, 2)):
                        labels = [str(number) for number in range(classes)]
                        given = {"templates": "{}", "cache": False, "expand": False, "batch_size": batch}
                        answers = Classification(
                            classifier=Classifier(labels, encoder, method=method, **given),
                            run=run,
                            expected=images,
                            table=ParquetFolder(Storage(Path(name, f"{method}-{turn}"))),
                            passes=passes,
                        )
                        began = process_time()
                        answers.answer()
                        rates[passes] = max(rates.get(passes, 0.0), images / (process_time() - began))
                    what = f"{method}, {classes:,} labels, batches of {batch}"
                    busy = [f"{rates[2] / rate:,.1f}" for rate in ENCODERS.values()]
                    rows.append((what, f"{rates[1]:,.0f}", f"{rates[2]:,.0f}", *busy))
                    print(*rows[-1], sep="  ", flush=True)
    about = (
        "Images per second of CPU time of the process that answers, when the parts are there: reading them, adapting, "
        "the second pass and the parquet files, with all the work of the host around it. The last columns say how many "
        "encoders that keeps busy, with both passes. Encoders on a CPU have batches of 32, on a GPU of 256."
    )
    columns = ("", "images/s, one pass", "images/s, both passes", *ENCODERS)
    return "The one place that answers", about, columns, rows


def drawn_run(path: Path, features: np.ndarray, batch: int) -> Run:
    """Return a run of drawn features."""
    run = Run.create(path, {"model": "drawn", "fingerprint": "drawn", "dim": DIM, "views": 1, "views_kind": ""})
    writer = RunWriter(run, PART_IMAGES)
    for start in range(0, len(features), batch):
        rows = features[start : start + batch]
        names = [f"photos/{start + row:09}.jpg" for row in range(len(rows))]
        writer.append(Batch(start, names, [None] * len(rows), rows, [None] * len(rows)))
    writer.close(complete=True)
    return run


def main() -> None:
    """Print the tables, and write them."""
    parts: dict[str, Callable[[bool], Section]] = {"whole": whole, "overhead": overhead, "place": place}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="shorter runs")
    parser.add_argument("--only", nargs="+", choices=parts, help="names of the parts to run")
    parser.add_argument("--to", type=Path, help="write a page, and a csv file with its name")
    options = parser.parse_args()
    page = []
    cells = []
    for part in options.only or parts:
        title, about, columns, rows = parts[part](options.quick)
        page.append(f"## {title}\n\n{about}\n\n{markdown_table(columns, rows)}")
        cells += [(part, row[0], *cell) for row in rows for cell in zip(columns[1:], row[1:], strict=True)]
        print(f"{page[-1]}\n", flush=True)
    if options.to:
        command = f"`python benchmarks/cluster.py --to {options.to.name}`, on {hardware('numpy')}."
        write_page(["# What the cluster costs", command, *page], options.to)
        with options.to.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("part", "what", "column", "value"), *cells])


if __name__ == "__main__":
    main()
