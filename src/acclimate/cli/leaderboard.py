"""`acclimate leaderboard`: every training-free method on many streams in every shape, as two tables and one picture."""

import os
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from acclimate.cli.arguments import Plugins, SweptSettings, parse_sweep
from acclimate.cli.comparing import OutFolder, Streams, TextModel, as_patterns, options_text, report_pictures
from acclimate.cli.console import interruptible, progress_bar, say
from acclimate.cli.tables import print_table

PRINTED = (  # columns for which a terminal has room
    *("method", "answered", "mean gain", "95 % interval", "unseen streams", "cells won", "worst run"),
    *("accuracy", "ECE"),
)
Shapes = Annotated[
    list[str] | None,
    typer.Option(
        help="A shape of the streams; can be repeated.",
        show_default="shuffled, class-sequential, correlated, few-classes, half-classes, long-tail, "
        "domain-shift, first-200",
    ),
]
Methods = Annotated[
    list[str] | None, typer.Option(help="Method to run; can be repeated.", show_default="all that need no training")
]
Passes = Annotated[
    int, typer.Option(help="2 for the table of collections, answered when all of a stream is there.", min=1, max=2)
]
Unseen = Annotated[
    list[str] | None,
    typer.Option(help="A pattern of files on which nobody chose a setting; they get a column. Repeatable."),
]
Add = Annotated[
    bool, typer.Option("--add", help="Keep the runs of the board in --out, and make only those that it lacks.")
]


def leaderboard(
    files: Streams,
    orders: Annotated[int, typer.Option(help="Orders of each shape, seeds 0 to N-1.", min=1)] = 5,
    shape: Shapes = None,
    method: Methods = None,
    setting: SweptSettings = None,
    plugin: Plugins = None,
    model: TextModel = None,
    passes: Passes = 1,
    limit: Annotated[int | None, typer.Option(help="Use at most this many samples of each stream.", min=1)] = None,
    unseen: Unseen = None,
    jobs: Annotated[int | None, typer.Option(help="Processes.", show_default="as many as cores", min=1)] = None,
    out: OutFolder = Path("results"),
    add: Add = False,
) -> None:
    """Compare all training-free methods on streams that are shuffled, sorted, correlated, with few classes, and so on.

    Writes leaderboard.md, .png and .tex, and leaderboard.csv and .json with every run. With --add, a stopped command is
    continued, and methods join a board that is there; the files and the options must be those of that board.
    """
    from acclimate.bench.evaluation import sweep
    from acclimate.bench.leaderboard import DEFAULT_SHAPES, add_to_board, open_board, plan_board, write_board
    from acclimate.files import writing
    from acclimate.methods import list_methods

    names = method or list(list_methods())
    variants = [each for name in names for each in sweep(name, parse_sweep(name, setting, names))]
    plan = plan_board(files, variants, shape or DEFAULT_SHAPES, orders, limit, passes, model)
    board = open_board(files, plan, unseen or (), out if add else None)
    options = options_text(
        orders=orders,
        shape=shape,
        method=method,
        set=setting,
        plugin=plugin,
        model=model,
        passes=passes if passes == 2 else None,
        limit=limit,
        unseen=list(map(quote, unseen or ())),
        out=out,
    )
    command = f"acclimate leaderboard {as_patterns(files)} {options}"
    if command not in board.commands:  # a stopped command that is continued is one command
        board.commands.append(command + " --add" * add)
    lacking = add_to_board(board, plan)
    report_pictures()
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    for sentence in lacking.notes:
        say(f"left out: {sentence}", err=True)
    with interruptible(f"the same command with --add continues from {out}."):
        lacking.run(jobs or os.cpu_count() or 1, progress_bar, partial(board.keep, folder=out))
    for title, (headings, *rows) in write_board(board, out).items():
        say("", title)
        shown = [i for i, heading in enumerate(headings) if heading in PRINTED]
        lines = [[row[i] for i in shown] for row in rows]
        print_table([headings[i] for i in shown], lines, left=("method", "answered", "worst run"))
    say(f"the results are in {out}/leaderboard.*.", err=True)
