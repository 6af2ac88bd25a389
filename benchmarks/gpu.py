"""Speed of classifying images on a GPU: each stage, the whole, adaptation, views, memory, and the published way.

    python benchmarks/gpu.py --to docs/results/gpu.md      # about five minutes on an H200
    python benchmarks/gpu.py --quick                       # the same measurements, shorter
    python benchmarks/gpu.py --quick --only versions pixels stages --before OLD/src    # beside an older version
    python benchmarks/gpu.py --device cpu --tiny           # whether the script works

The photos are drawn and the weights random (see `gpu_parts/models.py`), so nothing is downloaded.
"""

import argparse
import os
import sys
import tempfile
import traceback
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

ABOUT = """
ViT-B/16 with random weights, {images:,} drawn JPEG files of 500 x 375 pixels ({kilobytes:.0f} kB each), and {mixed:,}
of mixed sizes, {classes:,} labels. The last layer of the random tower is set so that the features of photos differ from
each other and caches fill; the tables say how many samples enter. The files are shown several times, so after the first
time nothing new enters, as late in a long stream.
"""


def main() -> None:
    """Print the tables, and write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--quick", action="store_true", help="shorter runs")
    parser.add_argument("--tiny", action="store_true", help="a tiny model and few images")
    parser.add_argument("--only", nargs="+", help="names of the parts to run")
    parser.add_argument("--before", type=Path, metavar="SRC", help="source folder of an older version to compare with")
    parser.add_argument("--streams", type=Path, nargs="*", default=[], help="feature files to compare answers on, too")
    parser.add_argument(
        "--evaluation",
        type=Path,
        nargs=2,
        default=[],
        metavar=("PACK", "TOWER"),
        help="labelled images and a packed tower, to compare half precision with float32 on; see training/README.md",
    )
    parser.add_argument("--to", type=Path, help="write a page, and a csv file and a picture with its name")
    parser.add_argument("--draw", type=Path, metavar="CSV", help="measure nothing, draw the picture of this file")
    options = parser.parse_args()

    from gpu_parts.report import Report

    if options.draw:
        Report.read(options.draw).draw(options.draw.with_suffix(".png"))
        return
    from acclimate.encoders.loading import torch_device
    from gpu_parts.adapter import agreement, steps
    from gpu_parts.bench import QUICK, TINY, Bench, Sizes
    from gpu_parts.models import save_vit
    from gpu_parts.photos import draw_photos, label_names
    from gpu_parts.stages import resnets, stages
    from gpu_parts.versions import pixels, versions
    from gpu_parts.whole import adapting, by_batch, out_of_memory, views, whole

    sizes = TINY if options.tiny else QUICK if options.quick else Sizes()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parts = (versions, pixels, stages, whole, adapting, steps, views, agreement, by_batch, out_of_memory, resnets)
    chosen = [part for part in parts if options.only is None or part.__name__ in options.only]
    report = Report()
    began = perf_counter()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        device = torch_device(options.device)
        labels = label_names(sizes.classes)
        photos = draw_photos(work / "photos", sizes.images, cores)
        mixed = draw_photos(work / "mixed", sizes.mixed, cores, mixed=True)
        model = save_vit(work / "vit", photos[:256], labels, device, sizes.tiny)
        given = {"streams": options.streams, "evaluation": options.evaluation, "before": options.before}
        bench = Bench(sizes, report, device, cores, labels, photos, mixed, f"local:{model}", **given)
        print(f"made photos and model in {perf_counter() - began:.0f} s\n", flush=True)
        for part in chosen:
            began_part = perf_counter()
            try:
                part(bench)
            except Exception:  # the other parts are worth having
                print(f"{part.__name__} failed:\n{traceback.format_exc()}", flush=True)
            print(f"({part.__name__}: {perf_counter() - began_part:.0f} s)\n", flush=True)
        kilobytes = sum(path.stat().st_size for path in photos) / len(photos) / 1000
    report.summary()
    if options.to:
        about = ABOUT.strip().format(images=len(photos), kilobytes=kilobytes, mixed=sizes.mixed, classes=sizes.classes)
        command = f"python benchmarks/gpu.py{' --quick' * options.quick} --to {options.to.name}"
        report.write(options.to, command, device, about)
    print(f"all in {perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
