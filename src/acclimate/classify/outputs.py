"""Result files: csv, jsonl or parquet, appended batch by batch, so that what they hold is always complete.

A format turns rows into lines and back; an output is the file that the lines are appended to.
"""

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from acclimate.classifier import Answer, Prediction
from acclimate.classify.rows import Row
from acclimate.errors import InputError, MissingExtraError, StateError
from acclimate.files import write_atomically, writing

# What every format holds. The best labels are added: in csv as label_2, score_2, ..., elsewhere as `predictions`.
COLUMNS: dict[str, type] = {
    "file": str,
    "label": str,
    "score": float,
    "zero_shot_label": str,
    "zero_shot_score": float,
    "changed": bool,
    "entropy": float,
    "index": int,
    "error": str,
}
HINT = "The rows written so far are complete; free some space and resume."


def as_row(prediction: Prediction, name: str) -> Row:
    """The prediction as files hold it, so that rows read back equal the rows written.

    Numbers have six decimals, and what is not valid Unicode in a name is escaped.
    """
    return Row(
        index=prediction.index,
        top=tuple(Answer(answer.label, round(answer.score, 6)) for answer in prediction.top),
        zero_shot=Answer(prediction.zero_shot.label, round(prediction.zero_shot.score, 6)),
        entropy=round(prediction.entropy, 6),
        error=prediction.error,
        name=name.encode("utf-8", "backslashreplace").decode(),
    )


class Csv:
    """One line per row, the best labels in columns.

    Args:
        top_k: number of labels in a row.
    """

    def __init__(self, top_k: int) -> None:
        self._ranks = ["", *(f"_{rank}" for rank in range(2, top_k + 1))]
        answers = [f"{column}{rank}" for rank in self._ranks for column in ("label", "score")]
        self._columns = ["file", *answers, *(column for column in COLUMNS if column not in ("file", *answers))]
        self.header = _csv_line(self._columns)

    def render(self, rows: Iterable[Row]) -> str:
        """Rows as lines."""
        return "".join(map(self._line, rows))

    def parse(self, lines: Iterable[str]) -> Iterator[Row]:
        """The rows of a file."""
        for cells in csv.DictReader(lines):
            top = [{"label": cells[f"label{rank}"], "score": cells[f"score{rank}"]} for rank in self._ranks]
            yield _from_record(cells | {"predictions": [answer for answer in top if answer["label"]]})

    def _line(self, row: Row) -> str:
        record = _to_record(row)
        for rank, answer in zip(self._ranks, record["predictions"], strict=False):
            record |= {f"{column}{rank}": value for column, value in answer.items()}
        return _csv_line([_cell(record.get(column)) for column in self._columns])


class JsonLines:
    """One JSON object per line, the best labels in a list."""

    header = ""

    def render(self, rows: Iterable[Row]) -> str:
        """Rows as lines."""
        return "".join(json.dumps(_to_record(row), ensure_ascii=False) + "\n" for row in rows)

    def parse(self, lines: Iterable[str]) -> Iterator[Row]:
        """The rows of a file."""
        return (_from_record(json.loads(line)) for line in lines)


class Output:
    """Where rows go. This base class drops them: nothing is written, and nothing can be resumed."""

    checkpoint: Path | None = None  # a file beside the results while they are incomplete

    def open(self, offset: int = 0) -> Iterator[Row]:
        """Begin, or cut the results back to `offset` to resume; gives the rows that are there."""
        return iter(())

    def write(self, rows: Sequence[Row]) -> None:
        """Append rows, all or none."""

    def sync(self) -> int:
        """Make the rows durable; returns the offset of their end."""
        return 0

    def finish(self) -> None:
        """Complete the results, and remove what only an incomplete run needs."""


