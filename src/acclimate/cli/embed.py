"""`acclimate embed`: images to a feature file, for `acclimate run`."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from acclimate.cli import options
from acclimate.cli.progress import progress_bar
from acclimate.errors import RunError


def embed(
    source: options.Source,
    labels: options.Labels,
    out: Annotated[Path, typer.Option("--out", "-o", help="The feature file to write: .safetensors.")],
    model: options.Model = options.DEFAULT_MODEL,
    template: options.Templates = None,
    order: options.Order = "path",
    batch_size: options.BatchSize = 32,
    workers: options.Workers = None,
    device: options.Device = "auto",
) -> None:
    """Encode images once and store their features; every method then runs on them in seconds.

    Where the source knows the class of every image (folder names, a label column) and it is among the labels, the file
    holds the true labels, and `acclimate run` prints accuracies.
    """
    import numpy as np

    from acclimate.arrays import unit_rows
    from acclimate.classifier import Classifier
    from acclimate.files import check_writable
    from acclimate.sources.base import open_source, order_samples
    from acclimate.stream import FeatureStream, write_stream

    check_writable(out)
    samples = order_samples(open_source(source, sys.stdin), order)
    classifier = Classifier(
        options.read_labels(labels),
        model,
        method="zero-shot",
        templates=options.read_templates(template),
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
