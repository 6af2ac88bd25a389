"""`acclimate embed`: images to a feature file, for `acclimate run`."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from acclimate.cli import arguments
from acclimate.cli.console import progress_bar, say, stage_bars
from acclimate.errors import RunError, count

if TYPE_CHECKING:
    from acclimate.arrays import HostArray
    from acclimate.reading.walk import Preparer
    from acclimate.sources import Sample
    from acclimate.stream import FeatureStream


def embed(
    source: arguments.Source,
    labels: Annotated[str, typer.Option(help=arguments.LABELS_HELP)],
    out: Annotated[Path, typer.Option("--out", "-o", help="The feature file to write: .safetensors or .npz.")],
    model: arguments.Model = arguments.DEFAULT_MODEL,
    template: arguments.Templates = None,
    expand: arguments.Expand = True,
    views: arguments.Views = 1,
    views_kind: arguments.ViewsKind = None,
    generated: arguments.Generated = None,
    order: arguments.Order = "path",
    fps: arguments.Fps = 1.0,
    max_pixels: arguments.MaxPixels = arguments.DEFAULT_MAX_PIXELS,
    batch_size: arguments.BatchSize = None,
    workers: arguments.Workers = None,
    device: arguments.Device = "auto",
    precision: arguments.Precision = "auto",
    compile: arguments.Compile = False,
    decoder: arguments.Decoder = "auto",
) -> None:
    """Encode images once and store their features; every method then runs on them in seconds.

    Where the source knows the class of every image (folder names, a label column) and it is among the labels, the file
    holds the true labels, and `acclimate run` prints accuracies.
    """
    from time import perf_counter

    from acclimate import FeatureStream, build_head, load_encoder, write_stream
    from acclimate.files import check_writable
    from acclimate.prompts.templates import DEFAULT_SET
    from acclimate.reading.walk import Preparer
    from acclimate.stream import check_stream_path
    from acclimate.views.generated import open_generator

    check_stream_path(out)
    check_writable(out)
    names = arguments.read_labels(labels)
    templates = arguments.read_templates(template)
    arguments.note_language(names, model)
    samples = arguments.list_images(source, order, names, fps)
    encoder = load_encoder(model, device, precision, compile)
    with stage_bars() as show:
        head = build_head(encoder, names, templates, None, partial(show, "encoding the labels"), expand=expand)
    generator = None if generated is None else open_generator(generated, device)
    prepare = Preparer(encoder, views, kind=views_kind or "augmix", generator=generator, decoder=decoder)
    began = perf_counter()
    features, kept = encode_images(samples, prepare, batch_size, workers)
    stream = FeatureStream(
        features=head.unit_features(features),
        head=head,
        labels=_true_classes(head.class_names, [samples[i].label for i in kept]),
        files=tuple(samples[i].name for i in kept),
        encoder=model,
        prompts=", ".join(template or [DEFAULT_SET]),
        views_kind=prepare.kind if views > 1 else "",
        skipped=len(samples) - len(kept),
        encode_s=perf_counter() - began,
    )
    write_stream(stream, out)
    _say_written(stream, out)


def _say_written(stream: "FeatureStream", out: Path) -> None:
    from acclimate.prompts.spelling import expansion_note

    scored = "without" if stream.labels is None else "with"
    if note := expansion_note(stream.head.expanded):
        say(f"note: {note}", err=True)
    say(f"{out}: {count(len(stream), 'image')} {scored} true labels; try `acclimate run {out}`.", err=True)


def _true_classes(class_names: Sequence[str], labels: Sequence[str | None]) -> "HostArray | None":
    """Return the class indices of labels; None if one of them is not a class."""
    import numpy as np

    classes = {label: i for i, label in enumerate(class_names)}
    return np.array([classes[label or ""] for label in labels]) if classes.keys() >= {*labels} else None


def encode_images(
    samples: "Sequence[Sample]",
    prepare: "Preparer",
    batch_size: int | None,
    workers: int | None,
    on_error: Literal["skip", "raise"] = "skip",
) -> "tuple[HostArray, list[int]]":
    """Encode images and show progress.

    Returns:
        Features of the images that could be read, and the indices of these; the others are named on stderr.

    Raises:
        RunError: no image could be read.
    """
    import numpy as np

    from acclimate.arrays import to_host
    from acclimate.reading.walk import encode_ahead

    features = []
    kept: list[int] = []
    with progress_bar(len(samples), "encoding", "images") as advance:
        for batch in encode_ahead(samples, prepare, batch_size=batch_size, workers=workers, on_error=on_error):
            features.append(to_host(batch.features))
            kept += batch.readable
            for name, error in zip(batch.names, batch.errors, strict=True):
                if error is not None:
                    say(f"skipped {name}: {error}", err=True)
            advance(len(batch.names))
    if not kept:
        raise RunError("no image could be read.")
    return np.concatenate(features), kept
