"""`acclimate classify`: the main command, and the messages that it shares with `acclimate cluster classify`."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from acclimate.classify.options import ClassifyOptions
from acclimate.cli import arguments
from acclimate.cli.console import say, show_predictions, stop_requests
from acclimate.cli.progress import stage_bars
from acclimate.cli.sort import sorted_line
from acclimate.errors import RunError, count

if TYPE_CHECKING:
    from acclimate.classifier import Classifier
    from acclimate.classify.run import Classification
    from acclimate.classify.summary import Summary
    from acclimate.sources import Sample


def classify(
    source: arguments.Source,
    labels: arguments.LabelsUnlessFitted = None,
    model: arguments.Model = arguments.DEFAULT_MODEL,
    out: arguments.Results = None,
    method: arguments.Method = None,
    setting: arguments.Settings = None,
    plugin: arguments.Plugins = None,
    fitted: arguments.Fitted = None,
    template: arguments.Templates = None,
    views: arguments.Views = 1,
    views_kind: arguments.ViewsKind = None,
    generated: arguments.Generated = None,
    top_k: arguments.TopK = 3,
    unsure: arguments.Unsure = 0.0,
    none_of_these: arguments.NoneOfThese = False,
    order: arguments.Order = "auto",
    fps: arguments.Fps = 1.0,
    max_pixels: arguments.MaxPixels = arguments.DEFAULT_MAX_PIXELS,
    skip_duplicates: arguments.SkipDuplicates = None,
    passes: arguments.Passes = None,
    state: arguments.StateFile = None,
    origin: arguments.Origin = None,
    freeze: arguments.Freeze = False,
    truth: arguments.Truth = None,
    report: arguments.Report = None,
    follow: arguments.Follow = False,
    sort_into: arguments.SortInto = None,
    sort_how: arguments.SortHow = "copy",
    resume: arguments.Resume = False,
    overwrite: arguments.Overwrite = False,
    on_error: arguments.OnError = "skip",
    batch_size: arguments.BatchSize = None,
    workers: arguments.Workers = None,
    device: arguments.Device = "auto",
    precision: arguments.Precision = "auto",
    compile: arguments.Compile = False,
    decoder: arguments.Decoder = "auto",
    checkpoint_every: arguments.CheckpointEvery = 10.0,
) -> None:
    """Classify images into any labels, adapting to the images on the way.

    Every image is answered as it comes, and once more at the end from everything seen. Prints a table on a terminal and
    csv in a pipe, where rows follow when their answers are final.
    """
    del plugin, max_pixels  # they took effect when they were parsed
    _classify(ClassifyOptions(**locals()))


def _classify(options: ClassifyOptions) -> None:
    from acclimate.classify.outputs import ResultFile, csv_columns
    from acclimate.classify.run import Classification
    from acclimate.classify.truth import with_truth
    from acclimate.sources.follow import Follow
    from acclimate.sources.source import choose_order

    options.check()
    options.check_files()
    output = None if options.out is None else ResultFile(Path(options.out), options.top_k)
    state = None if options.state is None else Path(options.state)
    starts_anew = not options.freeze and (state is None or not state.exists())
    if options.resume and starts_anew and output and output.path.exists() and not output.checkpoint.is_file():
        say("note: what the earlier run learnt is not in a --state; new images start from the model.", err=True)
    names, templates, settings = read_task(options)
    samples: Sequence[Sample] = ()
    if not options.follow:
        samples = arguments.list_images(options.source, options.order, names, options.fps)
    options = replace(options, order=choose_order(samples, names) if options.order == "auto" else options.order)
    classifier = open_classifier(options, names, templates, settings, samples)
    if options.truth is not None:
        samples = with_truth(samples, options.truth, classifier.labels)
    if state is not None and state.exists():
        classifier.load(state)
    set_up(classifier, options)
    if sys.stderr.isatty():
        say(task_line(classifier, None if options.follow else len(samples)), dim=True, err=True)
    columns = csv_columns(options.top_k) if output is None else None
    more = None
    with stop_requests() as stopped, show_predictions(None if options.follow else len(samples), columns) as show:
        if options.follow:
            more = Follow(options.source[0], stopped, options.fps)
        run = Classification(
            classifier=classifier,
            samples=samples,
            output=output,
            emit=show,
            top_k=options.top_k,
            passes=options.passes or 2,
            on_error="raise" if options.on_error == "fail" else "skip",
            state=None if options.freeze else state,
            checkpoint_every=options.checkpoint_every,
            stop=stopped,
            more=more,
        )
        finished = run.run(options.resume)
    if more is not None and more.pending:
        others = f" and {len(more.pending) - 10} others" if len(more.pending) > 10 else ""
        named = ", ".join(more.pending[:10])
        say(f"not classified, as they were incomplete or could not be read: {named}{others}.", err=True)
    _say_end(options, run, finished)


def _say_end(options: ClassifyOptions, run: "Classification", finished: bool) -> None:
    """Write the report, say what was done, and sort the images; a run that was stopped ends the command."""
    from acclimate.classify.sorting import sort_images

    summary = run.summary
    out = options.out
    if not finished:
        where = f"after {count(summary.images, 'image')}" if options.follow else stopped_where(summary, run.samples)
        how = "" if out is None else "; run the command again with --resume to continue"
        say(f"stopped {where}{how}.", err=True)
        if not options.follow or not summary.images:
            raise typer.Exit(130)
    if options.report is not None:
        from acclimate.classify.report import write_report

        command = shlex.join(["acclimate", *sys.argv[1:]])
        shown = options.describe(run, command, example_line(run.classifier))
        write_report(options.report, run, " ".join(options.source), shown)
    say_answers(summary, {"Results": out, "State": run.state, "Report": options.report})
    if run.kept.images:
        new = len(run.samples) - run.kept.images
        say(f"{out} was complete: {count(new, 'new image')} added.", err=True)
    say_findings(summary, options.unsure, run.classifier)
    if options.sort_into is not None:  # last, as the report reads the images
        sorted_images = sort_images(Path(str(out)), options.sort_into, options.sort_how)
        say(f"{sorted_line(sorted_images, options.sort_into)} Undo: acclimate sort {out} --undo", err=True)
    if not finished:
        raise typer.Exit(130)


def read_task(options: ClassifyOptions) -> tuple[tuple[str, ...] | None, Any, dict[str, Any]]:
    """Read the labels, the templates and the method's settings, and check them before anything is loaded.

    Returns:
        The labels, None if they are those of a fitted file; the templates, None if none are given; the settings.
    """
    from acclimate.methods import find_method, require

    names = None if options.labels is None else arguments.read_labels(options.labels)
    settings: dict[str, Any] = {}
    if options.fitted is None:
        method = options.method or arguments.DEFAULT_METHOD
        require(find_method(method), views=options.views > 1, text=True)
        settings = arguments.parse_settings(method, options.setting)
        if options.state is not None:
            settings["origin"] = Path(options.state).stem
    templates = arguments.read_templates(options.template) if options.template else None
    arguments.note_language(names or (), options.model)
    return names, templates, settings


def open_classifier(
    options: ClassifyOptions,
    names: Sequence[str] | None,
    templates: Any,
    settings: dict[str, Any],
    samples: "Sequence[Sample]",
) -> "Classifier":
    """Return the classifier of a task; by default it skips duplicates where a camera may stand still."""
    from acclimate.classifier import Classifier
    from acclimate.sources.video import is_frame

    skip = options.skip_duplicates
    if skip is None:
        skip = options.follow or any(map(is_frame, samples))
    arguments_given = options.classifier_arguments() | {"templates": templates, "skip_duplicates": skip}
    with stage_bars() as progress:
        return Classifier(names, options.model, progress=progress, **arguments_given, **settings)


def set_up(classifier: "Classifier", options: ClassifyOptions) -> None:
    """Apply --origin and --freeze, after a state was loaded."""
    if options.origin is not None:
        classifier.adapter.origin = options.origin
    if options.freeze:
        classifier.freeze()


def example_line(classifier: "Classifier") -> str:
    """Return some prompts of a classifier; "" if its head was fitted."""
    from acclimate.prompts import example_prompts

    return " · ".join(example_prompts(classifier.labels, classifier.templates) if classifier.templates else ())


def task_line(classifier: "Classifier", images: int | None) -> str:
    """Return the images, the labels and some prompts of a run in one line; without a number, images arrive later."""
    expected = "Images as they arrive" if images is None else count(images, "image")
    return f"{expected}, {count(len(classifier.labels), 'label')}: {example_line(classifier)}"


def stopped_where(summary: "Summary", samples: Sequence[object]) -> str:
    """Return the position at which a run was stopped, in words."""
    if summary.images == len(samples):
        return "in the second pass"
    return f"after {summary.images} of {len(samples)} images"


def say_answers(summary: "Summary", written: dict[str, object]) -> None:
    """Say how many images were classified, how many answers changed, and which files were written."""
    unreadable = f", {summary.unreadable} could not be read" if summary.unreadable else ""
    images = count(summary.answered, "image")
    answers = count(summary.changed, "answer")
    again = f" (the second pass changed {summary.changed_again} of the online ones)" if summary.passes == 2 else ""
    where = "".join(f" {name}: {path}." for name, path in written.items() if path)
    say(f"{images} classified{unreadable}, {answers} changed by adapting{again}.{where}", err=True)


def say_findings(summary: "Summary", unsure: float, classifier: "Classifier") -> None:
    """Say what else a run has found.

    Raises:
        RunError: no image could be read.
    """
    from acclimate.predict import NONE

    if unsure:
        doubts = f"{summary.unsure:,} of {count(summary.answered, 'answer')}"
        say(f"{doubts} {'is' if summary.unsure == 1 else 'are'} unsure (score below {unsure:g}).", err=True)
    if none := summary.after[NONE]:
        say(f"{count(none, 'image')} {'is' if none == 1 else 'are'} none of these.", err=True)
    if accuracy := str(summary.accuracy):
        say(accuracy, err=True)
    if advice := classifier.adapter.advice():
        say(f"note: {advice}", err=True)
    if not summary.answered:
        name, why = summary.reasons[0]
        raise RunError(f"no image could be read. The first is {name}: {why}")
