"""Methods on the paper's datasets: accuracies on encoded features, and times from the image file to the answer.

Each dataset is encoded once for each kind of views, and all settings with the same prompts share one pass over it.
Few-shot methods are fitted to ImageNet's training images, as the train-time rows of the paper's tables are. Shots are
drawn by a seed and encoded into the feature store. A fitted adapter is a state file in the store; its name ends in a
fingerprint of everything it depends on, so that it is read where it was fitted before.

The recipes of the paper's tables and figures are planned here, on its datasets or on feature files: what runs, and what
cannot run here and why.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from acclimate.arrays import HostArray, to_host
from acclimate.bench import Advance, Progress, silent
from acclimate.bench.comparison import BACKBONES, backbone
from acclimate.bench.datasets import DATASETS, Dataset, Listing, dataset_named, present_datasets, read_dataset
from acclimate.bench.measurements import read_labelled
from acclimate.bench.orders import stream_order, take_order
from acclimate.bench.prequential import Outcome, Record, Variant, compare, on_device
from acclimate.bench.recipes import SEARCHED, Recipe, row_of, trained_on, with_authors_settings
from acclimate.bench.results import (
    OF_FILE,
    Score,
    read_results,
    reset_peak_memory,
    score_all,
    summarise,
    write_results,
)
from acclimate.bench.store import FeatureStore, check_readable, digest, template_name
from acclimate.encoders import Encoder
from acclimate.errors import InputError, ModelError, StateError
from acclimate.evidence import Head
from acclimate.files import writing
from acclimate.methods import (
    NOTE,
    Adapter,
    FewShot,
    describe_fit,
    duplicate,
    find_method,
    load_fitted,
    require,
    save_state,
)
from acclimate.prompts.templates import LEARNED_PREFIX, LearnedPrompts, template_sets
from acclimate.reading.walk import encode_ahead, gpu_of
from acclimate.sources.source import MOST_HELD_OUT, draw_shots
from acclimate.stream import FeatureStream
from acclimate.views import Kind
from acclimate.views.generated import open_generator

IMAGENET = DATASETS["imagenet"]
TRAINING = replace(IMAGENET, images="images/train")  # folders named by WordNet ids, like the validation images
DRAW_SEED = 1
Settings = Mapping[str, Mapping[str, Any]]  # method -> settings given by the user


@dataclass
class Trainer:
    """Few-shot methods fitted to ImageNet's training images, each once: the store keeps what was fitted.

    Attributes:
        store: the images, the model and the folder of what is fitted.
        shots: training images per class; None for the number of each row.
    """

    store: FeatureStore
    shots: int | None = None
    _drawn: dict[int, tuple[Listing, Listing]] = field(default_factory=dict, init=False)

    def draw(self, row: Variant) -> tuple[Listing, Listing]:
        """Draw the shots of a row, and other images of the same classes; InputError if there are too few images."""
        count = self.shots or row.shots
        if count not in self._drawn:
            every = read_dataset(TRAINING, self.store.root)
            shots, rest = draw_shots(every.labels, IMAGENET.class_names, count, DRAW_SEED, MOST_HELD_OUT)
            self._drawn[count] = (every.part(shots), every.part(rest))
        return self._drawn[count]

    def fitted(self, variant: Variant, dataset: Dataset, head: Head) -> Variant:
        """Return what to run on a dataset with that head: a variant, with a fitted adapter if it is few-shot.

        Where settings are searched, this is done on ImageNet's validation images. If these are the test images, other
        training images take their place; if there are none, the settings stay as they are.
        """
        if find_method(variant.method).kind != "few-shot":
            return variant
        if variant.fitted is not None:
            adapter = duplicate(variant.fitted)
            if adapter.head.class_names != head.class_names:
                adapter.relabel(head)
            return replace(variant, fitted=adapter)
        shots, rest = self.draw(variant)
        validation = None
        trained = trained_on(self.shots or variant.shots)
        if variant.validation:
            unseen = dataset.key != IMAGENET.key
            validation = read_dataset(IMAGENET, self.store.root) if unseen else rest or None
            held_out = f" (settings searched on other training images, up to {MOST_HELD_OUT} per class)" if rest else ""
            trained += SEARCHED if unseen else held_out
        adapter = self._adapter(variant, shots, validation)
        names = zip(IMAGENET.wnids, adapter.head.class_names, strict=True)
        if not dataset.wnids:
            adapter.relabel(head)
        elif gone := [name for wnid, name in names if wnid not in dataset.wnids]:
            adapter.remove_classes(gone)  # the others stay in the order that all kinds of ImageNet have: by WordNet id
        return replace(variant, fitted=adapter, trained=trained)

    def _adapter(self, variant: Variant, shots: Listing, validation: Listing | None) -> FewShot:
        """Return the adapter with all classes of ImageNet; it is read from the store if it was fitted before."""
        store = self.store
        # Each shot is the image and 15 random crops; the authors crop anew in each epoch.
        versions = replace(variant, views=16, views_kind=None)
        original = replace(variant, views=1)
        description = {
            "method": variant.method,
            "settings": variant.config,
            "prompts": variant.prompts,
            "shots": store.describe(shots, store.preparer(TRAINING, versions)),
            "validation": validation and store.describe(validation, store.preparer(IMAGENET, original)),
        }
        path = store.folder / "fitted" / f"{variant.method}-{digest(description)}.safetensors"
        with suppress(StateError):  # missing or damaged
            return load_fitted(path, store.encoder, store.model)[0]
        with store.progress(len(shots), "encoding shots of imagenet", "images") as advance:
            stream = store.stream(shots, versions, advance)
        held_out = None
        if validation is not None:
            with store.progress(len(validation), "encoding validation images of imagenet", "images") as advance:
                held_out = (store.stream(validation, original, advance).features, validation.labels)
        head = on_device(stream.head, gpu_of(store.encoder) or "numpy")
        adapter = variant.adapter(head, text=store.encoder)
        assert isinstance(adapter, FewShot)
        with store.progress(
            adapter.fit_steps(len(shots), len(validation or ())), f"fitting {variant.method}", "steps"
        ) as advance:
            adapter.fit(stream.features, shots.labels, validation=held_out, progress=advance)
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        save_state(
            adapter,
            path,
            {
                NOTE: {
                    "model": store.model,
                    "fingerprint": store.encoder.fingerprint,
                    "seed": DRAW_SEED,
                    "shots": len(shots) // len(head),
                    "templates": template_name(IMAGENET, variant),
                    "source": "ImageNet's training images",
                }
            },
        )
        return adapter


def run_suite(
    store: FeatureStore,
    datasets: Sequence[Dataset],
    methods: Sequence[str],
    out: Path,
    *,
    orders: Sequence[str] = ("shuffled:1",),
    settings: str = "paper",
    prompts: str = "dataset",
    views: int | str = "paper",
    views_kind: Kind | None = None,
    skip_existing: bool = True,
    fitted: Path | None = None,
) -> list[Score]:
    """Run methods on datasets, write one JSON file per dataset and method, and return all scores.

    With `skip_existing`, what has a result in `out` is not run again, so that an interrupted suite continues, unless
    the fitted file or the learned prompts are newer. `fitted` is the file of a few-shot method that runs beside the
    others. Prompts, views and their kind are as in `Variant`.
    """
    learned = Path(prompts.removeprefix(LEARNED_PREFIX)) if prompts.startswith(LEARNED_PREFIX) else None
    if learned is not None:
        LearnedPrompts.load(learned)
    elif prompts not in (known := ("dataset", *template_sets())):
        raise InputError(f"unknown prompts {prompts!r}; choose from {', '.join(known)} or {LEARNED_PREFIX}FILE.")
    how: dict[str, Any] = {"prompts": prompts, "views": views, "views_kind": views_kind}
    rows = [Variant(method, settings_name="paper", **how) for method in methods]
    if fitted is not None:
        adapter, about = load_fitted(fitted, store.encoder, store.model)
        trained = describe_fit(about).removeprefix("fitted to ")
        rows.append(Variant(adapter.name, adapter.settings, f"fitted as {fitted.stem}", adapter, trained, **how))
    paths: dict[tuple[str, str], Path] = {}
    missing: dict[str, list[Variant]] = {}
    for dataset in datasets:
        for row in rows:
            authors = settings == "authors-per-dataset" and row.fitted is None
            variant = with_authors_settings(row, dataset) if authors else row
            path = paths[dataset.key, variant.method] = out / result_name(store.model, dataset, variant, orders)
            used = (learned, fitted if variant.fitted else None)
            newest = max((file.stat().st_mtime for file in used if file is not None), default=0.0)
            if not (skip_existing and path.is_file() and path.stat().st_mtime >= newest):
                missing.setdefault(dataset.key, []).append(variant)
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    listings = list_datasets(store.root, missing, orders)
    trainer = Trainer(store)
    for key, variants in missing.items():
        for variant in variants:
            _check_runnable(store, trainer, DATASETS[key], variant)
    for key, variants in missing.items():
        for score in run_dataset(store, trainer, listings[key], variants, orders):
            write_results([score], paths[key, score.method])
    return [score for path in paths.values() for score in read_results(path)]


def _check_runnable(store: FeatureStore, trainer: Trainer, dataset: Dataset, variant: Variant) -> None:
    method = find_method(variant.method)
    require(method, views=dataset.views_of(variant.views) > 1, labels=variant.fitted is not None, text=True)
    if "text" in method.needs and (lack := text_lack(store.encoder)):
        raise InputError(f"the method {variant.method!r} needs {lack}.")
    if variant.fitted is not None:  # refuses one that was fitted to other classes or prompts
        head = store.head(dataset, variant)
        trainer.fitted(variant, dataset, head).adapter(head)


def result_name(model: str, dataset: Dataset, variant: Variant, orders: Sequence[str]) -> str:
    """Return the file name of a result; different models, prompts, views and orders give different names."""
    views = dataset.views_of(variant.views)
    kind = "" if variant.views_kind == "augmix" else f"{variant.views_kind}-"
    parts = (
        dataset.key,
        model,
        variant.method,
        variant.settings_name,
        f"{variant.prompts}-prompts",
        f"{views}-{kind}views" if views > 1 else "1-view",
        f"{orders[0].partition(':')[0]}-x{len(orders)}" if len(orders) > 1 else orders[0],
    )
    return "_".join(re.sub(r"[^\w.]+", "-", part).strip("-") for part in parts) + ".json"


def text_lack(encoder: Encoder) -> str:
    """Return what a method that learns prompts lacks, in words; "" if it can use the encoder."""
    with suppress(ModelError):
        if hasattr(encoder, "text_tower"):
            encoder.text_tower()
            return ""
    return "a text tower that takes embeddings: a CLIP model of hf:, local: or open_clip:"


def list_datasets(root: Path, keys: Iterable[str], orders: Sequence[str]) -> dict[str, Listing]:
    """List the images of datasets; InputError if one is damaged or cannot be taken in an order."""
    listings = {key: read_dataset(DATASETS[key], root) for key in keys}
    for listing in listings.values():
        for order in orders:
            take_order(order, len(listing), listing.labels, listing.domains)
    return listings


def run_dataset(
    store: FeatureStore, trainer: Trainer, listing: Listing, variants: Iterable[Variant], orders: Sequence[str]
) -> list[Score]:
    """Run variants on a dataset, those with the same prompts and views together."""
    dataset = listing.dataset
    groups: dict[tuple[Any, ...], list[Variant]] = {}
    for variant in variants:
        views = dataset.views_of(variant.views)
        groups.setdefault((variant.prompts, views, variant.views_kind if views > 1 else None), []).append(variant)
    scores: list[Score] = []
    for (prompts, *_), group in groups.items():
        with store.progress(len(listing), f"encoding {dataset.key}", "images") as advance:
            stream = store.stream(listing, group[0], advance)
        ready = [trainer.fitted(variant, dataset, stream.head) for variant in group]
        made = run_stream(
            *(dataset.key, stream, ready, orders, store.progress, prompts),
            device=gpu_of(store.encoder) or "numpy",
            text=store.encoder,
        )
        scores += [score for score in made if any(score.method == variant.method for variant in ready)]
    return scores


def run_stream(
    name: str,
    stream: FeatureStream,
    variants: Sequence[Variant],
    orders: Sequence[str],
    progress: Progress = silent,
    prompts: str = OF_FILE,
    device: str = "numpy",
    text: Encoder | None = None,
    file: str = "",
) -> list[Score]:
    """Score zero-shot and variants, those that give the same result once, in one pass over a stream for each order."""
    adapting = {
        (each.method, each.settings_name, repr(each.config)): each for each in variants if each.method != "zero-shot"
    }
    samples = sum(len(stream_order(stream, order)) for order in orders)
    with progress(samples * (1 + len(adapting)), f"adapting {name}", "samples") as advance:
        outcomes = compare(stream, [*adapting.values()], orders, device=device, progress=advance, text=text)
    return score_all(name, stream, outcomes, prompts, file)


def time_variants(
    store: FeatureStore, trainer: Trainer, listing: Listing, variants: Iterable[Variant], order: str, limit: int
) -> list[Score]:
    """Time variants on the first `limit` images of a dataset in an order, at batch size 1 and at the store's."""
    part = listing.part(take_order(order, len(listing), listing.labels, listing.domains)[:limit])
    scores = []
    for variant in variants:
        ready = trainer.fitted(variant, listing.dataset, store.head(listing.dataset, variant))
        # The files are read before, so that the first row does not pay for a slow disk alone.
        for path in part.paths:
            with suppress(OSError):  # reported below
                path.read_bytes()
        for size in dict.fromkeys((1, store.batch_size)):
            with store.progress(len(part), f"timing {variant.method} at batch size {size}", "images") as advance:
                scores.append(time_variant(store, part, ready, size, order, advance))
    return scores


