"""`acclimate reproduce`: the paper's tables, figures and ablations from runs and feature files."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acclimate.cli.arguments import Plugins, parse_settings
from acclimate.cli.comparing import (
    Orders,
    OutFolder,
    Streams,
    TextModel,
    as_patterns,
    options_text,
    report_pictures,
)
from acclimate.cli.console import interruptible, progress_bar, say
from acclimate.cli.tables import print_table
from acclimate.errors import InputError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from acclimate.bench.comparison import Table

Recipes = Annotated[
    list[str] | None,
    typer.Option(
        "--recipe",
        help="ood, cross-domain, efficiency, caches, capacity, entropy-range, mask-threshold, alpha-beta or early; can "
        "be repeated.",
        show_default="all that the files allow",
    ),
]
Rows = Annotated[
    list[str] | None,
    typer.Option(
        help="A row of ood, cross-domain or efficiency, or another method; can be repeated.",
        show_default="all rows of the paper that can be measured",
    ),
]
RowSettings = Annotated[
    list[str] | None,
    typer.Option("--set", help="A setting of a --method or row, KEY=VALUE or METHOD.KEY=VALUE; can be repeated."),
]
Shots = Annotated[
    int | None,
    typer.Option(help="Training images per class for rows that are fitted.", min=1, show_default="16, the paper's"),
]
Order = Annotated[
    str | None, typer.Option(help="As in `acclimate run`.", show_default="shuffled:1 for runs of dataset:, else stored")
]


def reproduce(
    files: Streams,
    recipe: Recipes = None,
    model: TextModel = None,
    method: Rows = None,
    setting: RowSettings = None,
    plugin: Plugins = None,
    shots: Shots = None,
    order: Order = None,
    orders: Orders = 0,
    device: Annotated[str, typer.Option(help="numpy, or a PyTorch device: cpu, cuda, cuda:1.")] = "numpy",
    out: OutFolder = Path("results"),
) -> None:
    """Measure the paper's tables, figures and ablations on runs of its datasets, or ablations on any features.

    `acclimate embed dataset:KEY --data DIR` makes such runs; several of one dataset may have different views. With
    --model, prompts are the paper's, and methods that learn prompts take part. Writes runs/*.json, and from them
    README.md with a figure for each recipe, and tables.tex.
    """
    from acclimate.bench.comparison import write_report
    from acclimate.bench.orders import order_names
    from acclimate.bench.recipes import RECIPES
    from acclimate.bench.reproduction import Reproduction
    from acclimate.encoders import load_encoder

    if unknown := [name for name in recipe or () if name not in RECIPES]:
        raise InputError(f"unknown recipe {unknown[0]!r}; {nearest(unknown[0], RECIPES)}")
    chosen = [RECIPES[name] for name in recipe or RECIPES]
    if (method or setting) and not any(each.rows for each in chosen):
        tables_of_methods = ", ".join(name for name, each in RECIPES.items() if each.rows)
        raise InputError(f"--method and --set are for {tables_of_methods}; an ablation has its own settings.")
    rows = method or list(dict.fromkeys(row.method for each in chosen for row in each.rows.values()))
    settings = {name: parse_settings(name, setting, rows) for name in rows}
    taken = order_names(order or "shuffled:0", orders) if order or orders else ()
    report_pictures()
    encoder = None if model is None else load_encoder(model)
    plan = Reproduction(files, out, encoder, taken, shots, device)
    plan.plan(chosen, method or (), settings)
    for note in plan.notes:
        say(note, err=True)
    with interruptible(f"the rows that are done are in {out / 'runs'}."):
        scores = plan.run(progress_bar, lambda line: say(line, err=True))
    given: dict[str, Any] = {"recipe": recipe, "model": model, "method": method, "set": setting, "plugin": plugin}
    how = options_text(**given, shots=shots, order=order, orders=orders or None, out=out)
    _print_tables(write_report(chosen, scores, out, f"acclimate reproduce {as_patterns(files)} {how}", plan.lacking))
    say(f"the results are in {out / 'README.md'} and {out / 'tables.tex'}.", err=True)


def _print_tables(tables: "Sequence[Table]") -> None:
    from acclimate.bench.comparison import letters, notes, text_rows

    known = letters(tables)
    for table in tables:
        say("", f"{table.title} (measured / reported)")
        print_table([table.corner, *table.columns], text_rows(table, known, " (%s)"), left=(table.corner,))
    say("", *notes(tables))
