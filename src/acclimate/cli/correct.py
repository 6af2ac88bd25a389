"""`acclimate correct`: teach a state which answers were wrong."""

import csv
import io
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acclimate.cli import arguments
from acclimate.cli.console import say
from acclimate.cli.embed import encode_images
from acclimate.cli.tables import print_table
from acclimate.errors import InputError, count, nearest

if TYPE_CHECKING:
    from acclimate import Adapter, Correction
    from acclimate.encoders import Encoder
    from acclimate.sources import Sample

# Columns of fixes; the last one is a column of results.
FILE = "file"
LABEL = "label"
EDITED = "correct_label"
Fixes = Annotated[
    Path | None,
    typer.Argument(help=f"A csv with the columns {FILE} and {LABEL}; without it, {EDITED} of the results counts."),
]
State = Annotated[Path, typer.Option(help="The state to teach; it is written back.")]
Source = Annotated[
    str | None, typer.Option(help="Where the images are, if the files of the results are not paths from here.")
]
Undo = Annotated[
    list[str] | None,
    typer.Option(
        help="A corrected file, or the id of a correction, to take back; repeatable. In the results, too, if given."
    ),
]


def correct(
    results: Annotated[Path | None, typer.Argument(help="Results of `acclimate classify`.")] = None,
    fixes: Fixes = None,
    state: State = ...,  # type: ignore[assignment]
    model: arguments.Model = arguments.DEFAULT_MODEL,
    plugin: arguments.Plugins = None,
    source: Source = None,
    listed: Annotated[bool, typer.Option("--list", help="List the corrections of the state.")] = False,
    undo: Undo = None,
    max_pixels: arguments.MaxPixels = arguments.DEFAULT_MAX_PIXELS,
    batch_size: arguments.BatchSize = None,
    workers: arguments.Workers = None,
    device: arguments.Device = "auto",
    precision: arguments.Precision = "auto",
    decoder: arguments.Decoder = "auto",
) -> None:
    """Tell a state the right labels of images: they are certain evidence from then on.

    Only the named images are read again. Their right labels are written to the column `correct_label` of the results;
    what the model answered stays. A label that was answered anyway confirms the answer.
    """
    from acclimate import load_encoder, save_state
    from acclimate.classify.outputs import read_results
    from acclimate.files import check_writable
    from acclimate.methods import load_with_notes
    from acclimate.reading.walk import Preparer

    if not (results or listed or undo) or (results and listed) or (fixes and undo):
        raise InputError("give results with fixes, or --list, or --undo with or without results.")
    records = read_results(results) if results else []
    for path in filter(None, (results, state)):
        check_writable(path)
    encoder = load_encoder(model, device, precision) if results and not undo else None
    adapter, notes = load_with_notes(state, text=encoder)
    if undo:
        gone = _find_corrections(adapter, undo)
        if results:  # first, since a correction that is still in the state can be taken back again
            _mark(results, records, {each.name or str(each.id): None for each in gone})
        adapter.corrections.undo([each.id for each in gone])
        save_state(adapter, state, notes)
        say(f"{len(gone)} taken back, {len(adapter.corrections)} left in {state}.", err=True)
    elif results and encoder:
        _check_model(encoder, model, adapter, notes, state)
        by_file = {record[FILE]: record for record in records}
        pairs = _read_fixes(fixes) if fixes else [(record[FILE], record[EDITED] or "") for record in records]
        labels = _match(fixes or results, pairs, by_file, adapter.head.class_names)
        samples = _find_images([by_file[name] for name in labels], source)
        features, _ = encode_images(samples, Preparer(encoder, decoder=decoder), batch_size, workers, "raise")
        classes = [adapter.head.class_names.index(label) for label in labels.values()]
        adapter.corrections.correct(features, classes, names=list(labels))
        save_state(adapter, state, notes)
        _mark(results, records, labels)
        confirmed = sum(by_file[name][LABEL] == label for name, label in labels.items())
        done = f"{len(labels) - confirmed} corrected, {confirmed} confirmed"
        say(f"{done}; {state} has {count(len(adapter.corrections), 'correction')}. Results: {results}.", err=True)
    if listed and not len(adapter.corrections):
        say("no corrections")
    elif listed:
        rows = [(each.name, each.label, str(each.id)) for each in sorted(adapter.corrections, key=attrgetter("name"))]
        print_table([FILE, LABEL, "id"], rows, left=(FILE, LABEL))


