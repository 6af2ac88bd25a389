"""Counts of answers by day, folder and label, from the results file."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from acclimate.classify.outputs import MARK, csv_lines
from acclimate.errors import InputError
from acclimate.files import write_atomically, writing

KINDS = ("day", "folder", "label", "group")
IMAGES = "images"  # column of the counts


class Counts(NamedTuple):
    """Numbers of images by some kinds of things."""

    kinds: tuple[str, ...]
    images: Counter[tuple[str, ...]]


def parse_counts(text: str) -> tuple[str, ...]:
    """Return what the images are counted by, in the order in which it is written.

    Examples:
        >>> parse_counts("day, label")
        ('day', 'label')
    """
    kinds = tuple(kind.strip() for kind in text.split(","))
    if not {*kinds} <= {*KINDS} or len({*kinds}) < len(kinds):
        raise InputError(
            f"--counts takes some of {', '.join(KINDS)}, each once, with commas between them; got {text!r}."
        )
    return kinds


def count_answers(records: Iterable[Mapping[str, Any]], kinds: tuple[str, ...]) -> Counts:
    """Count the images of results that could be read; a corrected one counts for its correct label.

    Examples:
        >>> record = {"error": None, "taken": "2024-05-12T07:33:10", "label": "cat", "correct_label": None}
        >>> count_answers([record, record], ("label", "day")).images
        Counter({('cat', '2024-05-12'): 2})
    """
    images: Counter[tuple[str, ...]] = Counter()
    for record in records:
        if not record["error"]:
            named = {**record, "day": (record["taken"] or "")[:10], "label": record["correct_label"] or record["label"]}
            images[tuple(named[kind] or "" for kind in kinds)] += 1
    return Counts(kinds, images)


def write_counts(counts: Counts, results: Path, bom: bool = False) -> Path:
    """Write counts as csv beside results, sorted, with a mark for Excel if asked for; returns the path."""
    path = results.with_suffix(".counts.csv")
    columns = [*counts.kinds, IMAGES]
    rows = [dict(zip(columns, (*key, str(counts.images[key])), strict=True)) for key in sorted(counts.images)]
    lines = csv_lines([{**row, "predictions": ()} for row in rows], columns)
    with writing(path):
        write_atomically(path, (MARK * bom + ",".join(columns) + "\n" + lines).encode())
    return path
