"""Result files: csv, jsonl or parquet, appended batch by batch, so that what they hold is always complete.

A format turns predictions into lines; an output is the file that the lines are appended to.
"""

import io
import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from acclimate.errors import InputError, MissingExtraError, StateError
from acclimate.files import write_atomically, writing
from acclimate.predict import Prediction

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


def to_record(prediction: Prediction) -> dict[str, Any]:
    """A prediction by column, and all its answers as `predictions`; None where an unreadable image has no value.

    Numbers have six decimals, and what is not valid Unicode in a name is escaped.
    """
    name = prediction.name.encode("utf-8", "backslashreplace").decode()
    answers = [{"label": answer.label, "score": round(answer.score, 6)} for answer in prediction.top]
    record = dict.fromkeys(COLUMNS) | {"file": name, "index": prediction.index, "error": prediction.error}
    if prediction.error is None:
        record |= {
            **answers[0],
            "zero_shot_label": prediction.zero_shot.label,
            "zero_shot_score": round(prediction.zero_shot.score, 6),
            "changed": prediction.changed,
            "entropy": round(prediction.entropy, 6),
        }
    return record | {"predictions": answers}


class Csv:
    """One line per prediction, the best labels in columns.

    Args:
        top_k: number of labels in a row.
    """

    def __init__(self, top_k: int) -> None:
        self._ranks = ["", *(f"_{rank}" for rank in range(2, top_k + 1))]
        answers = [f"{column}{rank}" for rank in self._ranks for column in ("label", "score")]
        self._columns = ["file", *answers, *(column for column in COLUMNS if column not in ("file", *answers))]
        self.header = self._line(dict(zip(self._columns, self._columns, strict=True)))

    def render(self, predictions: Iterable[Prediction]) -> str:
        """Predictions as lines."""
        lines = []
        for record in map(to_record, predictions):
            for rank, answer in zip(self._ranks, record["predictions"], strict=False):
                record |= {f"{column}{rank}": value for column, value in answer.items()}
            lines.append(self._line(record))
        return "".join(lines)

    def _line(self, record: dict[str, Any]) -> str:
        return ",".join(_csv_cell(record.get(column)) for column in self._columns) + "\n"


class JsonLines:
    """One JSON object per prediction and line, the best labels in a list."""

    header = ""

    def render(self, predictions: Iterable[Prediction]) -> str:
        """Predictions as lines."""
        return "".join(json.dumps(to_record(each), ensure_ascii=False) + "\n" for each in predictions)


class Output:
    """Where predictions go. This base class drops them: nothing is written, and nothing can be resumed."""

    checkpoint: Path | None = None  # a file beside the results while they are incomplete

    def open(self, offset: int = 0) -> None:
        """Begin, or cut the results back to `offset` to resume."""

    def write(self, predictions: Sequence[Prediction]) -> None:
        """Append predictions, all or none."""

    def sync(self) -> int:
        """Make the results durable; returns the offset of their end."""
        return 0

    def finish(self) -> None:
        """Complete the results, and remove what only an incomplete run needs."""


class FileOutput(Output):
    """A result file, which is open only while it is written to. Parquet is made at the end, of JSON lines beside it.

    Args:
        path: the file; the format is chosen by its suffix: .csv, .jsonl or .parquet.
        top_k: number of labels in a row.
    """

    def __init__(self, path: Path, top_k: int) -> None:
        suffix = path.suffix.lower()
        if suffix not in (".csv", ".jsonl", ".parquet"):
            raise InputError(f"cannot tell the format of {path}; results end in .csv, .jsonl or .parquet.")
        if suffix == ".parquet" and find_spec("pyarrow") is None:
            raise MissingExtraError("parquet needs pyarrow: pip install 'acclimate[parquet]'.")
        self.path = path
        self.lines = path.with_name(f"{path.name}.partial.jsonl") if suffix == ".parquet" else path
        self.format = Csv(top_k) if suffix == ".csv" else JsonLines()
        self.checkpoint: Path = path.with_name(f"{path.name}.checkpoint")

    def open(self, offset: int = 0) -> None:
        """Begin a new file, or cut the file back to `offset` bytes."""
        if offset and (not self.lines.is_file() or self.lines.stat().st_size < offset):
            raise StateError(f"{self.lines} is shorter than its checkpoint says; remove both and start again.")
        with writing(self.path, hint=HINT):
            if offset:
                os.truncate(self.lines, offset)
            else:
                self.lines.write_text(self.format.header, encoding="utf-8", newline="")

    def write(self, predictions: Sequence[Prediction]) -> None:
        """Append lines, all or none."""
        content = memoryview(self.format.render(predictions).encode())
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
        """Make the lines durable; returns the size of the file."""
        with writing(self.path, hint=HINT), open(self.lines, "r+b") as file:
            os.fsync(file.fileno())
            return file.seek(0, os.SEEK_END)

    def finish(self) -> None:
        """Complete the file, and remove the checkpoint."""
        self.sync()
        if self.lines != self.path:
            with writing(self.path, hint=HINT):
                write_atomically(self.path, _to_parquet(self.lines))
        self.checkpoint.unlink(missing_ok=True)
        if self.lines != self.path:
            self.lines.unlink(missing_ok=True)


def _to_parquet(lines: Path) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {str: pa.string(), float: pa.float64(), bool: pa.bool_(), int: pa.int64()}
    answer = pa.struct([("label", pa.string()), ("score", pa.float64())])
    columns = [(column, types[kind]) for column, kind in COLUMNS.items()]
    schema = pa.schema([*columns, ("predictions", pa.list_(answer))])
    buffer = io.BytesIO()
    with pq.ParquetWriter(buffer, schema) as writer, open(lines, encoding="utf-8") as file:
        while part := file.readlines(2**22):  # a few megabytes at a time
            writer.write_table(pa.Table.from_pylist([json.loads(line) for line in part], schema))
    return buffer.getvalue()


def _csv_cell(value: Any) -> str:
    """Text with quotes where needed; the csv module of older Pythons does not quote a carriage return."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = f"{value:.6f}" if isinstance(value, float) else str(value)
    return '"' + text.replace('"', '""') + '"' if any(character in text for character in ',"\r\n') else text
