"""`acclimate bench`: the paper's benchmarks, one JSON a run."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from acclimate.cli.options import MODEL_HELP


def bench(
    data: Annotated[Path, typer.Option(help="The folder of all datasets; see `acclimate data check`.")],
    model: Annotated[str, typer.Option(help=MODEL_HELP)],
    suite: Annotated[list[str] | None, typer.Option(help="ood or cross-domain; may be given again.")] = None,
    dataset: Annotated[list[str] | None, typer.Option(help="One dataset, such as dtd; may be given again.")] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Method to run; may be given again. [default: zero-shot, tda]")
    ] = None,
    settings: Annotated[
        Literal["paper", "authors-per-dataset"],
        typer.Option(help="One set for all datasets, or the authors' own each."),
    ] = "paper",
    prompts: Annotated[
        str, typer.Option(help="dataset (each its own), single, openai-7, openai-80 or another set.")
    ] = "dataset",
    views: Annotated[Literal["paper", "1", "64"], typer.Option(help="Views an image.")] = "paper",
    reducer: Annotated[
        str, typer.Option(help="confident-mean, vote or mean-shift, for many views.")
    ] = "confident-mean",
    order: Annotated[
        str, typer.Option(help="seed:N, rows, or a shape such as class-sequential:N, correlated:N.")
    ] = "seed:1",
    orders: Annotated[int, typer.Option(help="Run over this many orders of that shape, seeds 0 to N-1.", min=0)] = 0,
    store: Annotated[Path, typer.Option(help="Where features are kept, so that images are encoded once.")] = Path(
        "features"
    ),
    out: Annotated[Path, typer.Option("--out", "-o", help="Where results are written.")] = Path("results"),
    skip_existing: Annotated[bool, typer.Option(help="Leave alone what is in --out already.")] = True,
    batch_size: Annotated[int, typer.Option(help="Images, views counted, encoded at once.", min=1)] = 64,
    workers: Annotated[int | None, typer.Option(help="Threads that read images.", min=1)] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
) -> None:
    """Run methods on the paper's datasets: encode each once, adapt, and write one JSON a run, zero-shot in each.

    An interrupted run goes on where it stopped when it is started again.
    """
    from acclimate.bench.datasets import find_datasets
    from acclimate.bench.orders import order_names
    from acclimate.bench.results import read_results
    from acclimate.bench.suite import Protocol, present, run_suite
    from acclimate.cli.progress import progress_bar
    from acclimate.errors import InputError

    chosen = find_datasets(suite or [], dataset or [])
    if not chosen:
        raise InputError("nothing to run; name a --suite (ood, cross-domain) or a --dataset.")
    protocol = Protocol(
        model=model,
        methods=tuple(dict.fromkeys(method or ["zero-shot", "tda"])),
        settings=settings,
        prompts=prompts,
        views="paper" if views == "paper" else int(views),
        reducer=reducer,
        orders=tuple(order_names(order, orders)),
    )
    here = present(chosen, data)
    absent = [each.key for each in chosen if each not in here]
    if absent:
        typer.echo(f"not in {data} and left out: {', '.join(absent)}; see `acclimate data check {data}`.", err=True)
    try:
        paths = run_suite(
            here,
            data,
            protocol,
            store,
            out,
            skip_existing=skip_existing,
            batch_size=batch_size,
            workers=workers,
            device=device,
            progress=progress_bar,
        )
    except KeyboardInterrupt:
        typer.echo("stopped; the same command goes on from here.", err=True)
        raise typer.Exit(130) from None
    _print_table([read_results(path)[0] for path in paths])
    typer.echo(f"{len(paths)} results in {out}; try `acclimate tables {out}`.", err=True)


def _print_table(results: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("dataset")
    table.add_column("method")
    for heading in ("n", "accuracy", "zero-shot", "gain"):
        table.add_column(heading, justify="right")
    for result in results:
        accuracy, baseline = result["metrics"]["acc1"], result["baseline"]["acc1"]
        figures = (f"{100 * accuracy:.2f}", f"{100 * baseline:.2f}", f"{100 * (accuracy - baseline):+.2f}")
        table.add_row(result["dataset"], result["method"], str(result["n"]), *figures)
    Console(width=max(100, Console().width)).print(table)
