"""The option --plugin of all commands that take a method or a state."""

from pathlib import Path
from typing import Annotated

import typer


def _load(paths: list[Path] | None) -> list[Path]:
    if paths:
        from acclimate.methods import load_plugin

        for path in paths:
            load_plugin(path)
    return paths or []


Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin", callback=_load, help="A Python file with methods of your own (@acclimate.register); repeatable."
    ),
]
