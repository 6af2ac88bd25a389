"""`acclimate reproduce`: the paper's tables and figures, by name."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from acclimate.cli.arguments import MODEL_HELP, Device, Generated, Plugins, Precision, Workers, parse_settings
from acclimate.cli.bench import EncodeSize, Orders, Out, Store, report_pictures, report_skipped
from acclimate.cli.console import say
from acclimate.cli.tables import print_table


def reproduce(
    recipes: Annotated[
        list[str],
        typer.Argument(
            help="ood, cross-domain, efficiency (needs --data), caches, capacity, entropy-range, mask-threshold, "
            "alpha-beta, early. With --streams also feature files: a pattern such as streams/*.safetensors works."
        ),
    ],
    streams: Annotated[
        Path | None,
        typer.Option(
            help="Feature files to run on; more can follow the first. A file stands for a dataset of the paper if it "
            "is named after it (imagenet, oxford_pets), has as many classes, and records its prompts and one of the "
            "paper's models as its encoder."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="The folder of all datasets; see `acclimate data check`. "
            "--model, --shots, --generated, --limit, --store, --batch-size, --workers, --device and --precision "
            "apply to it."
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help=MODEL_HELP)] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="A row of ood, cross-domain or efficiency, or another method; can be repeated.",
            show_default="all rows of the paper that can be run here",
        ),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of a --method or row, KEY=VALUE or METHOD.KEY=VALUE; can be repeated."),
    ] = None,
    plugin: Plugins = None,
    shots: Annotated[
        int | None,
        typer.Option(help="Training images per class for rows that are fitted.", min=1, show_default="16, the paper's"),
    ] = None,
    generated: Generated = None,
    limit: Annotated[int, typer.Option(help="Images that efficiency times.", min=1)] = 1000,
    store: Store = Path("features"),
    order: Annotated[
        str | None,
        typer.Option(help="As in `acclimate run`.", show_default="stored with --streams, seed:1 with --data"),
    ] = None,
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
    from acclimate.bench.comparison import group_results, recipe_tables
    from acclimate.bench.orders import order_names
    from acclimate.bench.recipes import RECIPES
    from acclimate.bench.report import cell_text, letters, letters_of, notes, write_report
    from acclimate.bench.reproduction import Choice, plan_recipes, plan_streams
    from acclimate.bench.store import Setup
    from acclimate.cli.progress import progress_bar
    from acclimate.errors import InputError

    names = list(dict.fromkeys(name for name in recipes if name in RECIPES))
    files = [Path(name) for name in recipes if name not in RECIPES]
    if files and (streams is None or not files[0].suffix):
        raise InputError(f"unknown recipe {str(files[0])!r}; choose from {', '.join(RECIPES)}.")
    if not names or (streams is None) == (data is None) or (data is not None and model is None):
        raise InputError("name recipes, and either --streams with feature files, or --data with a folder and --model.")
    if data is None and (shots or generated):
        raise InputError("--shots and --generated are for --data: feature files have neither images nor a model.")
    chosen = [RECIPES[name] for name in names]
    if (method or setting) and not any(recipe.rows for recipe in chosen):
        tables_of_methods = ", ".join(name for name, recipe in RECIPES.items() if recipe.rows)
        raise InputError(f"--method and --set are for {tables_of_methods}; an ablation has its own settings.")
    rows = method or list(dict.fromkeys(row.method for recipe in chosen for row in recipe.rows.values()))
    settings = {name: parse_settings(name, setting, rows) for name in rows}
    report_pictures()
    folder = out / "runs"
    choice = Choice(tuple(method or ()), settings, shots, limit)
    taken = tuple(order_names(order or ("seed:1" if streams is None else "stored"), orders))
    try:
        if data is not None and model is not None:
            where = f"--data {data} --model {model}"
            reading: dict[str, Any] = {"batch_size": batch_size, "workers": workers, "device": device}
            reading |= {"precision": precision, "generated": generated, "progress": progress_bar}
            setup = Setup(data, model, store, orders=taken, **reading)
            plan = plan_recipes(chosen, setup, choice)
            lacking = plan.lacking
            report_lacking(lacking)
            results = plan.run(folder)
        else:
            paths = [path for path in (streams, *files) if path is not None]
            where = f"--streams {as_patterns(paths)}"
            on_files = plan_streams(chosen, paths, choice)
            lacking = on_files.lacking
            for file in on_files.files:
                if file.why_not:
                    say(f"{file.name} does not stand for a dataset of the paper: {file.why_not}.", err=True)
            report_lacking(lacking)
            results = on_files.run(taken, folder, progress_bar)
    except KeyboardInterrupt:
        say(f"stopped; the results so far are in {folder}, and no image will be encoded twice.", err=True)
        raise typer.Exit(130) from None
    given: list[tuple[str, Any]] = [("method", each) for each in method or ()]
    given += [("set", each) for each in setting or ()] + [("plugin", each) for each in plugin or ()]
    given += [("shots", shots), ("generated", generated), ("order", order), ("orders", orders)]
    given += [("limit", limit)] if any(recipe.kind == "cost" for recipe in chosen) else []
    how = "".join(f" --{name} {value}" for name, value in given if value)
    command = f"acclimate reproduce {' '.join(names)} {where}{how} --out {out}"
    report = write_report(chosen, results, out, command, lacking)
    groups = group_results(results)
    tables = [table for group in groups for recipe in chosen for table in recipe_tables(recipe, group)]
    known = letters(tables)
    for table in tables:
        say("", f"{table.title} (measured / reported)")
        rows_shown = [
            (label, *(cell_text(cell) + letters_of(cell, known, " (%s)") for cell in cells))
            for label, cells in table.rows
        ]
        print_table([table.corner, *table.columns], rows_shown, left=(table.corner,))
    say("", *notes(tables))
    measured = {result.dataset for result in results}
    needed = dict.fromkeys(key for recipe in chosen for key in recipe.datasets)
    missing = [key for key in needed if key not in measured]
    if data is not None:
        report_skipped(missing, data)
    elif missing:
        say(f"not among the feature files: {', '.join(missing)}.", err=True)
    say(f"the results are in {report}.", err=True)


def report_lacking(lacking: Mapping[str, Mapping[str, str]]) -> None:
    """Say which of the paper's methods are not measured in which recipe, and what they need."""
    for name, needs in lacking.items():
        for row, what in needs.items():
            say(f"{name}: {row} is not measured; it needs {what}.", err=True)


def as_patterns(paths: Sequence[Path]) -> str:
    """Paths as on the command line: those of a folder as a pattern if they are all the files that it matches."""
    words: dict[str, None] = {}
    for path in paths:
        pattern = path.parent / f"*{path.suffix}"
        matched = set(pattern.parent.glob(pattern.name))
        words[str(pattern if len(matched) > 1 and matched <= set(paths) else path)] = None
    return " ".join(words)
