"""`acclimate run`: methods on stored features, compared with zero-shot."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from acclimate.bench.results import Result


def run(
    files: Annotated[list[Path], typer.Argument(help="Feature files: .safetensors, .npz, .npy or .pt.")],
    method: Annotated[list[str] | None, typer.Option(help="Method to run; can be repeated. [default: tda]")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="A setting, KEY=VALUE or METHOD.KEY=VALUE; can be repeated.")
    ] = None,
    order: Annotated[
        str,
        typer.Option(
            help="stored (as in the file), rows, seed:N (shuffled), class-sequential:N, correlated:N, domains:N, "
            "mixed-domains:N or domain-shift:N."
        ),
    ] = "stored",
    orders: Annotated[
        int, typer.Option(help="Run over this many orders of that shape (shuffled by default), seeds 0 to N-1.", min=0)
    ] = 0,
    batch_size: Annotated[int, typer.Option(help="Samples per step; the answers do not depend on it.", min=1)] = 256,
    device: Annotated[str, typer.Option(help="numpy, or a PyTorch device: cpu, cuda, cuda:1.")] = "numpy",
    labels: Annotated[Path | None, typer.Option(help="True classes, .npy or .pt, if not in the file.")] = None,
    class_vectors: Annotated[Path | None, typer.Option(help="Class vectors, .npy or .pt, if not in the file.")] = None,
    class_names: Annotated[Path | None, typer.Option(help="Class names, one per line, if not in the file.")] = None,
    logit_scale: Annotated[float | None, typer.Option(help="The model's logit scale, if not in the file.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the results to this JSON file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the accuracy along the stream: .png, .svg or .pdf.")] = None,
    save_state: Annotated[Path | None, typer.Option(help="Write the adapter's state to this file.")] = None,
) -> None:
    """Run methods on feature files and score them, with zero-shot for comparison."""
    from rich.console import Console

    from acclimate.bench.orders import order_names
    from acclimate.bench.plots import check_picture, plot_running_accuracy
    from acclimate.bench.prequential import Variant, compare
    from acclimate.bench.results import summarise, write_results
    from acclimate.cli.options import parse_settings
    from acclimate.cli.progress import progress_bar
    from acclimate.errors import InputError
    from acclimate.files import check_writable
    from acclimate.methods import save_state as write_state
    from acclimate.stream import read_stream

    chosen = list(dict.fromkeys(method or ["tda"]))
    adapting = [name for name in chosen if name != "zero-shot"]
    variants = [Variant(name, parse_settings(name, setting, adapting)) for name in adapting]
    for path in filter(None, (json, plot, save_state)):
        check_writable(path)
    if (plot or save_state) and (len(files) > 1 or orders):
        raise InputError("--plot and --save-state need one file and one order.")
    if save_state and len(variants) != 1:
        raise InputError("--save-state writes the state of one method; name exactly one besides zero-shot.")
    if plot:
        check_picture(plot)
    given: dict[str, Any] = {"labels": labels, "class_vectors": class_vectors, "logit_scale": logit_scale}
    given["class_names"] = None if class_names is None else _lines(class_names)
    streams = {path: read_stream(path, **given) for path in files}
    if plot and streams[files[0]].labels is None:
        raise InputError(f"{files[0]} has no labels, so there is no accuracy to draw; pass --labels.")

    names = order_names(order, orders)
    results = []
    total = sum(map(len, streams.values())) * (1 + len(variants)) * len(names)
    with progress_bar(total, "adapting", "samples") as advance:
        for path, stream in streams.items():
            outcomes = compare(stream, variants, names, batch_size, device, advance)
            results += [summarise(path.stem, stream, outcome, outcomes[0]) for outcome in outcomes]
    # No figure is cut off: a narrow terminal wraps the lines, and a pipe has no width.
    Console(width=max(100, Console().width)).print(_table(results))
    if json:
        write_results([result for result in results if result.method in chosen], json)
    if plot:
        correct = {outcome.variant.method: outcome.runs[order].correct for outcome in outcomes}
        plot_running_accuracy(correct, files[0].stem, plot)
    if save_state:
        write_state(outcomes[1].adapter, save_state)


def _lines(path: Path) -> list[str]:
    from acclimate.errors import InputError

    try:
        return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read class names from {path}: {error}.") from error


def _table(results: "Sequence[Result]") -> Any:
    from rich.table import Table

    many = any(len(result.order_names) > 1 for result in results)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("stream")
    table.add_column("method")
    headings = ["n", "accuracy", *(["sd", "worst 10%"] if many else []), "gain", "changed", "ECE", "samples/s"]
    for heading in headings:
        table.add_column(heading, justify="right")
    for result in results:
        spread = [_percent(result.orders.get(name)) for name in ("sd", "worst_tenth")] if many else []
        table.add_row(
            result.dataset,
            result.method,
            str(result.n),
            _percent(result.metrics["acc1"]),
            *spread,
            "" if result.method == "zero-shot" else _percent(result.gain, "+.2f"),
            _percent(result.changed),
            _percent(result.ece),
            f"{result.cost['samples_per_s']:,.0f}",
        )
    return table


def _percent(fraction: float | None, form: str = ".2f") -> str:
    return "-" if fraction is None else f"{100 * fraction:{form}}"
