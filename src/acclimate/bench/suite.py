"""Running methods and recipes on the paper's datasets or on feature files, and writing the results as JSON.

Each dataset is encoded once, and all settings share one pass over its features.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from acclimate.bench import Progress, silent
from acclimate.bench.datasets import DATASETS, Dataset, present_datasets, read_dataset
from acclimate.bench.orders import stream_order, take_order
from acclimate.bench.prequential import Variant, compare
from acclimate.bench.recipes import Recipe, variant_for
from acclimate.bench.results import OF_FILE, Result, read_results, summarise, write_results
from acclimate.bench.store import Setup, stored_stream
from acclimate.encoders import load_encoder
from acclimate.errors import InputError
from acclimate.files import writing
from acclimate.methods import find_method, require
from acclimate.predict import gpu_of
from acclimate.stream import FeatureStream, read_stream


def run_suite(
    setup: Setup, datasets: list[Dataset], methods: list[str], settings: str, out: Path, skip_existing: bool = True
) -> list[Result]:
    """Run methods on datasets, write one JSON file per dataset and method, and return all results.

    With `skip_existing`, what has a result in `out` is not run again, so that an interrupted suite continues.
    """
    paths: dict[tuple[str, str], Path] = {}
    missing: dict[str, list[Variant]] = {}
    for dataset in datasets:
        for method in methods:
            variant = variant_for(method, dataset, settings)
            path = paths[dataset.key, method] = out / result_name(setup, dataset, variant)
            if not (skip_existing and path.is_file()):
                missing.setdefault(dataset.key, []).append(variant)
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    for results in _run_datasets(setup, missing):
        for result in results:
            if any(variant.method == result.method for variant in missing[result.dataset]):
                write_results([result], paths[result.dataset, result.method])
    return [result for path in paths.values() for result in read_results(path)]


def result_name(setup: Setup, dataset: Dataset, variant: Variant) -> str:
    """The file name of a result; different setups give different names."""
    views, (order, *more) = setup.views_of(dataset), setup.orders
    parts = (
        dataset.key,
        setup.model,
        variant.method,
        variant.settings_name,
        f"{setup.prompts}-prompts",
        f"{views}-views" if views > 1 else "1-view",
        f"{order.partition(':')[0]}-x{1 + len(more)}" if more else order,
    )
    return "_".join(re.sub(r"[^\w.]+", "-", part).strip("-") for part in parts) + ".json"


def run_on_datasets(recipes: Sequence[Recipe], setup: Setup, folder: Path) -> list[Result]:
    """Run recipes on those of their datasets that are present; `folder` gets a JSON file of results per dataset."""
    keys = dict.fromkeys(key for recipe in recipes for key in recipe.datasets)
    present = [dataset.key for dataset in present_datasets([DATASETS[key] for key in keys], setup.root)]
    variants = {key: _variants([each for each in recipes if key in each.datasets], key) for key in present}
    return _write_each(_run_datasets(setup, variants), folder)


def run_on_streams(
    recipes: Sequence[Recipe], paths: Sequence[Path], orders: Sequence[str], folder: Path, progress: Progress = silent
) -> list[Result]:
    """Run ablations on feature files with labels; `folder` gets a JSON file of results per feature file."""
    for recipe in recipes:
        if recipe.kind != "settings":
            raise InputError(f"{recipe.name} compares the paper's datasets and cannot run on feature files.")
    streams = read_labelled(paths)
    runs = (_run_stream(name, each, _variants(recipes, name), orders, progress) for name, each in streams.items())
    return _write_each(runs, folder)


def read_labelled(paths: Sequence[Path]) -> dict[str, FeatureStream]:
    """Read feature files with labels, by their names without the suffix."""
    streams = {path.stem: read_stream(path) for path in paths}
    if len(streams) < len(paths):
        raise InputError("two feature files have the same name, which results are stored under; rename one.")
    for name, stream in streams.items():
        if stream.labels is None:
            raise InputError(f"{name} has no labels, so there is nothing to score; add labels to the file.")
    return streams


def _variants(recipes: Sequence[Recipe], dataset: str) -> list[Variant]:
    """What recipes run on a dataset; settings that several recipes have in common are run once."""
    every = [variant for recipe in recipes for variant in recipe.variants(dataset)]
    return list({(each.settings_name, repr(each.config)): each for each in every}.values())


def _write_each(runs: Iterable[list[Result]], folder: Path) -> list[Result]:
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    every = []
    for results in runs:
        write_results(results, folder / f"{results[0].dataset}.json")
        every += results
    return every


def _run_datasets(setup: Setup, variants: Mapping[str, Sequence[Variant]]) -> Iterator[list[Result]]:
    """Run variants on datasets (key -> what to run), one dataset after another; zero-shot is the first of its results.

    Everything is checked before the first dataset is encoded, so that a damaged dataset is reported at once.
    """
    if not variants:
        return
    listings = {key: read_dataset(DATASETS[key], setup.root) for key in variants}
    for key, listing in listings.items():
        for variant in variants[key]:
            require(find_method(variant.method), views=setup.views_of(listing.dataset) > 1)
        for order in setup.orders:
            take_order(order, len(listing), listing.labels, listing.domains)
    encoder = load_encoder(setup.model, setup.device)
    device = gpu_of(encoder) or "numpy"
    for key, listing in listings.items():
        with setup.progress(len(listing), f"encoding {key}", "images") as advance:
            stream = stored_stream(setup, listing, encoder, advance)
        yield _run_stream(key, stream, variants[key], setup.orders, setup.progress, setup.prompts, device)


def _run_stream(
    name: str,
    stream: FeatureStream,
    variants: Sequence[Variant],
    orders: Sequence[str],
    progress: Progress,
    prompts: str = OF_FILE,
    device: str = "numpy",
) -> list[Result]:
    adapting = [variant for variant in variants if variant.method != "zero-shot"]
    total = sum(len(stream_order(stream, order)) for order in orders) * (1 + len(adapting))
    with progress(total, f"adapting {name}", "samples") as advance:
        outcomes = compare(stream, adapting, orders, device=device, progress=advance)
    return [summarise(name, stream, outcome, outcomes[0], prompts) for outcome in outcomes]
