"""The time of a short run: `acclimate classify` of ten images, part by part.

    python benchmarks/startup.py [--before FOLDER]

Every part runs in a fresh process. With `--before`, a checkout of an earlier version (`git worktree add FOLDER COMMIT`)
takes turns with this one. The fastest of all turns counts: a start is short, and others may use the machine.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from classify_overhead import draw_photos

HERE = Path(__file__).parents[1]
IMAGES = 10
LABELS = ["cat", "dog", "house", "tree", "fish", "clock", "car", "boat", "horse", "sheep"]
COMMAND = ("classify", "photos", "--labels", ", ".join(LABELS), "--out", "rows.csv", "--overwrite")
LOAD = "from acclimate.encoders import load_encoder; encoder = load_encoder('bundled', 'cpu')"
HEAD = f"from acclimate.prompts import build_head; build_head(encoder, {LABELS})"
READ = (
    "from pathlib import Path; from acclimate.images.opening import open_image; "
    "paths = sorted(Path('photos').iterdir())"
)
ENCODE = "encoder.encode_images([encoder.prepare(open_image(path)) for path in paths])"
# part -> (what comes before it, what is timed)
PARTS = {
    "import the command line": ("pass", "import acclimate.cli"),
    "import the classifier": ("pass", "import acclimate.classifier"),
    "load the model": ("import acclimate.classifier, onnxruntime", LOAD),
    "class vectors, cached": (LOAD, HEAD),
    "prepare and encode": (f"{LOAD}; {READ}; {ENCODE}", ENCODE),
}
TIMED = """
from time import perf_counter
{setup}
began = perf_counter()
{work}
print(perf_counter() - began)
"""
WHOLE = {"classify, texts cached": "cached", "classify, first texts": "not cached"}


def run(tree: Path, work: Path, command: list[str], **environment: str) -> tuple[str, float]:
    """Return what a command in Python prints that uses the source of a tree, and the seconds that it takes."""
    variables = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONPYCACHEPREFIX": str(work / "bytecode")}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    variables |= {"ACCLIMATE_CACHE": str(work / "cache"), **environment}
    began = perf_counter()
    ended = subprocess.run([sys.executable, *command], cwd=work, env=variables, check=True, capture_output=True)
    return ended.stdout.decode(), perf_counter() - began


def measure(tree: Path, work: Path, turn: int) -> dict[str, float]:
    """Return the seconds of every part."""
    seconds = {"start Python": run(tree, work, ["-c", "pass"])[1]}
    for part, (setup, timed) in PARTS.items():
        seconds[part] = float(run(tree, work, ["-c", TIMED.format(setup=setup, work=timed)])[0])
    entry = ["-c", f"import sys; from acclimate.cli import main; sys.argv = {['acclimate', *COMMAND]}; main()"]
    for part, texts in WHOLE.items():
        where = {} if texts == "cached" else {"ACCLIMATE_CACHE": str(work / f"cache-{turn}")}
        seconds[part] = run(tree, work, entry, **where)[1]
    return seconds


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, help="a checkout of an earlier version")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    trees = {"before": options.before.resolve(), "now": HERE} if options.before else {"now": HERE}
    best: dict[str, Mapping[str, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        for side in trees:
            (Path(name) / side / "photos").mkdir(parents=True)
            draw_photos(Path(name) / side / "photos", IMAGES)
        for turn in range(options.turns + 1):  # the first one fills caches
            for side, tree in trees.items():
                seconds = measure(tree, Path(name) / side, turn)
                if turn:
                    best[side] = {part: min(value, best.get(side, seconds)[part]) for part, value in seconds.items()}
    print(f"{IMAGES} images, {len(LABELS)} labels; seconds, fastest of {options.turns} turns")
    print(f"{'':26}" + "".join(f"{side:>9}" for side in trees) + ("    ratio" if options.before else ""))
    for part in best["now"]:
        values = [best[side][part] for side in trees]
        ratio = f"{values[0] / values[-1]:9.2f}" if options.before else ""
        print(f"{part:26}" + "".join(f"{value:9.3f}" for value in values) + ratio)


if __name__ == "__main__":
    main()
