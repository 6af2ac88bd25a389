"""Labels that a person gives for images, by file: true labels, and corrections."""

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from acclimate.errors import InputError, nearest, reason, same_words
from acclimate.files import MAX_LIST, from_cell, open_text, separator_of
from acclimate.predict import readable_name
from acclimate.sources.table import FILE_KEYS, LABEL_KEYS, read_rows

EDITED = "correct_label"  # the column of results into which right labels are typed
TRUTHS = ("true_label", "truth", *LABEL_KEYS)  # names of the column of labels
FIXES = (EDITED, *LABEL_KEYS)
FORM = "write one image per line as file,label, or name the columns file and label"

Row = tuple[str, str, str]  # where it stands, file, label


def read_labels(path: Path, columns: Sequence[str]) -> list[Row]:
    """Return the lines of a .csv, .txt or .jsonl file that give a label.

    Args:
        path: the file; a table needs no header if its columns are the file and the label.
        columns: names that the column of labels may have, the first that is there counts.

    Raises:
        InputError: it cannot be read, or names no file.
    """
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".txt", ".jsonl"):
        raise InputError(f"cannot tell the format of {path}; labels of files are in a .csv, .txt or .jsonl file.")
    try:
        with open_text(path, MAX_LIST, newline="") as file:
            lines = list(file)
        skipped = 0
        if suffix != ".jsonl":
            suffix = ".csv"
            skipped = _skip_comments(path, lines)
        read = read_rows(str(path), lines, suffix)
        rows = [_row(f"{path}, line {line + skipped}", fields, columns) for line, fields in read]
    except OSError as error:
        raise InputError(f"cannot read the labels in {path}: {reason(error)}.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as a table in UTF-8 ({error}).") from error
    if not rows:
        raise InputError(f"{path} gives no label; {FORM}.")
    return [row for row in rows if row[2]]


def match_labels(rows: Iterable[Row], names: Iterable[str], labels: Sequence[str]) -> dict[str, str]:
    """Return the label that is given for each image, by its name as results have it.

    A file is found by its path as results have it, else by the end of its path, such as its name alone. Labels match
    without regard to case and underscores.

    Args:
        rows: where each stands, a file, and a label.
        names: the names of the images.
        labels: the labels that may be given.

    Raises:
        InputError: a row names an image that is not there or could be several, or a label that is not among them.

    Examples:
        >>> rows = [("fixes.csv, line 1", "b.jpg", "Cat")]
        >>> match_labels(rows, ["photos/a.jpg", "photos/b.jpg"], ["cat", "dog"])
        {'photos/b.jpg': 'cat'}
    """
    known = {same_words(label): label for label in labels}
    by_end: dict[str, set[str]] = defaultdict(set)  # names of images by the last part of their paths
    for name in map(readable_name, names):
        by_end[PurePath(name).name].add(name)
    folder = Path.cwd().as_posix()
    found: dict[str, str] = {}
    for where, written, given in rows:
        file = readable_name(written)
        end = PurePath(file).as_posix()
        same = by_end.get(PurePath(file).name, set())
        matches = [end] if end in same else sorted(name for name in same if f"/{folder}/{name}".endswith(f"/{end}"))
        if not matches:
            raise InputError(f"{where}: {file} is not among the images of this run; {nearest(file, by_end)}")
        if len(matches) > 1:
            raise InputError(f"{where}: {file} could be {matches[0]} or {matches[1]}; write more of its path.")
        label = known.get(same_words(given))
        if label is None:
            raise InputError(f"{where}: {given!r} is not a label of this run; {nearest(given, labels)}")
        if found.setdefault(matches[0], label) != label:
            raise InputError(f"{where}: {matches[0]} already has the label {found[matches[0]]!r}; leave one of them.")
    return found


def _skip_comments(path: Path, lines: list[str]) -> int:
    """Empty the comments of a table, and name its columns if it does not; returns how many lines it had more."""
    lines[:] = ["\n" if line.startswith("#") else line for line in lines]
    skipped = next((number for number, line in enumerate(lines) if line.strip()), len(lines))
    del lines[:skipped]
    first = lines[0] if lines else ""
    separator = separator_of(first)
    cells = next(csv.reader([first], delimiter=separator), [])
    if lines and not {from_cell(cell.strip()).lower() for cell in cells} & {*FILE_KEYS}:
        if len(cells) < 2:
            raise InputError(f"{path}, line {skipped + 1}: no label in {first.strip()!r}; {FORM}.")
        lines.insert(0, f"file{separator}label\n")
        skipped -= 1
    return skipped


def _row(where: str, fields: Mapping[str, Any], columns: Sequence[str]) -> Row:
    """Return a line; the labels of results are answers, so they are not taken for labels that a person gives."""
    keys = [next((key for key in names if key in fields), None) for names in (FILE_KEYS, columns)]
    if None in keys or (keys[1] in LABEL_KEYS and "online_label" in fields):
        raise InputError(f"{where}: none of {', '.join(columns)} is among {', '.join(fields)}; {FORM}.")
    file, label = (fields[str(key)] for key in keys)
    return where, str(file), "" if label is None else str(label).strip()
