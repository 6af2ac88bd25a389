"""True labels from a file, so that a run can say how many answers are right."""

import csv
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path, PurePath

from acclimate.errors import InputError, nearest, reason, same_words
from acclimate.files import MAX_LIST, from_cell, open_text, separator_of
from acclimate.predict import NONE, readable_name
from acclimate.sources.table import FILE_KEYS, LABEL_KEYS, read_rows

TRUTH_KEYS = ("true_label", "truth", *LABEL_KEYS)
HOW = "write one image per line as file,label, or name the columns file and label"

Row = tuple[int, str, str]  # line number, file, label


def read_truths(path: Path, names: Iterable[str], labels: Sequence[str]) -> dict[str, str]:
    r"""Return the true labels that a file gives for images, by their names as results have them.

    A file is found by its path as written in results, else by the end of its path, such as its name alone. Labels match
    those of the run without regard to case and underscores; "none of these" is the truth of an image that no label
    fits.

    Args:
        path: a .csv or .txt file with lines `file,label` or with a header, or .jsonl with the same names as keys.
        names: the names of the images of the run.
        labels: the labels of the run.

    Raises:
        InputError: a line names an image that is not there or could be several, or a label that is not of the run.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "truth.csv")
        ...     _ = path.write_text("file,label\na.jpg,Cat\n")
        ...     read_truths(path, ["photos/a.jpg", "b.jpg"], ["cat"])
        {'photos/a.jpg': 'cat'}
    """
    known = {same_words(label): label for label in (*labels, NONE)}
    by_end: dict[str, set[str]] = {}  # names of images by the last part of their paths
    for name in map(readable_name, names):
        by_end.setdefault(PurePath(name).name, set()).add(name)
    folder = Path.cwd().as_posix()
    truths: dict[str, str] = {}
    for line, written, label in _rows(path):
        where = f"{path}, line {line}"
        file = readable_name(written)
        end = PurePath(file).as_posix()
        candidates = by_end.get(PurePath(file).name, set())
        found = [end] if end in candidates else sorted(x for x in candidates if f"/{folder}/{x}".endswith(f"/{end}"))
        if not found:
            raise InputError(f"{where}: {file} is not among the images of this run; correct it, or leave the line out.")
        if len(found) > 1:
            raise InputError(f"{where}: {file} could be {found[0]} or {found[1]}; write more of its path.")
        truth = known.get(same_words(label))
        if truth is None:
            how = f"add it to the labels, write {NONE!r}, or leave the line out"
            raise InputError(f"{where}: {label!r} is not a label of this run ({nearest(label, labels)}); {how}.")
        if truths.setdefault(found[0], truth) != truth:
            raise InputError(f"{where}: {found[0]} already has the label {truths[found[0]]!r}; leave one of them.")
    return truths


def _rows(path: Path) -> list[Row]:
    """Return those lines of a file that have a label."""
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".txt", ".jsonl"):
        raise InputError(f"cannot tell the format of {path}; true labels are in a .csv, .txt or .jsonl file.")
    try:
        with open_text(path, MAX_LIST, newline="") as file:
            rows = list(_read_jsonl(path, file) if suffix == ".jsonl" else _read_csv(path, file))
    except OSError as error:
        raise InputError(f"cannot read the true labels in {path}: {reason(error)}.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as a table in UTF-8 ({error}).") from error
    if not rows:
        raise InputError(f"{path} has no true labels; {HOW}.")
    return [row for row in rows if row[2]]


def _read_jsonl(path: Path, lines: Iterable[str]) -> Iterator[Row]:
    for line, fields in read_rows(str(path), lines, ".jsonl"):
        label = fields[_key(path, line, TRUTH_KEYS, fields)]
        yield line, str(fields[_key(path, line, FILE_KEYS, fields)]), "" if label is None else str(label).strip()


def _read_csv(path: Path, lines: Iterable[str]) -> Iterator[Row]:
    lines = list(lines)
    first = next((line for line in lines if line.strip() and not line.startswith("#")), "")
    rows = csv.reader(lines, delimiter=separator_of(first))
    columns: list[int] = []  # columns of the file and of the label
    for row in rows:
        cells = [from_cell(cell.strip()) for cell in row]
        if not any(cells) or cells[0].startswith("#"):
            continue
        if not columns:
            names = [cell.lower() for cell in cells]
            if set(names) & {*FILE_KEYS}:
                columns = [names.index(_key(path, rows.line_num, keys, names)) for keys in (FILE_KEYS, TRUTH_KEYS)]
                continue
            columns = [0, 1]
        if len(cells) <= max(columns):
            raise InputError(f"{path}, line {rows.line_num}: no label in {','.join(row)!r}; {HOW}.")
        yield rows.line_num, cells[columns[0]], cells[columns[1]]


def _key(path: Path, line: int, keys: Sequence[str], names: Collection[str]) -> str:
    """Return the first of the keys that is among the names."""
    found = next((key for key in keys if key in names), None)
    if found is None:
        raise InputError(f"{path}, line {line}: none of {', '.join(keys)} is among {', '.join(names)}; {HOW}.")
    return found
