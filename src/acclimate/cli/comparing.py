"""Options of commands that compare methods, and how the command that made results is written down."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from acclimate.cli.arguments import COMPARED, MODEL_HELP
from acclimate.cli.console import say
from acclimate.errors import MissingExtraError

Streams = Annotated[
    list[Path],
    typer.Argument(help="Runs of `acclimate embed` or `classify`, or feature files: .safetensors, .npz, .pt."),
]
Methods = Annotated[
    list[str] | None, typer.Option(help="Method to run; can be repeated.", show_default=", ".join(COMPARED))
]
Orders = Annotated[
    int, typer.Option(help="Run over this many orders of that shape (shuffled by default), seeds 0 to N-1.", min=0)
]
TextModel = Annotated[
    str | None,
    typer.Option("--model", help=f"The model of the features, for methods that need its text tower: {MODEL_HELP}"),
]
OutFolder = Annotated[Path, typer.Option("--out", "-o", help="The folder for everything that is written.")]


def options_text(**given: Any) -> str:
    """Return options as on the command line, without those that are None; a list is an option that is repeated."""
    pairs = [(name, each) for name, value in given.items() for each in (value if isinstance(value, list) else [value])]
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in pairs if value is not None)


def as_patterns(paths: Sequence[Path]) -> str:
    """Return paths as on the command line: those of a folder as a pattern if they are all the files that it matches."""
    words: dict[str, None] = {}
    for path in paths:
        pattern = path.parent / f"*{path.suffix}"
        matched = set(pattern.parent.glob(pattern.name))
        words[str(pattern if len(matched) > 1 and matched <= set(paths) else path)] = None
    return " ".join(words)


def report_pictures() -> None:
    """Report on stderr, before the work, that pictures are left out where matplotlib is missing."""
    from acclimate.bench.plots import pyplot

    try:
        pyplot()
    except MissingExtraError as error:
        say(f"note: the pictures are left out; {error}", err=True)
