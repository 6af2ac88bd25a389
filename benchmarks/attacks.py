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
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from acclimate.bench.results import write_page

TESTS = Path(__file__).parents[1] / "tests" / "attacks"
MAX_WAIT_S = 2.0
HEADINGS = ("attack", "held by", "tries", "peak MB", "longest wait of another client, s", "verdict")
PAGE = """# Attacks

Attacks by hostile clients and files: `python benchmarks/attacks.py --out docs/results/attacks.md` attacks the service
with the bundled model, its files and the command line, on the machine at hand, and writes this page. While an attack
lasts, another client sends single images and asks for health. Memory is that of the service and of every process it has
started. An attack *fell* if the service died, another client was refused or waited for more
than 2 s, memory of the service passed 1 GB, or the attack had an effect that it should not have.

An attack is *held by* the service itself, by the sandbox in which it decodes images, by the command line, or, if it
consists of connections alone, by the proxy: then nginx runs in front with the file `deploy/nginx.conf`.

"""


class Table:
    """A pytest plugin that makes a row of the table of each attack."""

    def __init__(self) -> None:
        self.rows: list[list[str]] = []
        self.fell = 0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add what a test has recorded and how it ended."""
        report = yield
        if report.when == "call":
            item.user_properties.append(("failure", call_error(report)))
        if report.when == "teardown":
            self.add(item, dict(item.user_properties))
        return report

    def add(self, item: pytest.Item, found: dict[str, Any]) -> None:
        """Add a row, and print it."""
        figures = found.get("attack", {"tries": 0, "peak_mb": 0.0, "longest_s": None, "note": ""})
        waited = figures["longest_s"]
        failure = found.get("failure", "")
        skipped = failure.startswith("skipped")
        fell = (bool(failure) and not skipped) or (waited or 0.0) > MAX_WAIT_S
        self.fell += fell
        verdict = "FELL" if fell else "not run here" if skipped else "held"
        details = failure or figures["note"]
        row = [
            title(item),
            item.get_closest_marker("held_by").args[0],
            str(figures["tries"]),
            f"{figures['peak_mb']:.0f}" if figures["peak_mb"] else "",
            "" if waited is None else f"{waited:.2f}",
            f"{verdict}{': ' if details else ''}{details}",
        ]
        self.rows.append(row)
        print("{:58} {:8} {:>5} {:>8} {:>8}  {}".format(*row), flush=True)


def call_error(report: pytest.TestReport) -> str:
    """Return why a test failed or was skipped, on one line; nothing if it passed."""
    if report.skipped:
        return f"skipped, {report.longrepr[2].removeprefix('Skipped: ')}"
    return " ".join(str(report.longrepr.reprcrash.message).split())[:300] if report.failed else ""


def title(item: pytest.Item) -> str:
    """Return the name of an attack: the sentence or the parameters of its test."""
    document = item.function.__doc__
    return document.strip().removesuffix(".") if document else item.callspec.id


def main() -> None:
    """Print the table, and write it if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="run only the attacks whose names hold one of them")
    parser.add_argument("--out", type=Path, help="a Markdown file to write the table to")
    options = parser.parse_args()
    table = Table()
    print(
        "{:58} {:8} {:>5} {:>8} {:>8}  verdict".format("attack", "held by", "tries", "peak MB", "waited s"), flush=True
    )
    chosen = ["-k", " or ".join(options.words)] if options.words else []
    quiet = ["-p", "no:terminal", "-o", "addopts=--import-mode=importlib", "--capture=no"]
    code = pytest.main([str(TESTS), "--all-attacks", *quiet, *chosen], [table])
    ran = sum(not row[-1].startswith("not run") for row in table.rows)
    last = f"{ran - table.fell} of {ran} held"
    print(last)
    if options.out is not None:
        lines = ["| " + " | ".join(cells) + " |" for cells in (HEADINGS, ["---"] * len(HEADINGS), *table.rows)]
        write_page([PAGE + "\n".join(lines), f"{last}."], options.out)
    sys.exit(bool(code or table.fell))


if __name__ == "__main__":
    main()
