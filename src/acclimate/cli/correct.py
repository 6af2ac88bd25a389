"""`acclimate correct`: say which answers were wrong, and answer all other images again."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acclimate.cli import arguments
from acclimate.cli.console import given_options, say, stage_bars
from acclimate.cli.tables import print_table
from acclimate.errors import InputError, count, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from acclimate import Adapter
    from acclimate.run import Run

Fixes = Annotated[
    Path | None,
    typer.Argument(help="A csv with the columns file and label; without it, correct_label of the results counts."),
]
State = Annotated[
    Path | None, typer.Option(help="A state file to teach, too, as it is now; or whose corrections are meant.")
]
Undo = Annotated[
    list[str] | None,
    typer.Option(help="A corrected file, or for --state alone the id of a correction, to take back; repeatable."),
]


def correct(
    results: Annotated[Path | None, typer.Argument(help="Results of `acclimate classify`.")] = None,
    fixes: Fixes = None,
    state: State = None,
    model: arguments.Model = arguments.DEFAULT_MODEL,
    plugin: arguments.Plugins = None,
    listed: Annotated[bool, typer.Option("--list", help="List the corrections.")] = False,
    undo: Undo = None,
    device: arguments.Device = "auto",
) -> None:
    """Put answers right: all other images are answered again from what was learnt, and from the corrections.

    The right labels are written to the column `correct_label` of the results, and are certain evidence from then on.
    A label that was answered anyway confirms the answer. Features, labels and settings are those of the run beside the
    results; no image is read.
    """
    del plugin  # they took effect when they were parsed
    if not (results or listed or undo) or (listed and (fixes or undo)) or (fixes and undo):
        raise InputError("give results with fixes, or --list, or --undo with or without results.")
    if state is None and results is None:
        raise InputError("name the results, or the --state whose corrections are meant.")
    if results is None and state is not None:
        _correct_state(state, undo, model, device)
        return
    if results is not None:
        _correct_results(results, fixes, state, model, device, listed, undo)


def _correct_state(path: Path, undo: list[str] | None, model: str, device: str) -> None:
    """List the corrections of a state, or take some back."""
    from acclimate import save_state

    adapter, notes = _load_state(path, model, device)
    if undo is None:
        _print_corrections({each.name or str(each.id): each.label for each in adapter.corrections})
        return
    by_name = {each.name: each for each in adapter.corrections if each.name}
    known = by_name | {str(each.id): each for each in adapter.corrections}
    if unknown := [name for name in undo if name not in known]:
        raise InputError(f"no correction of {unknown[0]!r} in the state; {nearest(unknown[0], by_name or known)}")
    adapter.corrections.undo([known[name].id for name in dict.fromkeys(undo)])
    save_state(adapter, path, notes)
    say(f"{len(undo)} taken back, {len(adapter.corrections)} left in {path}.", err=True)


def _correct_results(
    results: Path,
    fixes: Path | None,
    state: Path | None,
    model: str,
    device: str,
    listed: bool,
    undo: list[str] | None,
) -> None:
    from acclimate.classify.labelled import EDITED, FIXES, match_labels, read_labels
    from acclimate.classify.table import read_results
    from acclimate.classify.task import Encoding, Job, Task, find_run, open_classifier
    from acclimate.files import check_writable
    from acclimate.run import START

    for path in filter(None, (results, state)):
        check_writable(path)
    records = read_results(results)
    task, encoding, run = find_run(
        Task(), Encoding(model=model, device=device, given=given_options()), results, resume=True
    )
    if run is None:
        raise InputError(
            f"{results} has no run beside it, so its images cannot be answered again; classify them again."
        )
    run.check_whole()
    before = run.corrections
    if listed:
        _print_corrections(before)
        return
    with stage_bars() as progress:
        classifier = open_classifier(task, encoding, run, run.path / START, progress)
    if undo:
        if unknown := [name for name in undo if name not in before]:
            raise InputError(f"no correction of {unknown[0]!r}; {nearest(unknown[0], before)}")
        labels = {name: label for name, label in before.items() if name not in undo}
        done = f"{len(undo)} taken back, {len(labels)} left."
    else:
        typed = [(f"{results}", record["file"], record[EDITED]) for record in records if record[EDITED]]
        answers = {record["file"]: record["label"] for record in records}
        rows = read_labels(fixes, FIXES) if fixes else typed
        if not rows:
            raise InputError(
                f"{fixes or results} gives no label; write the right label of each wrong answer into {EDITED} of the "
                "results, or into a csv with the columns file and label."
            )
        new = match_labels(rows, answers, classifier.labels)
        labels = before | new
        confirmed = sum(answers[name] == label for name, label in new.items())
        done = f"{len(new) - confirmed} corrected, {confirmed} confirmed; {count(len(labels), 'correction')} in all."
    _check_readable(run, labels)
    run.corrections = labels
    job = Job(task=task, encoding=encoding, run=run, out=results, resume=True)
    classification = job.begin(classifier, (), forget=undo or ())
    classification.encode = None
    classification.answer()
    if state is not None:
        done += _teach_state(state, run, {} if undo else new, undo or [], model, device)
    say(done, *str(classification.effect or "").splitlines(), *classification.notes, f"Results: {results}.", err=True)


def _check_readable(run: "Run", labels: "Mapping[str, str]") -> None:
    from acclimate.classify.classification import readable_rows

    rows = readable_rows(run)
    if lost := [name for name in labels if name not in rows]:
        raise InputError(f"{lost[0]} cannot be read, so it cannot be corrected; leave it out.")


def _teach_state(path: Path, run: "Run", labels: "Mapping[str, str]", undo: list[str], model: str, device: str) -> str:
    """Teach a state file as it is now, which others may have learnt into; returns a sentence on it."""
    from acclimate import save_state
    from acclimate.classify.classification import teach
    from acclimate.methods import MODEL, fit_note

    adapter, notes = _load_state(path, model, device)
    made_with = notes.get(MODEL) or fit_note(notes).get("fingerprint")
    if made_with and made_with != run.features.get("fingerprint"):
        raise InputError(f"{path} was made with another model than the features in {run.path}; leave it out.")
    if gone := [each.id for each in adapter.corrections if each.name in undo]:
        adapter.corrections.undo(gone)
    if labels:
        if unknown := [label for label in labels.values() if label not in adapter.head.class_names]:
            raise InputError(f"{path} has no label {unknown[0]!r}; leave --state out, or name that of the run.")
        teach(adapter, run, labels)
    save_state(adapter, path, notes)
    return f" {path} has {count(len(adapter.corrections), 'correction')}."


def _load_state(path: Path, model: str, device: str) -> "tuple[Adapter, dict[str, Any]]":
    """Return the adapter of a state and its notes; the encoder is loaded if the method needs its text tower."""
    from acclimate import load_encoder
    from acclimate.files import read_snapshot
    from acclimate.methods import find_method, list_methods
    from acclimate.methods.persist import build_adapter, check_description

    if not path.exists():
        raise InputError(f"no state file at {path}; name the --state of the run, or classify again to keep one.")
    tensors, description = read_snapshot(path)
    check_description(description, path)
    method = description["method"]
    needs_text = method in list_methods() and "text" in find_method(method).needs
    encoder = load_encoder(model, device) if needs_text else None
    return build_adapter(tensors, description, path, encoder=encoder)


def _print_corrections(labels: "Mapping[str, str]") -> None:
    if not labels:
        say("no corrections")
        return
    print_table(["file", "label"], sorted(labels.items()), left=("file", "label"))
