"""Progress bars on stderr."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import timedelta

# Things that the stages of a work count; those of other stages are steps.
THINGS = {
    "encoding": "images",
    "classifying": "images",
    "second pass": "images",
    "encoding the labels": "prompts",
    "encoding the negatives": "prompts",
}
Bar = Callable[[int, str, str], AbstractContextManager[Callable[..., None]]]


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

    fields = [TextColumn(things), TextColumn("{task.fields[note]}", markup=False), TimeElapsedColumn()]
    columns = [TextColumn(verb), BarColumn(), MofNCompleteColumn(), *fields, TextColumn("{task.fields[pace]}")]
    worked = 0
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
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


@contextmanager
def stage_bars(bar: Bar = progress_bar) -> Iterator[Callable[..., None]]:
    """Show a progress bar for each stage of a work, from its first call on.

    Yields a function to call with the stage, the things done since its last call, and their total; and optionally with
    how many more an earlier run had done.
    """
    with ExitStack() as shown:
        current: str | None = None
        advance: Callable[..., None]

        def show(stage: str, done: int, total: int, earlier: int = 0) -> None:
            nonlocal current, advance
            if stage != current:
                shown.close()
                current = stage
                advance = shown.enter_context(bar(total, stage, THINGS.get(stage, "steps")))
            advance(done, "", earlier)

        yield show
