"""`acclimate bench`: the paper's benchmarks, one JSON file per result."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from acclimate.cli.options import MODEL_HELP

if TYPE_CHECKING:
    from acclimate.bench.results import Result


def bench(
    data: Annotated[Path, typer.Option(help="The folder of all datasets; see `acclimate data check`.")],
    model: Annotated[str, typer.Option(help=MODEL_HELP)],
    suite: Annotated[list[str] | None, typer.Option(help="ood or cross-domain; can be repeated.")] = None,
    dataset: Annotated[list[str] | None, typer.Option(help="One dataset, such as dtd; can be repeated.")] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Method to run; can be repeated. [default: zero-shot, tda]")
    ] = None,
    settings: Annotated[
        Literal["paper", "authors-per-dataset"],
        typer.Option(help="The same settings for all datasets, or those the authors published for each dataset."),
    ] = "paper",
    prompts: Annotated[
        str, typer.Option(help="dataset (a template set per dataset), single, openai-7, openai-80 or another set.")
    ] = "dataset",
    views: Annotated[Literal["paper", "1", "64"], typer.Option(help="Views per image.")] = "paper",
    order: Annotated[
        str, typer.Option(help="seed:N, rows, or a shape such as class-sequential:N, correlated:N.")
    ] = "seed:1",
    orders: Annotated[int, typer.Option(help="Run over this many orders of that shape, seeds 0 to N-1.", min=0)] = 0,
    store: Annotated[Path, typer.Option(help="The folder of encoded features; images are encoded once.")] = Path(
        "features"
    ),
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder of results.")] = Path("results"),
    skip_existing: Annotated[bool, typer.Option(help="Do not run again what has a result in --out.")] = True,
    batch_size: Annotated[int, typer.Option(help="Images encoded at once; each view counts.", min=1)] = 64,
    workers: Annotated[int | None, typer.Option(help="Threads that read images.", min=1)] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
) -> None:
    """Run methods on the paper's datasets: encode each once, adapt, and write one JSON file per dataset and method.

    Every result includes the scores of zero-shot. The same command continues an interrupted run.
    """
    from acclimate.bench.datasets import find_datasets, present_datasets
    from acclimate.bench.orders import order_names
    from acclimate.bench.suite import Setup, run_suite
    from acclimate.cli.progress import progress_bar
    from acclimate.errors import InputError
    from acclimate.methods import find_method

    chosen = find_datasets(suite or [], dataset or [])
    if not chosen:
        raise InputError("nothing to run; name a --suite (ood, cross-domain) or a --dataset.")
    methods = list(dict.fromkeys(method or ["zero-shot", "tda"]))
    for name in methods:
        find_method(name)
    setup = Setup(
        root=data,
        model=model,
        store=store,
        prompts=prompts,
        views="paper" if views == "paper" else int(views),
        orders=tuple(order_names(order, orders)),
        batch_size=batch_size,
        workers=workers,
        device=device,
    )
    present = present_datasets(chosen, data)
    absent = [each.key for each in chosen if each not in present]
    if absent:
        typer.echo(f"skipped, not in {data}: {', '.join(absent)}; see `acclimate data check {data}`.", err=True)
    try:
        results = run_suite(setup, present, methods, settings, out, skip_existing, progress_bar)
    except KeyboardInterrupt:
        typer.echo("stopped; run the same command again to continue.", err=True)
        raise typer.Exit(130) from None
    _print_table(results)
    typer.echo(f"{len(results)} results in {out}; try `acclimate tables {out}`.", err=True)


def _print_table(results: "list[Result]") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("dataset")
    table.add_column("method")
    for heading in ("n", "accuracy", "zero-shot", "gain"):
        table.add_column(heading, justify="right")
    for result in results:
        accuracies = (result.metrics["acc1"] or 0.0, (result.baseline or {})["acc1"])
        figures = (f"{100 * accuracy:.2f}" for accuracy in accuracies)
        table.add_row(result.dataset, result.method, str(result.n), *figures, f"{100 * (result.gain or 0.0):+.2f}")
    Console(width=max(100, Console().width)).print(table)
