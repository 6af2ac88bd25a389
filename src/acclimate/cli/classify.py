"""`acclimate classify`: the main command; and `acclimate sort`."""

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from acclimate.cli import arguments
from acclimate.cli.console import given_options, say, show_predictions, stage_bars, stop_requests
from acclimate.errors import InputError, RunError, count

if TYPE_CHECKING:
    from acclimate.classifier import Classifier
    from acclimate.classify.classification import Classification
    from acclimate.classify.counts import Counts
    from acclimate.classify.summary import Summary
    from acclimate.classify.task import Job, Task
    from acclimate.sources import Sample, Samples

State = Annotated[
    Path | None,
    typer.Option(
        help="Start from this state if it exists, and write it back; or a file of `acclimate fit`.",
        rich_help_panel=arguments.ADAPTING,
    ),
]
Truth = Annotated[
    Path | None,
    typer.Option(
        help="True labels, to say how many answers are right: .csv, .txt or .jsonl with file and label.",
        rich_help_panel=arguments.ANSWERS,
    ),
]
CountsBy = Annotated[
    str | None,
    typer.Option(
        help="Count the images by some of day, folder, label, group, such as day,label: a csv beside --out.",
        rich_help_panel=arguments.OUTPUT,
        show_default=False,
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Continue --out: with what an interrupted run left, and with new images.",
        rich_help_panel=arguments.OUTPUT,
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace --out if it exists.", rich_help_panel=arguments.OUTPUT)
]
Passes = Annotated[
    int,
    typer.Option(
        help=arguments.PASSES_HELP,
        min=1,
        max=2,
        show_default="2, with --follow 1",
        rich_help_panel=arguments.ADAPTING,
    ),
]
FollowFolder = Annotated[
    bool,
    typer.Option(
        "--follow",
        help="Go on with images as they arrive in the folder, until Ctrl-C.",
        rich_help_panel=arguments.READING,
    ),
]


def classify(
    source: arguments.Source = (),  # type: ignore[assignment]
    labels: arguments.LabelsUnlessFitted = None,
    model: arguments.Model = arguments.DEFAULT_MODEL,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Results: .csv, .jsonl, .parquet or .xlsx.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report here.")] = None,
    none_of_these: arguments.NoneOfThese = False,
    template: arguments.Templates = None,
    expand: arguments.Expand = True,
    top_k: arguments.TopK = 3,
    unsure: arguments.Unsure = 0.0,
    truth: Truth = None,
    counts: CountsBy = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    method: arguments.Method = None,
    setting: arguments.Settings = None,
    plugin: arguments.Plugins = None,
    passes: Passes = 2,
    state: State = None,
    freeze: arguments.Freeze = False,
    skip_duplicates: arguments.SkipDuplicates = None,
    views: arguments.Views = 1,
    follow: FollowFolder = False,
    order: arguments.Order = "auto",
    device: arguments.Device = "auto",
    encode: arguments.Encode = None,
) -> None:
    """Classify images into any labels, adapting to the images on the way.

    Every image is answered as it comes, and once more at the end from everything seen. A pipe gets csv. Beside --out,
    `answers.run` keeps the features: give it in the place of the images to answer other labels in seconds.
    """
    from acclimate.classify.task import Encoding, Job, find_run

    del plugin  # they took effect when they were parsed
    _check_combination(source, out, report, counts, resume, overwrite, follow, passes)
    encoded = arguments.parse_encoding(encode)
    task = _read_task(
        source,
        labels,
        template,
        method,
        setting,
        state or out or "",
        encoded,
        expand=expand,
        none_of_these=none_of_these,
        skip_duplicates=bool(skip_duplicates),
        top_k=top_k,
        unsure=unsure,
        passes=1 if follow else passes,
        freeze=freeze,
        order=order,
        follow=follow,
    )
    encoding = Encoding(model=model, views=views, device=device, given=given_options() | encoded.keys(), **encoded)
    task, encoding, found = find_run(task, encoding, out, resume)
    job = Job(task=task, encoding=encoding, run=found, out=out, resume=resume, overwrite=overwrite, state=state)
    _classify(job, truth, report, counts)


def _read_task(
    source: Sequence[str],
    labels: str | None,
    template: Sequence[str] | None,
    method: str | None,
    setting: Sequence[str] | None,
    beside: str | Path,
    encoded: dict[str, Any],
    **values: Any,
) -> "Task":
    """Return the task that options ask for, as they were given; `values` are others of `Task`.

    The stream is named after the file `beside` it. Values of the task are taken out of `encoded`, which --encode gives.
    """
    from acclimate.classify.task import Task

    given = given_options() | encoded.keys()
    return Task(
        source=tuple(source),
        labels=None if labels is None else arguments.read_labels(labels),
        parents=arguments.read_parents(labels or ""),
        templates=arguments.read_templates(template) if template else None,
        method=method,
        settings=arguments.parse_settings(method or arguments.DEFAULT_METHOD, setting) if setting else {},
        fps=encoded.pop("fps", 1.0),
        batch_size=encoded.pop("batch_size", None),
        origin=Path(beside).stem,
        given=frozenset({"setting": "settings", "template": "templates"}.get(name, name) for name in given),
        **values,
    )


def _check_combination(
    source: Sequence[str],
    out: Path | None,
    report: Path | None,
    counts: str | None,
    resume: bool,
    overwrite: bool,
    follow: bool,
    passes: int,
) -> None:
    """Refuse options that contradict each other, and files that cannot be written."""
    from acclimate.classify.counts import parse_counts
    from acclimate.files import check_writable

    if not source and not resume:
        raise InputError(
            "name the images: a folder, files or a list; --resume takes them from the run that it continues."
        )
    if out is None and (resume or counts is not None):
        raise InputError("--resume and --counts work from results; name the file with --out.")
    if resume and overwrite:
        raise InputError("--resume continues what --overwrite would replace; pass one of them.")
    if report is not None and report.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"cannot write {report}: a report is HTML; choose a name that ends in .html.")
    if follow and passes == 2 and "passes" in given_options():
        raise InputError("a run that follows a folder has no end at which to answer once more; leave out --passes.")
    if follow and len(source) > 1:
        raise InputError("--follow takes one folder.")
    if counts is not None:
        parse_counts(counts)
    for path in filter(None, (out, report)):
        check_writable(path)


