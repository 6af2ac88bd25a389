"""`acclimate classify`: the main command."""

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from acclimate.cli import options
from acclimate.cli.progress import progress_bar
from acclimate.errors import InputError, RunError

if TYPE_CHECKING:
    from acclimate.classify.run import Emit
    from acclimate.predict import Prediction


def classify(
    source: options.Source,
    labels: Annotated[str | None, typer.Option(help=f"{options.LABELS_HELP} Not needed with --fitted.")] = None,
    model: options.Model = options.DEFAULT_MODEL,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Results: .csv, .jsonl or .parquet.")] = None,
    method: Annotated[
        str | None, typer.Option(help="How to adapt; see `acclimate methods`.", show_default=options.DEFAULT_METHOD)
    ] = None,
    setting: options.Settings = None,
    fitted: Annotated[
        Path | None, typer.Option(help="A file of `acclimate fit`, which has the method, its settings and the labels.")
    ] = None,
    template: options.Templates = None,
    views: options.Views = 1,
    views_kind: options.ViewsKind = None,
    generated: options.Generated = None,
    top_k: Annotated[int, typer.Option(help="Number of labels in a row.", min=1)] = 3,
    unsure: Annotated[
        float, typer.Option(help="Mark answers with a lower score as unsure.", min=0, max=1, show_default=False)
    ] = 0.0,
    order: options.Order = "path",
    skip_duplicates: Annotated[
        bool,
        typer.Option("--skip-duplicates", help="Do not learn from near-duplicates of the last images."),
    ] = False,
    passes: Annotated[
        int,
        typer.Option(help="2 to answer once more at the end, from everything seen; 1 for online only.", min=1, max=2),
    ] = 2,
    state: Annotated[Path | None, typer.Option(help="Start from this state if it exists, and write it back.")] = None,
    origin: Annotated[
        str | None, typer.Option(help="Name of this stream in merged states.", show_default="stem of --state")
    ] = None,
    freeze: Annotated[bool, typer.Option("--freeze", help="Answer from the state without learning.")] = False,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report here.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an incomplete --out.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace --out if it exists.")] = False,
    on_error: Annotated[Literal["skip", "fail"], typer.Option(help="Skip or stop at unreadable images.")] = "skip",
    batch_size: options.BatchSize = 32,
    workers: options.Workers = None,
    device: options.Device = "auto",
    checkpoint_every: Annotated[float, typer.Option(help="Seconds between two checkpoints of --out.", min=0)] = 10.0,
) -> None:
    """Classify images into any labels, adapting to the images on the way.

    Every image is answered as it comes, and once more at the end from everything seen. Prints a table on a terminal and
    csv in a pipe, where rows follow when their answers are final.
    """
    import platform

    from acclimate import __version__
    from acclimate.classifier import Classifier
    from acclimate.classify.outputs import ResultFile, csv_columns
    from acclimate.classify.report import count, write_report
    from acclimate.classify.run import Classification
    from acclimate.files import check_writable
    from acclimate.methods import describe_fit, find_method, require
    from acclimate.prompts import example_prompts
    from acclimate.sources.base import open_source, order_samples

    for path in filter(None, (out, state, report)):
        check_writable(path)
    if resume and out is None:
        raise InputError("--resume continues a file; name it with --out.")
    output = None if out is None else ResultFile(out, top_k)
    if output is not None:
        exists, incomplete = output.path.exists(), output.checkpoint.is_file()
        if resume and exists and not incomplete:
            typer.echo(f"{out} is complete; nothing to do.", err=True)
            return
        if not (resume or overwrite) and (exists or incomplete):
            how = "--resume to continue it, or " if incomplete else ""
            raise InputError(f"{out} exists; pass {how}--overwrite to replace it.")
    names = None if labels is None else options.read_labels(labels)
    if fitted is None:
        require(find_method(method or options.DEFAULT_METHOD), views=views > 1, text=True)
        settings = options.parse_settings(method or options.DEFAULT_METHOD, setting)
        settings |= {} if state is None else {"origin": state.stem}
    elif method or setting or state:
        raise InputError(
            "a fitted file has the method, its settings and its state; leave out --method, --set, --state."
        )
    else:
        settings = {}
    templates = options.read_templates(template) if template else None
    samples = order_samples(open_source(source, sys.stdin), order)
    reading: dict[str, Any] = {"views": views, "views_kind": views_kind, "generated": generated}
    reading |= {"batch_size": batch_size, "workers": workers, "device": device}
    reading |= {"unsure": unsure, "skip_duplicates": skip_duplicates}
    classifier = Classifier(names, model, method=method, templates=templates, fitted=fitted, **reading, **settings)
    if state is not None and state.exists():
        classifier.load(state)
    if origin is not None:
        classifier.adapter.origin = origin
    if freeze:
        classifier.freeze()
    if sys.stderr.isatty():
        prompts = " · ".join(example_prompts(classifier.labels, classifier.templates) if classifier.templates else ())
        typer.secho(f"{len(samples)} images, {len(classifier.labels)} labels: {prompts}", dim=True, err=True)
    with _stop_requests() as stopped, _display(len(samples), csv_columns(top_k) if out is None else None) as show:
        run = Classification(
            classifier=classifier,
            samples=samples,
            output=output,
            emit=show,
            top_k=top_k,
            passes=passes,
            on_error="raise" if on_error == "fail" else "skip",
            state=None if freeze else state,
            checkpoint_every=checkpoint_every,
            stop=stopped,
        )
        finished = run.run(resume)
    summary = run.summary
    if not finished:
        how = "" if out is None else "; run the command again with --resume to continue"
        where = f"after {summary.images} of {len(samples)} images"
        where = "in the second pass" if summary.images == len(samples) else where
        typer.echo(f"stopped {where}{how}.", err=True)
        raise typer.Exit(130)
    if report is not None:
        shown = {"source": source, "order": order, "model": model, "views per image": views}
        shown |= {"kind of views": classifier.views_kind} if views > 1 else {}
        shown |= {"passes": run.passes, "method": classifier.adapter.name}
        shown |= {"fitted file": f"{fitted}, {describe_fit(classifier.about_fit)}"} if fitted else {}
        shown |= {**classifier.adapter.settings, "acclimate": __version__, "Python": platform.python_version()}
        write_report(report, run, source, shown)
    unreadable = f", {summary.unreadable} could not be read" if summary.unreadable else ""
    written = {"Results": out, "State": run.state, "Report": report}
    where = "".join(f" {what}: {path}." for what, path in written.items() if path)
    images, answers = count(summary.answered, "image"), count(summary.changed, "answer")
    again = f" (the second pass changed {summary.changed_again} of the online ones)" if summary.passes == 2 else ""
    counts = f"{images} classified{unreadable}, {answers} changed by adapting{again}"
    typer.echo(f"{counts}.{where}", err=True)
    if advice := classifier.adapter.advice():
        typer.echo(f"note: {advice}", err=True)
    if not summary.answered:
        name, why = summary.reasons[0]
        raise RunError(f"none of the {len(samples)} images could be read. The first is {name}: {why}")


