"""Memory and time of merging many state files, in a tree and all at once, against loading them one by one.

python benchmarks/merge_tree.py --files 500 --classes 100 --dim 512
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from time import process_time

import numpy as np

from acclimate import create, load_state, merge_states, save_state
from acclimate.checks.synthetic import shifted_stream
from acclimate.methods import merge_files

WAYS = ("load", "at once", "tree")


def write_states(folder: Path, method: str, options: argparse.Namespace) -> float:
    """Write the states of as many sites, with 200 samples each; the size of all of them in MB."""
    stream = shifted_stream(samples=4000, classes=options.classes, dim=options.dim, seed=0)
    rng = np.random.default_rng(0)
    for site in range(options.files):
        adapter = create(method, stream.head, origin=f"site {site}")
        adapter.step(stream.features[rng.integers(0, 4000, 200)], ids=200 * site + np.arange(200))
        save_state(adapter, folder / f"{site:05}.safetensors")
    return sum(path.stat().st_size for path in folder.iterdir()) / 1e6


def merge(folder: Path, way: str) -> None:
    """Merge the files of a folder in one way, in this process, and print what it took."""
    paths = sorted(folder.iterdir())
    merge_states([load_state(paths[0])])  # everything is imported, and the libraries have what they need
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = process_time()
    if way == "load":
        for path in paths:
            load_state(path)
    else:
        merged = merge_files(paths) if way == "tree" else merge_states([load_state(path) for path in paths])
        assert merged.samples_seen == 200 * len(paths)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps({"seconds": process_time() - began, "MB": peak * 1024 / 1e6}))


def main() -> None:
    """Print what each way takes, for each method."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=500)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--methods", nargs="+", default=["tda", "dota", "accord"])
    parser.add_argument("--only", nargs=2, metavar=("FOLDER", "WAY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        merge(Path(options.only[0]), options.only[1])
        return
    print(f"{options.files} states, {options.classes} classes, {options.dim} dimensions; CPU time and added memory")
    for method in options.methods:
        with tempfile.TemporaryDirectory() as name:
            size = write_states(Path(name), method, options)
            took = {}
            for way in WAYS:
                command = [sys.executable, __file__, "--only", name, way]
                took[way] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(f"{method}: {size:.0f} MB of files")
        for way, each in took.items():
            ratio = each["seconds"] / took["load"]["seconds"]
            share = each["MB"] / took["at once"]["MB"]
            times = f"{each['seconds']:6.2f} s ({ratio:.2f} x load)"
            print(f"  {way:8} {times}  {each['MB']:8.1f} MB ({share:.3f} x at once)")


if __name__ == "__main__":
    main()
