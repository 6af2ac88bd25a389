"""Running recipes: the paper's tables and figures, on its datasets or on feature files."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acclimate.bench import Progress, silent
from acclimate.bench.cost import time_jobs
from acclimate.bench.datasets import DATASETS, Listing, present_datasets
from acclimate.bench.recipes import Protocol, Recipe, protocol_of
from acclimate.bench.results import Result, write_results
from acclimate.bench.store import Setup
from acclimate.bench.suite import Job, job_for, list_datasets, read_labelled, run_jobs, run_stream, text_lack
from acclimate.bench.training import Trainer, training_folder
from acclimate.encoders import Encoder, load_encoder
from acclimate.errors import InputError
from acclimate.files import writing
from acclimate.methods import FewShot, find_method
from acclimate.views.generated import open_generator


@dataclass(frozen=True)
class Choice:
    """What to measure of the rows of recipes."""

    methods: tuple[str, ...] = ()  # besides zero-shot; () for all rows of the paper that can be run
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # method -> settings given by the user
    shots: int | None = None  # training images per class; None for the paper's number
    limit: int = 1000  # images that are timed


EVERYTHING = Choice()


@dataclass(frozen=True)
class Plan:
    """What recipes run on the datasets that are present. Everything that can be refused was checked."""

    jobs: Mapping[str, Sequence[Job]]  # dataset -> what to run on it
    timed: Mapping[str, Sequence[Job]]  # dataset -> what to time on it
    lacking: Mapping[str, Mapping[str, str]]  # recipe -> the paper's methods that cannot be run here -> what they need
    listings: Mapping[str, Listing]
    encoder: Encoder
    trainer: Trainer
    limit: int

    def run(self, folder: Path) -> list[Result]:
        """Run everything; `folder` gets a JSON file of results per dataset, and one of times."""
        results = _write_each(run_jobs(self.jobs, self.listings, self.encoder, self.trainer), folder)
        for key, jobs in self.timed.items():
            made = time_jobs(jobs, self.listings[key], self.encoder, self.trainer, self.limit)
            write_results(made, folder / f"{key}-times.json")
            results += made
        return results


def plan_recipes(recipes: Sequence[Recipe], setup: Setup, choice: Choice = EVERYTHING) -> Plan:
    """Decide what recipes run on those of their datasets that are present, before anything is encoded.

    Raises:
        InputError: a dataset is damaged, or a method that was chosen by name cannot be run.
    """
    keys = dict.fromkeys(key for recipe in recipes for key in recipe.datasets)
    present = [dataset.key for dataset in present_datasets([DATASETS[key] for key in keys], setup.root)]
    if setup.generated is not None:
        open_generator(setup.generated, setup.device)
    listings = list_datasets(setup, present)
    encoder, trainer = load_encoder(setup.model, setup.device, setup.precision), Trainer(setup, choice.shots)
    jobs: dict[str, list[Job]] = {}
    timed: dict[str, list[Job]] = {}
    lacking: dict[str, dict[str, str]] = {}
    for recipe in recipes:
        protocols, lacking[recipe.name] = _rows(recipe, setup, encoder, trainer, choice)
        for key in (key for key in recipe.datasets if key in listings):
            dataset = DATASETS[key]
            found = [
                job_for(setup, dataset, protocol, variant)
                for protocol in protocols
                for variant in protocol.variants(dataset, choice.settings.get(protocol.method))
            ]
            for sweep in recipe.sweeps:
                usual = protocol_of(recipe.method, dataset)
                found += [job_for(setup, dataset, usual, variant) for variant in sweep.rows.values()]
            (timed if recipe.kind == "cost" else jobs).setdefault(key, []).extend(found)
    return Plan(jobs, timed, lacking, listings, encoder, trainer, choice.limit)


def run_on_streams(
    recipes: Sequence[Recipe], paths: Sequence[Path], orders: Sequence[str], folder: Path, progress: Progress = silent
) -> list[Result]:
    """Run ablations on feature files with labels; `folder` gets a JSON file of results per feature file."""
    for recipe in recipes:
        if recipe.kind != "settings":
            raise InputError(f"{recipe.name} compares the paper's datasets and cannot run on feature files.")
    rows = [variant for recipe in recipes for sweep in recipe.sweeps for variant in sweep.rows.values()]
    variants = list({repr(variant.config): variant for variant in rows}.values())  # recipes have some in common
    streams = read_labelled(paths)
    return _write_each((run_stream(name, each, variants, orders, progress) for name, each in streams.items()), folder)


def _rows(
    recipe: Recipe, setup: Setup, encoder: Encoder, trainer: Trainer, choice: Choice
) -> tuple[list[Protocol], dict[str, str]]:
    """How to measure the chosen rows of a recipe, and what the paper's rows that cannot be measured need."""
    if not recipe.rows:
        return [], {}
    names = {protocol.method: name for name, protocol in recipe.rows.items()}
    protocols, lacking = [], {}
    for method in dict.fromkeys(("zero-shot", *choice.methods) if choice.methods else names):
        known = method in names
        protocol = recipe.protocol(method) if known else protocol_of(method, DATASETS[recipe.datasets[0]])
        if not (lack := _lack(protocol, recipe, setup, encoder, trainer, choice.settings.get(method, {}))):
            protocols.append(protocol)
        elif choice.methods:
            raise InputError(f"{method} in {recipe.name} needs {lack}.")
        else:
            lacking[names[method]] = lack
    return protocols, lacking


def _lack(
    protocol: Protocol, recipe: Recipe, setup: Setup, encoder: Encoder, trainer: Trainer, settings: Mapping[str, Any]
) -> str:
    """What a row needs and does not have, in words; "" if it can be measured."""
    method, folder = find_method(protocol.method), training_folder(setup.root)
    new_classes = not all(DATASETS[key].wnids for key in recipe.datasets)
    settings = {**method.default_settings(), **protocol.config, **settings}
    if issubclass(method, FewShot) and new_classes and not method.takes_new_classes(settings):
        return "the classes that it was fitted to, as it cannot take new ones"
    if protocol.shots and not folder.is_dir():
        return f"ImageNet's training images in {folder}"
    if protocol.views_kind == "diffusion" and setup.generated is None:
        return "generated images: --generated"
    if "text" in method.needs and (lack := text_lack(encoder)):
        return lack
    try:
        if protocol.shots:
            trainer.check(protocol)
    except InputError as error:
        return f"more training images ({str(error).rstrip('.')})"
    return ""


def _write_each(runs: Iterable[list[Result]], folder: Path) -> list[Result]:
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    every = []
    for results in runs:
        write_results(results, folder / f"{results[0].dataset}.json")
        every += results
    return every