@contextmanager
def _display(total: int, columns: Sequence[str] | None) -> "Iterator[Emit]":
    """Print predictions unless `columns` is None, and show progress on stderr.

    In a pipe they are csv, and printed when they are final. People see every answer as it comes, and those that the
    second pass changes once more.
    """
    from acclimate.classify.outputs import csv_lines

    for_people, done, changed = columns is not None and sys.stdout.isatty(), 0, 0
    if columns is not None and not for_people:
        typer.echo(",".join(columns))
    with progress_bar(total, "classifying", "images", shown=not for_people) as advance:

        def show(predictions: "Sequence[Prediction]", final: bool) -> None:
            nonlocal done, changed
            again = predictions[0].index < done
            if for_people:
                shown = [each for each in predictions if not again or each.label != each.online.label]
                typer.echo("".join(map(_line, shown)), nl=False)
            elif columns is not None and final:
                typer.echo(csv_lines(predictions, columns), nl=False)
            if again:
                advance(0, "second pass")
                return
            changed += sum(each.changed for each in predictions)
            advance(predictions[-1].index + 1 - done, f"{changed} answers changed")
            done = predictions[-1].index + 1

        yield show


def _line(prediction: "Prediction") -> str:
    if prediction.error is not None:
        return f"{prediction.name}  could not be read: {prediction.error}\n"
    other = {"zero-shot": prediction.zero_shot, "online": prediction.online}
    were = [
        f"{who}: {was.label} {100 * was.score:.1f} %" for who, was in other.items() if was.label != prediction.label
    ]
    note = f"  ({', '.join(were)})" if were else ""
    return f"{prediction.name:40}  {prediction.label:24} {100 * prediction.score:5.1f} %{note}\n"


@contextmanager
def _stop_requests() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM ask the run to stop after the current batch; a second Ctrl-C stops at once."""
    requests: list[int] = []

    def request(number: int, frame: Any) -> None:
        if requests:
            raise KeyboardInterrupt
        requests.append(number)

    previous = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(requests)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
