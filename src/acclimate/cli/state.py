"""`acclimate state`: show, merge and compare state files."""

from pathlib import Path
from typing import Annotated

import typer

from acclimate.cli.group import Group
from acclimate.cli.plugins import Plugins
from acclimate.cli.tables import print_table

state = typer.Typer(cls=Group, help="Show, merge and compare state files.", no_args_is_help=True)
Files = Annotated[list[Path], typer.Argument(help="State files.")]


@state.command()
def inspect(
    files: Files,
    plugin: Plugins = None,
    entries: Annotated[bool, typer.Option("--entries", help="List the samples that the state keeps.")] = False,
) -> None:
    """Show what state files hold: method, settings, streams, and what was learnt of each class."""
    from acclimate.files import read_snapshot
    from acclimate.methods import NOTE, FewShot, describe_fit, list_methods, load_state
    from acclimate.methods.persist import read_head

    for path in files:
        tensors, about = read_snapshot(path)
        head = read_head(tensors, about, path)
        typer.secho(f"{path}  {path.stat().st_size / 1e6:.2f} MB", bold=True)
        if fitted := about["notes"].get(NOTE):
            typer.echo(describe_fit(fitted))
        method = list_methods().get(about["method"])
        if method is not None and "text" in method.needs:  # it cannot be loaded without its model
            typer.echo(f"{method.name}, {len(head)} classes: {about['settings']}")
            continue
        adapter = load_state(path)
        names, parts, learnt = adapter.head.class_names, adapter.entries(), adapter.learnt()
        typer.echo(adapter)
        if isinstance(adapter, FewShot) and (chosen := adapter.chosen()):
            typer.echo("chosen: " + ", ".join(f"{name} {value:.4g}" for name, value in chosen.items()))
        for origin, count in adapter.seen.items():
            typer.echo(f"{count} samples of {origin or 'a stream without a name'}")
        for part, kept in parts.items():
            typer.echo(f"{part}: {len(kept)} entries")
        if told := adapter.corrections:
            typer.echo(f"corrections: {len(told)}; list them with `acclimate correct --state {path} --list`")
        if advice := adapter.advice():
            typer.echo(f"note: {advice}")
        if entries and parts:
            headings = ["part", "entropy", "sample"]
            listed = ((part, *entry) for part, kept in parts.items() for entry in kept)
            rows = [(names[i], part, f"{entropy:.3g}", str(id)) for part, i, entropy, id in listed]
        else:
            headings = list(learnt)
            rows = [(name, *(f"{v:.6g}" for v in row)) for name, *row in zip(names, *learnt.values(), strict=True)]
        if parts or learnt:
            print_table(["class", *headings], rows, left=("class",))


@state.command()
def merge(
    files: Files,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write the merged state.")],
    plugin: Plugins = None,
) -> None:
    """Merge what was learnt on several streams; the order of the files does not matter."""
    from acclimate.files import check_writable
    from acclimate.methods import load_state, merge_states, save_state

    check_writable(out)
    merged = merge_states([load_state(path) for path in files])
    save_state(merged, out)
    typer.echo(f"{out}: {len(files)} states merged, {merged.samples_seen} samples of {len(merged.seen)} streams")


@state.command()
def diff(
    one: Annotated[Path, typer.Argument(help="A state file.")],
    other: Annotated[Path, typer.Argument(help="Another state file.")],
    plugin: Plugins = None,
) -> None:
    """Show how two states differ; exit with 1 if they do."""
    import numpy as np

    from acclimate.methods import load_state
    from acclimate.methods.persist import compare_states

    first, second = load_state(one), load_state(other)
    lines = compare_states(first, second)
    for name in ("samples_seen", "frozen"):
        ours, theirs = getattr(first, name), getattr(second, name)
        if ours != theirs:
            lines.append(f"{name.replace('_', ' ')}: {ours} against {theirs}")
    parts = second.entries()
    for part, entries in first.entries().items():
        mine, yours = set(entries), set(parts.get(part, []))
        if mine != yours:
            only = f"{len(mine - yours)} only in the first, {len(yours - mine)} only in the second"
            lines.append(f"{part}: {len(mine & yours)} entries in both, {only}")
    columns = second.learnt()
    for column, values in first.learnt().items():
        if not parts and column in columns and len(values) == len(columns[column]):
            difference = np.abs(values - columns[column]).max()
            lines += [f"{column}: differs by up to {difference:.3g}"] if difference else []
    typer.echo("\n".join(lines) if lines else "no difference")
    if lines:
        raise typer.Exit(1)
