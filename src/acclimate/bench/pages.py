"""Files of the benchmarks: Markdown tables and pages, and CSV files."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from acclimate.files import to_cell, write_atomically, writing

ABSENT = "\N{EN DASH}"  # a cell without a figure
DIGITS = 6  # further digits depend on the machine's arithmetic, not on the method


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return rows of text as a Markdown table."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def markdown_list(lines: Sequence[str]) -> list[str]:
    """Return one part of a page with lines as a Markdown list; no part if there are none."""
    return ["\n".join(f"- {line}" for line in lines)] if lines else []


def points(fraction: float) -> str:
    """Return a difference of accuracies in points; zero is +0.00, never -0.00."""
    return f"{round(100 * fraction, 2) + 0.0:+.2f}"


def write_page(parts: Iterable[str], path: Path) -> None:
    """Write a Markdown file of paragraphs, headings and tables."""
    with writing(path):
        write_atomically(path, "\n\n".join(parts).encode() + b"\n")


def write_csv(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write a CSV file with a line per row; the keys of the first are the columns."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(rows[0])
    for row in rows:
        values = [round(value, DIGITS) if isinstance(value, float) else value for value in row.values()]
        lines.writerow([to_cell(value) if isinstance(value, str) else value for value in values])
    with writing(path):
        write_atomically(path, text.getvalue().encode())
