"""`acclimate few-shot`: methods that learn from a few labelled samples beside methods that use no labels."""

from pathlib import Path
from typing import Annotated

import typer

from acclimate.cli.arguments import COMPARED, Plugins, Settings, parse_settings
from acclimate.cli.bench import Out, as_patterns, options_text, run_measurements
from acclimate.cli.console import say
from acclimate.cli.tables import print_table

METHODS = (*COMPARED, "tip-adapter", "tip-adapter-f")


def few_shot(
    files: Annotated[list[Path], typer.Argument(help="Feature files with labels.")],
    shots: Annotated[
        list[int], typer.Option(help="Labelled samples per class, where there are as many; can be repeated.", min=1)
    ],
    method: Annotated[
        list[str] | None, typer.Option(help="Method to run; can be repeated.", show_default=", ".join(METHODS))
    ] = None,
    setting: Settings = None,
    plugin: Plugins = None,
    seeds: Annotated[int, typer.Option(help="Draws of each number of shots, seeds 0 to N-1.", min=1)] = 3,
    held_out: Annotated[
        int | None,
        typer.Option(
            help="Validation samples per class at most; 0 to keep the settings of the methods.",
            show_default="all that are left",
            min=0,
        ),
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Processes.", show_default="as many as cores", min=1)] = None,
    out: Out = Path("results"),
) -> None:
    """Compare few-shot methods with those that use no labels: shots from one half of a stream, scores on the other.

    Writes few-shot.md, few-shot.png, and few-shot.csv with every run.
    """
    from acclimate.bench.few_shot import plan_few_shot, write_few_shot
    from acclimate.bench.prequential import Variant

    chosen = list(dict.fromkeys(method or METHODS))
    plan = plan_few_shot(
        files, [Variant(name, parse_settings(name, setting, chosen)) for name in chosen], shots, seeds, held_out
    )
    scores = run_measurements(plan, out, jobs, "note")
    options = options_text(
        shots=shots, method=method, set=setting, plugin=plugin, seeds=seeds, held_out=held_out, out=out
    )
    headings, *rows = write_few_shot(plan, scores, out, f"acclimate few-shot {as_patterns(files)} {options}")
    print_table(headings, rows, left=("method",), width=140)
    say(f"the results are in {out}/few-shot.*.", err=True)
