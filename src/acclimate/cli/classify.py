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
    from acclimate.classify.outputs import Csv
    from acclimate.predict import Prediction


def classify(
    source: options.Source,
    labels: options.Labels,
    model: options.Model = options.DEFAULT_MODEL,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Results: .csv, .jsonl or .parquet.")] = None,
    method: options.Method = "tda",
    setting: options.Settings = None,
    template: options.Templates = None,
    views: options.Views = 1,
    top_k: Annotated[int, typer.Option(help="Number of labels in a row.", min=1)] = 3,
    order: options.Order = "path",
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

    Prints a table on a terminal and csv in a pipe; rows are written as they come.
    """
    import platform

    from acclimate import __version__
    from acclimate.classifier import Classifier
    from acclimate.classify.outputs import Csv, FileOutput, Output
    from acclimate.classify.report import write_report
    from acclimate.classify.run import Classification
    from acclimate.files import check_writable
    from acclimate.prompts import example_prompts
    from acclimate.sources.base import open_source, order_samples

    for path in filter(None, (out, state, report)):
        check_writable(path)
    if resume and out is None:
        raise InputError("--resume continues a file; name it with --out.")
    output = Output() if out is None else FileOutput(out, top_k)
    if out is not None and not _may_write(out, output.checkpoint, resume, overwrite):
        return
    names, templates = options.read_labels(labels), options.read_templates(template)
    settings = options.parse_settings(method, setting)
    samples = order_samples(open_source(source, sys.stdin), order)
    classifier = Classifier(
        names,
        model,
        method=method,
        templates=templates,
        views=views,
        origin=state.stem if state is not None else "",
        batch_size=batch_size,
        workers=workers,
        device=device,
        **settings,
    )
    if state is not None and state.exists():
        classifier.load(state)
    if origin is not None:
        classifier.adapter.origin = origin
    if freeze:
        classifier.freeze()
    intro = f"{len(samples)} images, {len(names)} labels: {' · '.join(example_prompts(names, templates))}"
    with _stop_requests() as stopped, _display(intro, len(samples), None if out else Csv(top_k)) as show:
        run = Classification(
            classifier=classifier,
            samples=samples,
            output=output,
            emit=show,
            top_k=top_k,
            on_error="raise" if on_error == "fail" else "skip",
            state=None if freeze else state,
            checkpoint_every=checkpoint_every,
            stop=stopped,
        )
        finished = run.run(resume)
    if not finished:
        how = "" if out is None else "; run the command again with --resume to continue"
        typer.echo(f"stopped after {run.summary.images} of {len(samples)} images{how}.", err=True)
        raise typer.Exit(130)
    if report is not None:
        write_report(
            report,
            title=source,
            summary=run.summary,
            adapter=classifier.adapter,
            samples=samples,
            first_id=run.first_id,
            settings={
                "source": source,
                "order": order,
                "model": model,
                "views per image": str(views),
                "method": method,
                **{key: str(value) for key, value in classifier.adapter.settings.items()},
                "acclimate": __version__,
                "Python": platform.python_version(),
            },
        )
    unreadable = f", {run.summary.unreadable} could not be read" if run.summary.unreadable else ""
    written = {"Results": out, "State": run.state, "Report": report}
    where = "".join(f" {what}: {path}." for what, path in written.items() if path)
    changed = f"{run.summary.changed} answers changed by adapting"
    typer.echo(f"{run.summary.answered} images classified{unreadable}, {changed}.{where}", err=True)
    if run.summary.unreadable == len(samples):
        raise RunError(f"none of the {len(samples)} images could be read.")


def _may_write(out: Path, checkpoint: Path | None, resume: bool, overwrite: bool) -> bool:
    """Whether to run: complete results are not resumed, and nothing is replaced without --overwrite."""
    incomplete = checkpoint is not None and checkpoint.is_file()
    if resume and not incomplete and out.exists():
        typer.echo(f"{out} is complete; nothing to do.", err=True)
        return False
    if not (resume or overwrite) and (out.exists() or incomplete):
        how = "--resume to continue it, or " if incomplete else ""
        raise InputError(f"{out} exists; pass {how}--overwrite to replace it.")
    return True


@contextmanager
def _display(intro: str, total: int, csv: "Csv | None") -> "Iterator[Callable[[Sequence[Prediction]], None]]":
    """Show predictions as they come: on stdout, in a pipe as `csv`, unless it is None; and as progress on stderr."""
    from rich.console import Console

    console, for_people, done, changed = Console(stderr=True), csv is not None and sys.stdout.isatty(), 0, 0
    if console.is_terminal:
        console.print(intro, style="dim", markup=False)
    if csv is not None and not for_people:
        typer.echo(csv.header, nl=False)
    with progress_bar(total, "classifying", "images", shown=not for_people) as advance:

        def show(predictions: "Sequence[Prediction]") -> None:
            nonlocal done, changed
            if csv is not None:
                typer.echo("".join(map(_line, predictions)) if for_people else csv.render(predictions), nl=False)
            changed += sum(each.changed for each in predictions)
            advance(predictions[-1].index + 1 - done, f"{changed} answers changed")
            done = predictions[-1].index + 1

        yield show


def _line(prediction: "Prediction") -> str:
    if prediction.error is not None:
        return f"{prediction.name}  could not be read: {prediction.error}\n"
    old = prediction.zero_shot
    was = f"  (zero-shot: {old.label} {100 * old.score:.1f} %)" if prediction.changed else ""
    return f"{prediction.name:40}  {prediction.label:24} {100 * prediction.score:5.1f} %{was}\n"


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
