"""Running methods on the paper's datasets or on feature files, and writing the results as JSON.

Each dataset is encoded once for each kind of views, and all settings with the same prompts share one pass over it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from acclimate.bench import Progress
from acclimate.bench.datasets import DATASETS, Dataset, Listing, read_dataset
from acclimate.bench.orders import stream_order, take_order
from acclimate.bench.prequential import Variant, compare
from acclimate.bench.recipes import Protocol, variant_for
from acclimate.bench.results import OF_FILE, Result, read_results, summarise, write_results
from acclimate.bench.store import Setup, head_for, stored_stream
from acclimate.bench.training import Trainer
from acclimate.encoders import Encoder, load_encoder
from acclimate.errors import InputError, ModelError
from acclimate.evidence import Head
from acclimate.files import writing
from acclimate.methods import describe_fit, duplicate, find_method, load_fitted, require
from acclimate.prompts.learned import PREFIX
from acclimate.reading.walk import gpu_of
from acclimate.stream import FeatureStream, read_stream


class Job(NamedTuple):
    """Something to run on a dataset."""

    setup: Setup  # with the prompts and views of the row
    variant: Variant
    protocol: Protocol  # of the row

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for jobs that give the same result."""
        return self.setup, self.variant.method, self.variant.settings_name, repr(self.variant.config)


def run_suite(
    setup: Setup,
    datasets: list[Dataset],
    methods: list[str],
    settings: str,
    out: Path,
    skip_existing: bool = True,
    fitted: Path | None = None,
) -> list[Result]:
    """Run methods on datasets, write one JSON file per dataset and method, and return all results.

    With `skip_existing`, what has a result in `out` is not run again, so that an interrupted suite continues, unless
    the fitted file or the learned prompts are newer. `fitted` is the file of a few-shot method that runs beside the
    others.
    """
    encoder = None if fitted is None else load_encoder(setup.model, setup.device, setup.precision)
    own = [] if fitted is None else [_read_fitted(fitted, encoder, setup.model)]
    paths: dict[tuple[str, str], Path] = {}
    missing: dict[str, list[Job]] = {}
    for dataset in datasets:
        for variant in [*(variant_for(method, dataset, settings) for method in methods), *own]:
            kind = setup.views_kind or find_method(variant.method).views_kind
            job = job_for(setup, dataset, Protocol(variant.method, setup.prompts, setup.views, kind), variant)
            path = paths[dataset.key, variant.method] = out / result_name(job, dataset)
            files = [] if variant.fitted is None or fitted is None else [fitted]
            files += [Path(setup.prompts.removeprefix(PREFIX))] if setup.prompts.startswith(PREFIX) else []
            newest = max((file.stat().st_mtime for file in files), default=0.0)
            if not (skip_existing and path.is_file() and path.stat().st_mtime >= newest):
                missing.setdefault(dataset.key, []).append(job)
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    if missing:
        listings = list_datasets(setup, missing)
        for key, jobs in missing.items():
            for job in jobs:
                has = {"views": job.setup.views_of(DATASETS[key]) > 1, "labels": job.variant.fitted is not None}
                require(find_method(job.variant.method), **has, text=True)
        encoder = encoder or load_encoder(setup.model, setup.device, setup.precision)
        trainer = Trainer(setup)
        for key, jobs in missing.items():
            for job in jobs:
                if "text" in find_method(job.variant.method).needs and (lack := text_lack(encoder)):
                    raise InputError(f"the method {job.variant.method!r} needs {lack}.")
                if job.variant.fitted is not None:  # refuses one that was fitted to other classes or prompts
                    head = head_for(job.setup, DATASETS[key], encoder)
                    prepared(job, trainer, DATASETS[key], head, encoder).adapter(head)
        for results in run_jobs(missing, listings, encoder, trainer):
            for result in results:
                write_results([result], paths[result.dataset, result.method])
    return [result for path in paths.values() for result in read_results(path)]


def _read_fitted(path: Path, encoder: Encoder | None, model: str) -> Variant:
    """The few-shot method that a file holds."""
    adapter, about = load_fitted(path, encoder, model)
    trained = describe_fit(about).removeprefix("fitted to ")
    return Variant(adapter.name, adapter.settings, f"fitted as {path.stem}", adapter, trained)


