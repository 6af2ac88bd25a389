"""`acclimate fit`: a few-shot method fitted to labelled images."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acclimate.cli import arguments
from acclimate.cli.console import interruptible, say, stage_bars
from acclimate.errors import InputError, as_words, count

if TYPE_CHECKING:
    from acclimate import Adapter
    from acclimate.sources.source import Sample

Source = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE",
        help="Labelled images: a folder per class, coop:FILE#train, or a list; or a run or feature file.",
    ),
]
Labels = Annotated[str | None, typer.Option(help=arguments.LABELS_HELP, show_default="all of the source, sorted")]
Validation = Annotated[
    str | None,
    typer.Option(help="Labelled images to choose settings by.", show_default="up to 4 per class of the source"),
]
NoValidation = Annotated[bool, typer.Option("--no-validation", help="Hold nothing out; keep the settings as they are.")]
Views = Annotated[int, typer.Option(help="Versions of each image to fit to: itself and random crops of it.", min=1)]


def fit(
    source: Source,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write: .safetensors.")],
    method: Annotated[str, typer.Option(help="A few-shot method; see `acclimate methods`.")] = "tip-adapter-f",
    setting: arguments.Settings = None,
    plugin: arguments.Plugins = None,
    labels: Labels = None,
    shots: Annotated[int, typer.Option(help="Most images per class to fit to.", min=1)] = 16,
    seed: Annotated[int, typer.Option(help="Of the draw of images.", min=0)] = 1,
    validation: Validation = None,
    no_validation: NoValidation = False,
    model: arguments.Model = arguments.DEFAULT_MODEL,
    template: arguments.Templates = None,
    views: Views = 10,
    device: arguments.Device = "auto",
) -> None:
    """Fit a few-shot method to labelled images or features, and write a file for `classify --state` and `run --fitted`.

    Images are drawn per class; the same seed draws the same ones, and fewer shots are part of more. Where
    some class has fewer images, classes give what they have, apart from a fifth for validation. A run or a feature file
    has classes, class vectors and versions of its own, and no image is encoded.
    """
    from acclimate.classifier import Classifier
    from acclimate.files import check_writable
    from acclimate.methods import NOTE, find_method, save_state
    from acclimate.run import is_run
    from acclimate.sources.source import MOST_HELD_OUT

    check_writable(out)
    if validation is not None and no_validation:
        raise InputError("choose one of --validation and --no-validation.")
    if find_method(method).kind != "few-shot":
        raise InputError(f"the method {method!r} learns without labels; use it with `acclimate classify`.")
    settings = arguments.parse_settings(method, setting)
    held_out = 0 if no_validation or validation is not None else min(shots, MOST_HELD_OUT)
    if len(source) == 1 and (is_run(source[0]) or Path(source[0]).suffix in (".safetensors", ".npz", ".pt")):
        if labels is not None or template is not None:
            raise InputError(f"{source[0]} has classes and prompts of its own; leave out --labels and --template.")
        _fit_stored(Path(source[0]), out, method, settings, model, shots, seed, validation, held_out)
        return
    templates = arguments.read_templates(template)
    names, drawn, held = _draw(source, labels, model, shots, seed, validation, held_out)
    encoded = count(views * len(drawn) + len(held), "image")
    say(f"{count(len(drawn), 'image')} in {count(views, 'version')} each: as long as to classify {encoded}.", err=True)
    with interruptible("nothing was written."), stage_bars() as show:
        classifier = Classifier(
            names, model, method=method, device=device, templates=templates, progress=show, **settings
        )
        truth, held_truth = ([str(sample.label) for sample in each] for each in (drawn, held))
        fitted = classifier.fit(
            drawn, truth, validation=(held, held_truth), views=views, on_error="skip", progress=show
        )
    for name, why in fitted.skipped:
        say(f"skipped {name}: {why}", err=True)
    save_state(classifier.adapter, out, {NOTE: {**classifier.about_fit, "seed": seed, "source": " ".join(source)}})
    _report(out, classifier.adapter, classifier.about_fit, shots, fitted.accuracy, fitted.validation)
    given = f" --model {model}" if model != arguments.DEFAULT_MODEL else ""
    say(f"Next: acclimate classify PHOTOS{given} --state {out}", err=True)


def _report(
    out: Path, adapter: "Adapter", about: Mapping[str, Any], shots: int, accuracy: Mapping[str, float], held: int
) -> None:
    """Say on stderr what was fitted, and how well it answers validation images."""
    from acclimate.methods.few_shot import describe_shots

    if about["shots"] < shots:
        say(f"note: not every class has {shots} images to fit to; it is fitted to {describe_shots(about)}.", err=True)
    made = f"{adapter.name} fitted to {count(adapter.samples_seen, 'image')} of {len(adapter.head)} classes"
    named = {"zero-shot": "model alone"}
    scores = ", ".join(f"{named.get(name, name)} {100 * right:.2f} %" for name, right in accuracy.items())
    validated = f"accuracy on {count(held, 'validation image')}: {scores}"
    say(f"{out}: {made}; {validated if scores else 'no validation images'}.", err=True)


def _fit_stored(
    source: Path,
    out: Path,
    method: str,
    settings: Mapping[str, Any],
    model: str,
    shots: int,
    seed: int,
    validation: str | None,
    held_out: int,
) -> None:
    """Fit to the features of a run or a feature file; validation samples have one view.

    The model is loaded only for its text tower.
    """
    import numpy as np

    from acclimate.encoders import load_encoder
    from acclimate.methods import NOTE, FewShot, create, find_method, save_state
    from acclimate.sources.source import draw_shots
    from acclimate.stream import original_views, read_stream

    stream = read_stream(source)
    if stream.targets is None:
        raise InputError(f"{source} has no labels to fit to; encode images whose source knows their classes.")
    known = np.flatnonzero(stream.targets >= 0)
    targets = stream.targets[known]
    encoder = load_encoder(model) if "text" in find_method(method).needs else None
    adapter = create(method, stream.head, encoder, **settings)
    assert isinstance(adapter, FewShot)
    drawn, rest = draw_shots(targets, stream.head.class_names, shots, seed, held_out, allow_fewer=True)
    held = original_views(stream).features[known[rest]], targets[rest]
    if validation is not None:
        other = read_stream(validation)
        if other.targets is None or other.head.class_names != stream.head.class_names:
            raise InputError(f"{validation} must have labels, and the classes of {source}.")
        chosen = np.flatnonzero(other.targets >= 0)
        held = original_views(other).features[chosen], other.targets[chosen]
    with interruptible("nothing was written."), stage_bars() as show:
        steps = adapter.fit_steps(len(drawn), len(held[1]))
        validated = held if len(held[1]) else None
        features = stream.features[known[drawn]]
        adapter.fit(features, targets[drawn], validation=validated, progress=lambda done: show("fitting", done, steps))
    counts = np.bincount(targets[drawn])
    about = {
        "model": stream.encoder,
        "fingerprint": stream.notes.get("fingerprint", ""),
        "shots": int(counts.min()),
        "most_shots": int(counts.max()),
        "templates": stream.prompts.split(", "),
        "seed": seed,
        "source": str(source),
    }
    save_state(adapter, out, {NOTE: about})
    accuracy = {}
    if validated is not None:
        answers = {"zero-shot": adapter.head.observe(held[0]).logits, adapter.name: adapter.step(held[0])}
        accuracy = {name: float((each.argmax(axis=1) == held[1]).mean()) for name, each in answers.items()}
    _report(out, adapter, about, shots, accuracy, len(held[1]))
    say(f"Next: acclimate run TEST.run --fitted {out}", err=True)


def _draw(
    source: Sequence[str],
    labels: str | None,
    model: str,
    shots: int,
    seed: int,
    validation: str | None,
    held_out: int,
) -> "tuple[tuple[str, ...], list[Sample], list[Sample]]":
    """Return the classes, the images to fit to, and those to choose settings by."""
    import numpy as np

    from acclimate.sources.source import draw_shots

    names, known = _labelled(source, None if labels is None else arguments.read_labels(labels))
    arguments.note_language(names, model)
    classes = np.array([names.index(str(sample.label)) for sample in known], dtype=np.int64)
    drawn, rest = draw_shots(classes, names, shots, seed, held_out, allow_fewer=True)
    held = [known[i] for i in rest] if validation is None else _labelled([validation], names)[1]
    if validation is not None and not held:
        raise InputError(f"no image of {validation} is labelled with one of the classes; check its labels.")
    return names, [known[i] for i in drawn], held


def _labelled(source: Sequence[str], names: tuple[str, ...] | None) -> "tuple[tuple[str, ...], list[Sample]]":
    """Return the classes, by default all labels of the images, and the images of these classes.

    Images are labelled with the names of the classes: underscores count as spaces.
    """
    from acclimate.prompts import clean_labels

    samples = arguments.list_images(source)
    if without := [sample.name for sample in samples if sample.label is None]:
        raise InputError(
            f"{len(without)} of the {len(samples)} images of {' '.join(source)} have no label ({without[0]}); "
            "put the images of each class into a folder named after it, or list them with a label column."
        )
    names = names or clean_labels(sorted({str(sample.label) for sample in samples}))
    by_words = {as_words(name): name for name in names}
    labels = [by_words.get(as_words(str(sample.label))) for sample in samples]
    if others := {str(sample.label) for sample, label in zip(samples, labels, strict=True) if label is None}:
        shown = ", ".join(sorted(others)[:5]) + (", ..." if len(others) > 5 else "")
        say(f"note: images of other classes are left out: {shown}.", err=True)
    return names, [replace(sample, label=label) for sample, label in zip(samples, labels, strict=True) if label]
