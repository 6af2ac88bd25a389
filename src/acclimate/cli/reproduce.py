"""`acclimate reproduce`: the paper's tables and figures, by name."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from acclimate.cli.bench import EncodeSize, Orders, Out, Store, report_pictures, report_skipped
from acclimate.cli.console import say
from acclimate.cli.options import MODEL_HELP, Device, Generated, Precision, Workers, parse_settings
from acclimate.cli.plugins import Plugins


def reproduce(
    recipes: Annotated[
        list[str],
        typer.Argument(
            help="ood, efficiency, cross-domain (these need --data), caches, capacity, entropy-range, mask-threshold, "
            "alpha-beta, early. With --streams also feature files: a pattern such as streams/*.safetensors works."
        ),
    ],
    streams: Annotated[Path | None, typer.Option(help="Feature files to run on; more can follow the first.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="The folder of all datasets; see `acclimate data check`. "
            "--model, --method, --set, --shots, --generated, --limit, --store, --batch-size, --workers, --device and "
            "--precision apply to it."
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
    from acclimate.bench.reproduction import Choice, plan_recipes, run_on_streams
    from acclimate.bench.store import Setup
    from acclimate.cli.progress import progress_bar
    from acclimate.errors import InputError

    names = list(dict.fromkeys(name for name in recipes if name in RECIPES))
    files = [Path(name) for name in recipes if name not in RECIPES]
    if files and (streams is None or not files[0].suffix):
        raise InputError(f"unknown recipe {str(files[0])!r}; choose from {', '.join(RECIPES)}.")
    if not names or (streams is None) == (data is None) or (data is not None and model is None):
        raise InputError("name recipes, and either --streams with feature files, or --data with a folder and --model.")
    if data is None and (method or setting or shots or generated):
        raise InputError("--method, --set, --shots and --generated are for --data; feature files run the ablations.")
    chosen = [RECIPES[name] for name in names]
    rows = method or list(dict.fromkeys(row.method for recipe in chosen for row in recipe.rows.values()))
    settings = {name: parse_settings(name, setting, rows) for name in rows}
    report_pictures()
    folder = out / "runs"
    lacking: Mapping[str, Mapping[str, str]] = {}
    taken = tuple(order_names(order or ("seed:1" if streams is None else "stored"), orders))
    try:
        if data is not None and model is not None:
            where = f"--data {data} --model {model}"
            reading: dict[str, Any] = {"batch_size": batch_size, "workers": workers, "device": device}
            reading |= {"precision": precision, "generated": generated, "progress": progress_bar}
            setup = Setup(data, model, store, orders=taken, **reading)
            plan = plan_recipes(chosen, setup, Choice(tuple(method or ()), settings, shots, limit))
            lacking = plan.lacking
            for name, needs in lacking.items():
                for row, what in needs.items():
                    say(f"{name}: {row} is not measured; it needs {what}.", err=True)
            results = plan.run(folder)
        else:
            paths = [path for path in (streams, *files) if path is not None]
            where = f"--streams {as_patterns(paths)}"
            results = run_on_streams(chosen, paths, taken, folder, progress_bar)
    except KeyboardInterrupt:
        say(f"stopped; the results so far are in {folder}, and no image will be encoded twice.", err=True)
        raise typer.Exit(130) from None
    given: list[tuple[str, Any]] = [("method", each) for each in method or ()]
    given += [("set", each) for each in setting or ()] + [("plugin", each) for each in plugin or ()]
    given += [("shots", shots), ("generated", generated), ("order", order), ("orders", orders)]
    given += [("limit", limit)] if any(recipe.kind == "cost" for recipe in chosen) else []
    how = "".join(f" --{name} {value}" for name, value in given if value)
    command = f"acclimate reproduce {' '.join(names)} {where}{how} --out {out}"
    report = write_report(chosen, results, out, command, streams is not None, lacking)
    tables = [
        table.column(0 if recipe.kind == "cost" else -1)  # the time; or the average, if there is one
        for group in group_results(results)
        for recipe in chosen
        for table in recipe_tables(recipe, group)
    ]
    known = letters(tables)
    for table in tables:
        say("", f"{table.title} ({table.columns[0]}; measured / reported)")
        for label, (cell,) in table.rows:
            say(f"  {label:22} {cell_text(cell)}{letters_of(cell, known, ' (%s)')}")
    say("", *notes(tables))
    measured = {result.dataset for result in results}
    if data is not None:
        needed = dict.fromkeys(key for recipe in chosen for key in recipe.datasets)
        report_skipped([key for key in needed if key not in measured], data)
    say(f"the results are in {report}.", err=True)


def as_patterns(paths: Sequence[Path]) -> str:
    """Paths as on the command line: those of a folder as a pattern if they are all the files that it matches."""
    words: dict[str, None] = {}
    for path in paths:
        pattern = path.parent / f"*{path.suffix}"
        matched = set(pattern.parent.glob(pattern.name))
        words[str(pattern if len(matched) > 1 and matched <= set(paths) else path)] = None
    return " ".join(words)
