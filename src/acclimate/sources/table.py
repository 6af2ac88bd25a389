"""Lists of image paths: .txt, .csv, .jsonl, or lines on standard input.

Relative paths in a file are relative to the folder it lies in; on standard input, to the working directory. A sample is
named by the joined path. A file that is missing is listed all the same, and fails when it is read.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path, PurePath
from typing import Any, TextIO

from acclimate.errors import InputError
from acclimate.sources.base import Sample, read_file

FILE_KEYS = ("file", "path", "image", "filename", "file_name")
LABEL_KEYS = ("label", "class")

Row = tuple[int, str, str | None]  # line number, path, label


def open_table(spec: str) -> list[Sample]:
    """The images that a .txt, .csv or .jsonl file lists, in its order."""
    path = Path(spec)
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            samples = [_sample(spec, path.parent, row) for row in READERS[path.suffix.lower()](spec, file)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{spec} cannot be read as a list of paths in UTF-8 ({error}).") from error
    if not samples:
        raise InputError(f"no images in {spec}: it lists no paths.")
    return samples


def open_lines(file: TextIO) -> list[Sample]:
    """The images whose paths stand on the lines of a stream."""
    try:
        lines = [line.rstrip("\r\n") for line in file]
    except UnicodeDecodeError as error:
        raise InputError(f"standard input is not text ({error}); pass one path a line.") from error
    base = PurePath()
    samples = [_sample("standard input", base, (at, line, None)) for at, line in enumerate(lines, 1) if line.strip()]
    if not samples:
        raise InputError("no images in standard input: it was empty; pass one path a line.")
    return samples


def _sample(source: str, base: PurePath, row: Row) -> Sample:
    line, file, label = row
    if not file or "\0" in file:
        raise InputError(f"{source}, line {line}: not a path: {file!r}.")
    name = (base / file).as_posix()
    return Sample(name, partial(read_file, name), label)


def _read_txt(source: str, lines: Iterable[str]) -> Iterator[Row]:
    for at, line in enumerate(lines, 1):
        text = line.strip()
        if text and not text.startswith("#"):
            yield at, text, None


def _read_csv(source: str, lines: Iterable[str]) -> Iterator[Row]:
    rows = csv.reader(lines)
    columns = [name.strip().lower() for name in next(rows, [])]
    if (file := _first(FILE_KEYS, columns)) is None:
        raise InputError(f"{source}: no column of paths among {', '.join(columns) or 'none'}; {_wanted()}.")
    label = _first(LABEL_KEYS, columns)
    for row in rows:
        if not row:
            continue
        cells = dict(zip(columns, row, strict=False))
        yield rows.line_num, cells.get(file, "").strip(), (cells.get(label, "").strip() or None) if label else None


def _read_jsonl(source: str, lines: Iterable[str]) -> Iterator[Row]:
    for at, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record: Any = json.loads(line)
        except ValueError as error:
            raise InputError(f"{source}, line {at}: not JSON ({error}); write one object a line.") from error
        if not isinstance(record, Mapping):
            raise InputError(f"{source}, line {at}: not a JSON object; {_wanted()}.")
        if (file := _first(FILE_KEYS, record)) is None:
            raise InputError(f"{source}, line {at}: no path among the keys {', '.join(record)}; {_wanted()}.")
        if not isinstance(record[file], str):
            raise InputError(f"{source}, line {at}: not a path: {record[file]!r}.")
        label = _first(LABEL_KEYS, record)
        value = record[label] if label else None
        yield at, record[file], None if value is None or value == "" else str(value)


def _first(keys: Iterable[str], among: Iterable[str]) -> str | None:
    present = set(among)
    return next((key for key in keys if key in present), None)


def _wanted() -> str:
    return f"call it {', '.join(FILE_KEYS[:-1])} or {FILE_KEYS[-1]}"


READERS = {".txt": _read_txt, ".csv": _read_csv, ".jsonl": _read_jsonl}
