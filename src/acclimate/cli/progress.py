"""How far the work has come, on stderr."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(total: int, verb: str, things: str) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr; only on a terminal, and gone when the work is done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done: None
        return
    columns = (TextColumn(verb), BarColumn(), MofNCompleteColumn(), TextColumn(things), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(verb, total=total)
        yield lambda done: progress.advance(task, done)
