"""A GPU through Ray: `cluster classify` against `classify` in one process, adapting on the host and on the GPU.

    python benchmarks/cluster_gpu.py --to docs/results/cluster_gpu.md      # about four minutes on an H200
    python benchmarks/cluster_gpu.py --device cpu --tiny                   # whether the script works

The photos are drawn and the weights random, as for `gpu.py`. Each job is run with few and with many images, and the
rate is that of the images it has more: starting processes and loading models is left out, and what is encoded ahead
does not count twice. The rows of both sides are compared.
"""

import argparse
import csv
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter

os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # set before Ray is imported, like `connect`
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from acclimate import Classifier
from acclimate.bench.results import hardware, markdown_table, write_page
from acclimate.classify.outputs import ResultFile
from acclimate.classify.run import Classification
from acclimate.cluster.cluster_options import ClusterOptions
from acclimate.cluster.cluster_run import ClusterRun
from acclimate.cluster.connection import connect
from acclimate.encoders.loading import torch_device
from acclimate.predict import Prediction
from acclimate.sources.source import Sample, file_sample
from gpu_parts.models import save_vit
from gpu_parts.photos import draw_photos, label_names

METHODS = ("tda", "accord")
WAYS = ("one process", "Ray, adapting on the host", "Ray, adapting on the GPU")
Run = tuple[float, list[Prediction]]  # seconds, rows


def in_one_process(make: Callable[[], Classifier], samples: list[Sample], folder: Path) -> Run:
    """Run `classify`, one pass."""
    output = ResultFile(folder / "rows.jsonl", 3)
    run = Classification(classifier=make(), samples=samples, output=output, passes=1)
    began = perf_counter()
    run.run()
    seconds = perf_counter() - began
    return seconds, [row for block in output.read() for row in block]


def on_ray(
    make: Callable[[], Classifier], samples: list[Sample], folder: Path, every: int, gpus: float, adapter_gpus: float
) -> Run:
    """Run `cluster classify`, ordered, one pass, one encoder."""
    cpus = max(1, len(os.sched_getaffinity(0)) - 1)
    options = ClusterOptions(
        source=[], out=folder / "results", every=every, passes=1, cpus=cpus, gpus=gpus, adapter_gpus=adapter_gpus
    )
    run = ClusterRun(options, make(), samples)
    began = perf_counter()
    run.run()
    seconds = perf_counter() - began
    return seconds, [row for block in range(run.blocks) for row in run.out.read_rows(block)]


def main() -> None:
    """Print the table, and write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tiny", action="store_true", help="a tiny model and few images")
    parser.add_argument("--to", type=Path, help="write a page, and a csv file with its name")
    options = parser.parse_args()
    count, few, images, classes, every = (64, 64, 256, 10, 64) if options.tiny else (4096, 16_384, 81_920, 1000, 4096)
    device = torch_device(options.device)
    cores = len(os.sched_getaffinity(0))
    rows = []
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        labels = label_names(classes)
        photos = draw_photos(work / "photos", count, cores)
        model = f"local:{save_vit(work / 'vit', photos[:256], labels, device, options.tiny)}"
        samples = [file_sample(path) for path in islice(cycle(photos), images)]
        with connect(num_cpus=cores):
            for method in METHODS:

                def make(method: str = method) -> Classifier:
                    return Classifier(labels, model, method=method, device=device, cache=False)

                for way in WAYS[: 2 if device == "cpu" else 3]:
                    share = 0.0 if device == "cpu" else 0.5
                    given = {"every": every, "gpus": share, "adapter_gpus": share if way.endswith("GPU") else 0.0}
                    run = in_one_process if way == WAYS[0] else partial(on_ray, **given)
                    seconds = []
                    for part in (samples[:few], samples):
                        folder = work / f"{method}-{way}-{len(part)}"
                        folder.mkdir()
                        took, found = run(make, part, folder)
                        seconds.append(took)
                    rate = (images - few) / (seconds[1] - seconds[0])
                    if way == WAYS[0]:
                        alone = rate
                        expected = found
                    same = sum(one.label == other.label for one, other in zip(found, expected, strict=True))
                    figures = f"{rate:,.0f}", f"{rate / alone:.2f}", f"{seconds[0]:.1f}", f"{same / len(found):.2%}"
                    rows.append((f"{method}, {way}", *figures))
                    print(*rows[-1], sep="  ", flush=True)
    about = (
        f"{images:,} JPEG files ({count:,} different ones), {classes:,} labels, a random ViT-B/16, blocks of "
        f"{every:,} images, one encoder; on {hardware(device)}. One process adapts on the device of its model."
    )
    table = markdown_table(("", "images/s", "of one process", f"seconds for {few:,}", "labels equal"), rows)
    print(f"{about}\n\n{table}")
    if options.to:
        command = f"python benchmarks/cluster_gpu.py{' --tiny' if options.tiny else ''} --to {options.to}"
        write_page(["# A GPU through Ray", f"`{command}`", about, table], options.to)
        with options.to.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
            lines = [(name, rate.replace(",", "")) for name, rate, *_ in rows]
            csv.writer(file).writerows([("what", "images/s"), *lines])


if __name__ == "__main__":
    main()
