"""The page of a reproduction: the command that made it, what it ran on, and each recipe's tables and figure."""

from collections.abc import Sequence
from pathlib import Path

from acclimate.bench.reproduce.recipe import Group, Recipe, Record, groups
from acclimate.bench.tables import letters, markdown_table, notes
from acclimate.errors import RunError
from acclimate.files import write_atomically

ON_STREAMS = """\
**These are not the paper's datasets.** They are feature files, with the model and the class vectors that they were made
with. They show how the method behaves when a setting changes, not how well it does on the paper's benchmarks; the
paper's figures stand beside them for the direction of an effect, and every cell says why the two differ."""
ON_DATASETS = "Each dataset has its own prompts and views, as in the paper; zero-shot has the same ones."


def write_report(
    recipes: Sequence[Recipe], records: Sequence[Record], folder: Path, command: str, on_streams: bool
) -> Path:
    """Write README.md, and a picture for each recipe beside it.

    Args:
        recipes: to write, in this order.
        records: the results.
        folder: where to write.
        command: what made them.
        on_streams: they were measured on feature files.
    """
    parts = [
        "# Results",
        f"Made by the command below, from the results in `runs/`; nothing here was typed.\n\n```\n{command}\n```",
        ON_STREAMS if on_streams else ON_DATASETS,
    ]
    made = [(group, [(recipe, recipe.tables(group)) for recipe in recipes]) for group in groups(records)]
    every = [table for _, sections in made for _, tables in sections for table in tables]
    known = letters(every)
    for count, (group, sections) in enumerate(made, 1):
        parts += [group.context, _datasets(group)]
        for recipe, tables in sections:
            if tables:
                picture = folder / (f"{recipe.name}.png" if count == 1 else f"{recipe.name}-{count}.png")
                recipe.draw(tables, picture)
                parts += [f"## {recipe.title}", recipe.about, f"![{recipe.title}]({picture.name})"]
                for table in tables:
                    own = [table.context] if table.context != group.context else []
                    parts += [f"### {table.title}", *own, markdown_table(table, known)]
    parts += ["## Notes", *notes(every)]
    path = folder / "README.md"
    try:
        write_atomically(path, "\n\n".join(parts).encode() + b"\n")
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}.") from error
    return path


def _datasets(group: Group) -> str:
    """What the results are of."""
    lines = ["| | samples | classes | zero-shot, % |", "| --- | ---: | ---: | ---: |"]
    for name in group.datasets:
        record = next(each for each in group.records if each["dataset"] == name)
        zero_shot = 100 * record["baseline"]["acc1"]
        lines.append(f"| {name} | {record['n']} | {record['classes']} | {zero_shot:.2f} |")
    return "\n".join(lines)
