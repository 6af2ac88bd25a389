"""`acclimate tables`: results as tables, measured beside reported."""

from pathlib import Path
from typing import Annotated, Literal

import typer


def tables(
    results: Annotated[Path, typer.Argument(help="A folder of results (JSON), or one file.")],
    format: Annotated[
        Literal["markdown", "latex", "csv", "html"], typer.Option("--format", "-f", help="How to write the tables.")
    ] = "markdown",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write here instead of to the terminal.")] = None,
) -> None:
    """Make tables from results: every cell shows what was measured and what the paper reports, and why they differ."""
    from acclimate.bench.reproduce.overview import every_table
    from acclimate.bench.reproduce.recipe import groups
    from acclimate.bench.results import read_results
    from acclimate.bench.tables import FORMATS
    from acclimate.errors import InputError
    from acclimate.files import check_writable, write_atomically

    if out is not None:
        check_writable(out)
    made = [table for group in groups(read_results(results)) for table in every_table(group)]
    if not made:
        raise InputError(f"the results in {results} are of streams without labels, so there is nothing to compare.")
    text = FORMATS[format](made)
    if out is None:
        typer.echo(text)
    else:
        write_atomically(out, text.encode())
