"""Lists of image paths: .txt, .csv, .jsonl, .parquet, or lines on standard input.

Relative paths are relative to the folder of the list, or to the working directory for standard input. A missing image
is listed and fails when it is read. A parquet file is refused if it claims more than a list may hold: a small file may
repeat one value in billions of rows, or decompress to gigabytes.
"""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import PurePath
from sys import intern
from typing import Any, TextIO

from acclimate.errors import InputError, missing
from acclimate.files import MAX_LIST, from_cell, separator_of
from acclimate.images.opening import URL
from acclimate.sources.source import LOCAL, Place, Sample
from acclimate.sources.video import is_video, lacking_for_videos, open_video

FILE_KEYS = ("file", "path", "image", "filename", "file_name")
HOW_TO_NAME_PATHS = f"name it {' or '.join(FILE_KEYS)}"
LABEL_KEYS = ("label", "class")
SUFFIXES = (".txt", ".csv", ".jsonl", ".parquet")
MAX_ROWS = 50_000_000
MAX_COLUMN_BYTES = 4 * 2**30  # paths and labels together, by the metadata of the file
MAX_VALUE_BYTES = 2**16  # longest path or label
ROWS_PER_BATCH = 2**16  # rows that are decoded at once

Row = tuple[int, Mapping[str, Any]]  # line number, fields by name


def is_list(path: str) -> bool:
    """Return True if a file is a list, by its suffix."""
    return path.lower().endswith(SUFFIXES)


def open_table(spec: str, fps: float = 1.0, place: Place = LOCAL) -> list[Sample]:
    """List the images and the frames of the videos of a .txt, .csv, .jsonl or .parquet file in its order."""
    try:
        content = place.read(spec, MAX_LIST)
        suffix = PurePath(spec).suffix.lower()
        lines = io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", newline="")
        rows = _read_parquet(spec, content) if suffix == ".parquet" else read_rows(spec, lines, suffix)
        return _samples(spec, place.parent(spec), rows, fps, place)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{spec} cannot be read as a list of paths in UTF-8 ({error}).") from error


def open_lines(file: TextIO, fps: float = 1.0, place: Place = LOCAL) -> list[Sample]:
    """List the images and the frames of the videos whose paths are the lines of a text stream."""
    try:
        rows = [(number, {"file": line.rstrip("\r\n")}) for number, line in enumerate(file, 1) if line.strip()]
    except UnicodeDecodeError as error:
        raise InputError(f"standard input is not text ({error}); pass one path per line.") from error
    return _samples("standard input", "", rows, fps, place)


def _samples(source: str, base: str, rows: Iterable[Row], fps: float, place: Place) -> list[Sample]:
    samples: list[Sample] = []
    for line, fields in rows:
        path, label = (next((fields[key] for key in keys if key in fields), None) for keys in (FILE_KEYS, LABEL_KEYS))
        if path is None:
            raise InputError(f"{source}, line {line}: no path among {', '.join(fields)}; {HOW_TO_NAME_PATHS}.")
        if not isinstance(path, str) or not path or "\0" in path:
            raise InputError(f"{source}, line {line}: not a path: {path!r}.")
        if URL.match(path) and not place.urls:
            raise InputError(f"{source}, line {line}: {path} is a URL; download the images, and list their paths.")
        name = None if label in (None, "") else intern(str(label))
        path = place.join(base, path)
        if not is_video(path):
            samples.append(Sample(path, place.reader(path), name))
        elif URL.match(path):
            raise InputError(f"{source}, line {line}: {path} is a video, which {lacking_for_videos(path)}.")
        else:
            samples += open_video(path, name, fps)
    if not samples:
        raise InputError(f"no images in {source}: it lists no paths.")
    return samples


def read_rows(source: str, lines: Iterable[str], suffix: str) -> Iterator[Row]:
    """Yield the rows of the lines of a .txt, .csv or .jsonl file; `source` names it in errors."""
    if suffix == ".csv":
        lines = iter(lines)
        header = next(lines, "")
        rows = csv.DictReader(chain([header], lines), restkey="", restval="", delimiter=separator_of(header))
        for row in rows:
            yield rows.line_num, {name.strip().lower(): from_cell(value.strip()) for name, value in row.items() if name}
        return
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if suffix == ".jsonl" and text:
            try:
                record = json.loads(text)
            except ValueError as error:
                raise InputError(f"{source}, line {number}: not JSON ({error}); write one object per line.") from error
            if not isinstance(record, dict):
                raise InputError(f"{source}, line {number}: not a JSON object; write one object per line.")
            yield number, record
        elif text and not text.startswith("#"):
            yield number, {"file": text}


def _read_parquet(source: str, content: bytes) -> Iterator[Row]:
    """Yield the rows of a parquet file, numbered from 1, with the first column of paths and the first of labels.

    Names of columns are compared without regard to case.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise missing(f"{source} needs pyarrow", "parquet", "or write the list as .csv") from error
    try:
        # dictionaries are kept as such: a long value that is repeated in every row costs its length once
        about = pq.read_metadata(pa.BufferReader(content))
        schema = about.schema.to_arrow_schema()
        names = {str(name).strip().lower(): str(name) for name in schema.names}
        keys = [next((key for key in group if key in names), "") for group in (FILE_KEYS, LABEL_KEYS)]
        found = {key: names[key] for key in keys if key}
        if nested := next((name for name in found.values() if pa.types.is_nested(schema.field(name).type)), None):
            kind = schema.field(nested).type
            raise InputError(f"{source}: the column {nested} holds {kind}, not paths or labels; name columns of text.")
        groups = [about.row_group(number) for number in range(about.num_row_groups)]
        chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
        read = [each for each in chunks if each.path_in_schema.partition(".")[0] in found.values()]
        size = sum(max(0, each.total_uncompressed_size) for each in read)
        if about.num_rows > MAX_ROWS or size > MAX_COLUMN_BYTES:
            raise InputError(
                f"{source} has {about.num_rows:,} rows and {size:,} bytes of paths and labels; a list may have "
                f"{MAX_ROWS:,} and {MAX_COLUMN_BYTES:,} at most: split it."
            )
        file = pq.ParquetFile(pa.BufferReader(content), read_dictionary=[*found.values()])
        if not keys[0]:
            raise InputError(f"{source}: no path among the columns {', '.join(names)}; {HOW_TO_NAME_PATHS}.")
        line = 0
        for batch in file.iter_batches(ROWS_PER_BATCH, columns=[*found.values()], use_threads=False):
            columns = [_values(source, batch.column(name)) for name in found.values()]
            for values in zip(*columns, strict=True):
                line += 1
                yield line, dict(zip(found, values, strict=True))
    except InputError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise InputError(f"{source} cannot be read as a parquet file ({error}); write it again.") from error


def _values(source: str, column: Any) -> list[Any]:
    """Return the values of a column; those that are equal are one object."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_dictionary(column.type) or pa.types.is_integer(column.type.value_type):
        return list(column.to_pylist())  # class indices
    if (pc.max(pc.binary_length(column.dictionary)).as_py() or 0) > MAX_VALUE_BYTES:
        raise InputError(f"{source}: a path or a label has more than {MAX_VALUE_BYTES:,} bytes; write it shorter.")
    known = column.dictionary.to_pylist()
    return [None if index is None else known[index] for index in column.indices.to_pylist()]
