"""`acclimate run`: methods on stored features, compared with zero-shot."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from acclimate.cli.arguments import COMPARED, Plugins, SweptSettings, parse_sweep
from acclimate.cli.comparing import Methods, Orders, Streams, TextModel
from acclimate.cli.console import progress_bar
from acclimate.cli.tables import print_classes, print_differences, print_results
from acclimate.errors import InputError

if TYPE_CHECKING:
    from acclimate.bench.prequential import Variant
    from acclimate.encoders import Encoder
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
    bool, typer.Option("--per-class", help="Print the accuracy on each class, and write it to a .json of --out.")
]
Outputs = Annotated[
    list[Path] | None,
    typer.Option(
        "--out",
        "-o",
        help="A file to write: .json (all results), .csv (a line per stream, method and order), .tex (methods by "
        "streams), or .png, .svg or .pdf (the accuracy along each stream); repeatable.",
    ),
]
State = Annotated[
    Path | None, typer.Option(help="Write the adapter's state to this file, whose stem names the stream.")
]
TABLES = (".json", ".csv", ".tex")


def run(
    files: Streams,
    method: Methods = None,
    plugin: Plugins = None,
    fitted: Fitted = None,
    setting: SweptSettings = None,
    model: TextModel = None,
    order: StreamOrder = "stored",
    orders: Orders = 0,
    passes: Passes = 1,
    device: Annotated[str, typer.Option(help="numpy, or a PyTorch device: cpu, cuda, cuda:1.")] = "numpy",
    per_class: PerClass = False,
    out: Outputs = None,
    save_state: State = None,
) -> None:
    """Run methods on stored features and score them, with zero-shot for comparison.

    The intervals are of differences between methods on the same samples in the same orders: 95 % of a paired bootstrap
    over samples and orders.
    """
    from acclimate.bench.evaluation import add_comparison, join, run_streams, tabulate
    from acclimate.bench.orders import order_names
    from acclimate.bench.plots import plot_running_accuracy
    from acclimate.bench.results import score_all, write_page, write_results
    from acclimate.encoders import load_encoder
    from acclimate.methods import save_state as write_state
    from acclimate.stream import read_stream

    outputs = out or []
    _check_paths(outputs, save_state)
    encoder = None if model is None else load_encoder(model)
    variants = _variants(method, setting, fitted, encoder)
    streams = {path: read_stream(path) for path in files}
    _check_streams(streams, outputs, save_state, per_class, orders, len(variants))
    how = (order_names(order, orders), passes, 256, device, progress_bar)
    outcomes = run_streams(streams, variants, *how, origin=save_state.stem if save_state else "", encoder=encoder)
    scores = []
    evaluations = []
    for path, stream in streams.items():
        evaluations.append(tabulate(path.stem, stream, outcomes[path]))
        scores += add_comparison(score_all(path.stem, stream, outcomes[path]), evaluations[-1], per_class)
    print_results(scores)
    print_differences(evaluations)
    print_classes(evaluations if per_class else ())
    asked = "zero-shot" in (method or (() if fitted else COMPARED))
    for path in outputs:
        if path.suffix == ".json":
            write_results([score for score in scores if score.method != "zero-shot" or asked], path)
        elif path.suffix == ".csv":
            join(evaluations).to_csv(path)
        elif path.suffix == ".tex":
            write_page([join(evaluations).to_latex()], path)
        else:
            plot_running_accuracy([(each.stem, found) for each, found in outcomes.items()], path)
    if save_state:
        write_state(outcomes[files[0]][1].adapter, save_state)


def _variants(
    method: list[str] | None, setting: list[str] | None, fitted: Path | None, encoder: "Encoder | None"
) -> "list[Variant]":
    from acclimate.bench.evaluation import sweep
    from acclimate.bench.prequential import Variant
    from acclimate.methods import load_fitted

    names = [name for name in dict.fromkeys(method or (() if fitted else COMPARED)) if name != "zero-shot"]
    if setting and not names:
        raise InputError("--set is for the methods of --method; a fitted file has its settings, zero-shot has none.")
    variants = [each for name in names for each in sweep(name, parse_sweep(name, setting, names))]
    if fitted is not None:
        adapter = load_fitted(fitted, encoder)[0]
        variants.append(Variant(adapter.name, adapter.settings, fitted=adapter))
    return variants


def _check_paths(outputs: list[Path], save_state: Path | None) -> None:
    from acclimate.bench.plots import check_picture
    from acclimate.files import check_writable

    for path in outputs:
        if path.suffix not in TABLES:
            check_picture(path)
    for path in filter(None, (*outputs, save_state)):
        check_writable(path)


def _check_streams(
    streams: "dict[Path, FeatureStream]",
    outputs: list[Path],
    save_state: Path | None,
    per_class: bool,
    orders: int,
    variants: int,
) -> None:
    bare = next((path for path, stream in streams.items() if stream.targets is None), None)
    if bare and (per_class or any(path.suffix != ".json" for path in outputs)):
        raise InputError(f"{bare} has no labels, so there are no scores to write or to draw; add labels to the file.")
    if len({path.stem for path in streams}) < len(streams) and any(path.suffix in (".csv", ".tex") for path in outputs):
        raise InputError("two files have the same name, so their lines could not be told apart.")
    if save_state and (len(streams) > 1 or orders):
        raise InputError("--save-state needs one file and one order.")
    if save_state and variants != 1:
        raise InputError("--save-state writes the state of one method; name one with --method.")
