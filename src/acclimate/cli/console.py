"""Printing, the display of `acclimate classify` while it runs, and requests to stop."""

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from acclimate.cli.progress import progress_bar
from acclimate.errors import count, printable

if TYPE_CHECKING:
    from acclimate.classify.run import Emit
    from acclimate.predict import Prediction


def say(*lines: object, err: bool = False, **style: Any) -> None:
    """Print lines on stdout, or on stderr, as `printable` text; `style` as for `typer.style`."""
    text = "\n".join(map(printable, lines))
    typer.echo(typer.style(text, **style) if style else text, err=err)


@contextmanager
def show_predictions(total: int | None, columns: Sequence[str] | None) -> "Iterator[Emit]":
    """Print predictions unless `columns` is None, and show progress on stderr.

    In a pipe they are csv, and printed when they are final. People see every answer as it comes, and those that the
    second pass changes once more.
    """
    from acclimate.classify.outputs import csv_lines

    for_people = columns is not None and sys.stdout.isatty()
    done = 0
    changed = 0
    if columns is not None and not for_people:
        typer.echo(",".join(columns))
    with progress_bar(total, "classifying", "images", shown=not for_people) as advance:

        def show(predictions: "Sequence[Prediction]", final: bool) -> None:
            nonlocal done, changed
            again = predictions[0].index < done
            if for_people:
                shown = [each for each in predictions if not again or each.label != each.online.label]
                if shown:
                    say(*map(_line, shown))
            elif columns is not None and final:
                typer.echo(csv_lines([each.to_record() for each in predictions], columns), nl=False)
            if again:
                advance(0, "second pass")
                return
            changed += sum(each.changed for each in predictions)
            advance(len(predictions), f"{count(changed, 'answer')} changed", predictions[0].index - done)
            done = predictions[-1].index + 1

        yield show


def _line(prediction: "Prediction") -> str:
    from acclimate.classify.accuracy import score_text

    if prediction.error is not None:
        return f"{prediction.name}  could not be read: {prediction.error}"
    other = {"zero-shot": prediction.zero_shot, "online": prediction.online}
    notes = [
        f"{who}: {was.label} {score_text(was.score)}" for who, was in other.items() if was.label != prediction.label
    ]
    notes = ["unsure", *notes] if prediction.unsure else notes
    note = f"  ({', '.join(notes)})" if notes else ""
    return f"{prediction.name:40}  {prediction.label:24} {score_text(prediction.score):>6}{note}"


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
