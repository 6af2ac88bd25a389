"""Attack the service, its files and the command line, and say what held.

Every attack starts a service with the bundled model in a process of its own. While it lasts, another client sends
single images and asks for health; the longest time that it waited is in the table. Memory is that of the service and of
every process it has started. An attack fell if the service died, another client was refused or waited for more than
2 s, memory passed 1 GB, or the attack had an effect that it should not have.

    python benchmarks/attacks.py                # all, about ten minutes
    python benchmarks/attacks.py scans tiff     # those whose names hold one of these words
    python benchmarks/attacks.py --out docs/results/attacks.md
"""

import argparse
import sys
import tempfile
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from attacks import on_disk, on_files, on_service  # noqa: F401 (they register their attacks)
from attacks.cases import CASES, Case, Seen

HEADINGS = ("attack", "tries", "peak MB", "longest wait of another client, s", "verdict")
PAGE = """# Attacks

Attacks by hostile clients and files: `python benchmarks/attacks.py --out docs/results/attacks.md` attacks the service
with the bundled model, its files and the command line, on the machine at hand, and writes this page. While an attack
lasts, another client sends single images and asks for health. Memory is that of the service and of every process it has
started. An attack *fell* if the service died, another client was refused or waited for more
than 2 s, memory of the service passed 1 GB, or the attack had an effect that it should not have.

"""


def attack(case: Case) -> tuple[bool, list[str]]:
    """Return True if an attack was held, and its row of the table."""
    with tempfile.TemporaryDirectory() as work:
        try:
            seen = case.run(Path(work))
        except Exception:
            seen = Seen(problems=[traceback.format_exc(limit=-3)])
    held = not seen.problems and not seen.slow()
    waited = "" if seen.longest_s is None else f"{seen.longest_s:.2f}"
    memory = f"{seen.peak_mb:.0f}" if seen.peak_mb else ""
    verdict = "held" if held and seen.tries else "FELL" if not held else "not run here"
    details = "; ".join(seen.problems) or seen.note
    return held, [case.name, str(seen.tries), memory, waited, f"{verdict}{': ' if details else ''}{details}"]


def main() -> None:
    """Print the table, and write it if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="run only the attacks whose names hold one of them")
    parser.add_argument("--out", type=Path, help="a Markdown file to write the table to")
    options = parser.parse_args()
    words = options.words
    chosen = {name: case for name, case in CASES.items() if not words or any(word in name for word in words)}
    print(f"{'attack':58} {'tries':>5} {'peak MB':>8} {'waited s':>8}  verdict", flush=True)
    rows = []
    fell = 0
    for case in chosen.values():
        held, row = attack(case)
        fell += not held
        rows.append(row)
        print("{:58} {:>5} {:>8} {:>8}  {}".format(*row), flush=True)
    ran = sum(row[1] != "0" for row in rows)
    last = f"{ran - fell} of {ran} held"
    print(last)
    if options.out is not None:
        table = ["| " + " | ".join(cells) + " |" for cells in (HEADINGS, ["---"] * len(HEADINGS), *rows)]
        options.out.write_text(PAGE + "\n".join(table) + f"\n\n{last}.\n")
    sys.exit(fell > 0)


if __name__ == "__main__":
    main()
