"""`acclimate correct`: teach a state which answers were wrong."""

import csv
import io
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
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
    from acclimate.arrays import HostArray
    from acclimate.encoders import Encoder
    from acclimate.reading.walk import Decoder
    from acclimate.sources import Sample
    from acclimate.views import Kind

# Columns of fixes; the last one is a column of results.
FILE = "file"
LABEL = "label"
EDITED = "correct_label"
Fixes = Annotated[
    Path | None,
    typer.Argument(help=f"A csv with the columns {FILE} and {LABEL}; without it, {EDITED} of the results counts."),
]
State = Annotated[
    Path | None,
    typer.Option(help="The state to teach; it is written back.", show_default="that of the run of the results"),
]
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
    state: State = None,
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
    """Put answers right: all other images are answered again from what was learnt, and from the corrections.

    The right labels are written to the column `correct_label` of the results, and are certain evidence from then on.
    A label that was answered anyway confirms the answer. State, features and options are those of the run.
    """
    from acclimate import load_encoder, save_state
    from acclimate.classify.correcting import answer_again
    from acclimate.classify.options import run_options
    from acclimate.classify.outputs import ResultFile, read_results, write_results
    from acclimate.files import check_writable

    _check_combination(results, fixes, state, listed, bool(undo))
    records = read_results(results) if results else []
    begun = run_options(results) if results else {}
    state = state or Path(begun.get("state") or ResultFile(results or Path(), 1).state)
    for path in filter(None, (results, state)):
        check_writable(path)
    model = model if model != arguments.DEFAULT_MODEL else begun.get("model", model)
    load = partial(load_encoder, model, device, precision)
    adapter, notes = _load_state(state, load)
    if listed:
        _print_corrections(adapter)
        return
    if undo:
        labels, done = _take_back(adapter, undo, state)
    else:
        labels, done = _right_labels(adapter, records, fixes, results or state)
    effect = ""
    if results:
        _mark(results, records, labels)
        encode = partial(_encode, load, source, decoder, batch_size, workers)
        rows, features = _features(results, records, begun, adapter, encode, notes, state)
        if not undo:
            _teach(adapter, rows, features, labels)
            done += f"; {state} has {count(len(adapter.corrections), 'correction')}. Results: {results}."
        parents = arguments.read_parents(begun.get("labels", ""))
        effect = str(answer_again(rows, features, adapter, begun.get("unsure", 0.0), parents))
    if results and undo:
        write_results(results, records)
    save_state(adapter, state, notes)  # a command that is interrupted between the two can be given again
    if results and not undo:
        write_results(results, records)
    say(done, *effect.splitlines(), err=True)


def _check_combination(
    results: Path | None, fixes: Path | None, state: Path | None, listed: bool, undone: bool
) -> None:
    if not (results or listed or undone) or (listed and (fixes or undone)) or (fixes and undone):
        raise InputError("give results with fixes, or --list, or --undo with or without results.")
    if state is None and results is None:
        raise InputError("name the results, or the --state whose corrections are meant.")


def _take_back(adapter: "Adapter", names: Sequence[str], state: Path) -> tuple[dict[str, str | None], str]:
    """Undo corrections; returns their files without a label, and a sentence on it."""
    gone = _find_corrections(adapter, names)
    adapter.corrections.undo([each.id for each in gone])
    done = f"{len(gone)} taken back, {len(adapter.corrections)} left in {state}."
    return {each.name or str(each.id): None for each in gone}, done


def _right_labels(
    adapter: "Adapter", records: Sequence[Mapping[str, Any]], fixes: Path | None, named: Path
) -> tuple[dict[str, str | None], str]:
    """Return the right labels of files, of fixes or of the results, and the beginning of a sentence on them."""
    pairs = _read_fixes(fixes) if fixes else [(record[FILE], record[EDITED] or "") for record in records]
    answers = {record[FILE]: record[LABEL] for record in records}
    labels = _match(fixes or named, pairs, answers, adapter.head.class_names)
    confirmed = sum(answers[name] == label for name, label in labels.items())
    return {**labels}, f"{len(labels) - confirmed} corrected, {confirmed} confirmed"


def _load_state(path: Path, load: "Callable[[], Encoder]") -> "tuple[Adapter, dict[str, Any]]":
    """Return the adapter of a state and its notes; the encoder is loaded if the method needs its text tower."""
    from acclimate.files import read_snapshot
    from acclimate.methods import find_method, list_methods
    from acclimate.methods.persist import build_adapter, check_description

    if not path.exists():
        raise InputError(f"no state file at {path}; name the --state of the run, or classify again to keep one.")
    tensors, description = read_snapshot(path)
    check_description(description, path)
    method = description["method"]
    text = load() if method in list_methods() and "text" in find_method(method).needs else None
    return build_adapter(tensors, description, path, text=text)


