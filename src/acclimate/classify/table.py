"""Tables of results: csv or jsonl, which grow while a run goes on, parquet or xlsx, which are written at its end."""

import csv
import io
import json
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from importlib.util import find_spec
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from zipfile import BadZipFile
from zlib import crc32

from acclimate.errors import InputError, RunError, missing
from acclimate.files import (
    append,
    from_cell,
    open_regular,
    replacing,
    separator_of,
    to_cell,
    write_atomically,
    writing,
)
from acclimate.predict import COLUMNS, Prediction
from acclimate.run import Run, is_run, run_path

CONVERTED = {".parquet": ("pyarrow", "parquet"), ".xlsx": ("openpyxl", "excel")}  # suffix -> package, extra
HANDED_OVER = ("sorted_to", "correct_label")  # columns of a table that the next one takes over
SIGNED = ("file", "online_label", "zero_shot_label", "error")  # columns that tell an edited table, with the answers
MARK = "\ufeff"  # a byte-order mark tells Excel that a file is UTF-8
# Characters that an .xlsx file cannot have, or that would read as the escape of one
SHEET_UNSAFE = re.compile(r"_(?=x[0-9a-fA-F]{4}_)|[\x00-\x08\x0b-\x1f\ufffe\uffff]")
SHEET_ESCAPE = re.compile(r"_x([0-9a-fA-F]{4})_")
MAX_SHEET_ROWS = 2**20 - 1  # rows of an Excel sheet below its header
HINT = "What was encoded is kept; free some space and pass --resume."


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
    """Read the records of final results, as `Prediction.to_record` makes them; numbers of csv are text."""
    run = run_path(path)
    if is_run(run) and Run.open(run).answer.get("answers") == "online":
        raise InputError(f"{path} is incomplete; complete it with `acclimate classify --resume --out {path}` first.")
    return read_table(path)


def read_table(path: Path) -> list[dict[str, Any]]:
    """Read the records of a table, whether or not it is complete."""
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
    style = CsvStyle.of(path) if path.suffix.lower() == ".csv" else CsvStyle()
    columns = [name for record in records[:1] for name in record if name and name != "predictions"] or csv_columns(1)
    with writing(path, hint="What was there before is untouched."):
        _write(path, [records], columns, style)


class Kept(NamedTuple):
    """The contents of a table that the next one in its place takes over.

    Attributes:
        columns: the columns of the next table.
        style: the form of a csv file.
        rows: what each row of a file is given, in order; files without anything are left out.
        records: all rows of the table.
        readable: False if there is a file that is no table.
    """

    columns: list[str]
    style: CsvStyle
    rows: dict[str, deque[dict[str, Any]]]
    records: list[dict[str, Any]]
    readable: bool = True

    @classmethod
    def of(cls, path: Path, columns: list[str]) -> "Kept":
        """Read what is to be kept of the table at a path; nothing of a file that is not one."""
        try:
            records = read_table(path)
        except InputError:
            return cls(columns, CsvStyle(), {}, [], readable=not path.exists())
        found = [name for record in records[:1] for name in record if name]
        own = [
            name for name in found if name not in COLUMNS and not re.fullmatch(r"predictions|(label|score)_\d+", name)
        ]
        rows: dict[str, deque[dict[str, Any]]] = {}
        for record in records:
            given = {name: record[name] for name in (*HANDED_OVER, *own) if record.get(name) not in (None, "")}
            if given:
                rows.setdefault(record["file"], deque()).append(given)
        style = CsvStyle.of(path) if path.suffix.lower() == ".csv" else CsvStyle()
        whole = [name for name in found if name != "predictions"]
        return cls(whole if {*columns, *own} == {*whole} else [*columns, *own], style, rows, records)

    def complete(self, record: dict[str, Any]) -> dict[str, Any]:
        """Return a new record with what the row of its file had."""
        rows = self.rows.get(record["file"])
        given = rows.popleft() if rows else {}
        return record | {name: value for name, value in given.items() if record.get(name) is None}

    def check_all_taken(self, path: Path) -> None:
        """Refuse to lose where an image went."""
        lost = [name for name, rows in self.rows.items() if any("sorted_to" in row for row in rows)]
        if lost:
            raise InputError(
                f"{path} says where {lost[0]} went, and the new results do not have this image; take it back with "
                f"`acclimate sort {path} --undo`, or choose another --out."
            )


def signature(records: Iterable[Mapping[str, Any]]) -> int:
    """Return a number that another answer in any row would change; the order of rows does not."""
    total = 0
    for record in records:
        cells = [record[name] for name in SIGNED]
        for answer in record["predictions"]:
            cells += [answer["label"], f"{float(answer['score'] or 0):.4f}"]
        total += crc32("\0".join("" if cell is None else str(cell) for cell in cells).encode("utf-8", "replace"))
    return total


