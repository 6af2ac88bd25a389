"""`acclimate bench`: the paper's benchmarks, one JSON file per result."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from acclimate.cli.arguments import (
    COMPARED,
    DEFAULT_MAX_PIXELS,
    Device,
    Generated,
    MaxPixels,
    Model,
    Plugins,
    Precision,
    ViewsKind,
    Workers,
)
from acclimate.cli.console import say
from acclimate.cli.tables import print_results

Orders = Annotated[
    int, typer.Option(help="Run over this many orders of that shape (shuffled by default), seeds 0 to N-1.", min=0)
]
Store = Annotated[Path, typer.Option(help="The folder of encoded features; images are encoded once.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="The folder for everything that is written.")]
EncodeSize = Annotated[int, typer.Option("--batch-size", help="Images encoded at once; each view counts.", min=1)]


def bench(
    data: Annotated[Path, typer.Option(help="The folder of all datasets; see `acclimate data check`.")],
    model: Model,
    suite: Annotated[list[str] | None, typer.Option(help="ood or cross-domain; can be repeated.")] = None,
    dataset: Annotated[list[str] | None, typer.Option(help="One dataset, such as dtd; can be repeated.")] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Method to run; can be repeated.", show_default=", ".join(COMPARED))
    ] = None,
    plugin: Plugins = None,
    fitted: Annotated[
        Path | None, typer.Option(help="A file of `acclimate fit`, to run in place of --method or beside it.")
    ] = None,
    settings: Annotated[
        Literal["paper", "authors-per-dataset"],
        typer.Option(help="The same settings for all datasets, or those the authors published for each dataset."),
    ] = "paper",
    prompts: Annotated[
        str,
        typer.Option(help="dataset (a template set per dataset), the name of a set for all, or learned:FILE."),
    ] = "dataset",
    views: Annotated[Literal["paper", "1", "64"], typer.Option(help="Views per image.")] = "paper",
    views_kind: ViewsKind = None,
    generated: Generated = None,
    order: Annotated[
        str, typer.Option(help="seed:N, rows, or a shape such as class-sequential:N, correlated:N.")
    ] = "seed:1",
    orders: Orders = 0,
    store: Store = Path("features"),
    out: Out = Path("results"),
    skip_existing: Annotated[bool, typer.Option(help="Do not run again what has a result in --out.")] = True,
    max_pixels: MaxPixels = DEFAULT_MAX_PIXELS,
    batch_size: EncodeSize = 64,
    workers: Workers = None,
    device: Device = "auto",
    precision: Precision = "float32",
) -> None:
    """Run methods on the paper's datasets: encode each once, adapt, and write one JSON file per dataset and method.

    Every result includes the scores of zero-shot. The same command continues an interrupted run.
    """
    from acclimate.bench.datasets import find_datasets, present_datasets
    from acclimate.bench.orders import order_names
    from acclimate.bench.store import Setup
    from acclimate.bench.suite import run_suite
    from acclimate.cli.progress import progress_bar
    from acclimate.errors import InputError
    from acclimate.methods import find_method

    chosen = find_datasets(suite or [], dataset or [])
    if not chosen:
        raise InputError("nothing to run; name a --suite (ood, cross-domain) or a --dataset.")
    methods = list(dict.fromkeys(method or (("zero-shot",) if fitted else COMPARED)))
    for name in methods:
        find_method(name)
    taken = tuple(order_names(order, orders))
    reading: dict[str, Any] = {"batch_size": batch_size, "workers": workers, "device": device, "precision": precision}
    chosen_views: dict[str, Any] = {"views": views, "views_kind": views_kind, "generated": generated}
    setup = Setup(data, model, store, prompts, orders=taken, progress=progress_bar, **reading, **chosen_views)
    present = present_datasets(chosen, data)
    report_skipped([each.key for each in chosen if each not in present], data)
    try:
        results = run_suite(setup, present, methods, settings, out, skip_existing, fitted)
    except KeyboardInterrupt:
        say("stopped; run the same command again to continue.", err=True)
        raise typer.Exit(130) from None
    print_results(results)
    say(f"{len(results)} results in {out}; try `acclimate tables {out}`.", err=True)


def report_pictures() -> None:
    """Report on stderr, before the work, that pictures are left out where matplotlib is missing."""
    from acclimate.bench.plots import pyplot
    from acclimate.errors import MissingExtraError

    try:
        pyplot()
    except MissingExtraError as error:
        say(f"note: the pictures are left out; {error}", err=True)


def report_skipped(keys: list[str], data: Path) -> None:
    """Report on stderr which datasets are not in a folder."""
    if keys:
        say(f"skipped, not in {data}: {', '.join(keys)}; see `acclimate data check {data}`.", err=True)
