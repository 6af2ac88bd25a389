"""Lists of image paths in parquet files, as tables of millions of rows are kept.

What a small file may claim is bounded: rows that repeat one value and pages that decompress to gigabytes.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from acclimate.errors import InputError, missing

MOST_ROWS = 50_000_000
MOST_BYTES = 4 * 2**30  # of paths and labels, as the file says
MOST_TEXT = 2**16  # bytes of a path or a label
ROWS = 2**16  # that are decoded at once


def read_rows(source: str, content: bytes, *keys: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a parquet file, numbered from 1, with the first column of each group of keys that there is.

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
        found = {key: names[key] for group in keys for key in [next((k for k in group if k in names), "")] if key}
        if nested := next((name for name in found.values() if pa.types.is_nested(schema.field(name).type)), None):
            kind = schema.field(nested).type
            raise InputError(f"{source}: the column {nested} holds {kind}, not paths or labels; name columns of text.")
        _require_bounded(source, about, set(found.values()))
        file = pq.ParquetFile(pa.BufferReader(content), read_dictionary=[*found.values()])
        if keys[0] and not set(found) & set(keys[0]):
            wanted = " or ".join(keys[0])
            raise InputError(f"{source}: no path among the columns {', '.join(names)}; name it {wanted}.")
        line = 0
        for batch in file.iter_batches(ROWS, columns=[*found.values()], use_threads=False):
            columns = [_values(source, batch.column(name)) for name in found.values()]
            for values in zip(*columns, strict=True):
                line += 1
                yield line, dict(zip(found, values, strict=True))
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{source} cannot be read as a parquet file ({error}); write it again.") from error


def _require_bounded(source: str, about: Any, columns: set[str]) -> None:
    size = 0
    for number in range(about.num_row_groups):
        group = about.row_group(number)
        for each in range(group.num_columns):
            if group.column(each).path_in_schema.partition(".")[0] in columns:
                size += max(0, group.column(each).total_uncompressed_size)
    if about.num_rows > MOST_ROWS or size > MOST_BYTES:
        raise InputError(
            f"{source} has {about.num_rows:,} rows and {size:,} bytes of paths and labels; a list may have "
            f"{MOST_ROWS:,} and {MOST_BYTES:,} at most: split it."
        )


def _values(source: str, column: Any) -> list[Any]:
    """The values of a column; those that are equal are one object."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_dictionary(column.type) or pa.types.is_integer(column.type.value_type):
        return list(column.to_pylist())  # class indices
    if (pc.max(pc.binary_length(column.dictionary)).as_py() or 0) > MOST_TEXT:
        raise InputError(f"{source}: a path or a label has more than {MOST_TEXT:,} bytes; write it shorter.")
    known = column.dictionary.to_pylist()
    return [None if index is None else known[index] for index in column.indices.to_pylist()]