class Table:
    """The table of the results of a run: csv, jsonl, parquet or xlsx, with `top_k` labels per row.

    csv and jsonl can grow while the run goes on. A table that is there is replaced by a whole one, which takes over
    what no run can know: where images were sorted to, labels that a person has typed, columns of the user's own, and
    the separator and the mark of a csv file.

    Args:
        path: the file.
        top_k: labels per row.

    Attributes:
        grows: True if rows can be appended.

    Raises:
        InputError: the format is unknown.
    """

    def __init__(self, path: Path, top_k: int) -> None:
        suffix = path.suffix.lower()
        if suffix not in (".csv", ".jsonl", *CONVERTED):
            raise InputError(f"cannot tell the format of {path}; results end in .csv, .jsonl, .parquet or .xlsx.")
        if suffix in CONVERTED and find_spec(CONVERTED[suffix][0]) is None:
            raise missing(f"{suffix[1:]} needs {CONVERTED[suffix][0]}", CONVERTED[suffix][1])
        self.path = path
        self.grows = suffix not in CONVERTED
        self._columns = csv_columns(top_k)
        self._style = CsvStyle()

    def begin(self) -> None:
        """Begin a table that grows."""
        with writing(self.path, hint=HINT):
            _write(self.path, [], self._columns, self._style)

    def append(self, predictions: Sequence[Prediction]) -> None:
        """Append rows to a table that grows, all or none."""
        style = self._style if self.path.suffix.lower() == ".csv" else None
        with writing(self.path, hint=HINT):
            append(self.path, _lines([each.to_record() for each in predictions], self._columns, style).encode())

    def write(
        self,
        blocks: Iterable[Sequence[Prediction]],
        signed: int | None = None,
        online: Iterable[Sequence[Prediction]] | None = None,
        forget: Collection[str] = (),
    ) -> tuple[int, Path | None]:
        """Write all rows, in the place of a table that is there.

        Args:
            blocks: the rows.
            signed: the `signature` of the table that is there, if it is known.
            online: the predictions of which the table that is there has the first ones, if it was growing.
            forget: files whose typed labels are not taken over.

        Returns:
            The signature of the new table; and where the old one was put, if a person has edited its answers.
        """
        kept = Kept.of(self.path, self._columns)
        for name in forget:
            for row in kept.rows.get(name, ()):
                row.pop("correct_label", None)
        edited = None
        total = 0

        if online is not None:
            rows = islice(chain.from_iterable(online), len(kept.records))
            signed = signature(each.to_record() for each in rows)

        def completed_blocks() -> Iterator[list[dict[str, Any]]]:
            nonlocal total, edited
            for block in blocks:
                records = [each.to_record() for each in block]
                total += signature(records)
                yield [kept.complete(record) for record in records]
            kept.check_all_taken(self.path)
            # a run that was killed may have written these very rows already
            same = kept.readable and (not kept.records or signature(kept.records) in (signed, total))
            if signed is not None and not same:
                edited = self.path.with_name(f"{self.path.stem}.edited{self.path.suffix}")
                write_atomically(edited, self.path.read_bytes())

        with writing(self.path, hint=HINT):
            _write(self.path, completed_blocks(), kept.columns, kept.style)
        self._columns = kept.columns
        self._style = kept.style
        return total, edited


def _write(path: Path, blocks: Iterable[Sequence[Mapping[str, Any]]], columns: Sequence[str], style: CsvStyle) -> None:
    """Write a table in the format of its name, whole or not at all."""
    suffix = path.suffix.lower()
    run = run_path(path)
    with replacing(path, run if is_run(run) else None) as file:  # what a kill leaves there is removed by the next run
        if suffix == ".parquet":
            write_parquet(file, blocks, [name for name in columns if name not in csv_columns(100)])
        elif suffix == ".xlsx":
            write_xlsx(file, chain.from_iterable(blocks), columns)
        else:
            file.write((style.mark + style.separator.join(columns) + "\n" if suffix == ".csv" else "").encode())
            for block in blocks:
                file.write(_lines(block, columns, style if suffix == ".csv" else None).encode())


def write_parquet(
    file: BinaryIO,
    blocks: Iterable[Sequence[Mapping[str, Any]]],
    own: Sequence[str] = (),
    about: Mapping[str, str] | None = None,
) -> None:
    """Write a parquet file of records, with columns of the user's `own` as text, and metadata about it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {str: pa.string(), float: pa.float64(), bool: pa.bool_(), int: pa.int64()}
    columns = {name: types[kind] for name, kind in COLUMNS.items()} | dict.fromkeys(own, pa.string())
    columns["predictions"] = pa.list_(pa.struct({"label": pa.string(), "score": pa.float64()}))
    schema = pa.schema(columns, dict(about or {}))
    with pq.ParquetWriter(file, schema) as writer:
        for block in blocks:
            rows = [{**row, **{name: str(row[name]) for name in own if row.get(name) is not None}} for row in block]
            writer.write_table(pa.Table.from_pylist(rows, schema))


def write_xlsx(file: BinaryIO, records: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Write an Excel file with a row per record; text is text there, whatever it begins with."""
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
    book.save(file)


def _from_sheet(value: Any) -> Any:
    if isinstance(value, date | time):  # a date may have a time
        return value.isoformat()
    return SHEET_ESCAPE.sub(lambda found: chr(int(found[1], 16)), value) if isinstance(value, str) else value


def _lines(records: Sequence[Mapping[str, Any]], columns: Sequence[str], style: CsvStyle | None) -> str:
    """Return a line of csv per record; without a style one of JSON, the best labels in a list."""
    if style is None:
        return "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in records)
    return csv_lines(records, columns, style.separator)


def _csv_cell(value: Any, separator: str, path: bool) -> str:
    """Return a value as text, quoted where needed; csv of older Pythons does not quote a carriage return."""
    if value is None or isinstance(value, bool):
        return "" if value is None else str(value).lower()
    text = f"{value:.6f}".rstrip("0").ljust(6, "0") if isinstance(value, float) else to_cell(str(value), path)  # 0.5000
    quoted = separator in text or any(character in text for character in '"\r\n')
    return '"' + text.replace('"', '""') + '"' if quoted else text
