"""Lists of image paths: .txt, .csv, .jsonl, .parquet, or lines on standard input.

Relative paths are relative to the folder of the list, or to the working directory for standard input. A missing image
is listed and fails when it is read.
"""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath
from sys import intern
from typing import Any, TextIO

from acclimate.errors import InputError
from acclimate.files import MAX_LIST, from_cell
from acclimate.images.opening import URL
from acclimate.sources.places import LOCAL, Place
from acclimate.sources.source import Sample
from acclimate.sources.video import is_video, open_video

FILE_KEYS = ("file", "path", "image", "filename", "file_name")
LABEL_KEYS = ("label", "class")
PARQUET = ".parquet"

Row = tuple[int, Mapping[str, Any]]  # line number, fields by name


def is_list(path: str) -> bool:
    """Whether a file is a list, by its suffix."""
    return path.lower().endswith((*READERS, PARQUET))


def open_table(spec: str, fps: float = 1.0, place: Place = LOCAL) -> list[Sample]:
    """List the images and the frames of the videos of a .txt, .csv, .jsonl or .parquet file in its order."""
    try:
        content = place.read(spec, MAX_LIST)
        if spec.lower().endswith(PARQUET):
            from acclimate.sources.parquet import read_rows

            return _samples(spec, place.parent(spec), read_rows(spec, content, FILE_KEYS, LABEL_KEYS), fps, place)
        with io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", newline="") as file:
            rows = READERS[PurePath(spec).suffix.lower()](spec, file)
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
        path = _first(FILE_KEYS, fields)
        label = _first(LABEL_KEYS, fields)
        if path is None:
            known = " or ".join(FILE_KEYS)
            raise InputError(f"{source}, line {line}: no path among {', '.join(fields)}; name it {known}.")
        if not isinstance(path, str) or not path or "\0" in path:
            raise InputError(f"{source}, line {line}: not a path: {path!r}.")
        if URL.match(path) and not place.urls:
            raise InputError(f"{source}, line {line}: {path} is a URL; download the images, and list their paths.")
        name = None if label in (None, "") else intern(str(label))
        path = place.join(base, path)
        if not is_video(path):
            samples.append(place.sample(path, name))
        elif (why := place.lacking_for_videos(path)) and place.urls:
            raise InputError(f"{source}, line {line}: {path} is a video, which {why}.")
        else:
            samples += open_video(path, name, fps)
    if not samples:
        raise InputError(f"no images in {source}: it lists no paths.")
    return samples


def _first(keys: Iterable[str], fields: Mapping[str, Any]) -> Any:
    return next((fields[key] for key in keys if key in fields), None)


def _read_txt(source: str, lines: Iterable[str]) -> Iterator[Row]:
    for number, line in enumerate(lines, 1):
        if (text := line.strip()) and not text.startswith("#"):
            yield number, {"file": text}


def _read_csv(source: str, lines: Iterable[str]) -> Iterator[Row]:
    rows = csv.DictReader(lines, restkey="", restval="")
    for row in rows:
        yield rows.line_num, {name.strip().lower(): from_cell(value.strip()) for name, value in row.items() if name}


def _read_jsonl(source: str, lines: Iterable[str]) -> Iterator[Row]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record: Any = json.loads(line)
        except ValueError as error:
            raise InputError(f"{source}, line {number}: not JSON ({error}); write one object per line.") from error
        if not isinstance(record, dict):
            raise InputError(f"{source}, line {number}: not a JSON object; write one object per line.")
        yield number, record


READERS = {".txt": _read_txt, ".csv": _read_csv, ".jsonl": _read_jsonl}
