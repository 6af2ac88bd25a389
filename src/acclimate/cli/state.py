"""`acclimate state`: show, merge and compare state files, and exchange them with streams of the service."""

from glob import escape, glob
from pathlib import Path
from typing import Annotated

import typer

from acclimate.cli.arguments import Plugins
from acclimate.cli.console import CommandGroup, progress_bar, say
from acclimate.cli.tables import print_table
from acclimate.errors import InputError, StateError, count

StreamFile = Annotated[
    Path,
    typer.Argument(
        metavar="STREAM", help="The file of a stream: DATA/streams/NAME.sqlite.", exists=True, dir_okay=False
    ),
]

state = typer.Typer(
    cls=CommandGroup,
    help="Show, merge and compare state files, and exchange them with streams of the service.",
    no_args_is_help=True,
)


@state.command()
def inspect(
    files: Annotated[list[Path], typer.Argument(help="State files.")],
    plugin: Plugins = None,
    entries: Annotated[bool, typer.Option("--entries", help="List the samples that the state keeps.")] = False,
) -> None:
    """Show what state files hold: method, settings, streams, and what was learnt of each class."""
    from acclimate.files import read_snapshot
    from acclimate.methods import FewShot, describe_fit, fit_note, list_methods
    from acclimate.methods.persist import build_adapter, read_head

    for path in files:
        tensors, about = read_snapshot(path)
        head = read_head(tensors, about, path)
        notes = about["notes"]
        say(f"{path}  {path.stat().st_size / 1e6:.2f} MB", bold=True)
        if fitted := fit_note(notes):
            say(describe_fit(fitted))
        if "decoder" in notes:
            say(f"images decoded by {notes['decoder']}, encoded in {notes.get('precision')}")
        method = list_methods().get(about["method"])
        if method is not None and "text" in method.needs:  # it cannot be loaded without its model
            say(f"{method.name}, {len(head)} classes: {about['settings']}")
            continue
        adapter, _ = build_adapter(tensors, about, path)
        parts = adapter.entries()
        learnt = adapter.class_statistics()
        say(
            adapter,
            *(
                f"{samples} samples of {origin or 'a stream without a name'}"
                for origin, samples in adapter.seen.items()
            ),
            *(f"{part}: {len(kept)} entries" for part, kept in parts.items()),
        )
        if isinstance(adapter, FewShot) and (chosen := adapter.chosen()):
            say("chosen: " + ", ".join(f"{name} {value:.4g}" for name, value in chosen.items()))
        if corrections := adapter.corrections:
            say(f"corrections: {len(corrections)}; list them with `acclimate correct --state {path} --list`")
        if advice := adapter.advice():
            say(f"note: {advice}")
        columns = list(learnt)
        rows = [
            (name, *(f"{v:.6g}" for v in row)) for name, *row in zip(head.class_names, *learnt.values(), strict=True)
        ]
        if entries and parts:
            columns = ["part", "entropy", "sample"]
            listed = ((part, *entry) for part, kept in parts.items() for entry in kept)
            rows = [(head.class_names[i], part, f"{entropy:.3g}", str(id)) for part, i, entropy, id in listed]
        if parts or learnt:
            print_table(["class", *columns], rows, left=("class",))


@state.command()
def merge(
    files: Annotated[list[str], typer.Argument(help="State files, folders of them (*.safetensors), or patterns.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write the merged state.")],
    start: Annotated[
        Path | None,
        typer.Option(help="State that all files continued from, such as the merged one of yesterday: it counts once."),
    ] = None,
    skip_unusable: Annotated[
        bool, typer.Option("--skip-unusable", help="List files that cannot be used on stderr, and merge the others.")
    ] = False,
    plugin: Plugins = None,
) -> None:
    """Merge what was learnt on several streams; the order of the files does not matter."""
    from acclimate.files import check_writable
    from acclimate.methods import load_state, merge_files, save_state

    check_writable(out)
    before = None if start is None else load_state(start)
    paths = _state_files(files, [out] if start is None else [out, start])
    unusable: list[str] = []
    with progress_bar(len(paths), "merging", "states") as advance:
        merged = merge_files(paths, before, skipped=unusable.append if skip_unusable else None, progress=advance)
    save_state(merged, out)
    if unusable:
        say(*(f"skipped: {why}" for why in unusable), err=True)
    skipped = f", {len(unusable)} skipped" if unusable else ""
    samples = f"{count(merged.samples_seen, 'sample')} of {count(len(merged.seen), 'stream')}"
    say(f"{out}: {count(len(paths) - len(unusable), 'state')} merged{skipped}, {samples}")


