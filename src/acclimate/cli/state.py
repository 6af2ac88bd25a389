"""`acclimate state`: look into state files, merge them, compare them."""

from pathlib import Path
from typing import Annotated, Any

import typer

state = typer.Typer(help="Look into state files, merge them, compare them.", no_args_is_help=True)


@state.command()
def inspect(
    files: Annotated[list[Path], typer.Argument(help="State files.")],
    entries: Annotated[bool, typer.Option(help="List every cache entry.")] = False,
) -> None:
    """Show what state files hold: method, settings, classes, and what was learnt of each."""
    from rich.console import Console

    from acclimate.methods import load
    from acclimate.methods.persist import cached_entries

    console = Console()
    for path in files:
        adapter = load(path)
        console.print(f"[bold]{path}[/bold]  {path.stat().st_size / 1e6:.2f} MB", highlight=False)
        console.print(adapter, highlight=False, markup=False)
        for kind, listed in cached_entries(adapter).items():
            console.print(_entry_table(kind, listed, adapter.class_names, entries))


@state.command()
def merge(
    files: Annotated[list[Path], typer.Argument(help="State files of one kind.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write the merged state.")],
) -> None:
    """Merge what several adapters learnt; the order of the files never matters."""
    from acclimate.files import check_writable
    from acclimate.methods import load, save
    from acclimate.methods import merge as merge_adapters
    from acclimate.methods.persist import cached_entries

    check_writable(out)
    merged = merge_adapters([load(path) for path in files])
    save(merged, out)
    total = sum(map(len, cached_entries(merged).values()))
    typer.echo(f"{out}: {len(files)} states merged, {total} cache entries")


@state.command()
def diff(
    one: Annotated[Path, typer.Argument(help="A state file.")],
    other: Annotated[Path, typer.Argument(help="Another.")],
) -> None:
    """Say how two states differ; exit with 1 if they do."""
    from acclimate.methods import load
    from acclimate.methods.persist import cached_entries, compare

    first, second = load(one), load(other)
    lines = compare(first, second)
    if first.samples_seen != second.samples_seen:
        lines.append(f"samples seen: {first.samples_seen} against {second.samples_seen}")
    if first.frozen != second.frozen:
        lines.append(f"frozen: {first.frozen} against {second.frozen}")
    ours, theirs = cached_entries(first), cached_entries(second)
    for kind in sorted({*ours, *theirs}):
        mine, yours = set(ours.get(kind, [])), set(theirs.get(kind, []))
        if mine != yours:
            only = f"{len(mine - yours)} only in the first, {len(yours - mine)} only in the second"
            lines.append(f"{kind} cache: {len(mine & yours)} entries in both, {only}")
    typer.echo("\n".join(lines) if lines else "no difference")
    if lines:
        raise typer.Exit(1)


def _entry_table(kind: str, listed: list[tuple[int, float, int]], names: tuple[str, ...], every: bool) -> Any:
    from rich.table import Table

    table = Table(title=f"{kind} cache: {len(listed)} entries", title_justify="left", box=None, pad_edge=False)
    for heading in ("class", "sample", "entropy") if every else ("class", "entries", "lowest entropy", "highest"):
        table.add_column(heading, justify="left" if heading == "class" else "right")
    if every:
        for label, entropy, entry_id in listed:
            table.add_row(names[label], str(entry_id), f"{entropy:.3g}")
        return table
    by_class: dict[int, list[float]] = {}
    for label, entropy, _ in listed:
        by_class.setdefault(label, []).append(entropy)
    for label, entropies in by_class.items():
        table.add_row(names[label], str(len(entropies)), f"{entropies[0]:.3g}", f"{entropies[-1]:.3g}")
    return table
