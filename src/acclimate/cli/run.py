"""`acclimate run`: methods over stored features, zero-shot beside them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from acclimate.bench.results import Result


def run(
    files: Annotated[list[Path], typer.Argument(help="Feature files: .safetensors, .npz, .npy or .pt.")],
    method: Annotated[list[str] | None, typer.Option(help="Method to run; may be given again. [default: tda]")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="A setting, KEY=VALUE or METHOD.KEY=VALUE; may be given again.")
    ] = None,
    order: Annotated[
        str,
        typer.Option(
            help="stored (the file's own), rows, seed:N (shuffled), class-sequential:N, correlated:N, domains:N, "
            "mixed-domains:N or domain-shift:N."
        ),
    ] = "stored",
    orders: Annotated[
        int, typer.Option(help="Run over this many orders of that shape (shuffled by default), seeds 0 to N-1.", min=0)
    ] = 0,
    batch_size: Annotated[int, typer.Option(help="Samples a step; answers do not depend on it.", min=1)] = 256,
    device: Annotated[str, typer.Option(help="numpy, or a PyTorch device: cpu, cuda, cuda:1.")] = "numpy",
    labels: Annotated[Path | None, typer.Option(help="True classes, .npy or .pt, if not in the file.")] = None,
    class_vectors: Annotated[Path | None, typer.Option(help="Class vectors, .npy or .pt, if not in the file.")] = None,
    class_names: Annotated[Path | None, typer.Option(help="Class names, one a line, if not in the file.")] = None,
    logit_scale: Annotated[float | None, typer.Option(help="The model's logit scale, if not in the file.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the results here as JSON.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw accuracy along the stream here: .png, .svg or .pdf.")] = None,
    save_state: Annotated[Path | None, typer.Option(help="Write what the method learnt here: .safetensors.")] = None,
) -> None:
    """Adapt streams of stored features and score them, zero-shot beside every method."""
    from rich.console import Console

    from acclimate.bench.compare import compare
    from acclimate.bench.orders import order_names
    from acclimate.bench.plots import check_picture, plot_running_accuracy
    from acclimate.bench.results import summarise, write_json
    from acclimate.cli.options import parse_settings
    from acclimate.cli.progress import progress_bar
    from acclimate.errors import InputError
    from acclimate.files import check_writable
    from acclimate.methods import save
    from acclimate.stream import read_stream

    chosen = list(dict.fromkeys(method or ["tda"]))
    learners = [name for name in chosen if name != "zero-shot"]
    methods = {name: parse_settings(name, setting or [], learners) for name in learners}
    for path in filter(None, (json, plot, save_state)):
        check_writable(path)
    if (plot or save_state) and (len(files) > 1 or orders):
        raise InputError("--plot and --save-state are for one file in one order.")
    if save_state and len(learners) != 1:
        raise InputError("--save-state keeps the state of one method; name one beside zero-shot.")
    if plot:
        check_picture(plot)
    names = None if class_names is None else _lines(class_names)
    beside: dict[str, Any] = {"labels": labels, "class_vectors": class_vectors, "logit_scale": logit_scale}
    streams = {path: read_stream(path, class_names=names, **beside) for path in files}
    if plot and streams[files[0]].labels is None:
        raise InputError(f"{files[0]} has no labels, so there is no accuracy to draw; pass --labels.")

    names_of_orders = order_names(order, orders)
    results = []
    total = sum(map(len, streams.values())) * (1 + len(learners) * len(names_of_orders))
    with progress_bar(total, "adapting", "samples") as advance:
        for path, stream in streams.items():
            outcomes = compare(stream, methods, names_of_orders, batch_size, device, progress=advance)
            baseline = outcomes["zero-shot"]
            results += [summarise(path.stem, stream, outcome, baseline) for outcome in outcomes.values()]
    # No figure is cut off: in a narrow window the terminal wraps, and in a pipe there is no width to keep to.
    Console(width=max(100, Console().width)).print(_table(results))
    if json:
        write_json([result for result in results if result.method in chosen], json)
    if plot:
        correct = {name: outcome.runs[order].correct for name, outcome in outcomes.items()}
        plot_running_accuracy(correct, files[0].stem, plot)
    if save_state:
        save(outcomes[learners[0]].adapter, save_state)


def _lines(path: Path) -> list[str]:
    from acclimate.errors import InputError

    try:
        return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read class names from {path}: {error}.") from error


def _table(results: "Sequence[Result]") -> Any:
    from rich.table import Table

    many = any(len(result.orders) > 1 for result in results)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("stream")
    table.add_column("method")
    headings = ["n", "accuracy", *(["sd", "worst 10%"] if many else []), "gain", "changed", "ECE", "samples/s"]
    for heading in headings:
        table.add_column(heading, justify="right")
    for result in results:
        spread = result.spread() or {}
        middle = [_percent(spread.get("sd")), _percent(spread.get("worst_tenth"))] if many else []
        gain = "" if result.method == "zero-shot" else _percent(result.gain, "+.2f")
        table.add_row(
            result.dataset,
            result.method,
            str(result.n),
            _percent(result.mean("acc1")),
            *middle,
            gain,
            _percent(result.changes["changed"]),
            _percent(result.mean("ece")),
            f"{result.samples_per_s:,.0f}",
        )
    return table


def _percent(fraction: float | None, form: str = ".2f") -> str:
    return "-" if fraction is None else f"{100 * fraction:{form}}"
