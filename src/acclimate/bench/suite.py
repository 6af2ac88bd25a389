"""Suites of datasets: encode each once, run methods on it, write one JSON a run; what is written is not run again."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from acclimate.bench.compare import compare
from acclimate.bench.datasets import Dataset, Listing, read_dataset
from acclimate.bench.orders import take_order
from acclimate.bench.results import summarise, write_json
from acclimate.bench.store import gpu_of, stored_stream
from acclimate.encoders import load_encoder
from acclimate.errors import InputError, RunError
from acclimate.methods.base import find
from acclimate.prompts import template_sets
from acclimate.stream import FeatureStream
from acclimate.views import REDUCERS

Progress = Callable[[int, str, str], AbstractContextManager[Callable[[int], None]]]  # total, verb, things -> advance


@dataclass(frozen=True)
class Protocol:
    """How a suite is run.

    Attributes:
        model: the encoder's name.
        methods: names of the methods; zero-shot stands beside each in its result whether named or not.
        settings: "paper" for one set of settings for all datasets, "authors-per-dataset" for the authors' own alpha and
            beta of TDA's positive cache.
        prompts: "dataset" for each dataset's own templates, or the name of a set.
        views: "paper" for each dataset's own number, or a number for all.
        reducer: how views become one piece of evidence.
        orders: in which the samples are taken; many give a mean and its spread.
    """

    model: str
    methods: tuple[str, ...] = ("zero-shot", "tda")
    settings: Literal["paper", "authors-per-dataset"] = "paper"
    prompts: str = "dataset"
    views: Literal["paper"] | int = "paper"
    reducer: str = "confident-mean"
    orders: tuple[str, ...] = ("seed:1",)

    def __post_init__(self) -> None:
        for method in self.methods:
            find(method)
        known = ("dataset", *template_sets())
        if self.prompts not in known:
            raise InputError(f"unknown prompts {self.prompts!r}; there are {', '.join(known)}.")
        if self.reducer not in REDUCERS:
            raise InputError(f"unknown reducer {self.reducer!r}; there are {', '.join(REDUCERS)}.")

    def views_of(self, dataset: Dataset) -> int:
        """Views an image."""
        return dataset.views if self.views == "paper" else self.views

    def settings_of(self, method: str) -> str:
        """What a method's settings are called; only TDA has others than one set for all datasets."""
        return self.settings if method == "tda" else "paper"

    def config_of(self, method: str, dataset: Dataset) -> dict[str, Any]:
        """Settings of a method on a dataset where they are not its defaults."""
        if self.settings_of(method) == "paper":
            return {}
        alpha, beta = dataset.authors
        return {"positive_alpha": alpha, "positive_beta": beta}

    def result_name(self, dataset: Dataset, method: str) -> str:
        """The file of a result; different protocols have different names."""
        views = self.views_of(dataset)
        seen = f"{views}-views-{self.reducer}" if views > 1 else "1-view"
        order = self.orders[0] if len(self.orders) == 1 else f"{self.orders[0].partition(':')[0]}-x{len(self.orders)}"
        parts = (dataset.key, self.model, method, self.settings_of(method), f"{self.prompts}-prompts", seen, order)
        return "_".join(re.sub(r"[^\w.]+", "-", part).strip("-") for part in parts) + ".json"


@contextmanager
def _silent(total: int, verb: str, things: str) -> Iterator[Callable[[int], None]]:
    yield lambda done: None


def present(datasets: Sequence[Dataset], root: Path) -> list[Dataset]:
    """Those datasets that are on the disk.

    Raises:
        InputError: none is.
    """
    here = [dataset for dataset in datasets if (root / dataset.folder).is_dir()]
    if not here:
        wanted = ", ".join(dataset.folder for dataset in datasets)
        raise InputError(f"none of {wanted} is in {root}; `acclimate data check {root}` says how to get them.")
    return here


def list_all(datasets: Sequence[Dataset], root: Path, orders: Sequence[str]) -> dict[str, Listing]:
    """The images of each dataset, before the first is encoded: what is wrong with the last shows now, not in a day.

    Raises:
        InputError: a dataset cannot be listed, or cannot be taken in one of the orders.
    """
    listings = {dataset.key: read_dataset(dataset, root) for dataset in datasets}
    for listing in listings.values():
        nothing = np.empty((len(listing), 0))  # an order needs labels and domains, but no features
        for order in orders:
            take_order(FeatureStream(nothing, nothing, 1.0, (), listing.labels, metadata=listing.metadata), order)
    return listings


def run_suite(
    datasets: Sequence[Dataset],
    root: Path,
    protocol: Protocol,
    store: Path,
    out: Path,
    *,
    skip_existing: bool = True,
    batch_size: int = 64,
    workers: int | None = None,
    device: str = "auto",
    progress: Progress = _silent,
) -> list[Path]:
    """Run a protocol on datasets and write a JSON for each dataset and method.

    Args:
        datasets: those to run, all present.
        root: the folder of all datasets.
        protocol: models, methods, prompts, views, orders.
        store: the folder of features.
        out: the folder of results.
        skip_existing: leave alone what is written already, so that an interrupted suite goes on.
        batch_size: images, views counted, encoded at once.
        workers: threads that read images.
        device: of the encoder, and of the methods if it is a GPU.
        progress: makes a progress bar.

    Returns:
        The files of all results, those that were there among them.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {out}: {error.strerror or error}.") from error
    files = {each.key: {name: out / protocol.result_name(each, name) for name in protocol.methods} for each in datasets}
    todo = {
        key: {name: path for name, path in paths.items() if not (skip_existing and path.is_file())}
        for key, paths in files.items()
    }
    listings = list_all([each for each in datasets if todo[each.key]], root, protocol.orders)
    encoder = load_encoder(protocol.model, device) if listings else None
    for dataset in datasets:
        if encoder is not None and dataset.key in listings:
            listing = listings[dataset.key]
            with progress(len(listing), f"encoding {dataset.key}", "images") as advance:
                stream = stored_stream(
                    dataset,
                    listing,
                    encoder,
                    dataset.key if protocol.prompts == "dataset" else protocol.prompts,
                    protocol.views_of(dataset),
                    store,
                    model=protocol.model,
                    batch_size=batch_size,
                    workers=workers,
                    progress=advance,
                )
            _run_dataset(dataset, stream, protocol, todo[dataset.key], gpu_of(encoder) or "numpy", progress)
    return [path for paths in files.values() for path in paths.values()]


def _run_dataset(
    dataset: Dataset, stream: FeatureStream, protocol: Protocol, paths: dict[str, Path], device: str, progress: Progress
) -> None:
    """Run methods on a dataset's features and write a result for each."""
    learners = {method: protocol.config_of(method, dataset) for method in paths if method != "zero-shot"}
    total = len(stream) * (1 + len(learners) * len(protocol.orders))
    with progress(total, f"adapting {dataset.key}", "samples") as advance:
        outcomes = compare(stream, learners, protocol.orders, device=device, reducer=protocol.reducer, progress=advance)
    for method, path in paths.items():
        result = summarise(
            dataset.key,
            stream,
            outcomes[method],
            outcomes["zero-shot"],
            settings=protocol.settings_of(method),
            prompts=protocol.prompts,
            encode_s=float(stream.metadata["encode_s"]),
        )
        write_json([result], path)