class FileOutput(Output):
    """Lines of text in a file, which is open only while it is written to.

    Args:
        path: the file.
        format: how rows become lines.
    """

    def __init__(self, path: Path, format: Csv | JsonLines) -> None:
        self.path, self.format = path, format
        self.lines = path  # where the lines are written
        self.checkpoint: Path = path.with_name(f"{path.name}.checkpoint")

    def open(self, offset: int = 0) -> Iterator[Row]:
        """Begin a new file, or cut the file back to `offset` bytes; gives the rows that remain."""
        if offset and (not self.lines.is_file() or self.lines.stat().st_size < offset):
            raise StateError(f"{self.lines} is shorter than its checkpoint says; remove both and start again.")
        with writing(self.path, hint=HINT):
            if offset:
                os.truncate(self.lines, offset)
            else:
                self.lines.write_text(self.format.header, encoding="utf-8", newline="")
        return self._read()

    def write(self, rows: Sequence[Row]) -> None:
        """Append rows, all or none."""
        content = memoryview(self.format.render(rows).encode())
        with writing(self.path, hint=HINT), open(self.lines, "r+b", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            try:
                while content:
                    content = content[file.write(content) or 0 :]
            except OSError:
                with suppress(OSError):
                    file.truncate(end)  # no part of a line stays
                raise

    def sync(self) -> int:
        """Make the rows durable; returns the size of the file."""
        with writing(self.path, hint=HINT), open(self.lines, "r+b") as file:
            os.fsync(file.fileno())
            return file.seek(0, os.SEEK_END)

    def finish(self) -> None:
        """Complete the file, and remove the checkpoint."""
        self.sync()
        self.checkpoint.unlink(missing_ok=True)

    def _read(self) -> Iterator[Row]:
        with open(self.lines, encoding="utf-8", newline="") as file:
            yield from self.format.parse(file)


class ParquetOutput(FileOutput):
    """A parquet file, written at the end; until then the rows are JSON lines in a file beside it."""

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError:
            raise MissingExtraError("parquet needs pyarrow: pip install 'acclimate[parquet]'.") from None
        super().__init__(path, JsonLines())
        self.lines = path.with_name(f"{path.name}.partial.jsonl")

    def finish(self) -> None:
        """Turn the lines into parquet, then remove them and the checkpoint."""
        with writing(self.path, hint=HINT):
            write_atomically(self.path, self._to_parquet())
        super().finish()
        self.lines.unlink(missing_ok=True)

    def _to_parquet(self) -> bytes:
        import pyarrow as pa
        import pyarrow.parquet as pq

        types = {str: pa.string(), float: pa.float64(), bool: pa.bool_(), int: pa.int64()}
        answer = pa.struct([("label", pa.string()), ("score", pa.float64())])
        columns = [(column, types[kind]) for column, kind in COLUMNS.items()]
        schema = pa.schema([*columns, ("predictions", pa.list_(answer))])
        buffer = io.BytesIO()
        with pq.ParquetWriter(buffer, schema) as writer, open(self.lines, encoding="utf-8") as file:
            while lines := file.readlines(2**22):  # a few megabytes at a time
                writer.write_table(pa.Table.from_pylist([json.loads(line) for line in lines], schema))
        return buffer.getvalue()


def open_output(path: Path, top_k: int) -> FileOutput:
    """The output for a path, chosen by its suffix: .csv, .jsonl or .parquet."""
    match path.suffix.lower():
        case ".csv":
            return FileOutput(path, Csv(top_k))
        case ".jsonl":
            return FileOutput(path, JsonLines())
        case ".parquet":
            return ParquetOutput(path)
    raise InputError(f"cannot tell the format of {path}; results end in .csv, .jsonl or .parquet.")


def _to_record(row: Row) -> dict[str, Any]:
    """A row by column; None where an unreadable image has no value."""
    record: dict[str, Any] = dict.fromkeys(COLUMNS) | {"file": row.name, "index": row.index, "error": row.error}
    if row.error is None:
        record |= {"label": row.label, "score": row.score, "changed": row.changed, "entropy": row.entropy}
        record |= {"zero_shot_label": row.zero_shot.label, "zero_shot_score": row.zero_shot.score}
    return record | {"predictions": [{"label": answer.label, "score": answer.score} for answer in row.top]}


def _from_record(record: Mapping[str, Any]) -> Row:
    """The row of a record, whose numbers may be text; empty text and None are no value."""
    return Row(
        index=int(record["index"]),
        top=tuple(Answer(answer["label"], float(answer["score"])) for answer in record["predictions"]),
        zero_shot=Answer(record["zero_shot_label"] or "", float(record["zero_shot_score"] or 0)),
        entropy=float(record["entropy"] or 0),
        error=record["error"] or None,
        name=record["file"],
    )


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.6f}" if isinstance(value, float) else str(value)


def _csv_line(cells: Iterable[str]) -> str:
    """Cells with quotes where needed; the csv module of older Pythons does not quote a carriage return."""
    quoted = ('"' + cell.replace('"', '""') + '"' if any(c in cell for c in ',"\r\n') else cell for cell in cells)
    return ",".join(quoted) + "\n"