def _state_files(given: list[str], besides: list[Path]) -> list[Path]:
    """Return the files that are meant; those `besides` only if they are named, as they may lie in the same folder."""
    apart = {path.resolve() for path in besides}
    found: list[Path] = []
    for each in given:
        folder = Path(each).is_dir()
        if not folder and (Path(each).exists() or not set(each) & set("*?[")):
            found.append(Path(each))
            continue
        pattern = f"{escape(each)}/*.safetensors" if folder else each
        listed = map(Path, glob(pattern, recursive=True))  # noqa: PTH207 (may be absolute)
        files = sorted(file for file in listed if file.is_file() and file.resolve() not in apart)
        if not files:
            raise InputError(f"no state files at {each}; name files, or folders with *.safetensors files.")
        found += files
    return found


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

    first = load_state(one)
    second = load_state(other)
    lines = compare_states(first.name, first.settings, first.head, second)
    if first.samples_seen != second.samples_seen:
        lines.append(f"samples seen: {first.samples_seen} against {second.samples_seen}")
    if first.frozen != second.frozen:
        lines.append(f"frozen: {first.frozen} against {second.frozen}")
    for name, entries in first.entries().items():
        mine = set(entries)
        yours = set(second.entries().get(name, []))
        if mine != yours:
            only = f"{len(mine - yours)} only in the first, {len(yours - mine)} only in the second"
            lines.append(f"{name}: {len(mine & yours)} entries in both, {only}")
    for name, part in first.parts.items() if first.name == second.name else ():
        # The slots of cache entries do not matter, nor which samples of a sum are still pending.
        one_part, other_part = (each.merged([dump := each.dump()], dump) for each in (part, second.parts[name]))
        for key in dict.fromkeys([*one_part, *other_part]):
            if key not in one_part or key not in other_part:
                lines.append(f"{name}.{key}: only in the {'first' if key in one_part else 'second'}")
            elif (shapes := (one_part[key].shape, other_part[key].shape))[0] != shapes[1]:
                lines.append(f"{name}.{key}: {shapes[0]} against {shapes[1]}")
            elif (apart := np.abs(one_part[key].astype(np.float64) - other_part[key]).max(initial=0.0)) > 0.0:
                lines.append(f"{name}.{key}: differs by up to {apart:.3g}")
    say(*lines or ["no difference"])
    if lines:
        raise typer.Exit(1)


@state.command("export")
def export_stream(
    stream: StreamFile,
    out: Annotated[Path, typer.Argument(help="The state file to write.")],
    snapshot: Annotated[
        int | None, typer.Option(help="Id of a snapshot of the stream.", show_default="the current state")
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Write what a stream of the service has learnt to a state file; the service may be running."""
    from acclimate.files import check_writable, write_atomically, writing
    from acclimate.serve import check_installed

    check_installed()
    from acclimate.serve.learner import export_state

    check_writable(out)
    content = export_state(stream, snapshot)
    with writing(out, StateError):
        write_atomically(out, content)
    say(f"{out}: {len(content) / 1e6:.2f} MB")


@state.command("import")
def import_stream(
    file: Annotated[Path, typer.Argument(help="The state file to continue from.", exists=True, dir_okay=False)],
    stream: StreamFile,
    plugin: Plugins = None,
) -> None:
    """Let a stream of the service, which must be stopped, continue from a state file; its snapshots remain."""
    from acclimate.files import MAX_SNAPSHOT, read_regular
    from acclimate.serve import check_installed

    check_installed()
    from acclimate.serve.learner import import_state

    import_state(stream, read_regular(file, MAX_SNAPSHOT))
    say(f"{stream} continues from {file}")
