"""Progress bars on stderr."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from acclimate.fitting import Progress

THINGS = {"encoding": "images", "encoding the labels": "prompts", "encoding the negatives": "prompts"}  # else steps


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

    words = TextColumn(things), TextColumn("{task.fields[note]}", markup=False)
    columns = (TextColumn(verb), BarColumn(), MofNCompleteColumn(), *words, TimeElapsedColumn())
    pace = TextColumn("{task.fields[pace]}")
    with Progress(*columns, pace, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(verb, total=total, note="", pace="")

        worked = 0

        def advance(done: int, note: str = "", earlier: int = 0) -> None:
            nonlocal worked
            worked += done
            progress.update(task, advance=done + earlier, note=note)
            current = progress.tasks[0]
            if worked and current.elapsed:  # rich would show no speed before the second call
                speed = worked / current.elapsed
                left = "" if total is None else f", {_clock((total - current.completed) / speed)} left"
                progress.update(task, pace=f"{speed:.3g}/s{left}")

        yield advance


@contextmanager
def stage_bars() -> "Iterator[Progress]":
    """A progress bar for each stage of a work, from its first call on."""
    with ExitStack() as shown:
        current: str | None = None
        advance: Callable[..., None]

        def show(stage: str, done: int, total: int) -> None:
            nonlocal current, advance
            if stage != current:
                shown.close()
                current = stage
                advance = shown.enter_context(progress_bar(total, stage, THINGS.get(stage, "steps")))
            advance(done)

        yield show


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
