"""Result files: csv or jsonl, appended batch by batch, so that they hold complete rows at all times.

Files of other formats, parquet and xlsx, are made at the end from such rows. And the file of the features that are
kept for a second pass.
"""

import csv
import hashlib
import io
import json
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from datetime import date, datetime, time
from importlib.util import find_spec
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO
from zipfile import BadZipFile

import numpy as np

from acclimate.arrays import HostArray
from acclimate.errors import InputError, RunError, missing, reason
from acclimate.files import (
    append,
    cut_back,
    from_cell,
    open_regular,
    replace_file,
    separator_of,
    sync,
    to_cell,
    write_atomically,
    writing,
)
from acclimate.predict import COLUMNS, Prediction, Predictions

ROWS_PER_BLOCK = 1024  # rows that are read at a time
FEATURES_DTYPE = np.dtype(np.float16)
FEATURES_HINT = "It keeps the features to answer once more at the end; free some space and resume, or pass --passes 1."
CONVERTED = {".parquet": ("pyarrow", "parquet"), ".xlsx": ("openpyxl", "excel")}  # suffix -> package, extra
MARK = "\ufeff"  # a byte-order mark tells Excel that a file is UTF-8
# Characters that an .xlsx file cannot have, or that would read as the escape of one
SHEET_UNSAFE = re.compile(r"_(?=x[0-9a-fA-F]{4}_)|[\x00-\x08\x0b-\x1f\ufffe\uffff]")
SHEET_ESCAPE = re.compile(r"_x([0-9a-fA-F]{4})_")
MAX_SHEET_ROWS = 2**20 - 1  # rows of an Excel sheet below its header
HINT = "The rows written so far are complete; free some space and resume."


class CsvStyle(NamedTuple):
    """The form of a csv file, in which spreadsheets differ."""

    separator: str = ","
    mark: str = ""  # `MARK` or nothing

    @classmethod
    def of(cls, path: Path) -> "CsvStyle":
        """Return the style of a file."""
        with open(path, encoding="utf-8", errors="replace") as file:
            header = file.readline()
        return cls(separator_of(header), MARK if header.startswith(MARK) else "")


def csv_columns(top_k: int) -> list[str]:
    """Return the columns of csv results: the label and score of each rank follow the file."""
    more = [f"{column}_{rank}" for rank in range(2, top_k + 1) for column in ("label", "score")]
    return ["file", "label", "score", *more, *(name for name in COLUMNS if name not in ("file", "label", "score"))]


