"""`acclimate tables`: results as tables, measured next to reported. Also how commands print tables on the terminal."""

from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from acclimate.bench.results import Result


def tables(
    results: Annotated[Path, typer.Argument(help="A folder of results (JSON), or one file.")],
    format: Annotated[Literal["markdown", "latex"], typer.Option("--format", "-f", help="Format.")] = "markdown",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write to this file instead of the terminal.")] = None,
) -> None:
    """Make tables from results. Each cell shows the measured and the paper's figure, and why they may differ."""
    from acclimate.bench.comparison import every_table, group_results
    from acclimate.bench.report import FORMATS
    from acclimate.bench.results import read_results
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


def print_table(headings: Sequence[str], rows: Iterable[Sequence[Any]], left: Container[str], width: int = 100) -> None:
    """Print rows of strings, as they are, or rich texts; columns are aligned to the right, except those in `left`.

    No figure is cut off: a terminal narrower than `width` wraps the lines, and a pipe has no width.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in left else "right")
    for row in rows:
        table.add_row(*row)
    Console(width=max(width, Console().width), markup=False).print(table)


def print_results(results: "Sequence[Result]") -> None:
    """Print one line per result; with the spread over the orders if there are several."""

    def percent(fraction: float | None, form: str = ".2f") -> str:
        return "-" if fraction is None else f"{100 * fraction:{form}}"

    many = any(len(result.orders["names"]) > 1 for result in results)
    spread = {"sd": "sd", "worst 10%": "worst_tenth"} if many else {}
    rows = []
    for result in results:
        row = [result.dataset, result.title, str(result.n), percent(result.metrics["acc1"])]
        row += [percent(result.orders.get(name)) for name in spread.values()]
        row += ["" if result.method == "zero-shot" else percent(result.gain, "+.2f")]
        row += [percent(result.changed), percent(result.ece), f"{result.cost['samples_per_s']:,.0f}"]
        rows.append(row)
    headings = ["stream", "method", "n", "accuracy", *spread, "gain", "changed", "ECE", "samples/s"]
    print_table(headings, rows, left=("stream", "method"))
