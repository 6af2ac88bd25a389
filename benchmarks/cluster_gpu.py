"""A GPU through Ray: `acclimate cluster classify` against `acclimate classify`.

    python benchmarks/cluster_gpu.py --to docs/results/cluster_gpu.md      # a few minutes on an H200
    python benchmarks/cluster_gpu.py --tiny                                # whether the script works, without a GPU

The photos are drawn and the weights random, as for `gpu.py`. Each command is run with few and with many images, and the
rate is that of the images it has more: starting processes and loading models is left out. The rows are compared.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import pyarrow.dataset

from acclimate.bench.results import hardware, markdown_table, write_page
from acclimate.encoders.loading import torch_device
from gpu_parts.models import save_vit
from gpu_parts.photos import draw_photos, label_names

METHODS = ("tda", "accord")
WAYS = {"one process": [], "Ray, answered on the host": ["cluster"]}


def main() -> None:
    """Print the table, and write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="a tiny model and few images, on the CPU")
    parser.add_argument("--to", type=Path, help="write a page")
    options = parser.parse_args()
    count, few, images, classes = (64, 64, 256, 10) if options.tiny else (4096, 16_384, 81_920, 1000)
    device = torch_device("cpu" if options.tiny else "auto")
    cores = len(os.sched_getaffinity(0))
    rows = []
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        labels = label_names(classes)
        (work / "labels.txt").write_text("\n".join(labels))
        photos = draw_photos(work / "photos", count, cores)
        model = f"local:{save_vit(work / 'vit', photos[:256], labels, device, options.tiny)}"
        for size in (few, images):
            lines = [str(photos[place % count]) for place in range(size)]
            (work / f"{size}.txt").write_text("\n".join(lines))
        for method in METHODS:
            for way, words in WAYS.items():
                seconds = []
                for size in (few, images):
                    out = work / f"{method}-{way.partition(',')[0]}-{size}{'' if words else '.parquet'}".replace(
                        " ", "-"
                    )
                    command = [*words, "classify", work / f"{size}.txt", "--labels", work / "labels.txt"]
                    command += ["--model", model, "--method", method, "--passes", "1", "--out", out]
                    if words:
                        command += ["--workers", "1", "--cpus", max(1, cores - 1)]
                    began = perf_counter()
                    subprocess.run([sys.executable, "-m", "acclimate", *map(str, command)], check=True)
                    seconds.append(perf_counter() - began)
                found = pyarrow.dataset.dataset(out).to_table()["label"].to_pylist()
                rate = (images - few) / (seconds[1] - seconds[0])
                if not words:
                    alone = rate
                    expected = found
                same = sum(one == other for one, other in zip(found, expected, strict=True))
                figures = f"{rate:,.0f}", f"{rate / alone:.2f}", f"{seconds[0]:.1f}", f"{same / len(found):.2%}"
                rows.append((f"{method}, {way}", *figures))
                print(*rows[-1], sep="  ", flush=True)
    about = (
        f"{images:,} JPEG files ({count:,} different ones), {classes:,} labels, a random ViT-B/16, blocks of "
        f"4,096 images, one encoder; on {hardware(device)}. One process adapts on the device of its model."
    )
    table = markdown_table(("", "images/s", "of one process", f"seconds for {few:,}", "labels equal"), rows)
    print(f"{about}\n\n{table}")
    if options.to:
        write_page(
            ["# A GPU through Ray", f"`python benchmarks/cluster_gpu.py --to {options.to}`", about, table], options.to
        )


if __name__ == "__main__":
    main()
