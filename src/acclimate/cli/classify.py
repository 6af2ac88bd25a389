"""`acclimate classify` and `acclimate cluster classify`: the main command, on one machine or many; `acclimate sort`."""

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from acclimate.classify.options import ClassifyOptions
from acclimate.cli import arguments
from acclimate.cli.console import progress_bar, say, show_predictions, stage_bars, stop_requests
from acclimate.cluster.cluster_options import DEFAULT_SHARDS, LARGE_JOB_IMAGES, ClusterOptions
from acclimate.errors import InputError, RunError, count

if TYPE_CHECKING:
    from acclimate.classifier import Classifier
    from acclimate.classify.run import Classification
    from acclimate.classify.summary import Summary
    from acclimate.sources import Sample

SourceUrl = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE",
        help="As for `acclimate classify`, and the same by URL: s3://bucket/photos, wds:s3://bucket/shards.",
        show_default=False,
    ),
]
KeptState = Annotated[
    Path | None,
    typer.Option(help="Start from this state if it exists, and write it back.", rich_help_panel=arguments.ADAPTING),
]
NoState = Annotated[
    bool,
    typer.Option(
        "--no-state", help="Keep no state beside --out to correct it with.", rich_help_panel=arguments.ADAPTING
    ),
]
Policy = Annotated[
    Literal["ordered", "merged"],
    typer.Option(
        help="ordered: one state adapts in order, as on one machine; merged: several exchange what they learn."
    ),
]
Shards = Annotated[
    int | None,
    typer.Option(help="For merged: states that adapt side by side.", min=1, show_default=f"{DEFAULT_SHARDS}"),
]
Every = Annotated[
    int | None,
    typer.Option(
        help="Images that a state adapts to between two exchanges, and that a parquet file holds.",
        min=1,
        show_default=f"1024, or 256 for fewer than {LARGE_JOB_IMAGES:,} images",
    ),
]
Encoders = Annotated[
    str | None,
    typer.Option("--workers", help="Encoders: a number, or LEAST:MOST.", show_default="as many as there is room for"),
]


