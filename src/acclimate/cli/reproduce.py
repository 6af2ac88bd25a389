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
            "alpha-beta. With --streams also feature files, as a pattern such as streams/*.safetensors gives them."
        ),
    ],
    streams: Annotated[Path | None, typer.Option(help="Feature files to run on; more may follow the first.")] = None,
    data: Annotated[Path | None, typer.Option(help="The folder of all datasets; see `acclimate data check`.")] = None,
    model: Annotated[str | None, typer.Option(help=f"With --data: {MODEL_HELP}")] = None,
    store: Annotated[Path, typer.Option(help="With --data: where features are kept.")] = Path("features"),
    order: Annotated[
        str | None, typer.Option(help="As in `acclimate run`. [default: stored with --streams, seed:1 with --data]")
    ] = None,
    orders: Annotated[int, typer.Option(help="Run over this many orders of that shape, seeds 0 to N-1.", min=0)] = 0,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where results, tables and figures go.")] = Path("results"),
    batch_size: Annotated[int, typer.Option(help="With --data: images encoded at once, views counted.", min=1)] = 64,
    workers: Annotated[int | None, typer.Option(help="With --data: threads that read images.", min=1)] = None,
    device: Annotated[str, typer.Option(help="With --data: auto, cpu, cuda, ...")] = "auto",
) -> None:
    """Measure the paper's tables and figures again, on its datasets or on feature files; all settings in one pass.

    Writes runs/*.json, and from them README.md and a picture for each recipe.
    """
    from acclimate.bench.orders import order_names
    from acclimate.bench.plots import pyplot
    from acclimate.bench.reproduce import RECIPES
    from acclimate.bench.reproduce.recipe import groups
    from acclimate.bench.reproduce.report import write_report
    from acclimate.bench.reproduce.run import run_on_datasets, run_on_streams
    from acclimate.cli.progress import progress_bar
    from acclimate.errors import InputError, RunError

    names = list(dict.fromkeys(name for name in recipes if name in RECIPES))
    files = [Path(name) for name in recipes if name not in RECIPES]
    if files and (streams is None or not files[0].suffix):
        raise InputError(f"unknown recipe {str(files[0])!r}; there are: {', '.join(RECIPES)}.")
    if not names or (streams is None) == (data is None) or (data is not None and model is None):
        raise InputError("name recipes, and either --streams with feature files, or --data with a folder and --model.")
    chosen = [RECIPES[name] for name in names]
    pyplot()  # a missing matplotlib shows before the work and not after it
    folder = out / "runs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {folder}: {error.strerror or error}.") from error
    taken = order_names(order or ("seed:1" if streams is None else "stored"), orders)
    try:
        if data is not None and model is not None:
            where = f"--data {data} --model {model}"
            arguments = (chosen, data, model, store, taken, folder, progress_bar)
            records = run_on_datasets(*arguments, batch_size=batch_size, workers=workers, device=device)
        else:
            paths = [path for path in (streams, *files) if path is not None]
            where = f"--streams {_pattern(paths)}"
            records = run_on_streams(chosen, paths, taken, folder, progress_bar)
    except KeyboardInterrupt:
        typer.echo(f"stopped; results so far are in {folder}, and no image that is encoded is encoded again.", err=True)
        raise typer.Exit(130) from None
    how = "".join(f" --{name} {value}" for name, value in (("order", order), ("orders", orders)) if value)
    command = f"acclimate reproduce {' '.join(names)} {where}{how} --out {out}"
    report = write_report(chosen, records, out, command, streams is not None)
    for group in groups(records):
        _print([table for recipe in chosen for table in recipe.tables(group)])
    measured = {record["dataset"] for record in records}
    wanted = dict.fromkeys(key for recipe in chosen for key in recipe.datasets if key not in measured)
    if data is not None and wanted:
        typer.echo(f"not in {data} and left out: {', '.join(wanted)}; see `acclimate data check {data}`.", err=True)
    typer.echo(f"tables and figures in {report}.", err=True)


def _pattern(paths: Sequence[Path]) -> str:
    """Paths as the command line had them: a pattern where they are all that it matches."""
    pattern = paths[0].parent / f"*{paths[0].suffix}"
    if len(paths) > 1 and sorted(paths) == sorted(pattern.parent.glob(pattern.name)):
        return str(pattern)
    return " ".join(map(str, paths))


def _print(tables: "Sequence[Table]") -> None:
    """The last column of every table: the average, beside what was reported."""
    from acclimate.bench.tables import cell_text

    for table in tables:
        typer.echo(f"\n{table.title} ({table.columns[-1]}; measured / reported)")
        for label, cells in table.rows:
            typer.echo(f"  {label:22} {cell_text(cells[-1])}")
