"""`acclimate classify`: the main job."""

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from acclimate.classify.rows import Row
    from acclimate.classify.run import Job

DEFAULT_MODEL = "bundled"  # `encoders.BUNDLED`; to import that would make --help wait for NumPy
MODEL_HELP = "bundled, onnx:DIR, hf:ID, local:DIR or open_clip:NAME/TAG; see `acclimate models`."
SOURCE_HELP = "A folder, image, glob, list (.txt, .csv, .jsonl), - for paths on stdin, coop:, wds: or hfds:."
TEMPLATE_HELP = (
    "A prompt with {}, a set's name, or a file of prompts (.txt, .json); may be given again. [default: single]"
)


def classify(
    source: Annotated[str, typer.Argument(help=SOURCE_HELP)],
    labels: Annotated[str, typer.Option(help="Labels, separated by commas, or a file with one a line.")],
    model: Annotated[str, typer.Option(help=MODEL_HELP)] = DEFAULT_MODEL,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Results: .csv, .jsonl or .parquet.")] = None,
    method: Annotated[str, typer.Option(help="How to adapt; see `acclimate methods`.")] = "tda",
    setting: Annotated[list[str] | None, typer.Option("--set", help="A setting of the method, KEY=VALUE.")] = None,
    template: Annotated[list[str] | None, typer.Option(help=TEMPLATE_HELP)] = None,
    top_k: Annotated[int, typer.Option(help="Labels to name for each image.", min=1)] = 3,
    order: Annotated[str, typer.Option(help="path (as listed), or seed:N to shuffle.")] = "path",
    state: Annotated[Path | None, typer.Option(help="Go on from this state if it exists, and write it back.")] = None,
    freeze: Annotated[bool, typer.Option("--freeze", help="Answer from the state, learn nothing.")] = False,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report here.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an unfinished --out.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace --out if it exists.")] = False,
    on_error: Annotated[Literal["skip", "fail"], typer.Option(help="What an unreadable image does.")] = "skip",
    batch_size: Annotated[int, typer.Option(help="Images encoded at once.", min=1)] = 32,
    workers: Annotated[int | None, typer.Option(help="Threads that read images.", min=1)] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    checkpoint_every: Annotated[float, typer.Option(help="Seconds between two checkpoints of --out.", min=0)] = 10.0,
) -> None:
    """Classify images into any labels, adapting to them as it goes.

    A table on a terminal, csv when piped; rows are written as they come.
    """
    from acclimate.classifier import Classifier
    from acclimate.classify.outputs import CsvOutput, open_output
    from acclimate.classify.run import Job
    from acclimate.cli.settings import parse_settings
    from acclimate.errors import InputError, RunError
    from acclimate.files import check_writable
    from acclimate.prompts import example_prompts, parse_template_option, read_labels
    from acclimate.sources.base import open_source, order_samples

    for path in filter(None, (out, state, report)):
        check_writable(path)
    output = None if out is None else open_output(out, top_k)
    if resume and out is None:
        raise InputError("--resume goes on with a file; name it with --out.")
    names = read_labels(labels)
    templates = parse_template_option(template or [])
    settings = parse_settings(method, setting or [], [method])
    samples = order_samples(open_source(source, sys.stdin), order)
    classifier = Classifier(
        names,
        model,
        method=method,
        templates=templates,
        batch_size=batch_size,
        workers=workers,
        device=device,
        **settings,
    )
    if state is not None and state.exists():
        classifier.load(state)
    if freeze:
        classifier.freeze()

    terminal = Terminal(CsvOutput(Path("-"), top_k), len(samples))
    with _stop_flag() as stopped:
        job = Job(classifier, samples, output, terminal.show, top_k, on_error, state, checkpoint_every, stopped)
        if out is not None and not _may_write(out, job, resume, overwrite):
            return
        terminal.begin(job, example_prompts(names, templates), rows_to_stdout=out is None)
        try:
            finished = job.run(resume)
        finally:
            terminal.end()
    if not finished:
        how = "; go on with --resume" if out is not None else ""
        typer.echo(f"stopped after {job.done} of {len(samples)} images{how}.", err=True)
        raise typer.Exit(130)
    if report is not None:
        _report(job, report, {"model": model, "method": method, "source": source, "order": order})
    terminal.summarise(job.summary, out, state, report)
    if job.summary.unreadable == len(samples):
        raise RunError(f"none of the {len(samples)} images could be read.")


