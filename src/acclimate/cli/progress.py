"""A progress bar on stderr."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(total: int | None, verb: str, things: str, shown: bool = True) -> Iterator[Callable[..., None]]:
    """Show a progress bar ("encoding 3/10 images") on stderr while the block runs, if stderr is a terminal.

    Yields a function to call with the number of things done since its last call, and optionally a note to show.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not (shown and console.is_terminal):
        yield lambda done, note="": None
        return
    words = TextColumn(things), TextColumn("{task.fields[note]}")
    columns = (TextColumn(verb), BarColumn(), MofNCompleteColumn(), *words, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(verb, total=total, note="")
        yield lambda done, note="": progress.update(task, advance=done, note=note)
