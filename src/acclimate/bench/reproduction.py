"""Recipes on the paper's datasets or on feature files: what runs, what cannot run here and why, and the results."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from acclimate.bench import Progress, silent
from acclimate.bench.comparison import BACKBONES, backbone
from acclimate.bench.datasets import DATASETS, Dataset, dataset_named, present_datasets
from acclimate.bench.measurements import read_labelled
from acclimate.bench.prequential import Variant
from acclimate.bench.recipes import Recipe, row_of
from acclimate.bench.results import OF_FILE, Score, read_results, write_results
from acclimate.bench.store import FeatureStore
from acclimate.bench.suite import (
    TRAINING,
    Trainer,
    list_datasets,
    run_dataset,
    run_stream,
    text_lack,
    time_variants,
)
from acclimate.errors import InputError
from acclimate.files import writing
from acclimate.methods import FewShot, find_method
from acclimate.stream import FeatureStream
from acclimate.views.generated import open_generator

Settings = Mapping[str, Mapping[str, Any]]  # method -> settings given by the user


@dataclass(frozen=True)
class Reproduction:
    """The runs of recipes. Everything that can be refused was checked."""

    runs: Mapping[str, Callable[[], list[Score]]]  # results file -> the measurement
    lacking: Mapping[str, Mapping[str, str]]  # recipe -> the paper's methods that cannot be run here -> what they need
    other_files: Mapping[str, str] = field(default_factory=dict)  # files that stand for no dataset -> the reason

    @property
    def notes(self) -> list[str]:
        """Sentences on files that stand for no dataset, and on methods that cannot be run."""
        files = [f"{name} does not stand for a dataset of the paper: {why}." for name, why in self.other_files.items()]
        return files + [
            f"{recipe}: {row} is not measured; it needs {lack}."
            for recipe, needs in self.lacking.items()
            for row, lack in needs.items()
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
    orders: Sequence[str] = ("seed:1",),
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
    present = [dataset.key for dataset in present_datasets([DATASETS[key] for key in keys], store.root)]
    if store.generated is not None:
        open_generator(store.generated, store.device)
    listings = list_datasets(store.root, present, orders)
    trainer = Trainer(store, shots)
    given = settings or {}
    variants: dict[str, list[Variant]] = {}
    timed: dict[str, list[Variant]] = {}
    lacking: dict[str, dict[str, str]] = {}
    for recipe in recipes:
        lack_of = partial(_lack, recipe=recipe, store=store, trainer=trainer, given=given)
        rows, lacking[recipe.name] = _rows(recipe, methods, lack_of)
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
            prompts = _recorded_prompts(streams[name]) if name in datasets else OF_FILE
            run = partial(run_stream, key, streams[name], variants[name], orders, progress, prompts)
            runs[key] = partial(run, file=name)
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


def _recorded_prompts(stream: FeatureStream) -> str:
    return re.sub(r" *\([^()]*\)", "", stream.prompts) or stream.prompts


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
    if "text" in method.needs and (lack := text_lack(store.encoder)):
        return lack
    try:
        if row.shots:
            trainer.draw(row)
    except InputError as error:
        return f"more training images ({str(error).rstrip('.')})"
    return ""
