"""`acclimate reproduce`: the paper's tables and figures, by name."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from acclimate.cli.bench import EncodeSize, Orders, Out, Store, report_skipped
from acclimate.cli.options import MODEL_HELP, Device, Workers


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
            "--model, --store, --batch-size, --workers and --device apply to it."
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help=MODEL_HELP)] = None,
    store: Store = Path("features"),
    order: Annotated[
        str | None, typer.Option(help="As in `acclimate run`. [default: stored with --streams, seed:1 with --data]")
    ] = None,
    orders: Orders = 0,
    out: Out = Path("results"),
    batch_size: EncodeSize = 64,
    workers: Workers = None,
    device: Device = "auto",
) -> None:
    """Measure the paper's tables and figures again, on its datasets or on feature files.

    Writes runs/*.json, and from them README.md with a figure for each recipe.
    """
    from acclimate.bench.comparison import group_results, recipe_tables
    from acclimate.bench.orders import order_names
    from acclimate.bench.plots import pyplot
    from acclimate.bench.recipes import RECIPES
    from acclimate.bench.report import cell_text, write_report
    from acclimate.bench.store import Setup
    from acclimate.bench.suite import run_on_datasets, run_on_streams
    from acclimate.cli.progress import progress_bar
    from acclimate.errors import InputError

    names = list(dict.fromkeys(name for name in recipes if name in RECIPES))
    files = [Path(name) for name in recipes if name not in RECIPES]
    if files and (streams is None or not files[0].suffix):
        raise InputError(f"unknown recipe {str(files[0])!r}; choose from {', '.join(RECIPES)}.")
    if not names or (streams is None) == (data is None) or (data is not None and model is None):
        raise InputError("name recipes, and either --streams with feature files, or --data with a folder and --model.")
    chosen = [RECIPES[name] for name in names]
    pyplot()  # reports a missing matplotlib before the work
    folder = out / "runs"
    taken = tuple(order_names(order or ("seed:1" if streams is None else "stored"), orders))
    try:
        if data is not None and model is not None:
            where = f"--data {data} --model {model}"
            setup = Setup(data, model, store, "dataset", "paper", taken, batch_size, workers, device, progress_bar)
            results = run_on_datasets(chosen, setup, folder)
        else:
            paths = [path for path in (streams, *files) if path is not None]
            where = f"--streams {as_patterns(paths)}"
            results = run_on_streams(chosen, paths, taken, folder, progress_bar)
    except KeyboardInterrupt:
        typer.echo(f"stopped; the results so far are in {folder}, and no image will be encoded twice.", err=True)
        raise typer.Exit(130) from None
    how = "".join(f" --{name} {value}" for name, value in (("order", order), ("orders", orders)) if value)
    command = f"acclimate reproduce {' '.join(names)} {where}{how} --out {out}"
    report = write_report(chosen, results, out, command, streams is not None)
    for group in group_results(results):
        for table in (table for recipe in chosen for table in recipe_tables(recipe, group)):
            # The last column is the average, if there is one.
            typer.echo(f"\n{table.title} ({table.columns[-1]}; measured / reported)")
            for label, cells in table.rows:
                typer.echo(f"  {label:22} {cell_text(cells[-1])}")
    measured = {result.dataset for result in results}
    if data is not None:
        needed = dict.fromkeys(key for recipe in chosen for key in recipe.datasets)
        report_skipped([key for key in needed if key not in measured], data)
    typer.echo(f"tables and figures are in {report}.", err=True)


def as_patterns(paths: Sequence[Path]) -> str:
    """Paths as on the command line: those of a folder as a pattern if they are all the files that it matches."""
    words: dict[str, None] = {}
    for path in paths:
        pattern = path.parent / f"*{path.suffix}"
        matched = set(pattern.parent.glob(pattern.name))
        words[str(pattern if len(matched) > 1 and matched <= set(paths) else path)] = None
    return " ".join(words)