SortInto = Annotated[
    Path | None, typer.Option(help="At the end, sort the images into this folder, one subfolder per answer.")
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
Bom = Annotated[
    bool,
    typer.Option("--bom", help="Begin a csv with a mark by which Excel knows UTF-8.", rich_help_panel=arguments.OUTPUT),
]
SortHow = Annotated[
    Literal["copy", "link", "move"],
    typer.Option(help="How --sort-into puts the images there.", rich_help_panel=arguments.OUTPUT),
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
    int | None,
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
OnError = Annotated[
    Literal["skip", "fail"],
    typer.Option(help="Skip or stop at unreadable images.", rich_help_panel=arguments.READING),
]


def classify(
    source: arguments.Source = (),  # type: ignore[assignment]
    labels: arguments.LabelsUnlessFitted = None,
    model: arguments.Model = arguments.DEFAULT_MODEL,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Results: .csv, .jsonl, .parquet or .xlsx.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report here.")] = None,
    sort_into: SortInto = None,
    none_of_these: arguments.NoneOfThese = False,
    # answers
    template: arguments.Templates = None,
    expand: arguments.Expand = True,
    top_k: arguments.TopK = 3,
    unsure: arguments.Unsure = 0.0,
    truth: Truth = None,
    # output
    counts: CountsBy = None,
    bom: Bom = False,
    sort_how: SortHow = "copy",
    resume: Resume = False,
    overwrite: Overwrite = False,
    checkpoint_every: arguments.CheckpointEvery = 10.0,
    # adapting
    method: arguments.Method = None,
    setting: arguments.Settings = None,
    plugin: arguments.Plugins = None,
    fitted: arguments.Fitted = None,
    passes: Passes = None,
    state: KeptState = None,
    no_state: NoState = False,
    origin: arguments.Origin = None,
    freeze: arguments.Freeze = False,
    skip_duplicates: arguments.SkipDuplicates = None,
    views: arguments.Views = 1,
    views_kind: arguments.ViewsKind = None,
    generated: arguments.Generated = None,
    # reading
    follow: FollowFolder = False,
    order: arguments.Order = "auto",
    fps: arguments.Fps = 1.0,
    max_pixels: arguments.MaxPixels = arguments.DEFAULT_MAX_PIXELS,
    on_error: OnError = "skip",
    # speed
    batch_size: arguments.BatchSize = None,
    workers: arguments.Workers = None,
    device: arguments.Device = "auto",
    precision: arguments.Precision = "auto",
    compile: arguments.Compile = False,
    decoder: arguments.Decoder = "auto",
) -> None:
    """Classify images into any labels, adapting to the images on the way.

    Every image is answered as it comes, and once more at the end from everything seen. Prints a table on a terminal and
    csv in a pipe, where rows follow when their answers are final.
    """
    del plugin, max_pixels  # they took effect when they were parsed
    _classify(ClassifyOptions(**locals()).continued())


def _classify(options: ClassifyOptions) -> None:
    from acclimate.classify.outputs import ResultFile, csv_columns
    from acclimate.classify.run import Classification
    from acclimate.classify.truth import with_truth
    from acclimate.sources.follow import Follow
    from acclimate.sources.source import choose_order

    options.check()
    options.check_files()
    output = None if options.out is None else ResultFile(Path(options.out), options.top_k, options.bom)
    begun = options.begun()
    state = None if options.state is None else Path(options.state)
    start = state
    if options.resume and output and output.path.exists() and not output.checkpoint.is_file():
        start = state or output.state
        if not options.freeze and not start.exists():
            say("note: what the earlier run learnt was not kept; new images start from the model.", err=True)
    names, templates, settings = _read_task(options)
    samples = () if options.follow else arguments.list_images(options.source, options.order, names, options.fps)
    options = replace(options, order=choose_order(samples, names) if options.order == "auto" else options.order)
    classifier = _open_classifier(options, names, templates, settings, samples)
    if options.truth is not None:
        samples = with_truth(samples, options.truth, classifier.labels)
    if start is not None and start.exists():
        classifier.load(start)
    options.set_up(classifier)
    if sys.stderr.isatty():
        say(_task_line(classifier, None if options.follow else len(samples)), dim=True, err=True)
    columns = csv_columns(options.top_k) if output is None else None
    with stop_requests() as stopped, show_predictions(None if options.follow else len(samples), columns) as show:
        more = Follow(options.source[0], stopped, options.fps) if options.follow else None
        run = Classification(
            classifier=classifier,
            samples=samples,
            output=output,
            emit=show,
            parents=arguments.read_parents(options.labels or ""),
            top_k=options.top_k,
            passes=options.passes or 2,
            on_error="raise" if options.on_error == "fail" else "skip",
            state=None if options.freeze else state,
            record=not options.no_state,
            options=begun | {"fingerprint": classifier.encoder.fingerprint},
            checkpoint_every=options.checkpoint_every,
            stop=stopped,
            more=more,
        )
        finished = run.run(options.resume)
    if more is not None and more.pending:
        named = ", ".join(more.pending[:10])
        named += f" and {len(more.pending) - 10} others" if len(more.pending) > 10 else ""
        say(f"not classified, as they were incomplete or could not be read: {named}.", err=True)
    _say_end(options, run, finished)


def _say_end(options: ClassifyOptions, run: "Classification", finished: bool) -> None:
    """Write the report, say what was done, and sort the images; a run that was stopped ends the command."""
    from acclimate.classify.counts import count_answers, parse_counts, write_counts
    from acclimate.classify.outputs import read_results
    from acclimate.classify.sorting import sort_images

    summary = run.summary
    if not finished:
        where = f"after {count(summary.images, 'image')}" if options.follow else _stopped_where(summary, run.samples)
        how = "" if options.out is None else "; run the command again with --resume to continue"
        say(f"stopped {where}{how}.", err=True)
        if not options.follow or not summary.images:
            raise typer.Exit(130)
    results = Path(options.out or "")
    counts = None
    if options.counts is not None:
        counts = count_answers(read_results(results), parse_counts(options.counts))
    counted = counts and write_counts(counts, results, options.bom)
    if options.report is not None:
        from acclimate.classify.report import write_report

        shown = options.describe(run, shlex.join(["acclimate", *sys.argv[1:]]), _example_line(run.classifier))
        write_report(options.report, run, " ".join(options.source), shown, counts)
    _say_answers(summary, {"Results": options.out, "Counts": counted, "State": run.state, "Report": options.report})
    if run.kept.images:
        say(f"{options.out} was complete: {count(len(run.samples) - run.kept.images, 'new image')} added.", err=True)
    _say_findings(summary, options.unsure, run.classifier)
    if options.sort_into is not None:  # last, as the report reads the images
        sorted_images = sort_images(results, options.sort_into, options.sort_how)
        say(f"{_sorted_line(sorted_images, options.sort_into)} Undo: acclimate sort {options.out} --undo", err=True)
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


def _read_task(options: ClassifyOptions) -> tuple[tuple[str, ...] | None, Any, dict[str, Any]]:
    """Read the labels, the templates and the method's settings, and check them before anything is loaded.

    Returns:
        The labels, None if they are those of a fitted file; the templates, None if none are given; the settings.
    """
    names = None if options.labels is None else arguments.read_labels(options.labels)
    settings: dict[str, Any] = {}
    if options.fitted is None:
        settings = arguments.parse_settings(options.method or arguments.DEFAULT_METHOD, options.setting)
        named = options.state or options.out
        if options.state is not None or isinstance(named, Path):  # a cluster writes to a folder
            settings["origin"] = Path(str(named)).stem
    templates = arguments.read_templates(options.template) if options.template else None
    arguments.note_labels(names or (), options.model)
    return names, templates, settings


def _open_classifier(
    options: ClassifyOptions,
    names: Sequence[str] | None,
    templates: Any,
    settings: dict[str, Any],
    samples: "Sequence[Sample]",
) -> "Classifier":
    """Return the classifier of a task; by default it skips duplicates where a camera may stand still."""
    from acclimate.classifier import Classifier
    from acclimate.prompts.head import shipped_vectors
    from acclimate.prompts.spelling import close_labels, expansion_note
    from acclimate.sources.video import is_frame

    may_stand_still = options.follow or any(map(is_frame, samples))
    skip = may_stand_still if options.skip_duplicates is None else options.skip_duplicates
    given = options.classifier_arguments() | {"templates": templates, "skip_duplicates": skip}
    with stage_bars() as progress:
        classifier = Classifier(names, options.model, progress=progress, **given, **settings)
    nouns = shipped_vectors(classifier.encoder)  # encoding them takes a while for other models
    close = "" if nouns is None else close_labels(classifier.head, nouns)
    lost = "--none-of-these loses about a tenth of the images of broad labels, and of some many more; see none_score."
    broad = lost if options.none_of_these and classifier.head.expanded else ""
    for note in filter(None, (expansion_note(classifier.head.expanded), close, broad)):
        say(f"note: {note}", err=True)
    return classifier


def _example_line(classifier: "Classifier") -> str:
    from acclimate.prompts import example_prompts

    return " · ".join(example_prompts(classifier.labels, classifier.templates) if classifier.templates else ())


def _task_line(classifier: "Classifier", images: int | None) -> str:
    expected = "Images as they arrive" if images is None else count(images, "image")
    return f"{expected}, {count(len(classifier.labels), 'label')}: {_example_line(classifier)}"


def _stopped_where(summary: "Summary", samples: Sequence[object]) -> str:
    if summary.images == len(samples):
        return "while answering once more"
    return f"after {summary.images} of {len(samples)} images"


def _say_answers(summary: "Summary", written: dict[str, object]) -> None:
    unreadable = f", {summary.unreadable} could not be read" if summary.unreadable else ""
    final = f" (at the end, from everything seen, {count(summary.changed_again, 'answer')} changed once more)"
    again = final if summary.passes == 2 else ""
    where = "".join(f" {name}: {path}." for name, path in written.items() if path)
    changed = f"{count(summary.changed, 'answer')} changed by adapting{again}"
    say(f"{count(summary.answered, 'image')} classified{unreadable}, {changed}.{where}", err=True)


def _say_findings(summary: "Summary", unsure: float, classifier: "Classifier") -> None:
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
    if note := classifier.adapter.advice():
        say(f"note: {note}", err=True)
    if not summary.answered:
        name, why = summary.reasons[0]
        raise RunError(f"no image could be read. The first is {name}: {why}")


ClusterPasses = Annotated[
    int | None,
    typer.Option(
        help=arguments.PASSES_HELP,
        min=1,
        max=2,
        show_default="2, merged 1",
        rich_help_panel=arguments.ADAPTING,
    ),
]
RayProgress = Annotated[
    bool, typer.Option("--ray-progress", help="Show Ray Data's own progress as well, and what its workers print.")
]


def cluster_classify(
    source: SourceUrl,
    out: Annotated[str, typer.Option("--out", "-o", help="Folder for the results, in parquet files: a path or URL.")],
    address: arguments.Address = None,
    policy: Policy = "ordered",
    shards: Shards = None,
    ordered_first: Annotated[
        int,
        typer.Option(help="For merged: images at the beginning that one state adapts to in order; 0 for none.", min=0),
    ] = 2048,
    every: Every = None,
    encoders: Encoders = None,
    cpus: arguments.Cpus = 1.0,
    gpus: arguments.Gpus = None,
    adapter_gpus: Annotated[
        float, typer.Option(help="GPUs per adapting state, for many labels and fast encoders.", min=0)
    ] = 0.0,
    state: Annotated[
        str | None, typer.Option(help="Start from this state if it exists, and write it at the end: a path or URL.")
    ] = None,
    passes: ClusterPasses = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue what an interrupted run left in --out.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the results in --out.")] = False,
    ray_progress: RayProgress = False,
    labels: arguments.LabelsUnlessFitted = None,
    model: arguments.Model = arguments.DEFAULT_MODEL,
    method: arguments.Method = None,
    setting: arguments.Settings = None,
    plugin: arguments.Plugins = None,
    fitted: arguments.Fitted = None,
    template: arguments.Templates = None,
    views: arguments.Views = 1,
    views_kind: arguments.ViewsKind = None,
    top_k: arguments.TopK = 3,
    unsure: arguments.Unsure = 0.0,
    none_of_these: arguments.NoneOfThese = False,
    expand: arguments.Expand = True,
    order: arguments.Order = "auto",
    fps: arguments.Fps = 1.0,
    max_pixels: arguments.MaxPixels = arguments.DEFAULT_MAX_PIXELS,
    skip_duplicates: arguments.SkipDuplicates = None,
    origin: arguments.Origin = None,
    freeze: arguments.Freeze = False,
    batch_size: arguments.BatchSize = None,
    device: arguments.Device = "auto",
    precision: arguments.Precision = "auto",
    compile: arguments.Compile = False,
    decoder: arguments.Decoder = "auto",
    checkpoint_every: arguments.CheckpointEvery = 10.0,
) -> None:
    """Classify images on many machines, and adapt to all of them.

    Encoders work side by side, on CPUs or GPUs. With the policy `ordered` the results are those of `acclimate
    classify`, row for row. A run survives the loss of machines, and --resume continues it after any interruption.
    """
    del plugin, max_pixels  # they took effect when they were parsed
    _classify_on_cluster(ClusterOptions(**locals()))


def _classify_on_cluster(options: ClusterOptions) -> None:
    from acclimate.cluster.connection import import_ray, ray_bar

    import_ray(options.address)
    from acclimate.cluster.cluster_run import classify_on_cluster
    from acclimate.cluster.listing import list_images

    @contextmanager
    def running(classifier: "Classifier", size: str) -> Iterator[tuple[Callable[..., None], Callable[[], bool]]]:
        if sys.stderr.isatty():
            say(f"{_task_line(classifier, len(samples))} · {size}", dim=True, err=True)
        with stop_requests() as stopped, stage_bars(ray_bar if options.ray_progress else progress_bar) as show:
            yield show, stopped

    options.check()
    out = options.open_output()
    names, templates, settings = _read_task(options)
    if arguments.read_parents(options.labels or ""):
        say("note: a cluster answers with labels only; their parents are not used.", err=True)
    samples = arguments.list_images(options.source, options.order, names, options.fps, list_images)
    run, finished = classify_on_cluster(
        options, samples, out, lambda here: _open_classifier(here, names, templates, settings, samples), running
    )
    if not finished:
        where = _stopped_where(run.summary, run.samples)
        say(f"stopped {where}; run the command again with --resume to continue.", err=True)
        raise typer.Exit(130)
    if run.was_complete:
        say(f"{run.out.url} was complete; nothing was left to do.", err=True)
    _say_answers(run.summary, {"Results": run.out.url, "State": None if run.was_complete else run.state})
    say(f"Policy {options.policy}: {run.describe_policy()}.", err=True)
    _say_findings(run.summary, options.unsure, run.classifier)
