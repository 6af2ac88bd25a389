"""`acclimate sort`: a folder per answer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer

from acclimate.cli.console import say
from acclimate.errors import InputError, count


def sort(
    results: Annotated[Path, typer.Argument(help="Results of `acclimate classify`: .csv, .jsonl or .parquet.")],
    folder: Annotated[Path | None, typer.Argument(help="Where to: one subfolder per answer is made in it.")] = None,
    how: Annotated[Literal["copy", "link", "move"], typer.Option(help="What to do with the images.")] = "copy",
    undo: Annotated[bool, typer.Option("--undo", help="Take back what was sorted.")] = False,
) -> None:
    """Sort classified images into a folder per answer, or undo it.

    Where each image went is in the column sorted_to of the results. Corrected images go to the folder of their
    correct label, other unsure answers to the folder "unsure".
    """
    from acclimate.classify.sorting import sort_images, unsort_images

    if (folder is None) != undo:
        raise InputError("name the folder to sort into, or pass --undo.")
    if folder is not None:
        say(sorted_line(sort_images(results, folder, how), folder), err=True)
        return
    done, left = unsort_images(results)
    say(f"{count(done, 'image')} taken back.", err=True)
    if left:
        say(f"left because they are not as they were: {', '.join(left[:10])}", err=True)


def sorted_line(counts: Mapping[str, int], folder: Path | None) -> str:
    """Return in one line how many images were sorted into which folders."""
    if not counts:
        return "No image was sorted: none is a file that is still there."
    groups = ", ".join(f"{group} {number}" for group, number in sorted(counts.items(), key=lambda each: -each[1])[:10])
    return f"{count(sum(counts.values()), 'image')} sorted into {folder}: {groups}."
