"""Running methods on the paper's datasets: encode each dataset once, adapt, and write results as JSON."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from acclimate.bench.datasets import DATASETS, Dataset, read_dataset
from acclimate.bench.orders import take_order
from acclimate.bench.prequential import Variant, compare
from acclimate.bench.results import OF_FILE, Result, read_results, summarise, write_results
from acclimate.bench.store import stored_stream
from acclimate.encoders import load_encoder
from acclimate.errors import InputError
from acclimate.files import writing
from acclimate.methods import find_method, require
from acclimate.predict import gpu_of
from acclimate.prompts import template_sets
from acclimate.stream import FeatureStream

# (total, what is being done, unit) -> a context manager that gives a function to call with the number of units done
Progress = Callable[[int, str, str], AbstractContextManager[Callable[[int], None]]]


def silent(total: int, verb: str, things: str) -> AbstractContextManager[Callable[[int], None]]:
    """A progress bar that shows nothing."""
    return nullcontext(lambda done: None)


@dataclass(frozen=True)
class Setup:
    """What datasets are run with.

    Attributes:
        root: the folder of all datasets.
        model: name of the encoder.
        store: the folder of encoded features.
        prompts: "dataset" for each dataset's template set, or the name of one template set for all.
        views: "paper" for each dataset's number of views in the paper, or one number for all.
        orders: orders to take the samples in; several give a mean and its spread.
        batch_size: images encoded at once, counting views.
        workers: threads that read images.
        device: of the encoder; the methods use it too if it is a GPU.
    """

    root: Path
    model: str
    store: Path
    prompts: str = "dataset"
    views: Literal["paper"] | int = "paper"
    orders: tuple[str, ...] = ("seed:1",)
    batch_size: int = 64
    workers: int | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        known = ("dataset", *template_sets())
        if self.prompts not in known:
            raise InputError(f"unknown prompts {self.prompts!r}; choose from {', '.join(known)}.")

    def views_of(self, dataset: Dataset) -> int:
        """The number of views per image."""
        return dataset.views if self.views == "paper" else self.views

    def result_name(self, dataset: Dataset, variant: Variant) -> str:
        """The file name of a result; different setups give different names."""
        views = self.views_of(dataset)
        parts = (
            dataset.key,
            self.model,
            variant.method,
            variant.settings_name,
            f"{self.prompts}-prompts",
            f"{views}-views" if views > 1 else "1-view",
            self.orders[0] if len(self.orders) == 1 else f"{self.orders[0].partition(':')[0]}-x{len(self.orders)}",
        )
        return "_".join(re.sub(r"[^\w.]+", "-", part).strip("-") for part in parts) + ".json"


def variant_for(method: str, dataset: Dataset, settings: str) -> Variant:
    """A method on a dataset with "paper" (its defaults) or "authors-per-dataset" settings.

    The latter are those that the authors of the method published for the dataset, or the defaults if there are none.
    """
    if settings == "authors-per-dataset" and method in dataset.authors:
        return Variant(method, dataset.authors[method], settings)
    return Variant(method, {}, "paper")


def run_suite(
    setup: Setup,
    datasets: Sequence[Dataset],
    methods: Sequence[str],
    settings: str,
    out: Path,
    skip_existing: bool = True,
    progress: Progress = silent,
) -> list[Result]:
    """Run methods on datasets and write one JSON file per dataset and method.

    With `skip_existing`, what has a result in `out` is not run again, so that an interrupted suite continues.

    Returns:
        All results, including those that existed.
    """
    paths: dict[tuple[str, str], Path] = {}
    missing: dict[str, list[Variant]] = {}
    for dataset in datasets:
        for method in methods:
            variant = variant_for(method, dataset, settings)
            path = paths[dataset.key, method] = out / setup.result_name(dataset, variant)
            if not (skip_existing and path.is_file()):
                missing.setdefault(dataset.key, []).append(variant)
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    for results in run_datasets(setup, missing, progress):
        for result in results:
            if any(variant.method == result.method for variant in missing[result.dataset]):
                write_results([result], paths[result.dataset, result.method])
    return [result for path in paths.values() for result in read_results(path)]


def run_datasets(
    setup: Setup, variants: Mapping[str, Sequence[Variant]], progress: Progress = silent
) -> Iterator[list[Result]]:
    """Run variants on datasets (key -> what to run), one dataset after another.

    All datasets are listed before the first one is encoded, so that a damaged dataset is reported at once.

    Yields:
        The results of one dataset, that of zero-shot first.

    Raises:
        InputError: a dataset cannot be listed, or does not have one of the orders, or a method needs views.
    """
    if not variants:
        return
    listings = {key: read_dataset(DATASETS[key], setup.root) for key in variants}
    for key, listing in listings.items():
        for variant in variants[key]:
            require(find_method(variant.method), views=setup.views_of(DATASETS[key]) > 1)
        for order in setup.orders:
            take_order(order, len(listing), listing.labels, listing.domains)
    encoder = load_encoder(setup.model, setup.device)
    device = gpu_of(encoder) or "numpy"
    for key, listing in listings.items():
        with progress(len(listing), f"encoding {key}", "images") as advance:
            stream = stored_stream(
                DATASETS[key],
                listing,
                encoder,
                key if setup.prompts == "dataset" else setup.prompts,
                setup.views_of(DATASETS[key]),
                setup.store,
                model=setup.model,
                batch_size=setup.batch_size,
                workers=setup.workers,
                progress=advance,
            )
        yield run_stream(key, stream, variants[key], setup.orders, progress, setup.prompts, device)


def run_stream(
    name: str,
    stream: FeatureStream,
    variants: Sequence[Variant],
    orders: Sequence[str],
    progress: Progress = silent,
    prompts: str = OF_FILE,
    device: str = "numpy",
) -> list[Result]:
    """The results of variants on a stream, that of zero-shot first; see `prequential.compare`."""
    adapting = [variant for variant in variants if variant.method != "zero-shot"]
    total = len(stream) * (1 + len(adapting)) * len(orders)
    with progress(total, f"adapting {name}", "samples") as advance:
        outcomes = compare(stream, adapting, orders, device=device, progress=advance)
    return [summarise(name, stream, outcome, outcomes[0], prompts) for outcome in outcomes]
