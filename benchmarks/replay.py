"""The time to change labels: `acclimate classify answers.run` beside a run from the photos, start included.

    python benchmarks/replay.py [--images 5000] [--before SRC]

Photos of 500 x 375 pixels are drawn, encoded once with the bundled model, and answered for other labels from the run
and from the photos; the tables must have the same bytes. `--before` names the src of an older version, in a worktree,
whose run from the photos is timed, too.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import acclimate
from classify_overhead import draw_photos

LEAST = 20.0  # times faster
LABELS = "clock, fish, flower, house, sailing boat, tree"
OTHERS = "boat, fountain, garden, mountain, street, animal"


def timed(source: Path, work: Path, *arguments: str) -> float:
    """Return the seconds of a command of the version whose src is given."""
    command = [sys.executable, "-m", "acclimate", "classify", *arguments]
    began = perf_counter()
    subprocess.run(command, cwd=work, env=os.environ | {"PYTHONPATH": str(source)}, check=True, capture_output=True)
    return perf_counter() - began


def main() -> None:
    """Print the seconds of each way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--before", type=Path, help="the src of an older version")
    options = parser.parse_args()
    now = Path(acclimate.__file__).parents[1]
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        (work / "photos").mkdir()
        draw_photos(work / "photos", options.images)
        first = timed(now, work, "photos", "--labels", LABELS, "--out", "answers.csv")
        replayed = timed(now, work, "answers.run", "--labels", OTHERS, "--out", "replayed.csv")
        encoded = timed(now, work, "photos", "--labels", OTHERS, "--out", "encoded.csv")
        assert (work / "replayed.csv").read_bytes() == (work / "encoded.csv").read_bytes()
        print(
            f"{options.images:,} photos, seconds: {first:.1f} for the first labels, {encoded:.1f} for others from the"
        )
        print(f"photos, {replayed:.1f} for others from the run: {encoded / replayed:.1f} times faster, the same bytes")
        if options.before is not None:
            before = timed(options.before.resolve(), work, "photos", "--labels", OTHERS, "--out", "before.csv")
            print(f"the version in {options.before}: {before:.1f} from the photos, {encoded / before:.3f} of it now")
        assert encoded / replayed >= LEAST, "it is too slow"


if __name__ == "__main__":
    main()
