"""`acclimate reproduce`: the paper's tables and figures, by name."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acclimate.cli.arguments import MODEL_HELP, Device, Generated, Plugins, Precision, Workers, parse_settings
from acclimate.cli.bench import (
    EncodeSize,
    Orders,
    Out,
    Store,
    as_patterns,
    options_text,
    report,
    report_pictures,
    report_skipped,
)
from acclimate.cli.console import interruptible, progress_bar, say
from acclimate.cli.tables import print_table
from acclimate.errors import InputError

if TYPE_CHECKING:
    from acclimate.bench.comparison import Table

Recipes = Annotated[
    list[str],
    typer.Argument(
        help="ood, cross-domain, efficiency (needs --data), caches, capacity, entropy-range, mask-threshold, "
        "alpha-beta, early. With --streams also feature files: a pattern such as streams/*.safetensors works."
    ),
]
Streams = Annotated[
    Path | None,
    typer.Option(
        help="Feature files to run on; more can follow the first. A file stands for a dataset of the paper if it "
        "is named after it (imagenet, oxford_pets), has as many classes, and records its prompts and one of the "
        "paper's models as its encoder."
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        help="The folder of all datasets; see `acclimate data check`. "
        "--model, --shots, --generated, --limit, --store, --batch-size, --workers, --device and --precision "
        "apply to it."
    ),
]
Rows = Annotated[
    list[str] | None,
    typer.Option(
        help="A row of ood, cross-domain or efficiency, or another method; can be repeated.",
        show_default="all rows of the paper that can be run here",
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
OrderOfBoth = Annotated[
    str | None,
    typer.Option(help="As in `acclimate run`.", show_default="stored with --streams, shuffled:1 with --data"),
]


def reproduce(
    recipes: Recipes,
    streams: Streams = None,
    data: Data = None,
    model: Annotated[str | None, typer.Option(help=MODEL_HELP)] = None,
    method: Rows = None,
    setting: RowSettings = None,
    plugin: Plugins = None,
    shots: Shots = None,
    generated: Generated = None,
    limit: Annotated[int, typer.Option(help="Images that efficiency times.", min=1)] = 1000,
    store: Store = Path("features"),
    order: OrderOfBoth = None,
    orders: Orders = 0,
    out: Out = Path("results"),
    batch_size: EncodeSize = 64,
    workers: Workers = None,
    device: Device = "auto",
    precision: Precision = "float32",
) -> None:
    """Measure the paper's tables and figures again, on its datasets or on feature files.

    Writes runs/*.json, and from them README.md with a figure for each recipe.
    """
    from acclimate.bench.comparison import write_report
    from acclimate.bench.datasets import DATASETS, incomplete_datasets
    from acclimate.bench.orders import order_names
    from acclimate.bench.recipes import RECIPES
    from acclimate.bench.store import FeatureStore
    from acclimate.bench.suite import plan_recipes, plan_streams

    names = list(dict.fromkeys(name for name in recipes if name in RECIPES))
    files = [Path(name) for name in recipes if name not in RECIPES]
    _check(names, files, streams, data, model, bool(shots or generated), bool(method or setting))
    chosen = [RECIPES[name] for name in names]
    needed = dict.fromkeys(key for recipe in chosen for key in recipe.datasets)
    rows = method or list(dict.fromkeys(row.method for recipe in chosen for row in recipe.rows.values()))
    settings = {name: parse_settings(name, setting, rows) for name in rows}
    taken = order_names(order or ("shuffled:1" if streams is None else "stored"), orders)
    report_pictures()
    with interruptible(f"the results so far are in {out / 'runs'}, and no image will be encoded twice."):
        if data is not None and model is not None:
            where = options_text(data=data, model=model)
            features = FeatureStore(data, model, store, batch_size, workers, device, precision, generated, progress_bar)
            plan = plan_recipes(chosen, features, taken, method or (), settings, shots, limit)
        else:
            paths = [path for path in (streams, *files) if path is not None]
            where = f"--streams {as_patterns(paths)}"
            plan = plan_streams(chosen, paths, taken, method or (), settings, progress_bar)
        warnings = [] if data is None else list(incomplete_datasets((DATASETS[key] for key in needed), data))
        report([*plan.notes, *warnings])
        scores = plan.run(out / "runs")
    timed = limit if any(recipe.kind == "cost" for recipe in chosen) else None
    given: dict[str, Any] = {"method": method, "set": setting, "plugin": plugin, "shots": shots, "generated": generated}
    how = options_text(**given, order=order, orders=orders or None, limit=timed, out=out)
    command = f"acclimate reproduce {' '.join(names)} {where} {how}"
    _print_tables(write_report(chosen, scores, out, command, plan.lacking))
    report_skipped([key for key in needed if key not in {score.dataset for score in scores}], data)
    report([*warnings, f"the results are in {out / 'README.md'}."])


def _check(
    names: Sequence[str],
    files: Sequence[Path],
    streams: Path | None,
    data: Path | None,
    model: str | None,
    for_data: bool,
    for_rows: bool,
) -> None:
    from acclimate.bench.recipes import RECIPES

    if files and (streams is None or not files[0].suffix):
        raise InputError(f"unknown recipe {str(files[0])!r}; choose from {', '.join(RECIPES)}.")
    if not names or (streams is None) == (data is None) or (data is not None and model is None):
        raise InputError("name recipes, and either --streams with feature files, or --data with a folder and --model.")
    if data is None and for_data:
        raise InputError("--shots and --generated are for --data: feature files have neither images nor a model.")
    if for_rows and not any(RECIPES[name].rows for name in names):
        tables_of_methods = ", ".join(name for name, recipe in RECIPES.items() if recipe.rows)
        raise InputError(f"--method and --set are for {tables_of_methods}; an ablation has its own settings.")


def _print_tables(tables: "Sequence[Table]") -> None:
    from acclimate.bench.comparison import letters, notes, text_rows

    known = letters(tables)
    for table in tables:
        say("", f"{table.title} (measured / reported)")
        print_table([table.corner, *table.columns], text_rows(table, known, " (%s)"), left=(table.corner,))
    say("", *notes(tables))
