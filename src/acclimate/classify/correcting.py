"""Corrections of results: which image is given which label, by a table of fixes or typed into the results."""

import csv
import io
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from acclimate.errors import InputError, nearest, reason
from acclimate.files import MAX_LIST, open_text
from acclimate.sources.table import read_rows

FILE = "file"
LABEL = "label"
EDITED = "correct_label"  # the column of results into which right labels are typed


def read_fixes(path: Path) -> list[tuple[str, str]]:
    """Return files with their right labels, which may be empty if the file is results."""
    try:
        text = io.StringIO(open_text(path, MAX_LIST).read(), newline="")
        rows = [fields for _, fields in read_rows(str(path), text, ".csv")]
    except FileNotFoundError:
        raise InputError(f"no fixes at {path}.") from None
    except OSError as error:
        raise InputError(f"the fixes {path} cannot be read: {reason(error)}.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as csv ({error}).") from error
    names = rows[0].keys() if rows else {}
    column = EDITED if EDITED in names else LABEL
    if FILE not in names or column not in names or (column == LABEL and "online_label" in names):
        raise InputError(f"{path} has no fixes: its first line must name the columns {FILE} and {LABEL}, or {EDITED}.")
    if column == LABEL and (empty := [row[FILE] for row in rows if not row[LABEL]]):
        raise InputError(f"{path} gives no label for {empty[0]}.")
    return [(row[FILE], row[column]) for row in rows]


def typed_labels(records: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the files of results with the labels that a person has typed, "" for none."""
    return [(record[FILE], record[EDITED] or "") for record in records]


def match_fixes(
    path: Path, pairs: Iterable[tuple[str, str]], files: Collection[str], labels: Sequence[str]
) -> dict[str, str]:
    """Return the right label of each file of the results that is to be corrected.

    Args:
        path: where the pairs are from, for errors.
        pairs: files, or the ends of their paths, and right labels; those with an empty one are left out.
        files: the images of the results.
        labels: the labels of the run.

    Examples:
        >>> match_fixes(Path("fixes.csv"), [("b.jpg", "Cat")], ["photos/a.jpg", "photos/b.jpg"], ["cat", "dog"])
        {'photos/b.jpg': 'cat'}
    """
    by_case = {label.casefold(): label for label in labels}
    known = {*files}
    found: dict[str, str] = {}
    for name, written in pairs:
        if not written.strip():
            continue
        matches = [name] if name in known else [file for file in files if file.endswith(f"/{name}")]
        if len(matches) > 1:
            raise InputError(f"{len(matches)} files of the results end in {name}; write their whole paths.")
        if not matches:
            raise InputError(f"no file {name!r} in the results; {nearest(name, files)}")
        label = by_case.get(written.strip().casefold())
        if label is None:
            raise InputError(f"{name} is to be {written!r}, which is not a label; {nearest(written, labels)}")
        if found.setdefault(matches[0], label) != label:
            raise InputError(f"{path} gives {name} two labels: {found[matches[0]]!r} and {label!r}.")
    if not found:
        raise InputError(
            f"{path} has no fixes; write the right label of each wrong answer into {EDITED} of the results, "
            f"or into a csv with the columns {FILE} and {LABEL}."
        )
    return found
