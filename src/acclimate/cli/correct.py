"""`acclimate correct`: tell a state which answers were wrong."""

import csv
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acclimate.cli import arguments
from acclimate.cli.arguments import Plugins
from acclimate.cli.console import say
from acclimate.cli.progress import progress_bar
from acclimate.errors import InputError, nearest, reason

if TYPE_CHECKING:
    from acclimate.methods import Adapter
    from acclimate.methods.corrections import Correction
    from acclimate.sources.source import Sample

# columns of fixes; the last one of results
FILE = "file"
LABEL = "label"
EDITED = "correct_label"


def correct(
    results: Annotated[Path | None, typer.Argument(help="Results of `acclimate classify`.")] = None,
    fixes: Annotated[
        Path | None,
        typer.Argument(help=f"A csv with the columns {FILE} and {LABEL}; without it, {EDITED} of the results counts."),
    ] = None,
    state: Annotated[Path, typer.Option(help="The state to teach; it is written back.")] = ...,  # type: ignore[assignment]
    model: arguments.Model = arguments.DEFAULT_MODEL,
    plugin: Plugins = None,
    source: Annotated[
        str | None, typer.Option(help="Where the images are, if the files of the results are not paths from here.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the corrections of the state.")] = False,
    undo: Annotated[
        list[str] | None,
        typer.Option(
            help="A corrected file, or the id of a correction, to take back; repeatable. In the results, too, if given."
        ),
    ] = None,
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
    from acclimate.arrays import to_host
    from acclimate.classify.outputs import read_results
    from acclimate.classify.wording import count
    from acclimate.encoders import load_encoder
    from acclimate.files import check_writable
    from acclimate.methods import MODEL, fit_note, load_with_notes, save_state
    from acclimate.reading.walk import Preparer, encode_ahead

    if not (results or listed or undo) or (results and listed) or (fixes and undo):
        raise InputError("give results with fixes, or --list, or --undo with or without results.")
    records = read_results(results) if results else []
    for path in (results, state):
        if path:
            check_writable(path)
    encoder = load_encoder(model, device, precision) if results and not undo else None
    adapter, notes = load_with_notes(state, text=encoder)
    if undo:
        gone = _named(adapter, undo)
        if results:  # first, since a correction that is still in the state can be taken back again
            _clear(results, records, gone)
        adapter.undo([each.id for each in gone])
        save_state(adapter, state, notes)
        say(f"{len(gone)} taken back, {len(adapter.corrections)} left in {state}.", err=True)
    if listed:
        _print(adapter)
    if results is None or encoder is None:
        return
    if encoder.dim != adapter.head.dim:
        raise InputError(
            f"{state} is for features of {adapter.head.dim} dimensions, {model!r} has {encoder.dim}; "
            "use the --model that it was made with."
        )
    made_with = notes.get(MODEL) or fit_note(notes).get("fingerprint")
    if made_with and made_with != encoder.fingerprint:
        raise InputError(f"{state} was made with another model than {model!r}; use the --model that it was made with.")
    by_file = {record[FILE]: record for record in records}
    pairs = _read_fixes(fixes) if fixes else [(record[FILE], record[EDITED] or "") for record in records]
    told = _match(fixes or results, pairs, by_file, adapter.head.class_names)
    features: list[Any] = []
    samples = _samples([by_file[name] for name in told], source)
    with progress_bar(len(samples), "encoding", "images") as advance:
        reading: dict[str, Any] = {"batch_size": batch_size, "workers": workers, "on_error": "raise"}
        for batch in encode_ahead(samples, Preparer(encoder, decoder=decoder), **reading):
            features += list(to_host(batch.features))
            advance(len(batch.names))
    adapter.correct(features, [adapter.head.class_names.index(label) for label in told.values()], names=list(told))
    save_state(adapter, state, notes)
    _mark(results, records, told)
    confirmed = sum(by_file[name]["label"] == label for name, label in told.items())
    counts = f"{len(told) - confirmed} corrected, {confirmed} confirmed"
    say(f"{counts}; {state} has {count(len(adapter.corrections), 'correction')}. Results: {results}.", err=True)


def _read_fixes(path: Path) -> list[tuple[str, str]]:
    """Files and their right labels, which may be empty if the file is results."""
    from acclimate.files import MAX_LIST, from_cell, open_text

    try:
        with open_text(path, MAX_LIST, newline="") as file:
            rows = csv.DictReader(file)
            names = [name.strip().lower() for name in rows.fieldnames or ()]
            rows.fieldnames = names
            column = EDITED if EDITED in names else LABEL
            if FILE not in names or column not in names or (column == LABEL and "online_label" in names):
                raise InputError(
                    f"{path} has no fixes: its first line must name the columns {FILE} and {LABEL}, or {EDITED}."
                )
            pairs = [(from_cell(row[FILE] or ""), from_cell((row[column] or "").strip())) for row in rows]
    except FileNotFoundError:
        raise InputError(f"no fixes at {path}.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {reason(error)}.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as csv in UTF-8 ({error}).") from error
    if column == LABEL and (empty := [name for name, label in pairs if not label]):
        raise InputError(f"{path} gives no label for {empty[0]}.")
    return pairs


def _match(
    path: Path, pairs: Iterable[tuple[str, str]], files: Collection[str], labels: Sequence[str]
) -> dict[str, str]:
    """The right label of each file of the results that is to be corrected."""
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
        how = f"into {EDITED} of the results, or into a csv with the columns {FILE} and {LABEL}"
        raise InputError(f"{path} has no fixes; write the right label of each wrong answer {how}.")
    return found


def _samples(records: Sequence[Mapping[str, Any]], source: str | None) -> "Sequence[Sample]":
    """The images of some rows: files, which may have been moved by sorting, or images of a source."""
    from acclimate.sources.source import file_sample, open_source

    if source is None:
        paths = [(Path(record[FILE]), Path(record["sorted_to"] or record[FILE])) for record in records]
        return [file_sample(moved if moved.exists() and not path.exists() else path) for path, moved in paths]
    there = {sample.name: sample for sample in open_source(source)}
    names = [record[FILE] for record in records]
    if missing := [name for name in names if name not in there]:
        raise InputError(f"no image {missing[0]!r} in {source}; {nearest(missing[0], there)}")
    return [there[name] for name in names]


def _mark(path: Path, records: Sequence[dict[str, Any]], labels: Mapping[str, str | None]) -> None:
    """Write the right labels of some files to the results."""
    from acclimate.classify.outputs import write_results

    for record in records:
        record[EDITED] = labels.get(record[FILE], record[EDITED])
    write_results(path, records)


def _clear(path: Path, records: Sequence[dict[str, Any]], gone: "Sequence[Correction]") -> None:
    """Take corrections out of the results."""
    files = {record[FILE] for record in records}
    if elsewhere := [each for each in gone if each.name not in files]:
        what = elsewhere[0].name or elsewhere[0].id
        raise InputError(f"{what} is not in {path}; leave {path} out to take it back in the state only.")
    _mark(path, records, {each.name: None for each in gone})


def _named(adapter: "Adapter", names: Sequence[str]) -> "list[Correction]":
    """The corrections that are named by their files or their ids."""
    by_name = {each.name: each for each in adapter.corrections if each.name}
    known = by_name | {str(each.id): each for each in adapter.corrections}
    if unknown := [name for name in names if name not in known]:
        raise InputError(f"no correction of {unknown[0]!r} in the state; {nearest(unknown[0], by_name or known)}")
    return list({known[name].id: known[name] for name in names}.values())


def _print(adapter: "Adapter") -> None:
    from acclimate.cli.tables import print_table

    rows = [(each.name, each.label, str(each.id)) for each in sorted(adapter.corrections, key=lambda each: each.name)]
    if rows:
        print_table(["file", "label", "id"], rows, left=("file", "label"))
    else:
        say("no corrections")
