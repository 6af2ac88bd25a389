"""`acclimate embed`: images to a feature file, for `acclimate run`."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from acclimate.cli.classify import DEFAULT_MODEL, MODEL_HELP, SOURCE_HELP, TEMPLATE_HELP


def embed(
    source: Annotated[str, typer.Argument(help=SOURCE_HELP)],
    labels: Annotated[str, typer.Option(help="Labels, separated by commas, or a file with one a line.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The feature file to write: .safetensors.")],
    model: Annotated[str, typer.Option(help=MODEL_HELP)] = DEFAULT_MODEL,
    template: Annotated[list[str] | None, typer.Option(help=TEMPLATE_HELP)] = None,
    order: Annotated[str, typer.Option(help="path (as listed), or seed:N to shuffle.")] = "path",
    batch_size: Annotated[int, typer.Option(help="Images encoded at once.", min=1)] = 32,
    workers: Annotated[int | None, typer.Option(help="Threads that read images.", min=1)] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
) -> None:
    """Encode images once and keep their features; every method then runs on them in seconds.

    Where the source knows each image's class (folder names, a label column) and it is among the labels, the file holds
    true labels for scoring.
    """
    import numpy as np

    from acclimate.arrays import unit_rows
    from acclimate.classifier import Classifier
    from acclimate.cli.progress import progress_bar
    from acclimate.errors import RunError
    from acclimate.files import check_writable
    from acclimate.prompts import parse_template_option, read_labels
    from acclimate.sources.base import open_source, order_samples
    from acclimate.stream import FeatureStream, write_stream

    check_writable(out)
    samples = order_samples(open_source(source, sys.stdin), order)
    classifier = Classifier(
        read_labels(labels),
        model,
        method="zero-shot",
        templates=parse_template_option(template or []),
        batch_size=batch_size,
        workers=workers,
        device=device,
    )
    parts: list[Any] = []
    kept: list[int] = []
    with progress_bar(len(samples), "encoding", "images") as advance:
        position = 0
        for features, errors in classifier.features(samples):
            parts.append(features)
            for i, error in enumerate(errors, position):
                if error is None:
                    kept.append(i)
                else:
                    typer.echo(f"skipped {samples[i].name}: {error}", err=True)
            position += len(errors)
            advance(len(errors))
    if not kept:
        raise RunError(f"none of the {len(samples)} images could be read.")
    known = {label: i for i, label in enumerate(classifier.labels)}
    truth = [known.get(samples[i].label or "") for i in kept]
    adapter: Any = classifier.adapter
    stream = FeatureStream(
        features=unit_rows(np.concatenate(parts).astype(np.float32), "features"),
        class_vectors=adapter.class_vectors,
        logit_scale=adapter.logit_scale,
        class_names=classifier.labels,
        labels=None if None in truth else np.array(truth),
        logit_bias=adapter.logit_bias,
        metadata={
            "encoder": model,
            "files": json.dumps([samples[i].name for i in kept]),
            "n_skipped": str(len(samples) - len(kept)),
        },
    )
    write_stream(stream, out)
    scored = "with true labels" if stream.labels is not None else "without true labels"
    typer.echo(f"{out}: {len(stream)} images {scored}; try `acclimate run {out}`.", err=True)
