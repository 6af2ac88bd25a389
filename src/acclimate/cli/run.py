"""`acclimate run`: methods on stored features, compared with zero-shot."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acclimate.cli.arguments import COMPARED, Plugins, SweptSettings, parse_sweep, read_lines
from acclimate.cli.bench import Methods, Orders
from acclimate.cli.console import progress_bar
from acclimate.cli.tables import print_classes, print_differences, print_results
from acclimate.errors import InputError

if TYPE_CHECKING:
    from acclimate.bench.prequential import Variant
    from acclimate.stream import FeatureStream

Fitted = Annotated[
    Path | None, typer.Option(help="A file of `acclimate fit` with the same classes; compared with zero-shot.")
]
StreamOrder = Annotated[
    str,
    typer.Option(
        help="stored (as in the file), rows, shuffled:N, class-sequential:N, correlated:N, domains:N, "
        "mixed-domains:N, domain-shift:N, few-classes:N, half-classes:N, long-tail:N or first-200:N."
    ),
]
Passes = Annotated[int, typer.Option(help="2 to answer once more at the end, from everything seen.", min=1, max=2)]
PerClass = Annotated[
    bool, typer.Option("--per-class", help="Print the accuracy on each class, and write it to --json.")
]
Plot = Annotated[
    Path | None,
    typer.Option(help="Draw the accuracy along each stream, its mean and spread over --orders: .png, .svg or .pdf."),
]
Csv = Annotated[Path | None, typer.Option(help="Write a line per stream, method and order to this CSV file.")]
Latex = Annotated[Path | None, typer.Option(help="Write the table with its intervals to this LaTeX file.")]
State = Annotated[
    Path | None, typer.Option(help="Write the adapter's state to this file, whose stem names the stream.")
]


def run(
    files: Annotated[list[Path], typer.Argument(help="Feature files: .safetensors, .npz, .npy or .pt.")],
    method: Methods = None,
    plugin: Plugins = None,
    fitted: Fitted = None,
    setting: SweptSettings = None,
    order: StreamOrder = "stored",
    orders: Orders = 0,
    batch_size: Annotated[int, typer.Option(help="Samples per step; the answers do not depend on it.", min=1)] = 256,
    passes: Passes = 1,
    device: Annotated[str, typer.Option(help="numpy, or a PyTorch device: cpu, cuda, cuda:1.")] = "numpy",
    labels: Annotated[Path | None, typer.Option(help="True classes, .npy or .pt, if not in the file.")] = None,
    class_vectors: Annotated[Path | None, typer.Option(help="Class vectors, .npy or .pt, if not in the file.")] = None,
    class_names: Annotated[Path | None, typer.Option(help="Class names, one per line, if not in the file.")] = None,
    logit_scale: Annotated[float | None, typer.Option(help="The model's logit scale, if not in the file.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the results to this JSON file.")] = None,
    per_class: PerClass = False,
    csv: Csv = None,
    latex: Latex = None,
    plot: Plot = None,
    save_state: State = None,
) -> None:
    """Run methods on feature files and score them, with zero-shot for comparison.

    The intervals are of differences between methods on the same samples in the same orders: 95 % of a paired bootstrap
    over samples and orders.
    """
    from acclimate.bench.evaluation import add_comparison, join, run_streams, tabulate
    from acclimate.bench.orders import order_names
    from acclimate.bench.plots import plot_running_accuracy
    from acclimate.bench.results import score_all, write_page, write_results
    from acclimate.methods import save_state as write_state
    from acclimate.stream import read_stream

    variants = _variants(method, setting, fitted)
    given: dict[str, Any] = {"labels": labels, "class_vectors": class_vectors, "logit_scale": logit_scale}
    given["class_names"] = None if class_names is None else read_lines(class_names, "file of class names")
    streams = {path: read_stream(path, **given) for path in files}
    _check_outputs(streams, json, csv, latex, plot, save_state, per_class, orders, len(variants))
    how = (order_names(order, orders), passes, batch_size, device, progress_bar)
    outcomes = run_streams(streams, variants, *how, origin=save_state.stem if save_state else "")
    scores = []
    evaluations = []
    for path, stream in streams.items():
        evaluations.append(tabulate(path.stem, stream, outcomes[path]))
        scores += add_comparison(score_all(path.stem, stream, outcomes[path]), evaluations[-1], per_class)
    print_results(scores)
    print_differences(evaluations)
    print_classes(evaluations if per_class else ())
    if json:
        asked = "zero-shot" in (method or (() if fitted else COMPARED))
        write_results([score for score in scores if score.method != "zero-shot" or asked], json)
    if csv:
        join(evaluations).to_csv(csv)
    if latex:
        write_page([join(evaluations).to_latex()], latex)
    if plot:
        plot_running_accuracy([(path.stem, each) for path, each in outcomes.items()], plot)
    if save_state:
        write_state(outcomes[files[0]][1].adapter, save_state)


def _variants(method: list[str] | None, setting: list[str] | None, fitted: Path | None) -> "list[Variant]":
    from acclimate.bench.evaluation import sweep
    from acclimate.bench.prequential import Variant
    from acclimate.methods import load_fitted

    names = [name for name in dict.fromkeys(method or (() if fitted else COMPARED)) if name != "zero-shot"]
    if setting and not names:
        raise InputError("--set is for the methods of --method; a fitted file has its settings, zero-shot has none.")
    variants = [each for name in names for each in sweep(name, parse_sweep(name, setting, names))]
    if fitted is not None:
        adapter = load_fitted(fitted)[0]
        variants.append(Variant(adapter.name, adapter.settings, fitted=adapter))
    return variants


def _check_outputs(
    streams: "dict[Path, FeatureStream]",
    json: Path | None,
    csv: Path | None,
    latex: Path | None,
    plot: Path | None,
    save_state: Path | None,
    per_class: bool,
    orders: int,
    variants: int,
) -> None:
    from acclimate.bench.plots import check_picture
    from acclimate.files import check_writable

    for path in filter(None, (json, csv, latex, plot, save_state)):
        check_writable(path)
    same_names = len({path.stem for path in streams}) < len(streams)
    bare = next((path for path, stream in streams.items() if stream.labels is None), None)
    needs_labels = csv or latex or plot or per_class
    refusals = {
        f"{bare} has no labels, so there are no scores to write or to draw; pass --labels.": bare and needs_labels,
        "two files have the same name, so their lines could not be told apart.": same_names and (csv or latex),
        "--save-state needs one file and one order.": save_state and (len(streams) > 1 or orders),
        "--save-state writes the state of one method; name one with --method.": save_state and variants != 1,
    }
    for message, applies in refusals.items():
        if applies:
            raise InputError(message)
    if plot:
        check_picture(plot)
