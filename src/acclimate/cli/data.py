"""`acclimate data check`: whether the datasets of the benchmarks are complete and correct."""

from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from acclimate.cli.console import CommandGroup, progress_bar
from acclimate.cli.tables import print_table
from acclimate.errors import InputError, RunError, printable

data = typer.Typer(cls=CommandGroup, no_args_is_help=True)


@data.callback()
def options() -> None:
    """The datasets of the paper's benchmarks on disk."""


@data.command()
def check(
    root: Annotated[Path, typer.Argument(help="The folder of all datasets, in CoOp's layout.")],
    dataset: Annotated[
        list[str] | None, typer.Option(help="Check this dataset; can be repeated.", show_default="all fifteen")
    ] = None,
    decode: Annotated[bool, typer.Option(help="Read every image; minutes for the large datasets.")] = True,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show for each dataset whether it is found, missing or wrong (files, counts, class order), and what to do.

    Exits with 1 if a dataset is wrong, if a dataset named with --dataset is missing, or if all are missing.
    """
    from rich.text import Text

    from acclimate.bench.datasets import SUITES, check_dataset, find_datasets

    if not root.is_dir():
        raise InputError(f"no folder at {root}; pass the folder that contains the datasets.")
    chosen = find_datasets([] if dataset else list(SUITES), dataset or [])
    with progress_bar(
        sum(each.test for each in chosen if (root / each.folder).is_dir()), "reading", "images"
    ) as advance:
        findings = {each.key: check_dataset(each, root, decode, advance) for each in chosen}
    states = {
        key: "missing" if any(one.kind == "missing" for one in found) else "wrong" if found else "found"
        for key, found in findings.items()
    }
    if json:
        content = {key: {"state": states[key], "findings": list(map(asdict, findings[key]))} for key in findings}
        typer.echo(dumps({"root": str(root), "datasets": content}, indent=2))  # ASCII only
    else:
        colours = {"found": "green", "missing": "dim", "wrong": "red"}
        rows = []
        for each in chosen:
            state = Text(states[each.key], colours[states[each.key]])
            problems = Text("\n".join(printable(f"{one.kind}: {one.message}") for one in findings[each.key]))
            rows.append((each.key, state, str(each.classes), str(each.test), problems))
        print_table(
            ("dataset", "state", "classes", "images", "what to do"),
            rows,
            left=("dataset", "state", "what to do"),
            width=120,
        )
    bad = [key for key, state in states.items() if state == "wrong" or (state == "missing" and dataset)]
    if set(states.values()) == {"missing"} and not dataset:
        raise RunError(f"none of the {len(states)} datasets is in {root}; see above for what each folder is called.")
    if bad:
        raise RunError(f"{', '.join(bad)}: see above for what to do.")