def time_variant(
    store: FeatureStore,
    listing: Listing,
    variant: Variant,
    batch_size: int,
    order: str = "rows",
    progress: Advance = lambda images: None,
) -> Score:
    """Score a variant on all images of a listing, with times and memory from the file to the answer.

    A batch counts every view, and holds at least one image. `order` is the name of the order that the listing has.
    """
    device = gpu_of(store.encoder) or "numpy"
    head = on_device(store.head(listing.dataset, variant), device)
    prepare = store.preparer(listing.dataset, variant)

    def answer(adapter: Adapter, paths: Sequence[Path], progress: Advance) -> list[tuple[HostArray, HostArray]]:
        answers = []
        for batch in encode_ahead(paths, prepare, batch_size=batch_size, workers=store.workers):
            check_readable(batch, "and run again")
            evidence = head.observe(batch.features)
            answers.append((to_host(evidence.logits), to_host(adapter.adapt(evidence).logits)))
            progress(len(batch.names))
        return answers

    # The first images pay for everything that is loaded and compiled once.
    warm_up_images = max(2, batch_size // prepare.views)
    answer(variant.adapter(head, text=store.encoder), listing.paths[:warm_up_images], lambda images: None)
    adapter = variant.adapter(head, text=store.encoder)
    reset_peak_memory(device)
    began = perf_counter()
    answers = answer(adapter, listing.paths, progress)
    wall_s = perf_counter() - began
    outcomes = []
    for logits in zip(*answers, strict=True):
        record = Record(listing.labels, np.arange(len(listing)))
        record.wall_s = wall_s
        for block in logits:
            record.add(block)
        outcomes.append(Outcome(variant, adapter, {order: record.run()}, batch_size, device, {}))
    stream = FeatureStream(
        np.empty((0, prepare.views, head.dim), np.float32),  # the features are not kept
        head,
        encoder=store.model,
        views_kind=prepare.kind if prepare.views > 1 else "",
    )
    score = summarise(listing.dataset.key, stream, outcomes[1], outcomes[0], variant.prompts)
    return replace(score, end_to_end=True, cost={**score.cost, "baseline_s": None})


@dataclass(frozen=True)
class Reproduction:
    """The runs of recipes. Everything that can be refused was checked."""

    runs: Mapping[str, Callable[[], list[Score]]]  # results file -> the measurement
    lacking: Mapping[str, Mapping[str, str]]  # recipe -> the paper's methods that cannot be run here -> what they need
    other_files: Mapping[str, str] = field(default_factory=dict)  # files that stand for no dataset -> the reason

    @property
    def notes(self) -> list[str]:
        """Sentences on files that stand for no dataset, and on methods that cannot be run."""
        return [
            *(f"{name} does not stand for a dataset of the paper: {why}." for name, why in self.other_files.items()),
            *(
                f"{recipe}: {row} is not measured; it needs {lack}."
                for recipe, needs in self.lacking.items()
                for row, lack in needs.items()
            ),
        ]

    def run(self, folder: Path) -> list[Score]:
        """Run everything, write each results file to a folder as JSON, and return all scores."""
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        scores: list[Score] = []
        for name, measure in self.runs.items():
            write_results(measure(), folder / f"{name}.json")
            scores += read_results(folder / f"{name}.json")
        return scores


def plan_recipes(
    recipes: Sequence[Recipe],
    store: FeatureStore,
    orders: Sequence[str] = ("shuffled:1",),
    methods: Sequence[str] = (),
    settings: Settings | None = None,
    shots: int | None = None,
    limit: int = 1000,
) -> Reproduction:
    """Decide what recipes run on those of their datasets that are present, before anything is encoded.

    Args:
        recipes: tables and figures of the paper.
        store: datasets, model and features.
        orders: the orders to take the samples in.
        methods: those to run besides zero-shot; all rows of the paper that can be run when not given.
        settings: settings of methods, in place of the paper's.
        shots: training images per class; the paper's number when not given.
        limit: the number of images that are timed.

    Raises:
        InputError: a dataset is damaged, or a method that was chosen by name cannot be run.
    """
    keys = dict.fromkeys(key for recipe in recipes for key in recipe.datasets)
    present = present_datasets([DATASETS[key] for key in keys], store.root)
    if store.generated is not None:
        open_generator(store.generated, store.device)
    listings = list_datasets(store.root, [dataset.key for dataset in present], orders)
    trainer = Trainer(store, shots)
    given = settings or {}
    variants: dict[str, list[Variant]] = {}
    timed: dict[str, list[Variant]] = {}
    lacking: dict[str, dict[str, str]] = {}
    for recipe in recipes:
        rows, lacking[recipe.name] = _rows(
            recipe, methods, partial(_lack, recipe=recipe, store=store, trainer=trainer, given=given)
        )
        for key in (key for key in recipe.datasets if key in listings):
            found = (timed if recipe.kind == "cost" else variants).setdefault(key, [])
            for row in rows:
                found += recipe.variants(row, DATASETS[key], given.get(row.method))
            found += (variant for sweep in recipe.sweeps for variant in sweep.rows.values())
    runs: dict[str, Callable[[], list[Score]]] = {
        key: partial(run_dataset, store, trainer, listings[key], each, orders) for key, each in variants.items()
    }
    for key, each in timed.items():
        runs[f"{key}-times"] = partial(time_variants, store, trainer, listings[key], each, orders[0], limit)
    return Reproduction(runs, lacking)


def plan_streams(
    recipes: Sequence[Recipe],
    paths: Sequence[Path],
    orders: Sequence[str] = ("stored",),
    methods: Sequence[str] = (),
    settings: Settings | None = None,
    progress: Progress = silent,
) -> Reproduction:
    """Decide what recipes run on feature files with labels, as `plan_recipes` does on datasets.

    Ablations run on all of them. The rows of a suite run on those that stand for one of its datasets.

    Raises:
        InputError: a file cannot be used, none stands for a dataset of a suite, two stand for the same one, a method
            that was chosen by name cannot be run, or a recipe measures time.
    """
    streams = read_labelled(paths)
    found = {name: _dataset_of(name, stream) for name, stream in streams.items()}
    datasets = {name: each for name, each in found.items() if isinstance(each, Dataset)}
    why_not = {name: each for name, each in found.items() if isinstance(each, str)}
    # The paper's datasets come first, in the paper's order.
    ordered = sorted(datasets, key=lambda name: list(DATASETS).index(datasets[name].key))
    keys = {name: datasets[name].key for name in ordered} | {name: name for name in why_not}
    for key in keys.values():
        if list(keys.values()).count(key) > 1:
            raise InputError(f"the results of two feature files would be those of {key!r}; leave out one of them.")
    variants: dict[str, list[Variant]] = {name: [] for name in keys}
    lacking: dict[str, dict[str, str]] = {}
    for recipe in recipes:
        if recipe.kind == "cost":
            raise InputError(f"{recipe.name} measures the time from the image to the answer: it needs --data.")
        suite = [name for name in ordered if keys[name] in recipe.datasets]
        if recipe.rows and not suite:
            why = "; ".join(f"{name}: {why_not.get(name, 'not in this table')}" for name in keys)
            raise InputError(f"no feature file stands for a dataset of {recipe.name} ({why}).")
        views = min((streams[name].views for name in suite), default=1)
        rows, lacking[recipe.name] = _rows(recipe, methods, partial(_file_lack, views=views))
        for name in suite:
            for row in rows:
                variants[name] += recipe.variants(row, datasets[name], (settings or {}).get(row.method))
        for own in variants.values():
            own += (variant for sweep in recipe.sweeps for variant in sweep.rows.values())
    runs: dict[str, Callable[[], list[Score]]] = {}
    for name, key in keys.items():
        if variants[name]:
            recorded = streams[name].prompts
            prompts = (re.sub(r" *\([^()]*\)", "", recorded) or recorded) if name in datasets else OF_FILE
            runs[key] = partial(run_stream, key, streams[name], variants[name], orders, progress, prompts, file=name)
    return Reproduction(runs, lacking, why_not)


def _dataset_of(name: str, stream: FeatureStream) -> Dataset | str:
    """Return the dataset that a feature file stands for, or why it stands for none."""
    dataset = dataset_named(name)
    if dataset is None:
        return "no dataset of the paper has this name"
    if len(stream.head) != dataset.classes:
        return f"{len(stream.head):,} classes, and {dataset.title} has {dataset.classes:,}"
    if backbone(stream.encoder) is None:
        return f"the encoder is {stream.encoder or 'not recorded'}, and not OpenAI CLIP {' or '.join(BACKBONES)}"
    return dataset if stream.prompts else "the prompts of its class vectors are not recorded"


def _rows(
    recipe: Recipe, methods: Iterable[str], lack_of: Callable[[Variant], str]
) -> tuple[list[Variant], dict[str, str]]:
    """Return how to measure the chosen rows of a recipe, and what the paper's rows that cannot be measured need."""
    if not recipe.rows:
        return [], {}
    names = {row.method: name for name, row in recipe.rows.items()}
    rows = []
    lacking = {}
    for method in dict.fromkeys(("zero-shot", *methods) if methods else names):
        row = recipe.row(method) if method in names else row_of(method, DATASETS[recipe.datasets[0]])
        if not (lack := lack_of(row)):
            rows.append(row)
        elif methods:
            raise InputError(f"{method} in {recipe.name} needs {lack}.")
        else:
            lacking[names[method]] = lack
    return rows, lacking


def _file_lack(row: Variant, views: int) -> str:
    """Return what a row needs and feature files with this number of views do not have; "" if it can be measured."""
    needs = find_method(row.method).needs
    rules = (
        (row.shots > 0, "ImageNet's training images: --data"),
        ("text" in needs, "the text tower of a model: --data"),
        ("views" in needs and views == 1, "feature files with several views per image"),
    )
    return next((lack for applies, lack in rules if applies), "")


def _lack(row: Variant, recipe: Recipe, store: FeatureStore, trainer: Trainer, given: Settings) -> str:
    """Return what a row needs and does not have, in words; "" if it can be measured."""
    method = find_method(row.method)
    folder = TRAINING.image_folder(store.root)
    new_classes = not all(DATASETS[key].wnids for key in recipe.datasets)
    settings = {**row.config, **given.get(row.method, {})}
    if issubclass(method, FewShot) and new_classes and not method.takes_new_classes(settings):
        return "the classes that it was fitted to, as it cannot take new ones"
    if row.shots and not folder.is_dir():
        return f"ImageNet's training images in {folder}"
    if row.views_kind == "diffusion" and store.generated is None:
        return "generated images: --generated"
    try:
        if row.shots:
            trainer.draw(row)
    except InputError as error:
        return f"more training images ({str(error).rstrip('.')})"
    return text_lack(store.encoder) if "text" in method.needs else ""
