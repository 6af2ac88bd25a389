"""Running recipes: the paper's tables and figures, on its datasets or on feature files."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from acclimate.bench import Progress, silent
from acclimate.bench.cost import time_jobs
from acclimate.bench.datasets import DATASETS, Dataset, Listing, dataset_named, present_datasets
from acclimate.bench.prequential import Variant
from acclimate.bench.reasons import BACKBONES, backbone
from acclimate.bench.recipes import Protocol, Recipe, protocol_of
from acclimate.bench.results import OF_FILE, Result, write_results
from acclimate.bench.store import Setup
from acclimate.bench.suite import Job, job_for, list_datasets, read_labelled, run_jobs, run_stream, text_lack
from acclimate.bench.training import Trainer, training_folder
from acclimate.encoders import Encoder, load_encoder
from acclimate.errors import InputError
from acclimate.files import writing
from acclimate.methods import FewShot, find_method
from acclimate.stream import FeatureStream
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
    encoder = load_encoder(setup.model, setup.device, setup.precision)
    trainer = Trainer(setup, choice.shots)
    jobs: dict[str, list[Job]] = {}
    timed: dict[str, list[Job]] = {}
    lacking: dict[str, dict[str, str]] = {}
    for recipe in recipes:
        lack_of = partial(_lack, recipe=recipe, setup=setup, encoder=encoder, trainer=trainer, given=choice.settings)
        protocols, lacking[recipe.name] = _rows(recipe, choice, lack_of)
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


@dataclass(frozen=True)
class FeatureFile:
    """A feature file with labels, and what to run on it."""

    name: str  # of the file, without the suffix
    stream: FeatureStream
    dataset: Dataset | None  # the dataset of the paper that it stands for
    why_not: str = ""  # why it stands for none, in words
    variants: tuple[Variant, ...] = ()

    @property
    def key(self) -> str:
        """The name of its results."""
        return self.name if self.dataset is None else self.dataset.key

    @property
    def prompts(self) -> str:
        """The prompts of a dataset of the paper, as the file records them; remarks in brackets are left out."""
        if self.dataset is None:
            return OF_FILE
        return re.sub(r" *\([^()]*\)", "", self.stream.prompts) or self.stream.prompts


@dataclass(frozen=True)
class FilePlan:
    """What recipes run on feature files. Everything that can be refused was checked."""

    files: Sequence[FeatureFile]  # in the order of the paper's datasets, then those that stand for none
    lacking: Mapping[str, Mapping[str, str]]  # recipe -> the paper's methods that cannot be run here -> what they need

    def run(self, orders: Sequence[str], folder: Path, progress: Progress = silent) -> list[Result]:
        """Run everything; `folder` gets a JSON file of results per feature file."""
        runs = (
            run_stream(each.key, each.stream, each.variants, orders, progress, each.prompts, file=each.name)
            for each in self.files
            if each.variants
        )
        return _write_each(runs, folder)


def plan_streams(recipes: Sequence[Recipe], paths: Sequence[Path], choice: Choice = EVERYTHING) -> FilePlan:
    """Decide what recipes run on feature files with labels.

    Ablations run on all of them. The rows of a suite run on those that stand for one of its datasets.

    Raises:
        InputError: a file cannot be used, none stands for a dataset of a suite, two stand for the same one, a method
            that was chosen by name cannot be run, or a recipe measures time.
    """
    files = [_feature_file(name, stream) for name, stream in read_labelled(paths).items()]
    keys = [each.key for each in files]
    for file in files:
        if keys.count(file.key) > 1:
            raise InputError(f"the results of two feature files would be those of {file.key!r}; leave out one of them.")
    known = list(DATASETS)
    files.sort(key=lambda each: known.index(each.key) if each.dataset else len(known))
    variants: dict[str, list[Variant]] = {key: [] for key in keys}
    lacking: dict[str, dict[str, str]] = {}
    for recipe in recipes:
        if recipe.kind == "cost":
            raise InputError(f"{recipe.name} measures the time from the image to the answer: it needs --data.")
        suite = [each for each in files if each.dataset and each.key in recipe.datasets]
        if recipe.rows and not suite:
            why = "; ".join(f"{each.name}: {each.why_not or 'not in this table'}" for each in files)
            raise InputError(f"no feature file stands for a dataset of {recipe.name} ({why}).")
        views = min((each.stream.views for each in suite), default=1)
        protocols, lacking[recipe.name] = _rows(recipe, choice, partial(_file_lack, views=views))
        for file in suite:
            for protocol in protocols:
                given = choice.settings.get(protocol.method)
                variants[file.key] += protocol.variants(file.dataset, given) if file.dataset else []
        for own in variants.values():
            own += (variant for sweep in recipe.sweeps for variant in sweep.rows.values())
    distinct = {  # recipes have some in common
        key: {(each.method, each.settings_name, repr(each.config)): each for each in own}
        for key, own in variants.items()
    }
    return FilePlan([replace(each, variants=tuple(distinct[each.key].values())) for each in files], lacking)


def _feature_file(name: str, stream: FeatureStream) -> FeatureFile:
    """Find the dataset of the paper that a feature file stands for by its name, classes, encoder and prompts."""
    dataset = dataset_named(name)
    why_not = ""
    if dataset is None:
        why_not = "no dataset of the paper has this name"
    elif len(stream.head) != dataset.classes:
        why_not = f"{len(stream.head):,} classes, and {dataset.title} has {dataset.classes:,}"
    elif backbone(stream.encoder) is None:
        wanted = " or ".join(BACKBONES)
        why_not = f"the encoder is {stream.encoder or 'not recorded'}, and not OpenAI CLIP {wanted}"
    elif not stream.prompts:
        why_not = "the prompts of its class vectors are not recorded"
    return FeatureFile(name, stream, None if why_not else dataset, why_not)


def _file_lack(protocol: Protocol, views: int) -> str:
    """Return what a row needs and feature files with this number of views do not have; "" if it can be measured."""
    needs = find_method(protocol.method).needs
    if protocol.shots:
        return "ImageNet's training images: --data"
    if "text" in needs:
        return "the text tower of a model: --data"
    if "views" in needs and views == 1:
        return "feature files with several views per image"
    return ""


def _rows(recipe: Recipe, choice: Choice, lack_of: Callable[[Protocol], str]) -> tuple[list[Protocol], dict[str, str]]:
    """Return how to measure the chosen rows of a recipe, and what the paper's rows that cannot be measured need."""
    if not recipe.rows:
        return [], {}
    names = {protocol.method: name for name, protocol in recipe.rows.items()}
    protocols = []
    lacking = {}
    for method in dict.fromkeys(("zero-shot", *choice.methods) if choice.methods else names):
        known = method in names
        protocol = recipe.protocol(method) if known else protocol_of(method, DATASETS[recipe.datasets[0]])
        if not (lack := lack_of(protocol)):
            protocols.append(protocol)
        elif choice.methods:
            raise InputError(f"{method} in {recipe.name} needs {lack}.")
        else:
            lacking[names[method]] = lack
    return protocols, lacking


def _lack(
    protocol: Protocol,
    recipe: Recipe,
    setup: Setup,
    encoder: Encoder,
    trainer: Trainer,
    given: Mapping[str, Mapping[str, Any]],
) -> str:
    """What a row needs and does not have, in words; "" if it can be measured."""
    method = find_method(protocol.method)
    folder = training_folder(setup.root)
    new_classes = not all(DATASETS[key].wnids for key in recipe.datasets)
    settings = {**method.default_settings(), **protocol.config, **given.get(protocol.method, {})}
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