def _check_model(encoder: "Encoder", model: str, adapter: "Adapter", notes: Mapping[str, Any], state: Path) -> None:
    """Refuse to teach a state with features of another model than the one it was made with."""
    from acclimate.methods import MODEL, fit_note

    made_with = notes.get(MODEL) or fit_note(notes).get("fingerprint")
    if encoder.dim != adapter.head.dim or (made_with and made_with != encoder.fingerprint):
        raise InputError(f"{state} was made with another model than {model!r}; use the --model that it was made with.")


def _read_fixes(path: Path) -> list[tuple[str, str]]:
    """Return files with their right labels, which may be empty if the file is results."""
    from acclimate.files import MAX_LIST
    from acclimate.sources.table import read_rows

    text = io.StringIO(arguments.read_text(path, "fixes", MAX_LIST), newline="")
    try:
        rows = [fields for _, fields in read_rows(str(path), text, ".csv")]
    except csv.Error as error:
        raise InputError(f"{path} cannot be read as csv ({error}).") from error
    names = rows[0].keys() if rows else {}
    column = EDITED if EDITED in names else LABEL
    if FILE not in names or column not in names or (column == LABEL and "online_label" in names):
        raise InputError(f"{path} has no fixes: its first line must name the columns {FILE} and {LABEL}, or {EDITED}.")
    if column == LABEL and (empty := [row[FILE] for row in rows if not row[LABEL]]):
        raise InputError(f"{path} gives no label for {empty[0]}.")
    return [(row[FILE], row[column]) for row in rows]


def _match(
    path: Path, pairs: Iterable[tuple[str, str]], files: Collection[str], labels: Sequence[str]
) -> dict[str, str]:
    """Return the right label of each file of the results that is to be corrected."""
    by_case = {label.casefold(): label for label in labels}
    found: dict[str, str] = {}
    for name, written in pairs:
        if not written.strip():
            continue
        matches = [name] if name in files else [file for file in files if file.endswith(f"/{name}")]
        if len(matches) > 1:
            raise InputError(f"{len(matches)} files of the results end in {name}; write their whole paths.")
        if not matches:
            raise InputError(f"no file {name!r} in the results; {nearest(name, files)}")
        label = by_case.get(written.strip().casefold())
        if label is None:
            raise InputError(f"{name} is to be {written!r}, which is not a label; {nearest(written, labels)}")
        if found.setdefault(matches[0], label) != label:
            raise InputError(f"{path} gives {name} two labels: {found[matches[0]]!r} and {label!r}.")
    if not found:
        raise InputError(
            f"{path} has no fixes; write the right label of each wrong answer into {EDITED} of the results, "
            f"or into a csv with the columns {FILE} and {LABEL}."
        )
    return found


def _find_images(records: Sequence[Mapping[str, Any]], source: str | None) -> "Sequence[Sample]":
    """Return the images of some rows: files, which may have been moved by sorting, or images of a source."""
    from acclimate.sources.source import file_sample, open_source

    if source is None:
        paths = [(Path(record[FILE]), Path(record["sorted_to"] or record[FILE])) for record in records]
        return [file_sample(moved if moved.exists() and not path.exists() else path) for path, moved in paths]
    there = {sample.name: sample for sample in open_source(source)}
    if missing := [record[FILE] for record in records if record[FILE] not in there]:
        raise InputError(f"no image {missing[0]!r} in {source}; {nearest(missing[0], there)}")
    return [there[record[FILE]] for record in records]


def _mark(path: Path, records: Sequence[dict[str, Any]], labels: Mapping[str, str | None]) -> None:
    """Write the right labels of some files to the results."""
    from acclimate.classify.outputs import write_results

    files = {record[FILE] for record in records}
    if elsewhere := [name for name in labels if name not in files]:
        raise InputError(f"{elsewhere[0]} is not in {path}; leave {path} out to take it back in the state only.")
    for record in records:
        record[EDITED] = labels.get(record[FILE], record[EDITED])
    write_results(path, records)


def _find_corrections(adapter: "Adapter", names: Sequence[str]) -> "list[Correction]":
    """Return the corrections that are named by their files or their ids."""
    by_name = {each.name: each for each in adapter.corrections if each.name}
    known = by_name | {str(each.id): each for each in adapter.corrections}
    if unknown := [name for name in names if name not in known]:
        raise InputError(f"no correction of {unknown[0]!r} in the state; {nearest(unknown[0], by_name or known)}")
    return list({known[name].id: known[name] for name in names}.values())
