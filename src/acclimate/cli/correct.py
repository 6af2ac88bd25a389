"""`acclimate correct`: tell a state which answers were wrong."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acclimate.cli import options
from acclimate.cli.progress import progress_bar
from acclimate.errors import InputError, nearest, reason

if TYPE_CHECKING:
    from acclimate.methods import Adapter
    from acclimate.sources.base import Sample

FILE, LABEL, EDITED = "file", "label", "correct_label"  # columns of fixes; the last one in edited results


def correct(
    results: Annotated[Path | None, typer.Argument(help="Results of `acclimate classify`.")] = None,
    fixes: Annotated[
        Path | None,
        typer.Argument(
            help=f"A csv with the columns {FILE} and {LABEL}; results with a column {EDITED} if it is left out."
        ),
    ] = None,
    state: Annotated[Path, typer.Option(help="The state to teach; it is written back.")] = ...,  # type: ignore[assignment]
    model: options.Model = options.DEFAULT_MODEL,
    source: Annotated[
        str | None, typer.Option(help="Where the images are, if the files of the results are not paths from here.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the corrections of the state.")] = False,
    undo: Annotated[
        list[str] | None, typer.Option(help="A corrected file, or the id of a correction, to take back; repeatable.")
    ] = None,
    batch_size: options.BatchSize = 32,
    workers: options.Workers = None,
    device: options.Device = "auto",
) -> None:
    """Tell a state the right labels of images: they are certain evidence from then on.

    Only the named images are read again. Their rows in the results get the right label, with score 1, also as
    `true_label`. A label that was answered anyway confirms the answer.
    """
    from acclimate.classify.outputs import read_results, write_results
    from acclimate.encoders import load_encoder
    from acclimate.files import check_writable
    from acclimate.methods import load_with_notes, save_state
    from acclimate.reading import Preparer, encode_ahead

    if (results is None) != bool(listed or undo):
        raise InputError("give either results with fixes, or --list or --undo.")
    check_writable(state)
    encoder = None if results is None else load_encoder(model, device)
    adapter, notes = load_with_notes(state, text=encoder)
    if undo:
        adapter.undo(_ids(adapter, undo))
        save_state(adapter, state, notes)
        typer.echo(f"{len(undo)} taken back, {len(adapter.corrections)} left in {state}.", err=True)
    if listed:
        _print(adapter)
    if results is None or encoder is None:
        return
    if encoder.dim != adapter.head.dim:
        raise InputError(
            f"{state} is for features of {adapter.head.dim} dimensions, {model!r} has {encoder.dim}; "
            "use the --model that it was made with."
        )
    records = read_results(results)
    check_writable(results)
    told = _match(_read_fixes(fixes or results), records, adapter.head.class_names)
    places, features = list(told), []
    samples = _samples([records[place]["file"] for place in places], source)
    with progress_bar(len(samples), "encoding", "images") as advance:
        reading: dict[str, Any] = {"batch_size": batch_size, "workers": workers, "on_error": "raise"}
        for batch in encode_ahead(samples, Preparer(encoder), **reading):
            features += list(batch.features)
            advance(len(batch.names))
    classes = [adapter.head.class_names.index(told[place]) for place in places]
    adapter.correct(features, classes, names=[records[place]["file"] for place in places])
    confirmed = sum(records[place]["label"] == label for place, label in told.items())
    for place, label in told.items():
        records[place] |= _corrected(records[place], label)
    save_state(adapter, state, notes)
    write_results(results, records)
    counts = f"{len(told) - confirmed} corrected, {confirmed} confirmed"
    typer.echo(f"{counts}; {state} has {len(adapter.corrections)} corrections. Results: {results}.", err=True)


def _read_fixes(path: Path) -> dict[str, str]:
    """The right label of each file; rows of edited results without one are left out."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            names = [name.strip().lower() for name in rows.fieldnames or ()]
            rows.fieldnames = names
            column = EDITED if EDITED in names else LABEL
            if FILE not in names or column not in names or (column == LABEL and "online_label" in names):
                raise InputError(
                    f"{path} has no fixes: its first line must name the columns {FILE} and {LABEL}; "
                    f"or add a column {EDITED} to the results."
                )
            pairs = [(row[FILE] or "", (row[column] or "").strip()) for row in rows]
    except FileNotFoundError:
        raise InputError(f"no fixes at {path}.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {reason(error)}.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as csv in UTF-8 ({error}).") from error
    fixes: dict[str, str] = {}
    for name, label in pairs:
        if not label and column == LABEL:
            raise InputError(f"{path} gives no label for {name}.")
        if label and fixes.setdefault(name, label) != label:
            raise InputError(f"{path} gives {name} two labels: {fixes[name]!r} and {label!r}.")
    if not fixes:
        raise InputError(f"{path} has no fixes; write the right label of each wrong answer into {column}.")
    return fixes


def _match(fixes: Mapping[str, str], records: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> dict[int, str]:
    """The right label for each row of the results that is to be corrected."""
    by_name = {record["file"]: place for place, record in enumerate(records)}
    by_case = {label.casefold(): label for label in labels}
    found: dict[int, str] = {}
    for name, label in fixes.items():
        places = (
            [by_name[name]] if name in by_name else [at for full, at in by_name.items() if full.endswith(f"/{name}")]
        )
        if len(places) > 1:
            raise InputError(f"{len(places)} files of the results end in {name}; write their whole paths.")
        if not places:
            raise InputError(f"no file {name!r} in the results; {nearest(name, by_name)}")
        if label.casefold() not in by_case:
            raise InputError(f"{name} is to be {label!r}, which is not a label; {nearest(label, labels)}")
        found[places[0]] = by_case[label.casefold()]
    return found


def _samples(names: Sequence[str], source: str | None) -> "Sequence[Sample]":
    """The named images: files, or images of a source."""
    from acclimate.sources.base import file_sample, open_source

    if source is None:
        return [file_sample(name) for name in names]
    there = {sample.name: sample for sample in open_source(source)}
    if missing := [name for name in names if name not in there]:
        raise InputError(f"no image {missing[0]!r} in {source}; {nearest(missing[0], there)}")
    return [there[name] for name in names]


def _corrected(record: Mapping[str, Any], label: str) -> dict[str, Any]:
    """What changes in a row of the results."""
    others = [answer["label"] for answer in record["predictions"] if answer["label"] != label]
    answers = [{"label": label, "score": 1.0}, *({"label": other, "score": 0.0} for other in others)]
    return {
        "label": label,
        "score": 1.0,
        "predictions": answers[: max(1, len(record["predictions"]))],
        "true_label": label,
        "unsure": False,
        "changed": label != record["zero_shot_label"],
    }


def _ids(adapter: "Adapter", named: Sequence[str]) -> list[int]:
    """The ids of corrections that are named by their files or their ids."""
    by_name = {each.name: each.id for each in adapter.corrections if each.name}
    known = by_name | {str(each.id): each.id for each in adapter.corrections}
    if unknown := [name for name in named if name not in known]:
        raise InputError(f"no correction of {unknown[0]!r} in the state; {nearest(unknown[0], by_name or known)}")
    return [known[name] for name in dict.fromkeys(named)]


def _print(adapter: "Adapter") -> None:
    from acclimate.cli.tables import print_table

    rows = [(each.name, each.label, str(each.id)) for each in sorted(adapter.corrections, key=lambda each: each.name)]
    if rows:
        print_table(["file", "label", "id"], rows, left=("file", "label"))
    else:
        typer.echo("no corrections")
