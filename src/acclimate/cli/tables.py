"""Tables on the terminal."""

from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from acclimate.cli.console import say
from acclimate.errors import printable

if TYPE_CHECKING:
    from acclimate.bench.evaluation import Evaluation
    from acclimate.bench.results import Score


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[Any]], left: Container[str], width: int | None = None
) -> None:
    """Print rows of strings, made `printable`, or rich texts; columns are aligned right, except those in `left`.

    No figure is cut off: lines are as long as they need to be, and a narrower terminal wraps them; or at most as wide
    as the terminal and `width`, beyond which cells are wrapped.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(printable(heading), justify="left" if heading in left else "right")
    for row in rows:
        table.add_row(*(printable(cell) if isinstance(cell, str) else cell for cell in row))
    console = Console(markup=False, emoji=False)
    needed = width or console.measure(table, options=console.options.update(width=10_000)).maximum
    Console(width=max(needed, console.width), markup=False, emoji=False).print(table)


def percent(fraction: float | None, form: str = ".2f") -> str:
    """Return a fraction as a number of percent or points."""
    return "-" if fraction is None else f"{100 * fraction:{form}}"


def print_results(results: "Sequence[Score]") -> None:
    """Print one line per result; with the spread over the orders if there are several."""
    from acclimate.bench.evaluation import INTERVAL, interval_text

    many = any(len(result.orders["names"]) > 1 for result in results)
    spread = {"sd": "sd", "worst 10%": "worst_tenth"} if many else {}
    paired = [INTERVAL] if any(result.gain_interval for result in results) else []
    rows = [
        [
            *(
                result.dataset,
                result.title,
                f"{result.n:,}",
                percent(result.metrics["acc1"]),
            ),
            *(percent(result.orders.get(name)) for name in spread.values()),
            "" if result.method == "zero-shot" else percent(result.gain, "+.2f"),
            *(interval_text(*result.gain_interval) if result.gain_interval else "" for _ in paired),
            *(percent(result.changed), percent(result.ece), f"{result.cost['samples_per_s']:,.0f}"),
        ]
        for result in results
    ]
    print_table(
        ["stream", "method", "n", "accuracy", *spread, "gain", *paired, "changed", "ECE", "samples/s"],
        rows,
        left=("stream", "method"),
    )


def print_differences(evaluations: "Iterable[Evaluation]") -> None:
    """Print the methods of each stream against the most accurate of them; zero-shot is in the other table."""
    from acclimate.bench.evaluation import INTERVAL, interval_text

    rows = []
    for evaluation in evaluations:
        gains = {each.method: each for each in evaluation.differences if each.other == "zero-shot"}
        best = max(gains, key=lambda method: gains[method].difference, default="")
        for method in (each for each in gains if each != best):
            found = evaluation.difference(gains[method].stream, method, best)
            rows.append(
                (
                    *(found.stream, method, best),
                    percent(found.difference, "+.2f"),
                    interval_text(found.low, found.high),
                )
            )
    if rows:
        say()
        print_table(["stream", "method", "against", "difference", INTERVAL], rows, left=("stream", "method", "against"))


def print_classes(evaluations: "Iterable[Evaluation]") -> None:
    """Print the accuracy on each class, a column per method."""
    for evaluation in evaluations:
        methods = list(dict.fromkeys(row.method for row in evaluation.per_class))
        classes: dict[str, list[str]] = {}
        for row in evaluation.per_class:
            cells = classes.setdefault(row.class_name, [row.stream, row.class_name, str(row.samples)])
            cells.append("-" if row.recall != row.recall else percent(row.recall))
        say()
        print_table(
            ["stream", "class", "samples", *methods],
            classes.values(),
            left=("stream", "class"),
            width=50 + sum(2 + len(each) for each in methods),
        )