def _classify(job: "Job", truth: Path | None, report: Path | None, counts: str | None) -> None:
    from acclimate.classify.labelled import TRUTHS, match_labels, read_labels
    from acclimate.classify.table import csv_columns
    from acclimate.classify.task import open_classifier
    from acclimate.files import check_writable
    from acclimate.predict import NONE
    from acclimate.run import START
    from acclimate.sources.follow import Follow

    task = job.task
    continued = job.resume and job.run is not None
    if continued and job.run is not None and job.state is None and job.run.answer.get("state"):
        job.state = Path(job.run.answer["state"])
    if job.state is not None:
        check_writable(job.state)
    if task.freeze and not continued and (job.state is None or not job.state.exists()):
        raise InputError("--freeze answers from a state; name one that exists with --state.")
    job.check_out()
    _say_what_is_encoded_again(job)
    samples = _list_samples(job)
    start = job.run.path / START if continued and job.run is not None else job.state
    arguments.note_labels(task.labels or (), job.encoding.model)
    with stage_bars() as progress:
        classifier = open_classifier(job.task, job.encoding, job.run, start, progress)
    _say_notes(classifier, job.task)
    if truth is not None:
        names = [*(job.run.names if job.run is not None else ()), *(sample.name for sample in samples)]
        labels = (*classifier.labels, NONE)
        job.task = replace(job.task, truths=match_labels(read_labels(truth, TRUTHS), names, labels))
    total = None if task.follow else len(samples) or (job.run.images if job.run is not None else 0)
    if sys.stderr.isatty():
        say(_task_line(classifier, total), dim=True, err=True)
    columns = csv_columns(task.top_k) if job.out is None else None
    with stop_requests() as stopped, show_predictions(total, columns) as show:
        more = Follow(task.source[0], stopped, task.fps) if task.follow else None
        run = job.begin(classifier, samples, more, emit=show, stop=stopped)
        finished = run.answer()
    if more is not None and more.pending:
        named = ", ".join(more.pending[:10])
        named += f" and {len(more.pending) - 10} others" if len(more.pending) > 10 else ""
        say(f"not classified, as they were incomplete or could not be read: {named}.", err=True)
    _say_end(job, run, finished, report, counts)


def _list_samples(job: "Job", find: "Callable[..., Samples] | None" = None) -> "Sequence[Sample]":
    """Return the images of the sources in order, and settle what follows from them.

    `find` lists them where sources are not only those of `open_source`.
    """
    from acclimate.sources.source import choose_order
    from acclimate.sources.video import is_frame

    task = job.task
    as_source = job.run is not None and not job.resume
    if as_source and job.run is not None:
        if not job.run.complete:
            say(
                f"note: {job.run.path} is incomplete, so its first {count(job.run.images, 'image')} are answered.",
                err=True,
            )
        return ()
    samples: Sequence[Sample] = ()
    if not task.follow:
        try:
            samples = arguments.list_images(task.source, task.order, task.labels, task.fps, find)
        except InputError as error:
            if job.run is None or not job.run.complete:
                raise
            say(f"note: there are no new images: {error}", err=True)
    order = choose_order(samples, task.labels) if task.order == "auto" else task.order
    skip = task.skip_duplicates
    if "skip_duplicates" not in task.given and job.run is None:  # a camera may stand still
        skip = task.follow or any(map(is_frame, samples))
    job.task = replace(task, order=order, skip_duplicates=skip)
    return samples


def _say_what_is_encoded_again(job: "Job") -> None:
    """Say what --overwrite encodes again, and which command would not."""
    from acclimate.run import Run, is_run, run_path

    if job.out is None or not job.overwrite or job.run is not None or not is_run(run_path(job.out)):
        return
    there = Run.open(run_path(job.out))
    say(
        f"note: {count(there.images, 'image')} of {there.path} are encoded again. To answer them without: acclimate "
        f"classify {there.path} --labels ... --out {job.out} --overwrite",
        err=True,
    )


