"""`acclimate leaderboard`: every training-free method on many streams in every shape, as one table and one picture."""

from pathlib import Path
from typing import Annotated

import typer

from acclimate.cli.arguments import Plugins
from acclimate.cli.bench import Out, as_patterns, options_text, run_measurements
from acclimate.cli.console import say
from acclimate.cli.tables import print_table


def leaderboard(
    files: Annotated[list[Path], typer.Argument(help="Feature files with labels.")],
    orders: Annotated[int, typer.Option(help="Orders of each shape, seeds 0 to N-1.", min=1)] = 5,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            help="A shape of the streams; can be repeated.",
            show_default="seed (shuffled), class-sequential, correlated, few-classes, half-classes, long-tail, "
            "domain-shift, first-200",
        ),
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Method to run; can be repeated.", show_default="all that need no training")
    ] = None,
    plugin: Plugins = None,
    passes: Annotated[int, typer.Option(help="2 to score answers given once more at the end, too.", min=1, max=2)] = 1,
    limit: Annotated[int | None, typer.Option(help="Use at most this many samples of each stream.", min=1)] = None,
    jobs: Annotated[int | None, typer.Option(help="Processes.", show_default="as many as cores", min=1)] = None,
    out: Out = Path("results"),
) -> None:
    """Compare all training-free methods on streams that are shuffled, sorted, in bursts, with few classes, and so on.

    Writes leaderboard.md, leaderboard.png, and leaderboard.csv with every run.
    """
    from acclimate.bench.leaderboard import DEFAULT_SHAPES, SUMMARY, plan_board, write_board

    plan = plan_board(files, method or (), shape or DEFAULT_SHAPES, orders, limit, passes)
    scores = run_measurements(plan, out, jobs, "left out")
    options = options_text(
        orders=orders,
        shape=shape,
        method=method,
        plugin=plugin,
        passes=passes if passes == 2 else None,
        limit=limit,
        out=out,
    )
    rows = write_board(plan, scores, out, f"acclimate leaderboard {as_patterns(files)} {options}")
    print_table(SUMMARY, rows, left=("method", "worst run"), width=130)
    say(f"the results are in {out}/leaderboard.*.", err=True)