def csv_records(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Read the records of csv results, numbers as text; spreadsheets may separate the cells with semicolons or tabs.

    Cells that were written so that they are no formulas are as they were before.
    """
    lines = iter(lines)
    header = next(lines, "")
    for row in csv.DictReader(chain([header], lines), delimiter=separator_of(header)):
        yield _with_answers({name: from_cell(cell) if isinstance(cell, str) else cell for name, cell in row.items()})


def sheet_rows(path: Path) -> Iterator[list[Any]]:
    """Read the rows of the first sheet of an .xlsx file that are not blank, all as long as the first one."""
    if find_spec("openpyxl") is None:
        raise missing(f"{path} needs openpyxl", "excel", "or save it as .csv")
    from openpyxl import load_workbook

    try:
        with open_regular(path) as file:
            sheet = load_workbook(file, read_only=True, data_only=True).worksheets[0]
            sheet.reset_dimensions()  # some programs write wrong ones
            width = 0
            for row in sheet.iter_rows(values_only=True):
                width = width or len(row)
                if any(cell is not None for cell in row):
                    yield [_from_sheet(cell) for cell in [*row, *[None] * width][:width]]
    except (BadZipFile, KeyError, IndexError, ValueError) as error:
        raise InputError(f"{path} cannot be read as an Excel file ({error}); save it again, or as .csv.") from error


def _with_answers(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a table with the labels and scores of all its ranks as `predictions`, too."""
    row = {name: str(cell) if COLUMNS.get(name) is str and cell is not None else cell for name, cell in row.items()}
    ranks = [name.removeprefix("label") for name in row if name == "label" or (name or "").startswith("label_")]
    answers = [{"label": row[f"label{rank}"], "score": row.get(f"score{rank}")} for rank in ranks]
    return row | {"predictions": [answer for answer in answers if answer["label"]]}


def completed(number: int, record: Any) -> dict[str, Any]:
    """Return a record with a default for each column that earlier versions have not written.

    Raises:
        ValueError: it has no file, label or score.
    """
    for name in ("file", "label", "score"):
        if not isinstance(record, dict) or name not in record:
            raise ValueError(f"row {number + 1} has no {name}")
    answer = {"label": record["label"], "score": record["score"]}
    others = {f"{who}_{name}": value for who in ("online", "zero_shot") for name, value in answer.items()}
    defaults = {**dict.fromkeys(COLUMNS), **others, "index": number, "predictions": [answer]}
    defaults["folder"] = str(record["file"]).rpartition("/")[0] or "."
    return {**record, **{name: value for name, value in defaults.items() if name not in record}}


def csv_lines(records: Iterable[Mapping[str, Any]], columns: Sequence[str], separator: str = ",") -> str:
    """Return a line of csv per record; a spreadsheet takes no cell for a formula."""
    return "".join(
        separator.join(
            _csv_cell(cells.get(column), separator, column in ("file", "folder", "sorted_to")) for column in columns
        )
        + "\n"
        for cells in map(_cells, records)
    )


def _cells(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a record by the columns of a table."""
    ranks = enumerate(record["predictions"], start=1)
    return {**record, **{f"{name}_{rank}": value for rank, answer in ranks for name, value in answer.items()}}


def read_results(path: Path) -> list[dict[str, Any]]:
    """Read the records of complete results, as `Prediction.to_record` makes them; numbers of csv are text."""
    if ResultFile(path, 1).checkpoint.is_file():
        raise InputError(f"{path} is incomplete; complete it with `acclimate classify --resume --out {path}` first.")
    try:
        if path.suffix.lower() == ".parquet":
            import pyarrow.parquet as pq

            with open_regular(path) as content:
                records = pq.read_table(content).to_pylist()
        elif path.suffix.lower() == ".xlsx":
            header, *rows = list(sheet_rows(path)) or [[]]
            records = [_with_answers(dict(zip(map(str, header), row, strict=True))) for row in rows]
        else:  # spreadsheets put a mark at the beginning
            with io.TextIOWrapper(open_regular(path), "utf-8-sig", newline="") as file:
                records = list(csv_records(file) if path.suffix.lower() == ".csv" else map(json.loads, file))
        return list(map(completed, count(), records))
    except FileNotFoundError:
        raise InputError(f"no results at {path}.") from None
    except (OSError, ValueError, KeyError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as results of `acclimate classify`: {error}.") from error


def write_results(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Replace results by others with the same columns, atomically; csv keeps its style."""
    suffix = path.suffix.lower()
    columns = _columns_of(records) if suffix == ".csv" else []
    with writing(path, hint="What was there before is untouched."):
        style = CsvStyle.of(path) if columns else CsvStyle()
        content = (_header(columns, style) + _lines(records, columns, style)).encode()
        if suffix in CONVERTED:
            content = _convert(suffix, io.StringIO(content.decode()), _columns_of(records))
        write_atomically(path, content)


class ResultFile:
    """A csv, jsonl, parquet or xlsx file with `top_k` labels per row; the last two are made from JSON lines at the end.

    The file is open only while it is written to. All lines can be written a second time, to `again`; `finish` puts them
    in the place of the first ones. A run that continues the file says which `digest` it had, so that no rows are added
    to a file that was edited, or is another one.
    """

    def __init__(self, path: Path, top_k: int, bom: bool = False) -> None:
        suffix = path.suffix.lower()
        if suffix not in (".csv", ".jsonl", *CONVERTED):
            raise InputError(f"cannot tell the format of {path}; results end in .csv, .jsonl, .parquet or .xlsx.")
        if suffix in CONVERTED and find_spec(CONVERTED[suffix][0]) is None:
            raise missing(f"{suffix[1:]} needs {CONVERTED[suffix][0]}", CONVERTED[suffix][1])
        self.path = path
        self.lines = path.with_name(f"{path.name}.partial.jsonl") if suffix in CONVERTED else path
        self.checkpoint = path.with_name(f"{path.name}.checkpoint")  # exists while the results are incomplete
        self.features = path.with_name(f"{path.name}.features")  # features of the images that could be read
        self.state = path.with_suffix(".state.safetensors")  # what a complete run has learnt, and its options
        self._table_columns = csv_columns(top_k)
        self._columns = self._table_columns if suffix == ".csv" else []
        self._style = CsvStyle(mark=MARK if bom else "")
        self._hash = hashlib.sha256()

    @property
    def digest(self) -> str:
        """Digest of what was written so far."""
        return self._hash.hexdigest()

    @property
    def again(self) -> "ResultFile":
        """The file for the lines that are written a second time."""
        other = copy(self)
        other.lines = self.path.with_name(f"{self.path.name}.second")
        return other

    def reopen(self, records: Sequence[Mapping[str, Any]]) -> int:
        """Open complete results again, with these records, to add lines; returns their size in bytes."""
        is_table = self.path.suffix.lower() in (".csv", ".xlsx")
        if is_table and records and {*_columns_of(records)} != {*self._table_columns}:
            why = "its columns are different: another --top-k, another version of acclimate, or columns of your own"
            raise InputError(f"cannot continue {self.path}: {why}. Choose another --out.")
        with writing(self.lines, hint=HINT):
            self._style = CsvStyle.of(self.path) if self._columns else self._style
            content = (_header(self._columns, self._style) + _lines(records, self._columns, self._style)).encode()
            write_atomically(self.lines, content)
        self._hash = hashlib.sha256(content)
        return len(content)

    def open(self, offset: int = 0) -> None:
        """Begin a new file, without what another run may have left, or cut the file back to `offset` bytes."""
        with writing(self.path, hint=HINT):
            if offset:
                cut_back(self.lines, offset)
            else:
                self.again.lines.unlink(missing_ok=True)
                header = _header(self._columns, self._style).encode()
                self.lines.write_bytes(header)
                self._hash = hashlib.sha256(header)

    def check(self, offset: int, digest: str, files: Collection[str]) -> None:
        """Refuse to continue a file whose first `offset` bytes are not those with this digest.

        Where nothing is to be kept, its first row must be of one of the files, if there are any.
        """
        try:
            with open_regular(self.lines) as file:
                self._hash = hashlib.sha256()
                while block := file.read(min(2**20, offset - file.tell())):
                    self._hash.update(block)
            own = self.digest == digest if offset else self._begins(files)
        except FileNotFoundError:
            own = not offset
        except OSError as error:
            raise InputError(f"cannot continue {self.path}: {self.lines} cannot be read: {reason(error)}.") from error
        if not own:
            raise InputError(
                f"cannot continue {self.path}: {self.lines.name} is not what the stopped run has written; it was "
                "edited, cut off or replaced. Put it back, choose another --out, or --overwrite it."
            )
        if offset and self._columns:  # an earlier version may have begun it with fewer columns
            self._style = CsvStyle.of(self.lines)
            with open(self.lines, encoding="utf-8-sig", newline="") as lines:
                self._columns = next(csv.reader(lines, delimiter=self._style.separator))

    def _begins(self, files: Collection[str]) -> bool:
        """Return True if the file is empty, or begins with the header and a row of one of the files."""
        with io.TextIOWrapper(open_regular(self.lines), "utf-8-sig", errors="replace", newline="") as file:
            header = _header(self._columns, CsvStyle())
            own = header.startswith(file.read(len(header)))
            file.seek(0)
            try:
                first = next(self._records(file), None)
                return own and (first is None or not files or first["file"] in files)
            except (ValueError, KeyError, TypeError, csv.Error):
                return False

    def open_like(self, other: "ResultFile", size: int) -> None:
        """Begin with the first `size` bytes of another file; with none, as a new file."""
        self.open()
        if size:
            with writing(self.path, hint=HINT):
                shutil.copyfile(other.lines, self.lines)
                cut_back(self.lines, size)

    def write(self, predictions: Sequence[Prediction]) -> None:
        """Append lines, all or none."""
        content = _lines([each.to_record() for each in predictions], self._columns, self._style).encode()
        with writing(self.path, hint=HINT):
            append(self.lines, content)
        self._hash.update(content)

    def read(self, class_names: Sequence[str] = (), start: int = 0, stop: int | None = None) -> Iterator[Predictions]:
        """Read the predictions that were written, as far as the columns hold them, some rows at a time."""
        with open(self.lines, encoding="utf-8-sig", newline="") as file:
            records = islice(map(completed, count(), self._records(file)), start, stop)
            while block := list(islice(records, ROWS_PER_BLOCK)):
                yield Predictions.from_records(block, class_names)

    def _records(self, lines: Iterable[str]) -> Iterator[dict[str, Any]]:
        return csv_records(lines) if self._columns else map(json.loads, lines)

    def sync(self) -> int:
        """Make the lines durable; returns the size of the file."""
        with writing(self.path, hint=HINT):
            return sync(self.lines)

    def finish(self, keep_features: bool = False) -> None:
        """Complete the file, and remove the checkpoint."""
        if self.again.lines.exists():
            with writing(self.path, hint=HINT):
                replace_file(self.again.lines, self.lines)
        if not keep_features:
            self.features.unlink(missing_ok=True)
        self.sync()
        if self.lines != self.path:
            with writing(self.path, hint=HINT), open(self.lines, encoding="utf-8") as file:
                write_atomically(self.path, _convert(self.path.suffix.lower(), file, self._table_columns))
        self.checkpoint.unlink(missing_ok=True)  # goes before the lines that it is needed with
        if self.lines != self.path:
            self.lines.unlink(missing_ok=True)


class FeatureFile:
    """Float16 features, appended batch by batch, and read through a memory map: they need not fit in memory.

    Args:
        path: the file, of rows and nothing else.
        shape: shape of a row: (d,), or (V, d) for V views.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = FeatureFile(Path(folder) / "features", (3,))
        ...     file.open()
        ...     file.write(np.eye(3))
        ...     file.open(rows=2)
        ...     file.read().tolist()
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """

    def __init__(self, path: Path, shape: tuple[int, ...]) -> None:
        self.path = path
        self.shape = shape
        self._row_size = np.empty(shape, FEATURES_DTYPE).nbytes

    def open(self, rows: int = 0) -> None:
        """Begin a new file, or cut the file back to a number of rows."""
        with writing(self.path, hint=FEATURES_HINT):
            if rows:
                cut_back(self.path, rows * self._row_size)
            else:
                self.path.write_bytes(b"")

    def write(self, features: HostArray) -> None:
        """Append rows, all or none."""
        with writing(self.path, hint=FEATURES_HINT):
            append(self.path, np.ascontiguousarray(features, FEATURES_DTYPE).tobytes())

    def sync(self) -> None:
        """Make the rows durable."""
        with writing(self.path, hint=FEATURES_HINT):
            sync(self.path)

    def read(self) -> HostArray:
        """Return all rows (n, d) or (n, V, d) as float16."""
        shape = (self.path.stat().st_size // self._row_size, *self.shape)
        return (
            np.asarray(np.memmap(self.path, FEATURES_DTYPE, "r", shape=shape))
            if shape[0]
            else np.empty(shape, FEATURES_DTYPE)
        )


def parquet_bytes(records: Iterable[Sequence[Mapping[str, Any]]], about: Mapping[str, str] | None = None) -> bytes:
    """Return a parquet file of records, given some at a time, with metadata about it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {str: pa.string(), float: pa.float64(), bool: pa.bool_(), int: pa.int64()}
    columns = {name: types[kind] for name, kind in COLUMNS.items()}
    columns["predictions"] = pa.list_(pa.struct({"label": pa.string(), "score": pa.float64()}))
    schema = pa.schema(columns, dict(about or {}))
    buffer = io.BytesIO()
    with pq.ParquetWriter(buffer, schema) as writer:
        for part in records:
            writer.write_table(pa.Table.from_pylist(list(part), schema))
    return buffer.getvalue()


def xlsx_bytes(records: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> bytes:
    """Return an Excel file with a row per record; text is text there, whatever it begins with."""
    from openpyxl import Workbook
    from openpyxl.cell import WriteOnlyCell

    book = Workbook(write_only=True)
    sheet = book.create_sheet("answers")
    sheet.freeze_panes = "A2"
    sheet.append(list(columns))
    for row, cells in enumerate(map(_cells, records), 1):
        if row > MAX_SHEET_ROWS:
            raise RunError(f"an Excel sheet has {MAX_SHEET_ROWS:,} rows at most; write .csv or .parquet.")
        values = []
        for column in columns:
            value = cells.get(column)
            if column == "taken" and value:
                value = datetime.fromisoformat(value)
            elif isinstance(value, str):
                value = WriteOnlyCell(sheet, SHEET_UNSAFE.sub(lambda found: f"_x{ord(found[0]):04x}_", value))
                value.data_type = "s"  # neither a formula nor an error
            values.append(value)
        sheet.append(values)
    buffer = io.BytesIO()
    book.save(buffer)
    return buffer.getvalue()


def _from_sheet(value: Any) -> Any:
    if isinstance(value, date | time):  # a date may have a time
        return value.isoformat()
    return SHEET_ESCAPE.sub(lambda found: chr(int(found[1], 16)), value) if isinstance(value, str) else value


def _convert(suffix: str, lines: TextIO, columns: Sequence[str]) -> bytes:
    """Return a parquet or xlsx file of JSON lines."""
    parts = iter(lambda: lines.readlines(2**22), [])
    records = ([json.loads(line) for line in part] for part in parts)
    return parquet_bytes(records) if suffix == ".parquet" else xlsx_bytes(chain.from_iterable(records), columns)


def _header(columns: Sequence[str], style: CsvStyle) -> str:
    return style.mark + style.separator.join(columns) + "\n" if columns else ""


def _lines(records: Sequence[Mapping[str, Any]], columns: Sequence[str], style: CsvStyle) -> str:
    """Return a line of csv per record; without columns one of JSON, the best labels in a list."""
    if columns:
        return csv_lines(records, columns, style.separator)
    return "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in records)


def _csv_cell(value: Any, separator: str, path: bool) -> str:
    """Return a value as text, quoted where needed; csv of older Pythons does not quote a carriage return."""
    if value is None or isinstance(value, bool):
        return "" if value is None else str(value).lower()
    text = f"{value:.6f}".rstrip("0").ljust(6, "0") if isinstance(value, float) else to_cell(str(value), path)  # 0.5000
    quoted = separator in text or any(character in text for character in '"\r\n')
    return '"' + text.replace('"', '""') + '"' if quoted else text


def _columns_of(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns that records have in a csv file."""
    return [name for record in records[:1] for name in record if name and name != "predictions"] or csv_columns(1)
