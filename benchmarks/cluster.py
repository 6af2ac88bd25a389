"""The costs and gains of the cluster: a whole job, Ray per block, exchanges of states, one ordered adapter, agreement.

    python benchmarks/cluster.py --streams ../shared/streams --to docs/results/cluster.md      # about half an hour
    python benchmarks/cluster.py --quick                           # the same measurements, shorter
    python benchmarks/cluster.py --paper docs/results/cluster.csv --to docs/scale.md   # measures nothing: what follows

A local Ray on this machine, started and stopped here. `--streams` is a folder of feature files with labels; without it,
how far `merged` is from `ordered` is left out. Whatever is timed needs a machine that does nothing else.
"""

import argparse
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path
from time import perf_counter

os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")  # set before NumPy is imported, like the command line
os.environ.setdefault("OMP_NUM_THREADS", "1")  # Ray does the same for its workers
os.environ.setdefault(
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0"
)  # loopback only; set before Ray is imported, like `connect`
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from acclimate.bench.plots import shown
from acclimate.bench.results import hardware, write_page
from cluster_parts.figures import Figures

PARTS = ("whole", "overhead", "exchange", "chain", "agreement")


def fill(figures: Figures, part: str, streams: list[Path], quick: bool, kept: Figures | None) -> None:
    """Measure one part, or take over what was measured before."""
    module = import_module(f"cluster_parts.{part}")
    if kept is not None:
        figures.all += [each for each in kept.all if each.part == part]
        if any(each.part == part for each in kept.all):
            module.tables(figures)
    elif part != "agreement":
        getattr(module, part)(figures, quick)
    elif streams:
        module.agreement(figures, streams, quick)


def write(figures: Figures, to: Path, command: str) -> None:
    """Write the page, the csv file and the picture."""
    import ray

    from cluster_parts.agreement import draw

    figures.write(to.with_suffix(".csv"))
    parts = [
        "# What the cluster costs",
        f"`{command}`, on {hardware('numpy')}, with Ray {ray.__version__}. `{to.stem}.csv` has every figure. "
        "[What follows for many machines](../scale.md) is computed from it.",
    ]
    if any(each.part == "agreement" for each in figures.all):
        title = "Answers of merged that are not those of ordered"
        parts += shown(title, to.with_suffix(".png"), lambda path: draw(figures, path))
    write_page([*parts, *figures.sections], to)


def main() -> None:
    """Print the tables, and write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="shorter runs")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="names of the parts to run")
    parser.add_argument("--streams", type=Path, help="folder of feature files with labels")
    parser.add_argument("--add", type=Path, metavar="CSV", help="keep the figures of this file for the other parts")
    parser.add_argument("--to", type=Path, help="write a page, and a csv file and a picture with its name")
    parser.add_argument("--paper", type=Path, metavar="CSV", help="measure nothing, compute from this file")
    options = parser.parse_args()
    if options.paper:
        from cluster_parts.paper import paper, put_into

        text = paper(Figures.read(options.paper), options.paper.parent)
        if options.to:
            put_into(options.to, text)
        return
    streams = sorted(options.streams.glob("*.safetensors")) if options.streams else []
    chosen = [part for part in PARTS if options.only is None or part in options.only]
    figures = Figures()
    began = perf_counter()
    kept = Figures.read(options.add) if options.add else Figures()
    for part in PARTS:
        began_part = perf_counter()
        try:
            fill(figures, part, streams, options.quick, None if part in chosen else kept)
        except Exception:  # the other parts are worth having
            print(f"{part} failed:\n{traceback.format_exc(limit=-6)}", flush=True)
        print(f"({part}: {perf_counter() - began_part:.0f} s)\n", flush=True)
        if options.to and figures.all:  # now, so that what is measured stays if a later part is stopped
            write(figures, options.to, f"python benchmarks/cluster.py --streams streams/ --to {options.to.name}")
    print(f"all in {perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
