"""`acclimate fit`: a few-shot method fitted to labelled images."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acclimate.cli import arguments
from acclimate.cli.arguments import Plugins
from acclimate.cli.console import say
from acclimate.cli.progress import stage_bars
from acclimate.errors import InputError, count

if TYPE_CHECKING:
    from acclimate.sources.source import Sample


def fit(
    source: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE", help="Labelled images: a folder per class, coop:FILE#train, or a list."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write: .safetensors.")],
    method: Annotated[
        str, typer.Option(help="A few-shot method; see `acclimate methods`.")
    ] = arguments.DEFAULT_FEW_SHOT_METHOD,
    setting: arguments.Settings = None,
    plugin: Plugins = None,
    labels: Annotated[
        str | None, typer.Option(help=arguments.LABELS_HELP, show_default="all of the source, sorted")
    ] = None,
    shots: Annotated[int, typer.Option(help="Images per class to fit to.", min=1)] = 16,
    seed: Annotated[int, typer.Option(help="Of the draw of images.", min=0)] = 1,
    validation: Annotated[
        str | None,
        typer.Option(help="Labelled images to choose settings by.", show_default="up to 4 per class of the source"),
    ] = None,
    no_validation: Annotated[
        bool, typer.Option("--no-validation", help="Hold nothing out; keep the settings as they are.")
    ] = False,
    model: arguments.Model = arguments.DEFAULT_MODEL,
    template: arguments.Templates = None,
    views: Annotated[
        int, typer.Option(help="Versions of each image to fit to: itself and random crops of it.", min=1)
    ] = 10,
    max_pixels: arguments.MaxPixels = arguments.DEFAULT_MAX_PIXELS,
    batch_size: arguments.BatchSize = None,
    workers: arguments.Workers = None,
    device: arguments.Device = "auto",
    precision: arguments.Precision = "auto",
    decoder: arguments.Decoder = "auto",
) -> None:
    """Fit a few-shot method to labelled images, and write a file for --fitted of `classify`, `run` and `serve`.

    Images are drawn per class; the same seed draws the same ones, and fewer shots are part of more.
    """
    import numpy as np

    from acclimate.classifier import Classifier
    from acclimate.files import check_writable
    from acclimate.methods import NOTE, find_method, save_state
    from acclimate.prompts import clean_labels
    from acclimate.sources.shots import MOST_HELD_OUT, draw_shots

    check_writable(out)
    if find_method(method).kind != "few-shot":
        raise InputError(f"the method {method!r} learns without labels; use it with `acclimate classify`.")
    settings = arguments.parse_settings(method, setting)
    templates = arguments.read_templates(template)
    if validation is not None and no_validation:
        raise InputError("choose one of --validation and --no-validation.")
    samples = _labelled(source)
    names = clean_labels(sorted({label for _, label in samples})) if labels is None else arguments.read_labels(labels)
    arguments.note_language(names, model)
    known = _of_classes(samples, names)
    most = 0 if no_validation or validation is not None else min(shots, MOST_HELD_OUT)
    classes = np.array([names.index(label) for _, label in known], dtype=np.int64)
    drawn, rest = draw_shots(classes, names, shots, seed, most)
    held = [known[i] for i in rest] if validation is None else _of_classes(_labelled([validation]), names)
    if validation is not None and not held:
        raise InputError(f"no image of {validation} is labelled with one of the classes; check its labels.")
    reading: dict[str, Any] = {"batch_size": batch_size, "workers": workers, "device": device}
    reading |= {"precision": precision, "decoder": decoder}
    with stage_bars() as reading["progress"]:
        classifier = Classifier(names, model, method=method, templates=templates, **reading, **settings)
    images, truth = _split([known[i] for i in drawn])
    try:
        with stage_bars() as show:
            fitted = classifier.fit(images, truth, validation=_split(held), views=views, on_error="skip", progress=show)
    except KeyboardInterrupt:
        say("stopped; nothing was written.", err=True)
        raise typer.Exit(130) from None
    for name, why in fitted.skipped:
        say(f"skipped {name}: {why}", err=True)
    about = {**classifier.about_fit, "seed": seed, "source": " ".join(source)}
    save_state(classifier.adapter, out, {NOTE: about})
    made = f"{method} fitted to {count(fitted.samples, 'image')} of {len(names)} classes"
    scores = ", ".join(f"{name} {100 * accuracy:.2f} %" for name, accuracy in fitted.accuracy.items())
    held_out = count(fitted.validation, "validation image")
    scored = f"accuracy on {held_out}: {scores}" if scores else "no validation images"
    given = f" --model {model}" if model != arguments.DEFAULT_MODEL else ""
    say(f"{out}: {made}; {scored}.", f"Next: acclimate classify PHOTOS{given} --fitted {out}", err=True)


def _labelled(source: Sequence[str]) -> "list[tuple[Sample, str]]":
    """The images of sources with their labels, of which none may be missing."""
    samples = arguments.list_images(source)
    found = [(sample, sample.label) for sample in samples if sample.label is not None]
    if len(found) < len(samples):
        first = next(sample.name for sample in samples if sample.label is None)
        raise InputError(
            f"{len(samples) - len(found)} of the {len(samples)} images of {' '.join(source)} have no label ({first}); "
            "put the images of each class into a folder named after it, or list them with a label column."
        )
    return found


def _of_classes(samples: "list[tuple[Sample, str]]", names: Sequence[str]) -> "list[tuple[Sample, str]]":
    """The images of the named classes, labelled with these names: underscores count as spaces."""
    from acclimate.errors import as_words

    by_words = {as_words(name): name for name in names}
    known = [(sample, by_words[as_words(label)]) for sample, label in samples if as_words(label) in by_words]
    if others := {label for _, label in samples if as_words(label) not in by_words}:
        shown = ", ".join(sorted(others)[:5]) + (", ..." if len(others) > 5 else "")
        say(f"note: images of other classes are left out: {shown}.", err=True)
    return known


def _split(samples: "list[tuple[Sample, str]]") -> "tuple[list[Sample], list[str]]":
    """The images and their labels."""
    return [sample for sample, _ in samples], [label for _, label in samples]
