"""Measuring adapters: prequential runs over feature streams, metrics, results and plots."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

Advance = Callable[[int], None]  # called with the number of things done since the last call
Progress = Callable[[int, str, str], AbstractContextManager[Advance]]  # of a number of things, the verb and the things


def silent(total: int, verb: str, things: str) -> AbstractContextManager[Advance]:
    """A progress bar that shows nothing."""
    return nullcontext(lambda done: None)
