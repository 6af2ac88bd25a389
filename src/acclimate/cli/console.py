"""The terminal: lines, errors, progress bars, the answers of a run, and requests to stop it."""

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from acclimate.errors import AcclimateError, RunError, count, printable, reason

if TYPE_CHECKING:
    from acclimate.classify.classification import Emit
    from acclimate.predict import Prediction, Predictions
    from acclimate.run import Batch

UsageError: Any = typer.BadParameter.__base__  # the class, wherever this version of typer has it
# Things that the stages of a work count; those of other stages are steps.
THINGS = {
    "encoding": "images",
    "classifying": "images",
    "answering once more": "images",
    "encoding the labels": "prompts",
    "encoding the negatives": "prompts",
}


def say(*lines: object, err: bool = False, **style: Any) -> None:
    """Print lines on stdout, or on stderr, as `printable` text; `style` as for `typer.style`."""
    text = "\n".join(map(printable, lines))
    typer.echo(typer.style(text, **style) if style else text, err=err)


class CommandGroup(TyperGroup):
    """A group of commands that shows errors that a user can cause as one line, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; exit with 1 if it had to stop, with 2 if it could not start."""
        try:
            return super().invoke(ctx)
        except AcclimateError as error:
            say(f"error: {error}", err=True)
            raise typer.Exit(1 if isinstance(error, RunError) else 2) from error
        except UsageError as error:  # wrong arguments, which may be names of files that a shell filled in
            error.message = printable(error.message)
            raise
        except OSError as error:  # a name that is too long, a folder that may not be entered
            if error.filename is None:
                raise
            say(f"error: {error.filename} cannot be used: {reason(error)}.", err=True)
            raise typer.Exit(1) from error

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands by panel, each with the whole first sentence of its help, which would else be cut."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            panel = command.rich_help_panel or "Commands"
            panels.setdefault(panel, []).append((name, command.get_short_help_str(500)))
        _write_panels(panels, formatter)


GIVEN: ContextVar[frozenset[str]] = ContextVar("GIVEN", default=frozenset())


def given_options() -> frozenset[str]:
    """Return the names of the parameters that the user has given to the command that runs."""
    return GIVEN.get()


class Command(TyperCommand):
    """A command whose help has its options in panels; those without a panel come first."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; `given_options` names what was given to it."""
        GIVEN.set(frozenset(name for name in ctx.params if ctx.get_parameter_source(name).name != "DEFAULT"))
        return super().invoke(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """List arguments and options by panel."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            kind = f"{parameter.param_type_name.capitalize()}s"
            if record := parameter.get_help_record(ctx):
                panels.setdefault(getattr(parameter, "rich_help_panel", None) or kind, []).append(record)
        _write_panels(panels, formatter)


def _write_panels(panels: dict[str, list[tuple[str, str]]], formatter: Any) -> None:
    for name, records in panels.items():
        with formatter.section(name):
            formatter.write_dl(records)


@contextmanager
def progress_bar(total: int | None, verb: str, things: str, shown: bool = True) -> Iterator[Callable[..., None]]:
    """Show a progress bar ("encoding 3/10 images") on stderr while the block runs, if stderr is a terminal.

    Yields a function to call with the number of things done since its last call, and optionally a note to show and how
    many more an earlier run had done. From its first call on, it shows how many are done per second.
    """
    if not shown or not (sys.stderr.isatty() or os.environ.get("FORCE_COLOR")):
        yield lambda done, note="", earlier=0: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    worked = 0
    with Progress(
        TextColumn(verb),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(things),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("{task.fields[pace]}"),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        task = progress.add_task(verb, total=total, note="", pace="")

        def advance(done: int, note: str = "", earlier: int = 0) -> None:
            nonlocal worked
            worked += done
            progress.update(task, advance=done + earlier, note=note)
            current = progress.tasks[0]
            if worked and current.elapsed:  # rich would show no speed before the second call
                speed = worked / current.elapsed
                seconds = 0.0 if total is None else max(0.0, (total - current.completed) / speed)
                left = "" if total is None else f", {timedelta(seconds=round(seconds))} left"
                progress.update(task, pace=f"{speed:.3g}/s{left}")

        yield advance


def show_encoding(batches: "Iterable[Batch]", total: int, earlier: int = 0) -> "Iterator[Batch]":
    """Yield batches as they are encoded; show progress, and name images that cannot be read on stderr."""
    with progress_bar(total, "encoding", "images") as advance:
        advance(0, "", earlier)
        for batch in batches:
            yield batch
            for name, error in zip(batch.names, batch.errors, strict=True):
                if error is not None:
                    say(f"skipped {name}: {error}", err=True)
            advance(len(batch.names))


@contextmanager
def stage_bars() -> Iterator[Callable[..., None]]:
    """Show a progress bar for each stage of a work, from its first call on.

    Yields a function to call with the stage, the things done since its last call, and their total; and optionally with
    how many more an earlier run had done.
    """
    with ExitStack() as shown:
        current: tuple[str, int] | None = None
        advance: Callable[..., None]

        def show(stage: str, done: int, total: int, earlier: int = 0) -> None:
            nonlocal current, advance
            if (stage, total) != current:
                shown.close()
                current = (stage, total)
                advance = shown.enter_context(progress_bar(total, stage, THINGS.get(stage, "steps")))
            advance(done, "", earlier)

        yield show


@contextmanager
def show_predictions(total: int | None, columns: Sequence[str] | None) -> "Iterator[Emit]":
    """Print predictions unless `columns` is None, and show progress on stderr.

    In a pipe they are csv, and printed when they are final. People see every answer as it comes, and those that the
    second pass changes once more.
    """
    from acclimate.classify.table import csv_lines

    for_people = columns is not None and sys.stdout.isatty()
    done = 0
    changed = 0
    if columns is not None and not for_people:
        typer.echo(",".join(columns))
    with progress_bar(total, "classifying", "images", shown=not for_people) as advance:

        def show(predictions: "Predictions", final: bool) -> None:
            nonlocal done, changed
            again = predictions.start < done
            if for_people:
                shown = [each for each in predictions if not again or each.label != each.online.label]
                if shown:
                    say(*map(_line, shown))
            elif columns is not None and final:
                typer.echo(csv_lines([each.to_record() for each in predictions], columns), nl=False)
            if again:
                advance(0, "answering once more")
                return
            if predictions.classes.size:
                changed += int((predictions.classes[:, 0] != predictions.zero_shot_classes).sum())
            advance(len(predictions), f"{count(changed, 'answer')} changed", predictions.start - done)
            done = predictions.start + len(predictions)

        yield show


def _line(prediction: "Prediction") -> str:
    from acclimate.classify.summary import score_text

    if prediction.error is not None:
        return f"{prediction.name}  could not be read: {prediction.error}"
    other = {"model alone": prediction.zero_shot, "as it came": prediction.online}
    notes = [
        f"{who}: {was.label} {score_text(was.score)}" for who, was in other.items() if was.label != prediction.label
    ]
    notes = ["unsure", *notes] if prediction.unsure else notes
    note = f"  ({', '.join(notes)})" if notes else ""
    return f"{prediction.name:40}  {prediction.label:24} {score_text(prediction.score):>6}{note}"


@contextmanager
def interruptible(advice: str) -> Iterator[None]:
    """Exit with 130 if Ctrl-C or SIGTERM stops the work inside; `advice` says what is left of it."""

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        say(f"stopped; {advice}", err=True)
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C and SIGTERM ask the run to stop after the current batch; a second Ctrl-C stops at once.

    Yields a function that returns True if it was asked to stop.
    """
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
