"""Attack the service, its files and the command line, and say what held.

Every attack starts a service with the bundled model in a process of its own. While it lasts, another client sends
single images and asks for health; the longest time that it waited is in the table. Memory is that of the service and of
every process it has started. An attack fell if the service died, another client was refused or waited for more than
2 s, memory passed 1 GB, or the attack had an effect that it should not have.

    python benchmarks/attacks.py            # all, about ten minutes
    python benchmarks/attacks.py scans tiff # those whose names hold one of these words
"""

import sys
import tempfile
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from attacks import on_files, on_service  # noqa: F401 (they register their attacks)
from attacks.cases import CASES, Seen


def main() -> None:
    """Print the table."""
    words = sys.argv[1:]
    chosen = {name: case for name, case in CASES.items() if not words or any(word in name for word in words)}
    print(f"{'finding':10} {'attack':58} {'tries':>5} {'peak MB':>8} {'waited s':>8}  verdict", flush=True)
    fell = 0
    for name, case in chosen.items():
        with tempfile.TemporaryDirectory() as work:
            try:
                seen = case.run(Path(work))
            except Exception:
                seen = Seen(problems=[f"{name}: {traceback.format_exc(limit=-3)}"])
        waited = "" if seen.longest_s is None else f"{seen.longest_s:.2f}"
        memory = f"{seen.peak_mb:.0f}" if seen.peak_mb else ""
        held = not seen.problems and not seen.slow()
        fell += not held
        told = "; ".join(seen.problems) or seen.note
        line = f"{case.number:10} {case.name:58} {seen.tries:5} {memory:>8} {waited:>8}"
        print(f"{line}  {'held' if held else 'FELL'}: {told}", flush=True)
    print(f"{len(chosen) - fell} of {len(chosen)} held")
    sys.exit(fell > 0)


if __name__ == "__main__":
    main()
