"""Run recipes: all their settings over one pass of each stream, and one file of results a stream."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from acclimate.bench.compare import sweep
from acclimate.bench.datasets import DATASETS
from acclimate.bench.reproduce.ablation import Ablation
from acclimate.bench.reproduce.recipe import Recipe, Record, Variant
from acclimate.bench.results import read_results, summarise, write_json
from acclimate.bench.store import gpu_of, stored_stream
from acclimate.bench.suite import Progress, list_all, present
from acclimate.encoders import load_encoder
from acclimate.errors import InputError
from acclimate.stream import FeatureStream, read_stream


def run_on_streams(
    recipes: Sequence[Recipe], paths: Sequence[Path], orders: Sequence[str], folder: Path, progress: Progress
) -> list[Record]:
    """Run recipes on feature files.

    Args:
        recipes: those that vary settings; the others compare datasets.
        paths: feature files with labels.
        orders: to take the samples in.
        folder: of the results.
        progress: makes a progress bar.
    """
    for recipe in recipes:
        if not isinstance(recipe, Ablation):
            raise InputError(f"{recipe.name} compares the paper's datasets and needs --data, not feature files.")
    streams = {path.stem: read_stream(path) for path in paths}
    if len(streams) < len(paths):
        raise InputError("two feature files have one name, and results go by it; rename one.")
    for name, stream in streams.items():
        if stream.labels is None:
            raise InputError(f"{name} has no labels, so there is nothing to score; add labels to the file.")
    records = []
    for name, stream in streams.items():
        variants = [variant for recipe in recipes for variant in recipe.variants(name)]
        records += _run(name, stream, variants, orders, folder, None, "numpy", progress)
    return records


def run_on_datasets(
    recipes: Sequence[Recipe],
    root: Path,
    model: str,
    store: Path,
    orders: Sequence[str],
    folder: Path,
    progress: Progress,
    *,
    batch_size: int = 64,
    workers: int | None = None,
    device: str = "auto",
) -> list[Record]:
    """Run recipes on those of their datasets that are on the disk, each with its own prompts and views.

    Args:
        recipes: any.
        root: the folder of all datasets.
        model: the encoder's name.
        store: the folder of features; what is encoded is not encoded again.
        orders: to take the samples in.
        folder: of the results.
        progress: makes a progress bar.
        batch_size: images, views counted, encoded at once.
        workers: threads that read images.
        device: of the encoder, and of the methods if it is a GPU.
    """
    wanted = {key: DATASETS[key] for recipe in recipes for key in recipe.datasets}
    here = present(list(wanted.values()), root)
    listings = list_all(here, root, orders)
    encoder = load_encoder(model, device)
    records = []
    for dataset in here:
        variants = [
            each for recipe in recipes if dataset.key in recipe.datasets for each in recipe.variants(dataset.key)
        ]
        listing = listings[dataset.key]
        with progress(len(listing), f"encoding {dataset.key}", "images") as advance:
            stream = stored_stream(
                dataset,
                listing,
                encoder,
                dataset.key,
                dataset.views,
                store,
                model=model,
                batch_size=batch_size,
                workers=workers,
                progress=advance,
            )
        records += _run(dataset.key, stream, variants, orders, folder, "dataset", gpu_of(encoder) or "numpy", progress)
    return records


def _run(
    name: str,
    stream: FeatureStream,
    variants: Iterable[Variant],
    orders: Sequence[str],
    folder: Path,
    prompts: str | None,
    device: str,
    progress: Progress,
) -> list[Record]:
    """Run distinct variants and zero-shot over one pass of a stream, and write their results to one file."""
    distinct = list({(each.called, repr(each.config)): each for each in variants}.values())
    total = len(stream) * (1 + len(distinct) * len(orders))
    with progress(total, f"adapting {name}", "samples") as advance:
        pairs = [(each.method, each.settings) for each in distinct]
        zero_shot, outcomes = sweep(stream, pairs, orders, device=device, progress=advance)
    encode_s = float(stream.metadata["encode_s"]) if "encode_s" in stream.metadata else None
    results = [
        summarise(name, stream, outcome, zero_shot, settings=called, prompts=prompts, encode_s=encode_s)
        for outcome, called in zip([zero_shot, *outcomes], [None, *(each.called for each in distinct)], strict=True)
    ]
    path = folder / f"{name}.json"
    write_json(results, path)
    return read_results(path)
