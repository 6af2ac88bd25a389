"""`acclimate embed`: images to a run, or to a feature file for exchange."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acclimate.cli import arguments
from acclimate.cli.console import interruptible, say, show_encoding, stage_bars
from acclimate.errors import InputError, RunError, count

if TYPE_CHECKING:
    from acclimate.evidence import Head
    from acclimate.prompts import LearnedPrompts
    from acclimate.reading.walk import Preparer
    from acclimate.run import Run
    from acclimate.sources.source import Sample

DATASET = "dataset:"
Labels = Annotated[str | None, typer.Option(help=arguments.LABELS_HELP, show_default="the classes of a dataset:")]
Out = Annotated[
    Path, typer.Option("--out", "-o", help="The run to write, NAME.run; or a feature file: .safetensors or .npz.")
]
Data = Annotated[
    Path | None,
    typer.Option(envvar="ACCLIMATE_DATA", help="The folder of the paper's datasets, for dataset:KEY[#SPLIT[:N]]."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Encode the images that the run does not have yet.")]


@dataclass(frozen=True)
class Job:
    """Images to be encoded, and what their head is made of.

    Attributes:
        samples: the images.
        labels: names of the classes.
        templates: prompts.
        names: names of the templates, as the run records them.
        about: what the run records of a dataset; {} for other images.
    """

    samples: "Sequence[Sample]"
    labels: tuple[str, ...]
    templates: "list[str] | dict[str, list[str]] | LearnedPrompts"
    names: list[str]
    about: dict[str, Any]


def embed(
    source: arguments.Source,
    out: Out,
    labels: Labels = None,
    data: Data = None,
    model: arguments.Model = arguments.DEFAULT_MODEL,
    template: arguments.Templates = None,
    expand: arguments.Expand = True,
    views: arguments.Views = 1,
    resume: Resume = False,
    device: arguments.Device = "auto",
    encode: arguments.Encode = None,
) -> None:
    """Encode images once and keep their features; every method then runs on them in seconds.

    Where the source knows the class of an image (folder names, a label column, a dataset) and it is among the labels,
    `acclimate run` scores the answer.
    """
    from acclimate.encoders import load_encoder
    from acclimate.prompts import build_head
    from acclimate.prompts.spelling import expansion_note
    from acclimate.reading.walk import Preparer
    from acclimate.run import SUFFIX
    from acclimate.stream import read_stream, write_stream
    from acclimate.views.generated import open_generator

    _check_out(out, resume)
    of_dataset = source[0].startswith(DATASET)
    encoded = arguments.parse_encoding(encode)
    if of_dataset:
        job = _dataset_job(source[0], data, labels, template)
    else:
        job = _image_job(source, labels, template, model, encoded.get("fps", 1.0))
    encoder = load_encoder(model, device, encoded.get("precision", "auto"), encoded.get("compile", False))
    prepare = Preparer(
        encoder,
        views,
        kind=encoded.get("views_kind", "augmix"),
        generator=open_generator(encoded["generated"], device) if "generated" in encoded else None,
        upright=not of_dataset,  # benchmarks read images as they are stored, whatever their EXIF data say
        decoder=encoded.get("decoder", "pillow" if of_dataset else "auto"),
    )
    with stage_bars() as show:
        bar = partial(show, "encoding the labels")
        head = build_head(encoder, job.labels, job.templates, progress=bar, expand=expand and not of_dataset)
    if note := expansion_note(head.expanded):
        say(f"note: {note}", err=True)
    with TemporaryDirectory() as folder:
        path = out if out.suffix == SUFFIX else Path(folder) / f"{out.stem}.run"
        run = _open_run(path, {"model": model, **prepare.about, **job.about}, resume, job)
        with interruptible(
            f"what was encoded is in {out}; --resume continues." if path == out else "nothing was written."
        ):
            _encode(run, job, head, prepare, encoded)
        stream = read_stream(path)
        if path != out:
            write_stream(stream, out)
    known = 0 if stream.targets is None else int((stream.targets >= 0).sum())
    scored = f", {known:,} of them with true labels" if known else " without true labels"
    say(f"{out}: {count(len(stream), 'image')}{scored}; try `acclimate run {out}`.", err=True)


def _check_out(out: Path, resume: bool) -> None:
    from acclimate.files import check_writable
    from acclimate.run import SUFFIX
    from acclimate.stream import check_stream_path

    if out.suffix != SUFFIX:
        if resume:
            raise InputError(f"--resume continues a run; choose an --out that ends in {SUFFIX}.")
        check_stream_path(out)
        check_writable(out)


def _image_job(source: list[str], labels: str | None, template: list[str] | None, model: str, fps: float) -> Job:
    from acclimate.prompts.templates import DEFAULT_SET

    if labels is None:
        raise InputError('name the classes with --labels: a file, or "cat, dog".')
    names = arguments.read_labels(labels)
    arguments.note_language(names, model)
    samples = arguments.list_images(source, "path", names, fps)
    return Job(samples, names, arguments.read_templates(template), template or [DEFAULT_SET], {})


def _dataset_job(spec: str, data: Path | None, labels: str | None, template: list[str] | None) -> Job:
    """Return a dataset with its class names, by default in the prompts of its own template set."""
    from acclimate.prompts import prompts_for
    from acclimate.sources.datasets import open_dataset

    if data is None or labels is not None:
        raise InputError(f"{spec} needs --data, the folder of the datasets, and has class names of its own.")
    listing = open_dataset(spec.removeprefix(DATASET), data)
    for warning in listing.warnings:
        say(f"warning: {listing.dataset.key}: {warning} The figures are not those of the benchmark.", err=True)
    dataset = listing.dataset
    names = template or [dataset.key]
    templates = arguments.read_templates(names)
    if isinstance(templates, list):
        templates = dict(zip(dataset.labels, prompts_for(dataset.class_names, templates), strict=True))
    about = {"dataset": dataset.key, "split": listing.split, "domains": dataset.domains}
    return Job(listing.samples, dataset.labels, templates, names, about)


def _open_run(path: Path, features: dict[str, Any], resume: bool, job: Job) -> "Run":
    """Begin a run, or open the one that is to be continued, whose features must be made in the same way."""
    from acclimate.run import Run, is_run

    if not resume:
        if is_run(path):
            raise InputError(f"{path} is there already; continue it with --resume, or remove it first.")
        return Run.create(path, features)
    run = Run.open(path)
    for name, value in features.items():
        if name != "device" and run.features.get(name) != value:
            raise InputError(
                f"{path} has the {name} {run.features.get(name)!r}, not {value!r}; encode into another --out."
            )
    if run.names != [sample.name for sample in job.samples[: run.images]]:
        raise InputError(f"{path} begins with other images than the source; encode into another --out.")
    return run


def _encode(run: "Run", job: Job, head: "Head", prepare: "Preparer", encoded: dict[str, Any]) -> None:
    """Append the images that a run does not have yet; name those that cannot be read on stderr."""
    from acclimate.reading.walk import encode_ahead
    from acclimate.run import RunWriter

    run.answer = {"labels": list(head.class_names), "templates": job.names}
    run.save()
    run.write_head(*head.to_file())
    begun = run.images
    writer = RunWriter(run)
    complete = False
    how = {name: encoded[name] for name in ("batch_size", "workers") if name in encoded}
    batches = encode_ahead(job.samples[begun:], prepare, start=begun, **how)
    try:
        for batch in show_encoding(batches, len(job.samples), begun):
            writer.append(batch)
        complete = True
    finally:
        writer.close(complete)
    if not len(run.stored_features):
        raise RunError("no image could be read.")