def _say_notes(classifier: "Classifier", task: "Task") -> None:
    from acclimate.prompts.head import shipped_vectors
    from acclimate.prompts.spelling import close_labels, expansion_note

    nouns = shipped_vectors(classifier.encoder)  # encoding them takes a while for other models
    close = "" if nouns is None else close_labels(classifier.head, nouns)
    lost = "--none-of-these loses about a tenth of the images of broad labels, and of some many more; see none_score."
    broad = lost if task.none_of_these and classifier.head.expanded else ""
    for note in filter(None, (expansion_note(classifier.head.expanded), close, broad)):
        say(f"note: {note}", err=True)


def _say_end(job: "Job", run: "Classification", finished: bool, report: Path | None, counts: str | None) -> None:
    """Write the report, and say what was done; a run that was stopped ends the command."""
    from acclimate.classify.counts import count_answers, parse_counts, write_counts

    out = job.out
    summary = run.summary
    if not finished:
        where = f"after {count(summary.images, 'image')}" if job.task.follow else _stopped_where(run)
        how = "" if out is None else "; run the command again with --resume to continue"
        say(f"stopped {where}{how}.", err=True)
        if not job.task.follow or not summary.images:
            raise typer.Exit(130)
    counted: Counts | None = None
    if counts is not None:
        counted = count_answers(run.blocks, parse_counts(counts))
    counts_path = None if counted is None or out is None else write_counts(counted, out)
    if report is not None:
        from acclimate.classify.report import write_report

        settings = job.describe(run, shlex.join(["acclimate", *sys.argv[1:]]), _example_line(run.classifier))
        write_report(report, run, " ".join(job.task.source), settings, counted)
    _say_answers(summary, {"Results": out, "Counts": counts_path, "State": run.state, "Report": report})
    _say_findings(summary, job.task.unsure, run)
    if not finished:
        raise typer.Exit(130)


def sort(
    results: Annotated[Path, typer.Argument(help="Results of `acclimate classify`: .csv, .jsonl, .parquet or .xlsx.")],
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
        say(_sorted_line(sort_images(results, folder, how), folder), err=True)
    else:
        done, left = unsort_images(results)
        say(f"{count(done, 'image')} taken back.", err=True)
        if left:
            more = f" and {count(len(left) - 10, 'other')}" if len(left) > 10 else ""
            say(f"left, as these are gone, renamed or changed: {', '.join(left[:10])}{more}", err=True)


def _sorted_line(counts: Mapping[str, int], folder: Path | None) -> str:
    if not counts:
        return "No image was sorted: none is a file that is still there."
    groups = [f"{group} {number}" for group, number in sorted(counts.items(), key=lambda each: -each[1])]
    more = f" and {count(len(groups) - 10, 'other folder')}" if len(groups) > 10 else ""
    return f"{count(sum(counts.values()), 'image')} sorted into {folder}: {', '.join(groups[:10])}{more}."


def _example_line(classifier: "Classifier") -> str:
    from acclimate.prompts import example_prompts

    return " · ".join(example_prompts(classifier.labels, classifier.templates) if classifier.templates else ())


def _task_line(classifier: "Classifier", images: int | None) -> str:
    expected = "Images as they arrive" if images is None else count(images, "image")
    return f"{expected}, {count(len(classifier.labels), 'label')}: {_example_line(classifier)}"


def _stopped_where(run: "Classification") -> str:
    if run.images == run.expected:
        return "while answering once more"
    return f"after {run.images} of {run.expected} images"


def _say_answers(summary: "Summary", written: dict[str, object]) -> None:
    unreadable = f", {summary.unreadable} could not be read" if summary.unreadable else ""
    final = f" (at the end, from everything seen, {count(summary.changed_again, 'answer')} changed once more)"
    again = final if summary.passes == 2 else ""
    where = "".join(f" {name}: {path}." for name, path in written.items() if path)
    changed = f"{count(summary.changed, 'answer')} changed by adapting{again}"
    say(f"{count(summary.answered, 'image')} classified{unreadable}, {changed}.{where}", err=True)


def _say_findings(summary: "Summary", unsure: float, run: "Classification") -> None:
    """Say what else a run has found.

    Raises:
        RunError: no image could be read.
    """
    from acclimate.predict import NONE

    if unsure:
        doubts = f"{summary.unsure:,} of {count(summary.answered, 'answer')}"
        say(f"{doubts} {'is' if summary.unsure == 1 else 'are'} unsure (score below {unsure:g}).", err=True)
    if none := summary.after[NONE]:
        doubted = f", {summary.unsure_none:,} of them unsure" if summary.unsure_none else ""
        say(f"{count(none, 'image')} {'is' if none == 1 else 'are'} none of these{doubted}.", err=True)
    if accuracy := str(summary.accuracy):
        say(accuracy, err=True)
    advice = run.classifier.adapter.advice()
    for note in (*([advice] if advice else ()), *run.notes):
        say(f"note: {note}", err=True)
    if not summary.answered:
        name, why = summary.reasons[0]
        raise RunError(f"no image could be read. The first is {name}: {why}")
