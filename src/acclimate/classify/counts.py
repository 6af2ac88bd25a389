"""Counts of answers by day, folder and label, from the results file."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from acclimate.classify.table import csv_lines
from acclimate.errors import InputError
from acclimate.files import write_atomically, writing
from acclimate.predict import Predictions, readable_name

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


def count_answers(blocks: Iterable[Predictions], kinds: tuple[str, ...]) -> Counts:
    """Count the images that could be read; a corrected one counts for its correct label."""
    images: Counter[tuple[str, ...]] = Counter()
    for block in blocks:
        best = block.classes[:, 0].tolist() if block.classes.size else [-1] * len(block)
        columns = {
            "day": [(taken or "")[:10] for taken in block.taken],
            "folder": [readable_name(name).rpartition("/")[0] or "." for name in block.names],
            "label": [right or block.labels[row] for right, row in zip(block.corrected, best, strict=True)],
            "group": ["" if group is None else group.label for group in block.groups],
        }
        rows = zip(*(columns[kind] for kind in kinds), strict=True)
        images.update(row for row, error in zip(rows, block.errors, strict=True) if error is None)
    return Counts(kinds, images)


def write_counts(counts: Counts, results: Path) -> Path:
    """Write counts as csv beside results, sorted; returns the path."""
    path = results.with_suffix(".counts.csv")
    columns = [*counts.kinds, IMAGES]
    rows = [dict(zip(columns, (*key, str(counts.images[key])), strict=True)) for key in sorted(counts.images)]
    lines = csv_lines([{**row, "predictions": ()} for row in rows], columns)
    with writing(path):
        write_atomically(path, (",".join(columns) + "\n" + lines).encode())
    return path
