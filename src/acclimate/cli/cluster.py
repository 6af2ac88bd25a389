"""`acclimate cluster classify`: the work of `acclimate classify` on many machines."""

import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from acclimate.cli import arguments
from acclimate.cli.classify import (
    _list_samples,
    _read_task,
    _say_answers,
    _say_findings,
    _say_notes,
    _stopped_where,
    _task_line,
)
from acclimate.cli.console import given_options, say, show_predictions, stage_bars, stop_requests
from acclimate.errors import InputError, count

if TYPE_CHECKING:
    from acclimate.classify.task import Encoding, Job, Task
    from acclimate.cluster.cluster_run import Results
    from acclimate.cluster.machines import Pool

SourceUrl = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE",
        help="As for `acclimate classify`, and the same by URL: s3://bucket/photos, wds:s3://bucket/shards.",
        show_default=False,
    ),
]
Out = Annotated[str, typer.Option("--out", "-o", help="Folder for the results, in parquet files: a path or URL.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue --out: with what an interrupted run left, and with new images.")
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace the results and the run of --out, and encode again.")
]
Encoders = Annotated[
    int | None,
    typer.Option("--workers", help="Encoders, at most.", min=1, show_default="as many as there is room for"),
]
State = Annotated[
    str | None,
    typer.Option(
        help="Start from this state if it exists, and write it at the end: a path or URL.",
        rich_help_panel=arguments.ADAPTING,
    ),
]
AnswerDevice = Annotated[
    str,
    typer.Option(
        help="Where the images are answered: cpu, or a GPU that Ray does not give to encoders, such as cuda:3.",
        rich_help_panel=arguments.SPEED,
    ),
]
Passes = Annotated[
    int,
    typer.Option(help=arguments.PASSES_HELP, min=1, max=2, rich_help_panel=arguments.ADAPTING),
]


def classify(
    source: SourceUrl,
    out: Out,
    labels: arguments.LabelsUnlessFitted = None,
    model: arguments.Model = arguments.DEFAULT_MODEL,
    address: arguments.Address = None,
    encoders: Encoders = None,
    cpus: arguments.Cpus = 1.0,
    gpus: arguments.Gpus = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    # answers
    template: arguments.Templates = None,
    expand: arguments.Expand = True,
    top_k: arguments.TopK = 3,
    unsure: arguments.Unsure = 0.0,
    none_of_these: arguments.NoneOfThese = False,
    # adapting
    method: arguments.Method = None,
    setting: arguments.Settings = None,
    plugin: arguments.Plugins = None,
    passes: Passes = 2,
    state: State = None,
    views: arguments.Views = 1,
    # reading
    order: arguments.Order = "auto",
    # speed
    device: AnswerDevice = "cpu",
    encode: arguments.Encode = None,
) -> None:
    """Classify images on many machines: encoders work side by side, and one place adapts to all images in order.

    The results are those of `acclimate classify`, row for row. OUT.run keeps the features of the images: give it to
    `acclimate classify` in the place of the images to answer other labels in seconds.
    """
    from acclimate.cluster.connection import import_ray

    del plugin  # they took effect when they were parsed
    import_ray(address)
    from acclimate.classify.task import Encoding
    from acclimate.cluster.machines import Pool

    encoded = arguments.parse_encoding(encode)
    task = _read_task(
        source,
        labels,
        template,
        method,
        setting,
        state or out,
        encoded,
        expand=expand,
        none_of_these=none_of_these,
        top_k=top_k,
        unsure=unsure,
        passes=passes,
        order=order,
    )
    encoding = Encoding(model=model, views=views, device=device, given=given_options() | encoded.keys(), **encoded)
    _open(task, encoding, Pool(encoders, cpus, gpus), address, out, state, resume, overwrite)


def _open(
    task: "Task",
    encoding: "Encoding",
    pool: "Pool",
    address: str | None,
    out: str,
    state: str | None,
    resume: bool,
    overwrite: bool,
) -> None:
    """Open the run and the state, and classify."""
    from acclimate.classify.task import Job, find_run
    from acclimate.cluster.cluster_run import Results

    if resume and overwrite:
        raise InputError("--resume continues what --overwrite would replace; pass one of them.")
    with TemporaryDirectory(prefix="acclimate-") as copies:
        results = Results(out, Path(copies))
        results.open(resume, overwrite)
        task, encoding, found = find_run(task, encoding, results.local, resume)
        if state := state or (found.answer.get("state") if found is not None else None):
            results.open_state(state)
        job = Job(
            task=task,
            encoding=encoding,
            run=found,
            out=results.local,
            resume=resume,
            overwrite=overwrite,
            state=results.state,
        )
        job.check_out()
        _classify(job, results, pool, address)


def _classify(job: "Job", results: "Results", pool: "Pool", address: str | None) -> None:
    from acclimate.classify.task import open_classifier
    from acclimate.cluster.cluster_run import classify_on_cluster
    from acclimate.cluster.connection import connect, send_plugins
    from acclimate.cluster.machines import alive, check_machines
    from acclimate.run import START
    from acclimate.sources.urls import list_images

    samples = _list_samples(job, list_images)
    with connect(address):
        nodes = alive()
        pool = pool.fit_to(nodes, job.encoding.model, grows=address is not None)
        if address is not None or len(nodes) > 1:
            check_machines(results.folder, samples[0])
        task = replace(job.task, batch_size=job.task.batch_size or (256 if pool.gpus else 32))
        start = results.state if job.run is None else job.run.path / START
        with stage_bars() as progress:
            here = replace(job.encoding, decoder="auto")
            classifier = open_classifier(task, here, job.run, start, progress)
        _say_notes(classifier, task)
        send_plugins()
        if sys.stderr.isatty():
            size = f"{count(len(nodes), 'node')}, {count(pool.encoders or 1, 'encoder')}"
            say(f"{_task_line(classifier, len(samples))} · {size}", dim=True, err=True)
        with stop_requests() as stopped, show_predictions(len(samples), None) as show:
            job.task = task
            run, finished = classify_on_cluster(job, results, pool, classifier, samples, emit=show, stop=stopped)
    if not finished:
        say(f"stopped {_stopped_where(run)}; run the command again with --resume to continue.", err=True)
        raise typer.Exit(130)
    summary = run.summary
    _say_answers(summary, {"Results": results.table.out.url, "Run": results.folder.url, "State": results.state_url})
    _say_findings(summary, task.unsure, run)
