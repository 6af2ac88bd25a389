"""`acclimate cluster classify`: the main command on many machines."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from acclimate.cli import arguments
from acclimate.cli.classify import classify as classify_here
from acclimate.cli.classifying import count_answers, read_task, say_findings, set_up, with_options_of
from acclimate.cli.cluster_options import Address, Cpus, Gpus, gpus_for, least_and_most
from acclimate.cli.console import say, stop_requests
from acclimate.cli.progress import progress_bar, stage_bars
from acclimate.errors import InputError

if TYPE_CHECKING:
    from acclimate.classifier import Classifier
    from acclimate.cluster.run import ClusterRun

VERBS = {"first pass": "classifying", "second pass": "second pass"}
MANY = 16 * 1024  # images, from which on more of them make a block
SHARDS = 8  # of merged, however large the cluster is: the results are then the same


@with_options_of(
    classify_here,
    without=("generated", "truth", "report", "follow", "sort_into", "sort_how", "on_error", "workers"),
)
def classify(
    source: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="As for `acclimate classify`, and the same by URL: s3://bucket/photos, wds:s3://bucket/shards.",
            show_default=False,
        ),
    ],
    out: Annotated[str, typer.Option("--out", "-o", help="Folder for the results, in parquet files: a path or URL.")],
    address: Address = None,
    policy: Annotated[
        Literal["ordered", "merged"],
        typer.Option(
            help="ordered: one state adapts in order, as on one machine; merged: several exchange what they learn."
        ),
    ] = "ordered",
    shards: Annotated[
        int | None,
        typer.Option(help="For merged: states that adapt side by side.", min=1, show_default=f"{SHARDS}"),
    ] = None,
    ordered_first: Annotated[
        int,
        typer.Option(help="For merged: images at the beginning that one state adapts to in order; 0 for none.", min=0),
    ] = 2048,
    every: Annotated[
        int | None,
        typer.Option(
            help="Images that a state adapts to between two exchanges, and that a parquet file holds.",
            min=1,
            show_default=f"1024, or 256 for fewer than {MANY:,} images",
        ),
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(help="Encoders: a number, or LEAST:MOST.", show_default="as many as there is room for"),
    ] = None,
    cpus: Cpus = 1.0,
    gpus: Gpus = None,
    adapter_gpus: Annotated[
        float, typer.Option(help="GPUs per adapting state, for many labels and fast encoders.", min=0)
    ] = 0.0,
    state: Annotated[
        str | None, typer.Option(help="Start from this state if it exists, and write it at the end: a path or URL.")
    ] = None,
    passes: Annotated[int | None, arguments.passes("2, merged 1")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue what an interrupted run left in --out.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the results in --out.")] = False,
    ray_progress: Annotated[
        bool, typer.Option("--ray-progress", help="Show Ray Data's own progress as well, and what its workers print.")
    ] = False,
    **given: Any,
) -> None:
    """Classify images on many machines, and adapt to all of them.

    Encoders work side by side, on CPUs or GPUs. With the policy `ordered` the results are those of `acclimate
    classify`, row for row. A run survives the loss of machines, and --resume continues it after any interruption.
    """
    from acclimate.classifier import Classifier
    from acclimate.classify.wording import count
    from acclimate.cluster.connection import connect, import_ray, ray_bar, send_plugins
    from acclimate.cluster.listing import list_images
    from acclimate.cluster.nodes import check_readable, check_shared
    from acclimate.cluster.parts import check_no_results
    from acclimate.cluster.storage import Storage
    from acclimate.encoders.loading import absolute_model
    from acclimate.prompts import example_prompts
    from acclimate.sources.video import is_frame

    import_ray()
    from acclimate.cluster.run import ClusterRun

    if resume and overwrite:
        raise InputError("--resume continues what --overwrite would replace; pass one of them.")
    if policy == "ordered" and shards is not None:
        raise InputError("--shards is for --policy merged; with ordered, one state adapts to all images.")
    if gpus == 0 and str(given["device"]).startswith("cuda"):
        raise InputError(f"--device {given['device']} needs a GPU for each encoder; pass --gpus 1.")
    given["model"] = absolute_model(given["model"])
    asked = None if workers is None else least_and_most(workers, "--workers")
    storage = Storage(out)
    storage.check_writable()
    if not (resume or overwrite):
        check_no_results(storage)
    names = ("labels", "model", "method", "setting", "fitted", "template", "views")
    task = read_task(**{name: given[name] for name in names}, state=state)
    samples = arguments.list_images(source, given["order"], task.names, given["fps"], list_images)
    every = every or (256 if len(samples) < MANY else 1024)
    duplicates = given["skip_duplicates"]
    if duplicates is None:  # only where there is an order do images have predecessors
        duplicates = policy == "ordered" and any(map(is_frame, samples))
    with connect(address, log_to_driver=ray_progress) as there:
        gpus = gpus_for(there, given["model"], given["device"]) if gpus is None else gpus
        room = max(1, there.room(cpus, gpus))
        least, most = asked or (room, room)
        there.check(cpus, gpus, least)
        there.check(0, adapter_gpus)
        if len(there.nodes) > 1:
            check_shared(storage, "--out")
            check_readable(samples[0])
        loading = {name: given[name] for name in ("precision", "compile", "decoder")}
        reading = {name: given[name] for name in ("views", "views_kind", "unsure", "fitted", "method")}
        reading |= {"reject": given["none_of_these"], "skip_duplicates": duplicates, "templates": task.templates}
        reading["batch_size"] = given["batch_size"] or (256 if gpus else None)
        # Here only labels are encoded, and that where encoders have no GPU on the CPU: as on their machines.
        device = "auto" if gpus else "cpu" if given["device"] == "auto" else given["device"]
        with stage_bars() as progress:
            reading |= {"device": device, "progress": progress, **loading}
            classifier = Classifier(task.names, given["model"], **reading, **task.settings)
        if state is not None:
            _load(classifier, state, given["freeze"])
        set_up(classifier, given["origin"], given["freeze"])
        if sys.stderr.isatty():
            shown = example_prompts(classifier.labels, classifier.templates) if classifier.templates else ()
            what = f"{count(len(samples), 'image')}, {count(len(classifier.labels), 'label')}: {' · '.join(shown)}"
            where = f"{count(len(there.nodes), 'node')}, {count(most, 'encoder')}"
            say(f"{what} · {where}", dim=True, err=True)
        send_plugins()
        with stop_requests() as stopped, _run_bars(ray_bar if ray_progress else progress_bar) as show:
            run = ClusterRun(
                classifier=classifier,
                samples=samples,
                out=storage,
                policy=policy,
                shards=shards or (SHARDS if policy == "merged" else 1),
                ordered_first=ordered_first,
                every=every,
                workers=(least, most),
                cpus=cpus,
                gpus=gpus,
                adapter_gpus=adapter_gpus,
                top_k=given["top_k"],
                passes=passes,
                state=None if given["freeze"] else state,
                model={"device": given["device"], **loading},
                checkpoint_every=given["checkpoint_every"],
                progress=lambda done, total, stage: show(done, total, stage, run.kept),
                ray_progress=ray_progress,
                stop=stopped,
            )
            show(0, len(samples), "first pass", 0)
            finished = run.run(resume, overwrite)
    _say_end(run, finished)
    say_findings(run.summary, given["unsure"], classifier)


def _say_end(run: "ClusterRun", finished: bool) -> None:
    """What was done, where it is, and by which policy; a run that was stopped ends the command."""
    from acclimate.classify.wording import count

    images = run.summary.images
    total = len(run.samples)
    if not finished:
        where = "in the second pass" if images == total else f"after {images} of {total} images"
        say(f"stopped {where}; run the command again with --resume to continue.", err=True)
        raise typer.Exit(130)
    if run.was_complete:
        say(f"{run.out.url} was complete; nothing was left to do.", err=True)
    written = {"Results": run.out.url, "State": None if run.was_complete else run.state}
    where = "".join(f" {what}: {path}." for what, path in written.items() if path)
    say(f"{count_answers(run.summary)}.{where}", err=True)
    how = f"one state, in order, {count(run.blocks, 'block')} of {run.every} images"
    if run.policy == "merged":
        first = min(run.blocks, run.ordered_blocks)
        rounds = count(first + -(-(run.blocks - first) // run.shards), "round")
        began = f", the first {first * run.every:,} images in order" if first else ""
        how = f"{count(run.shards, 'shard')}, states exchanged every {run.every} images of each, {rounds}{began}"
    say(f"Policy {run.policy}: {how}.", err=True)


def _load(classifier: "Classifier", state: str, freeze: bool) -> None:
    """Continue from a state on any file system, if there is one."""
    from acclimate.cluster.storage import storage_of

    storage, name = storage_of(state)
    if storage.local and Path(storage.where(name)).is_dir():
        raise InputError(f"--state {state} is a folder; name a file in it.")
    if storage.exists(name):
        with TemporaryDirectory(prefix="acclimate-") as folder:
            path = Path(folder, name)
            path.write_bytes(storage.read(name))
            classifier.load(path)
    elif freeze:
        raise InputError(f"--freeze answers from a state, and there is none at {state}.")
    else:
        storage.check_writable()


@contextmanager
def _run_bars(bar: Callable[..., Any]) -> Iterator[Callable[[int, int, str, int], None]]:
    """A progress bar per stage of a run; called with the images done, their total, the stage, and those done before."""
    with ExitStack() as bars:
        current = ""
        before = 0
        advance: Callable[..., None]

        def show(done: int, total: int, stage: str, kept: int) -> None:
            nonlocal current, before, advance
            if stage != current:
                bars.close()
                current = stage
                before = 0
                advance = bars.enter_context(bar(total, VERBS.get(stage, stage), "images"))
            earlier = max(0, min(kept, done) - before) if stage == "first pass" else 0
            advance(done - before - earlier, "", earlier)
            before = done

        yield show