def _print_corrections(adapter: "Adapter") -> None:
    if not len(adapter.corrections):
        say("no corrections")
        return
    rows = [(each.name, each.label, str(each.id)) for each in sorted(adapter.corrections, key=attrgetter("name"))]
    print_table([FILE, LABEL, "id"], rows, left=(FILE, LABEL))


def _features(
    results: Path,
    records: Sequence[dict[str, Any]],
    begun: Mapping[str, Any],
    adapter: "Adapter",
    encode: "Callable[..., tuple[HostArray, list[int], str]]",
    notes: Mapping[str, Any],
    state: Path,
) -> "tuple[list[dict[str, Any]], HostArray]":
    """Return the records of the images that can be read, and their features, which are made anew if they are lost."""
    from acclimate.arrays import to_host
    from acclimate.classify.correcting import feature_file, readable_records
    from acclimate.methods import MODEL, fit_note

    rows = readable_records(records)
    views = begun.get("views", 1)
    file = feature_file(results, adapter, views)
    features = file.read() if file.path.is_file() else None
    fingerprint = begun.get("fingerprint", "")
    complete = fingerprint and features is not None and len(features) == len(rows)
    if not complete:
        say("The features of the images were not kept, so all images are encoded once more.", err=True)
        encoded, kept, fingerprint = encode(rows, views, begun.get("views_kind") or adapter.views_kind, begun)
        rows = [rows[i] for i in kept]
        features = encoded
    made_with = notes.get(MODEL) or fit_note(notes).get("fingerprint")
    if features is None or features.shape[-1] != adapter.head.dim or (made_with and made_with != fingerprint):
        raise InputError(f"{state} was made with another model than this; use the --model that it was made with.")
    if not complete:
        file.open()
        file.write(to_host(adapter.head.unit_features(features)))
        features = file.read()
    return rows, features


def _encode(
    load: "Callable[[], Encoder]",
    source: str | None,
    decoder: "Decoder",
    batch_size: int | None,
    workers: int | None,
    rows: Sequence[Mapping[str, Any]],
    views: int,
    kind: "Kind",
    begun: Mapping[str, Any],
) -> "tuple[HostArray, list[int], str]":
    """Encode the images of records; returns features, the positions of images that can be read, and the model."""
    from acclimate.reading.walk import Preparer

    encoder = load()
    there = any(Path(row[FILE]).exists() or Path(row["sorted_to"] or row[FILE]).exists() for row in rows)
    samples = _find_images(rows, source or (None if there else begun.get("source")))
    prepare = Preparer(encoder, views, kind=kind, decoder=decoder)
    return *encode_images(samples, prepare, batch_size, workers), encoder.fingerprint


def _teach(
    adapter: "Adapter", rows: Sequence[Mapping[str, Any]], features: "HostArray", labels: Mapping[str, str | None]
) -> None:
    """Correct the images of records with these features to the labels of their files."""
    position = {row[FILE]: i for i, row in enumerate(rows)}
    if lost := [name for name in labels if name not in position]:
        raise InputError(f"{lost[0]} cannot be read, so it cannot be corrected; leave it out.")
    classes = [adapter.head.class_names.index(label) for label in labels.values() if label]
    chosen = features[[position[name] for name in labels]].astype("float32")
    adapter.corrections.correct(chosen, classes, names=list(labels))


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


def _find_images(records: Sequence[Mapping[str, Any]], source: str | Sequence[str] | None) -> "Sequence[Sample]":
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
    """Put the right labels of some files into the records of results."""
    files = {record[FILE] for record in records}
    if elsewhere := [name for name in labels if name not in files]:
        raise InputError(f"{elsewhere[0]} is not in {path}; leave {path} out to take it back in the state only.")
    for record in records:
        record[EDITED] = labels.get(record[FILE], record[EDITED])


def _find_corrections(adapter: "Adapter", names: Sequence[str]) -> "list[Correction]":
    """Return the corrections that are named by their files or their ids."""
    by_name = {each.name: each for each in adapter.corrections if each.name}
    known = by_name | {str(each.id): each for each in adapter.corrections}
    if unknown := [name for name in names if name not in known]:
        raise InputError(f"no correction of {unknown[0]!r} in the state; {nearest(unknown[0], by_name or known)}")
    return list({known[name].id: known[name] for name in names}.values())
