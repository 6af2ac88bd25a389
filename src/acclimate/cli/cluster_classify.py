"""`acclimate cluster classify`: the main command on many machines."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from acclimate.cli import arguments
from acclimate.cli.classify import (
    open_classifier,
    read_task,
    say_answers,
    say_findings,
    set_up,
    stopped_where,
    task_line,
)
from acclimate.cli.console import say, stop_requests
from acclimate.cli.progress import progress_bar, stage_bars
from acclimate.cluster.cluster_options import DEFAULT_SHARDS, LARGE_JOB_IMAGES, ClusterOptions
from acclimate.errors import count

if TYPE_CHECKING:
    from acclimate.classifier import Classifier
    from acclimate.cluster.run import ClusterRun
    from acclimate.cluster.storage import Storage
    from acclimate.sources import Sample

VERBS = {"first pass": "classifying", "second pass": "second pass"}
Source = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE",
        help="As for `acclimate classify`, and the same by URL: s3://bucket/photos, wds:s3://bucket/shards.",
        show_default=False,
    ),
]
Results = Annotated[str, typer.Option("--out", "-o", help="Folder for the results, in parquet files: a path or URL.")]
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
OrderedFirst = Annotated[
    int,
    typer.Option(help="For merged: images at the beginning that one state adapts to in order; 0 for none.", min=0),
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
AdapterGpus = Annotated[float, typer.Option(help="GPUs per adapting state, for many labels and fast encoders.", min=0)]
StateUrl = Annotated[
    str | None, typer.Option(help="Start from this state if it exists, and write it at the end: a path or URL.")
]
Passes = Annotated[int | None, typer.Option(help=arguments.PASSES_HELP, min=1, max=2, show_default="2, merged 1")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue what an interrupted run left in --out.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the results in --out.")]
RayProgress = Annotated[
    bool, typer.Option("--ray-progress", help="Show Ray Data's own progress as well, and what its workers print.")
]


def classify(
    source: Source,
    out: Results,
    address: arguments.Address = None,
    policy: Policy = "ordered",
    shards: Shards = None,
    ordered_first: OrderedFirst = 2048,
    every: Every = None,
    encoders: Encoders = None,
    cpus: arguments.Cpus = 1.0,
    gpus: arguments.Gpus = None,
    adapter_gpus: AdapterGpus = 0.0,
    state: StateUrl = None,
    passes: Passes = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
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
    _classify(ClusterOptions(**locals()))


def _classify(options: ClusterOptions) -> None:
    from acclimate.cluster.connection import connect, import_ray
    from acclimate.cluster.listing import list_images
    from acclimate.cluster.nodes import check_readable, check_shared
    from acclimate.cluster.parts import check_no_results
    from acclimate.cluster.storage import Storage
    from acclimate.encoders.loading import absolute_model

    import_ray()
    options.check()
    options = replace(options, model=absolute_model(options.model))
    storage = Storage(str(options.out))
    storage.check_writable()
    if not (options.resume or options.overwrite):
        check_no_results(storage)
    names, templates, settings = read_task(options)
    samples = arguments.list_images(options.source, options.order, names, options.fps, list_images)
    if options.policy == "merged" and options.skip_duplicates is None:
        options = replace(options, skip_duplicates=False)  # images have predecessors only where there is one order
    with connect(options.address, log_to_driver=options.ray_progress) as there:
        options, workers = options.fit_to(there)
        if len(there.nodes) > 1:
            check_shared(storage, "--out")
            check_readable(samples[0])
        classifier = open_classifier(options.for_driver(), names, templates, settings, samples)
        options.load_state(classifier)
        set_up(classifier, options)
        if sys.stderr.isatty():
            where = f"{count(len(there.nodes), 'node')}, {count(workers[1], 'encoder')}"
            say(f"{task_line(classifier, len(samples))} · {where}", dim=True, err=True)
        run, finished = _run(options, classifier, samples, storage, workers)
    _say_end(run, finished)
    say_findings(run.summary, options.unsure, classifier)


def _run(
    options: ClusterOptions,
    classifier: "Classifier",
    samples: "Sequence[Sample]",
    storage: "Storage",
    workers: tuple[int, int],
) -> tuple["ClusterRun", bool]:
    """Classify the images and show progress; returns the run, and False if it was stopped."""
    from acclimate.cluster.connection import ray_bar, send_plugins
    from acclimate.cluster.run import ClusterRun

    send_plugins()
    shown: dict[str, int] = {}  # stage -> images that its bar shows

    def progress(done: int, total: int, stage: str) -> None:
        before = shown.get(stage, 0)
        earlier = max(0, min(run.kept, done) - before) if stage == "first pass" else 0
        show(VERBS[stage], done - before - earlier, total, earlier)
        shown[stage] = done

    with stop_requests() as stopped, stage_bars(ray_bar if options.ray_progress else progress_bar) as show:
        run = ClusterRun(
            classifier=classifier,
            samples=samples,
            out=storage,
            policy=options.policy,
            shards=options.shards or (DEFAULT_SHARDS if options.policy == "merged" else 1),
            ordered_first=options.ordered_first,
            every=options.block_images(len(samples)),
            workers=workers,
            cpus=options.cpus,
            gpus=options.gpus or 0.0,
            adapter_gpus=options.adapter_gpus,
            top_k=options.top_k,
            passes=options.passes,
            state=None if options.freeze or options.state is None else str(options.state),
            model={name: getattr(options, name) for name in ("device", "precision", "compile", "decoder")},
            checkpoint_every=options.checkpoint_every,
            progress=progress,
            ray_progress=options.ray_progress,
            stop=stopped,
        )
        show(VERBS["first pass"], 0, len(samples))
        return run, run.run(options.resume, options.overwrite)


def _say_end(run: "ClusterRun", finished: bool) -> None:
    """Say what was done, where it is, and by which policy; a run that was stopped ends the command."""
    if not finished:
        where = stopped_where(run.summary, run.samples)
        say(f"stopped {where}; run the command again with --resume to continue.", err=True)
        raise typer.Exit(130)
    if run.was_complete:
        say(f"{run.out.url} was complete; nothing was left to do.", err=True)
    say_answers(run.summary, {"Results": run.out.url, "State": None if run.was_complete else run.state})
    say(f"Policy {run.policy}: {run.describe_policy()}.", err=True)
