"""Where rows go: csv, jsonl or parquet; appended batch by batch, so that what is there is always whole."""

import csv
import io
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from acclimate.classify.rows import Row
from acclimate.errors import InputError, MissingExtraError, StateError
from acclimate.files import write_atomically

PLAIN = ("index", "file", "label", "score", "zero_shot_label", "zero_shot_score", "changed", "entropy", "error")


def open_output(path: Path, top_k: int) -> "LinesOutput":
    """The output for a path, chosen by its suffix: .csv, .jsonl or .parquet."""
    kinds = {".csv": CsvOutput, ".jsonl": JsonlOutput, ".parquet": ParquetOutput}
    if path.suffix.lower() not in kinds:
        raise InputError(f"cannot tell the format of {path}; results end in {', '.join(kinds)}.")
    return kinds[path.suffix.lower()](path, top_k)


class LinesOutput:
    """Text lines in a file, one row a line.

    Args:
        path: the file.
        top_k: how many labels a row names.
    """

    def __init__(self, path: Path, top_k: int) -> None:
        self.path, self.top_k = path, top_k
        self.lines = path  # where the lines are written
        self._file: io.FileIO | None = None

    def header(self) -> str:
        """The file's first line."""
        return ""

    def render(self, rows: Sequence[Row]) -> str:
        """Rows as lines."""
        raise NotImplementedError

    def parse(self, file: io.TextIOBase) -> Iterator[Row]:
        """Rows of a file."""
        raise NotImplementedError

    def start(self) -> None:
        """Begin a new file."""
        self._file = open(self.lines, "wb", buffering=0)  # noqa: SIM115 (kept open for the whole job)
        self._append(self.header())

    def resume(self, offset: int) -> Iterator[Row]:
        """Cut the file back to an offset and give the rows that remain."""
        if not self.lines.is_file() or self.lines.stat().st_size < offset:
            raise StateError(f"{self.lines} is shorter than its checkpoint says; remove both and start anew.")
        self._file = open(self.lines, "r+b", buffering=0)  # noqa: SIM115
        self._file.truncate(offset)
        self._file.seek(offset)
        with open(self.lines, encoding="utf-8", newline="") as file:
            yield from self.parse(file)

    def write(self, rows: Sequence[Row]) -> None:
        """Append rows, all or none."""
        self._append(self.render(rows))

    def sync(self) -> int:
        """Make everything durable; the offset up to which it is."""
        assert self._file is not None
        os.fsync(self._file.fileno())
        return self._file.tell()

    def finish(self) -> None:
        """Complete the file."""
        self.sync()
        self.close()

    def clean_up(self) -> None:
        """Remove what only an unfinished job needs."""

    def close(self) -> None:
        """Close the file as it is."""
        if self._file is not None:
            self._file.close()

    def _append(self, text: str) -> None:
        assert self._file is not None
        begin, content = self._file.tell(), memoryview(text.encode())
        try:
            while content:
                content = content[self._file.write(content) or 0 :]
        except OSError:
            with suppress(OSError):
                self._file.truncate(begin)  # no half of a line stays
            raise


class CsvOutput(LinesOutput):
    """One row a line; further labels as label_2, score_2 and so on."""

    def header(self) -> str:
        """Names of the columns."""
        return self._lines([self._columns()])

    def render(self, rows: Sequence[Row]) -> str:
        """Rows as lines."""
        return self._lines([self._cells(row) for row in rows])

    def parse(self, file: io.TextIOBase) -> Iterator[Row]:
        """Rows of a file."""
        for cells in csv.DictReader(file):
            top = [(cells["label"], cells["score"])]
            top += [(cells[f"label_{k}"], cells[f"score_{k}"]) for k in range(2, self.top_k + 1)]
            named = tuple((label, float(score)) for label, score in top if label)
            if cells["error"]:
                yield Row(int(cells["index"]), cells["file"], error=cells["error"])
                continue
            yield Row(
                int(cells["index"]),
                cells["file"],
                *named[0],
                named,
                cells["zero_shot_label"],
                float(cells["zero_shot_score"]),
                cells["changed"] == "true",
                float(cells["entropy"]),
            )

    def _columns(self) -> list[str]:
        further = [f"{name}_{k}" for k in range(2, self.top_k + 1) for name in ("label", "score")]
        return ["file", "label", "score", *further, *PLAIN[4:8], "index", "error"]

    def _cells(self, row: Row) -> list[str]:
        top = [*row.top, *[("", None)] * (self.top_k - len(row.top))][: self.top_k]
        answers = [cell for label, score in top for cell in (label, _text(score))]
        rest = (row.zero_shot_label, row.zero_shot_score, row.changed, row.entropy, row.index, row.error)
        return [row.file, *answers, *(_text(value) for value in rest)]

    def _lines(self, table: Sequence[Sequence[str]]) -> str:
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerows(table)
        return buffer.getvalue()


class JsonlOutput(LinesOutput):
    """One JSON object a line."""

    def render(self, rows: Sequence[Row]) -> str:
        """Rows as lines."""
        return "".join(json.dumps(self.as_json(row), ensure_ascii=False) + "\n" for row in rows)

    def parse(self, file: io.TextIOBase) -> Iterator[Row]:
        """Rows of a file."""
        for line in file:
            fields = json.loads(line)
            top = tuple((each["label"], each["score"]) for each in fields.pop("predictions"))
            yield Row(**fields, top=top)

    def as_json(self, row: Row) -> dict[str, Any]:
        """A row as JSON holds it."""
        fields = {name: getattr(row, name) for name in PLAIN}
        return {**fields, "predictions": [{"label": label, "score": score} for label, score in row.top]}


class ParquetOutput(JsonlOutput):
    """A parquet file, written whole at the end; until then the rows are lines in a file beside it."""

    def __init__(self, path: Path, top_k: int) -> None:
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError:
            raise MissingExtraError("parquet needs pyarrow: pip install 'acclimate[parquet]'.") from None
        super().__init__(path, top_k)
        self.lines = path.with_name(f"{path.name}.partial.jsonl")

    def finish(self) -> None:
        """Turn the lines into parquet."""
        super().finish()
        write_atomically(self.path, self._as_parquet())

    def clean_up(self) -> None:
        """Remove the lines."""
        self.lines.unlink(missing_ok=True)

    def _as_parquet(self) -> bytes:
        import pyarrow as pa
        import pyarrow.parquet as pq

        answer = pa.struct([("label", pa.string()), ("score", pa.float64())])
        kinds = {"index": pa.int64(), "changed": pa.bool_(), "score": pa.float64(), "entropy": pa.float64()}
        kinds["zero_shot_score"] = pa.float64()
        schema = pa.schema([(name, kinds.get(name, pa.string())) for name in PLAIN])
        schema = schema.append(pa.field("predictions", pa.list_(answer)))
        buffer = io.BytesIO()
        with pq.ParquetWriter(buffer, schema) as writer, open(self.lines, encoding="utf-8") as file:
            while lines := file.readlines(2**22):  # a few megabytes at a time
                writer.write_table(pa.Table.from_pylist([json.loads(line) for line in lines], schema))
        return buffer.getvalue()


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.6f}" if isinstance(value, float) else str(value)
