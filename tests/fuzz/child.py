"""Run cases of a target under a limit on memory; a line per case that begins, so that a parent can see where it stops.

python tests/fuzz/child.py TARGET MODEL SEED SECONDS CORPUS
"""

import resource
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from fuzz.targets import TARGETS, case_of

ROOM = 700 * 2**20  # bytes of address space beyond what the target takes itself


def main():
    name, model, seed, seconds, folder = sys.argv[1:]
    corpus = {path.name: path.read_bytes() for path in sorted(Path(folder).glob(f"{name}-*"))}
    target = TARGETS[name](list(corpus.values()), model)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, used + ROOM))
    for key, content in corpus.items():
        attempt(target, key, content)
    number = int(seed)
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        attempt(target, number)
        number += 1
    print(f"done {number - int(seed)}", flush=True)


def attempt(target, key, content=None):
    """Run a case, by default that of a seed; an error that is not expected ends the run with its traceback."""
    print(f"case {key}", flush=True)
    try:
        target.run(case_of(target, key) if content is None else content)
    except target.expected:
        pass
    except BaseException:
        print(f"failed {key}\n{traceback.format_exc()}", flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