def result_name(job: Job, dataset: Dataset) -> str:
    """The file name of a result; different setups give different names."""
    setup = job.setup
    variant = job.variant
    views, (order, *more) = setup.views_of(dataset), setup.orders
    kind = "" if setup.views_kind in (None, "augmix") else f"{setup.views_kind}-"
    parts = (
        dataset.key,
        setup.model,
        variant.method,
        variant.settings_name,
        f"{setup.prompts}-prompts",
        f"{views}-{kind}views" if views > 1 else "1-view",
        f"{order.partition(':')[0]}-x{1 + len(more)}" if more else order,
    )
    return "_".join(re.sub(r"[^\w.]+", "-", part).strip("-") for part in parts) + ".json"


def read_labelled(paths: Sequence[Path]) -> dict[str, FeatureStream]:
    """Read feature files with labels, by their names without the suffix."""
    streams = {path.stem: read_stream(path) for path in paths}
    if len(streams) < len(paths):
        raise InputError("two feature files have the same name, which results are stored under; rename one.")
    for name, stream in streams.items():
        if stream.labels is None:
            raise InputError(f"{name} has no labels, so there is nothing to score; add labels to the file.")
    return streams


def text_lack(encoder: Encoder) -> str:
    """What a method that learns prompts lacks, in words; "" if it can use the encoder."""
    with suppress(ModelError):
        if hasattr(encoder, "text_tower"):
            encoder.text_tower()
            return ""
    return "a text tower that takes embeddings: a CLIP model of hf:, local: or open_clip:"


def job_for(setup: Setup, dataset: Dataset, protocol: Protocol, variant: Variant) -> Job:
    """A job that runs a variant on a dataset with the prompts and views of a protocol."""
    views = protocol.views_of(dataset)
    kind = protocol.views_kind if views > 1 else None
    generated = setup.generated if kind == "diffusion" else None
    own = replace(setup, prompts=protocol.prompts, views=views, views_kind=kind, generated=generated)
    return Job(own, variant, protocol)


def list_datasets(setup: Setup, keys: Iterable[str]) -> dict[str, Listing]:
    """List the images of datasets; InputError if one is damaged or cannot be taken in the orders of the setup."""
    listings = {key: read_dataset(DATASETS[key], setup.root) for key in keys}
    for listing in listings.values():
        for order in setup.orders:
            take_order(order, len(listing), listing.labels, listing.domains)
    return listings


def run_jobs(
    jobs: Mapping[str, Sequence[Job]], listings: Mapping[str, Listing], encoder: Encoder, trainer: Trainer
) -> Iterator[list[Result]]:
    """Run jobs on datasets, one dataset after another."""
    device = gpu_of(encoder) or "numpy"
    for key, wanted in jobs.items():
        listing = listings[key]
        results = []
        distinct = {job.key: job for job in wanted}.values()
        for setup in dict.fromkeys(job.setup for job in distinct):
            with setup.progress(len(listing), f"encoding {key}", "images") as advance:
                stream = stored_stream(setup, listing, encoder, advance)
            same = [job for job in distinct if job.setup == setup]
            variants = [prepared(job, trainer, listing.dataset, stream.head, encoder) for job in same]
            made = run_stream(key, stream, variants, setup.orders, setup.progress, setup.prompts, device, encoder)
            results += [each for each in made if any(each.method == variant.method for variant in variants)]
        yield results


def prepared(job: Job, trainer: Trainer, dataset: Dataset, head: Head, encoder: Encoder) -> Variant:
    """What to run on a dataset with that head: the variant of a job, with a fitted adapter if it is few-shot."""
    variant = job.variant
    if find_method(variant.method).kind != "few-shot":
        return variant
    if variant.fitted is None:
        return trainer.fitted(job.protocol, variant, dataset, head, encoder)
    adapter = duplicate(variant.fitted)
    if adapter.head.class_names != head.class_names:
        adapter.relabel(head)
    return replace(variant, fitted=adapter)


def run_stream(
    name: str,
    stream: FeatureStream,
    variants: Sequence[Variant],
    orders: Sequence[str],
    progress: Progress,
    prompts: str = OF_FILE,
    device: str = "numpy",
    text: Encoder | None = None,
    file: str = "",
) -> list[Result]:
    """The results of zero-shot and of variants, in one pass over a stream for each order."""
    adapting = [variant for variant in variants if variant.method != "zero-shot"]
    total = sum(len(stream_order(stream, order)) for order in orders) * (1 + len(adapting))
    with progress(total, f"adapting {name}", "samples") as advance:
        outcomes = compare(stream, adapting, orders, device=device, progress=advance, text=text)
    return [summarise(name, stream, outcome, outcomes[0], prompts, file=file) for outcome in outcomes]
