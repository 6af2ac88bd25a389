"""`acclimate run`: methods on stored features, compared with zero-shot."""

from pathlib import Path
from typing import Annotated, Any

import typer

from acclimate.cli.arguments import COMPARED, Plugins, parse_sweep, read_lines
from acclimate.cli.bench import Orders
from acclimate.cli.tables import print_classes, print_differences, print_results


def run(
    files: Annotated[list[Path], typer.Argument(help="Feature files: .safetensors, .npz, .npy or .pt.")],
    method: Annotated[
        list[str] | None, typer.Option(help="Method to run; can be repeated.", show_default=", ".join(COMPARED))
    ] = None,
    plugin: Plugins = None,
    fitted: Annotated[
        Path | None, typer.Option(help="A file of `acclimate fit` with the same classes; compared with zero-shot.")
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="KEY=VALUE or METHOD.KEY=VALUE; several values, KEY=1,2,3, are run one by one; repeatable."
        ),
    ] = None,
    order: Annotated[
        str,
        typer.Option(
            help="stored (as in the file), rows, seed:N (shuffled), class-sequential:N, correlated:N, domains:N, "
            "mixed-domains:N, domain-shift:N, few-classes:N, half-classes:N, long-tail:N or first-200:N."
        ),
    ] = "stored",
    orders: Orders = 0,
    batch_size: Annotated[int, typer.Option(help="Samples per step; the answers do not depend on it.", min=1)] = 256,
    passes: Annotated[
        int, typer.Option(help="2 to answer once more at the end, from everything seen.", min=1, max=2)
    ] = 1,
    device: Annotated[str, typer.Option(help="numpy, or a PyTorch device: cpu, cuda, cuda:1.")] = "numpy",
    labels: Annotated[Path | None, typer.Option(help="True classes, .npy or .pt, if not in the file.")] = None,
    class_vectors: Annotated[Path | None, typer.Option(help="Class vectors, .npy or .pt, if not in the file.")] = None,
    class_names: Annotated[Path | None, typer.Option(help="Class names, one per line, if not in the file.")] = None,
    logit_scale: Annotated[float | None, typer.Option(help="The model's logit scale, if not in the file.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the results to this JSON file.")] = None,
    per_class: Annotated[
        bool, typer.Option("--per-class", help="Print the accuracy on each class, and write it to --json.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw the accuracy along the stream, its mean and spread over --orders: .png, .svg or .pdf."),
    ] = None,
    save_state: Annotated[
        Path | None, typer.Option(help="Write the adapter's state to this file, whose stem names the stream.")
    ] = None,
) -> None:
    """Run methods on feature files and score them, with zero-shot for comparison.

    The intervals are of differences between methods on the same samples in the same orders: 95 % of a paired bootstrap
    over samples and orders.
    """
    from acclimate.bench.evaluation import add_comparison, run_streams, tabulate
    from acclimate.bench.orders import order_names
    from acclimate.bench.plots import check_picture, plot_running_accuracy
    from acclimate.bench.prequential import Variant
    from acclimate.bench.results import pass_title, summarise, write_results
    from acclimate.bench.sweeps import limited, sweep
    from acclimate.cli.progress import progress_bar
    from acclimate.errors import InputError
    from acclimate.files import check_writable
    from acclimate.methods import load_fitted
    from acclimate.methods import save_state as write_state
    from acclimate.stream import read_stream

    chosen = list(dict.fromkeys(method or (() if fitted else COMPARED)))
    adapting = [name for name in chosen if name != "zero-shot"]
    if setting and not adapting:
        raise InputError("--set is for the methods of --method; a fitted file has its settings, zero-shot has none.")
    variants = limited([each for name in adapting for each in sweep(name, parse_sweep(name, setting, adapting))])
    if fitted is not None:
        adapter, _ = load_fitted(fitted)
        variants.append(Variant(adapter.name, adapter.settings, fitted=adapter))
        chosen.append(adapter.name)
    for path in filter(None, (json, plot, save_state)):
        check_writable(path)
    if plot and len(files) > 1:
        raise InputError("--plot needs one file.")
    if save_state and (len(files) > 1 or orders):
        raise InputError("--save-state needs one file and one order.")
    if save_state and len(variants) != 1:
        raise InputError("--save-state writes the state of one method; name one with --method.")
    if plot:
        check_picture(plot)
    given: dict[str, Any] = {"labels": labels, "class_vectors": class_vectors, "logit_scale": logit_scale}
    given["class_names"] = None if class_names is None else read_lines(class_names, "file of class names")
    streams = {path: read_stream(path, **given) for path in files}
    for path, stream in streams.items():
        if stream.labels is None and (plot or per_class):
            what = "accuracy to draw" if plot else "scores by class"
            raise InputError(f"{path} has no labels, so there is no {what}; pass --labels.")

    names = order_names(order, orders)
    origin = "" if save_state is None else save_state.stem
    outcomes = run_streams(streams, variants, names, passes, batch_size, device, progress_bar, origin)
    results = []
    evaluations = []
    for path, stream in streams.items():
        made = [
            summarise(path.stem, stream, outcome, outcomes[path][0], passes=number)
            for outcome in outcomes[path]
            for number in ((1, 2) if outcome.refined else (1,))
        ]
        if stream.labels is not None:
            evaluations.append(tabulate(path.stem, stream, outcomes[path]))
            made = add_comparison(made, evaluations[-1], per_class)
        results += made
    print_results(results)
    print_differences(evaluations)
    if per_class:
        print_classes(evaluations)
    if json:
        write_results([result for result in results if result.method in chosen], json)
    if plot:
        correct = {
            pass_title(outcome.variant.title, number): [run.correct for run in runs.values()]
            for outcome in outcomes[files[0]]
            for number, runs in enumerate((outcome.runs, outcome.refined), 1)
            if runs
        }
        plot_running_accuracy(correct, files[0].stem, plot)
    if save_state:
        write_state(outcomes[files[0]][1].adapter, save_state)
