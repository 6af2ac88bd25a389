"""`acclimate tables`: results as tables, measured next to reported."""

from pathlib import Path
from typing import Annotated, Literal

import typer


def tables(
    results: Annotated[Path, typer.Argument(help="A folder of results (JSON), or one file.")],
    format: Annotated[Literal["markdown", "latex"], typer.Option("--format", "-f", help="Format.")] = "markdown",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write to this file instead of the terminal.")] = None,
) -> None:
    """Make tables from results. Each cell shows the measured and the paper's figure, and why they may differ."""
    from acclimate.bench.comparison import every_table, group_results
    from acclimate.bench.results import read_results
    from acclimate.bench.tables import FORMATS
    from acclimate.errors import InputError
    from acclimate.files import check_writable, write_atomically

    if out is not None:
        check_writable(out)
    made = [table for group in group_results(read_results(results)) for table in every_table(group)]
    if not made:
        raise InputError(f"the streams of the results in {results} have no labels, so there is nothing to compare.")
    text = FORMATS[format](made)
    if out is None:
        typer.echo(text)
    else:
        write_atomically(out, text.encode())