def _may_write(out: Path, job: "Job", resume: bool, overwrite: bool) -> bool:
    """Whether to run; a finished output is left alone."""
    from acclimate.errors import InputError

    unfinished = job.can_resume()
    if resume and not unfinished and out.exists():
        typer.echo(f"{out} is complete; nothing to do.", err=True)
        return False
    if not (resume or overwrite) and (out.exists() or unfinished):
        how = "--resume to go on, or " if unfinished else ""
        raise InputError(f"{out} exists; pass {how}--overwrite to replace it.")
    return True


class Terminal:
    """What a person sees: progress on stderr; rows on stdout when they go nowhere else."""

    def __init__(self, lines: Any, total: int) -> None:
        from rich.console import Console

        self.lines, self.total, self.changed, self.done = lines, total, 0, 0
        self.console = Console(stderr=True)
        self.rows_to_stdout = False
        self.progress: Any = None

    def begin(self, job: "Job", prompts: Sequence[str], rows_to_stdout: bool) -> None:
        """Say what is about to happen."""
        self.rows_to_stdout = rows_to_stdout
        if rows_to_stdout and not sys.stdout.isatty():
            typer.echo(self.lines.header(), nl=False)
        if not self.console.is_terminal:
            return
        said = " · ".join(prompts)
        self.console.print(
            f"{self.total} images, {len(job.classifier.labels)} labels: {said}", style="dim", markup=False
        )
        if rows_to_stdout and sys.stdout.isatty():
            return  # the rows themselves show how it goes
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        self.progress = Progress(*columns, console=self.console, transient=True)
        self.progress.start()
        self.task = self.progress.add_task("", total=self.total)

    def show(self, rows: "Sequence[Row]") -> None:
        """Take a batch's rows."""
        self.done += len(rows)
        self.changed += sum(1 for row in rows if row.changed)
        if self.progress is not None:
            speed = self.progress.tasks[0].speed or 0.0
            said = f"{speed:.0f} images/s, {100 * self.changed / max(1, self.done):.1f} % changed"
            self.progress.update(self.task, completed=rows[-1].index + 1, description=said)
        if self.rows_to_stdout:
            text = "".join(map(_line, rows)) if sys.stdout.isatty() else self.lines.render(rows)
            typer.echo(text, nl=False)

    def end(self) -> None:
        """Take the progress bar away."""
        if self.progress is not None:
            self.progress.stop()

    def summarise(self, summary: Any, out: Path | None, state: Path | None, report: Path | None) -> None:
        """One line at the end, on stderr."""
        where = "".join(
            f" {what}: {path}." for what, path in (("Results", out), ("State", state), ("Report", report)) if path
        )
        bad = f", {summary.unreadable} could not be read" if summary.unreadable else ""
        typer.echo(
            f"{summary.answered} images classified{bad}, {summary.changed} answers changed by adapting.{where}",
            err=True,
        )


def _line(row: "Row") -> str:
    if row.error is not None:
        return f"{row.file}  could not be read: {row.error}\n"
    was = f"  (zero-shot: {row.zero_shot_label} {100 * (row.zero_shot_score or 0):.1f} %)" if row.changed else ""
    return f"{row.file:40}  {row.label:24} {100 * (row.score or 0):5.1f} %{was}\n"


def _report(job: "Job", path: Path, settings: dict[str, str]) -> None:
    import platform
    from dataclasses import asdict

    from acclimate import __version__
    from acclimate.classify.report import write_report
    from acclimate.errors import ImageError
    from acclimate.images import open_image

    def picture(index: int) -> Any:
        try:
            return open_image(job.samples[index].read()) if index >= 0 else None
        except (ImageError, OSError):
            return None

    adapter = job.classifier.adapter
    write_report(
        path,
        job.summary,
        adapter,
        picture,
        {
            **settings,
            **{key: str(value) for key, value in asdict(adapter.config).items()},
            "acclimate": __version__,
            "Python": platform.python_version(),
        },
        settings["source"],
        lambda index: job.samples[index].name if index >= 0 else None,
        job.first_id,
    )


@contextmanager
def _stop_flag() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM ask the run to stop between two batches; a second Ctrl-C stops at once."""
    asked: list[int] = []

    def ask(number: int, frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
