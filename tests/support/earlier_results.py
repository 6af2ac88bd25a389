"""Results as an earlier version has written them: without the columns that were added since."""

import csv
from pathlib import Path

ADDED = (
    "taken",
    "folder",
    "unsure",
    "true_label",
    "correct_label",
    "none_score",
    "online_label",
    "online_score",
    "sorted_to",
)


def remove_columns(path: Path, columns=ADDED) -> None:
    """Write csv results again without some of their columns."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    kept = [name for name in rows[0] if name not in columns]
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, kept, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
