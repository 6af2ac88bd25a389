"""`acclimate reproduce`: the paper's tables and figures, by name."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from acclimate.cli.options import MODEL_HELP

if TYPE_CHECKING:
    from acclimate.bench.tables import Table


def reproduce(
    recipes: Annotated[
        list[str],
        typer.Argument(
            help="ood, efficiency, cross-domain (these need --data), caches, capacity, entropy-range, mask-threshold, "
            "alpha-beta. With --streams also feature files, so that a pattern such as streams/*.safetensors works."
        ),
    ],
    streams: Annotated[Path | None, typer.Option(help="Feature files to run on; more can follow the first.")] = None,
    data: Annotated[Path | None, typer.Option(help="The folder of all datasets; see `acclimate data check`.")] = None,
    model: Annotated[str | None, typer.Option(help=f"With --data: {MODEL_HELP}")] = None,
    store: Annotated[Path, typer.Option(help="With --data: the folder of encoded features.")] = Path("features"),
    order: Annotated[
        str | None, typer.Option(help="As in `acclimate run`. [default: stored with --streams, seed:1 with --data]")
    ] = None,
    orders: Annotated[int, typer.Option(help="Run over this many orders of that shape, seeds 0 to N-1.", min=0)] = 0,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder for results, tables and figures.")] = Path(
        "results"
    ),
    batch_size: Annotated[int, typer.Option(help="With --data: images encoded at once; each view counts.", min=1)] = 64,
    workers: Annotated[int | None, typer.Option(help="With --data: threads that read images.", min=1)] = None,
    device: Annotated[str, typer.Option(help="With --data: auto, cpu, cuda, ...")] = "auto",
) -> None:
    """Measure the paper's tables and figures again, on its datasets or on feature files.

    Writes runs/*.json, and from them README.md with a figure for each recipe.
    """
    from acclimate.bench.comparison import group_results, recipe_tables
    from acclimate.bench.orders import order_names
    from acclimate.bench.plots import pyplot
    from acclimate.bench.recipes import RECIPES
    from acclimate.bench.reproduce import run_on_datasets, run_on_streams, write_report
    from acclimate.bench.suite import Setup
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
            setup = Setup(data, model, store, orders=taken, batch_size=batch_size, workers=workers, device=device)
            results = run_on_datasets(chosen, setup, folder, progress_bar)
        else:
            paths = [path for path in (streams, *files) if path is not None]
            where = f"--streams {_pattern(paths)}"
            results = run_on_streams(chosen, paths, taken, folder, progress_bar)
    except KeyboardInterrupt:
        typer.echo(f"stopped; the results so far are in {folder}, and no image will be encoded twice.", err=True)
        raise typer.Exit(130) from None
    how = "".join(f" --{name} {value}" for name, value in (("order", order), ("orders", orders)) if value)
    command = f"acclimate reproduce {' '.join(names)} {where}{how} --out {out}"
    report = write_report(chosen, results, out, command, streams is not None)
    for group in group_results(results):
        _print([table for recipe in chosen for table in recipe_tables(recipe, group)])
    measured = {result.dataset for result in results}
    absent = dict.fromkeys(key for recipe in chosen for key in recipe.datasets if key not in measured)
    if data is not None and absent:
        typer.echo(f"skipped, not in {data}: {', '.join(absent)}; see `acclimate data check {data}`.", err=True)
    typer.echo(f"tables and figures are in {report}.", err=True)


def _pattern(paths: Sequence[Path]) -> str:
    """The paths as on the command line: as a pattern if they are all the files that it matches."""
    pattern = paths[0].parent / f"*{paths[0].suffix}"
    if len(paths) > 1 and sorted(paths) == sorted(pattern.parent.glob(pattern.name)):
        return str(pattern)
    return " ".join(map(str, paths))


def _print(tables: "Sequence[Table]") -> None:
    """The last column of every table: the average, next to what was reported."""
    from acclimate.bench.tables import cell_text

    for table in tables:
        typer.echo(f"\n{table.title} ({table.columns[-1]}; measured / reported)")
        for label, cells in table.rows:
            typer.echo(f"  {label:22} {cell_text(cells[-1])}")
