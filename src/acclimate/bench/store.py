"""The feature store: a dataset is encoded once per model, and every method then runs on its features in seconds.

One folder holds `features.npy` (n, views, d), unit rows in float16, and `manifest.json`, which describes the features
and counts those that are done. The folder's name ends in a fingerprint of the model with its preprocessing, the images
with their labels, and the views, so that features are never mistaken for others. Prompts are not part of it: class
vectors are made separately.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, BinaryIO

import numpy as np

from acclimate.arrays import HostArray, to_host, unit_rows
from acclimate.bench import Advance, Progress, silent
from acclimate.bench.datasets import Dataset, Listing
from acclimate.encoders import Encoder, Precision
from acclimate.errors import InputError, RunError
from acclimate.evidence import Head
from acclimate.files import write_atomically, writing
from acclimate.prompts import LearnedPrompts, build_head, prompts_for, template_sets
from acclimate.prompts.learned import PREFIX
from acclimate.reading.walk import Preparer, encode_ahead, gpu_of, precision_of
from acclimate.stream import FeatureStream
from acclimate.views import VERSION as VIEWS_VERSION
from acclimate.views import Kind
from acclimate.views.generated import GeneratedFolder, open_generator

FORMAT = 2  # to be raised when the same images are stored differently
SEED = 0  # of the views
CHECKPOINT = 4096  # images, counting views, between two updates of the manifest


@dataclass(frozen=True)
class Setup:
    """What datasets are encoded and run with."""

    root: Path  # the folder of all datasets
    model: str  # name of the encoder; also distinguishes encoders without a fingerprint
    store: Path  # the folder of encoded features
    prompts: str = "dataset"  # each dataset's template set, or one for all: the name of a set or learned:FILE
    views: int | str = "paper"  # each dataset's number in the paper, or one for all: the image and other views of it
    orders: tuple[str, ...] = ("seed:1",)  # to take the samples in; several give a mean and its spread
    batch_size: int = 64  # images encoded at once, counting views
    workers: int | None = None  # threads that read and augment images
    device: str = "auto"  # of the encoder; the methods use it too if it is a GPU
    precision: Precision = "float32"  # of the encoder
    progress: Progress = silent
    views_kind: Kind | None = None  # of all views; None for what each method's paper uses
    generated: str | None = None  # for diffusion views: the folder of generated images, or `diffusers:MODEL`

    def __post_init__(self) -> None:
        known = ("dataset", *template_sets())
        if self.prompts not in known and not _learned(self.prompts):
            raise InputError(f"unknown prompts {self.prompts!r}; choose from {', '.join(known)} or {PREFIX}FILE.")

    def views_of(self, dataset: Dataset) -> int:
        """The number of views per image."""
        return dataset.views if self.views == "paper" else int(self.views)

    def prompts_of(self, dataset: Dataset) -> str:
        """The name of the template set."""
        return dataset.key if self.prompts == "dataset" else self.prompts


def stored_stream(
    setup: Setup, listing: Listing, encoder: Encoder, progress: Advance = lambda images: None
) -> FeatureStream:
    """The features of a dataset with its labels and head; encoded here unless they are in the store.

    Images are read as published benchmarks read them: by Pillow, as they are stored, whatever their EXIF orientation
    says.
    If the encoding is interrupted, the next call continues where it stopped. The features are (n, d), float32, for one
    view, and (n, views, d), float16 and mapped from disk, for several. An image that cannot be read is a RunError: to
    skip it would make a different dataset.
    """
    dataset = listing.dataset
    prepare = preparer_for(setup, listing.dataset, encoder)
    description = description_of(setup, listing, prepare)
    name = hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:16]
    folder = setup.store / f"{dataset.key}-{prepare.views}-{name}"
    encode_s = _encode_missing(folder, description, setup, listing, prepare, progress)
    features: HostArray = np.load(folder / "features.npy", mmap_mode="r")
    if prepare.views == 1:
        features = unit_rows(features[:, 0].astype(np.float32), "features")
    return FeatureStream(
        features,
        head_for(setup, dataset, encoder),
        labels=listing.labels,
        domains=listing.domains,
        encoder=setup.model,
        prompts=setup.prompts_of(dataset),
        views_kind=prepare.kind if prepare.views > 1 else "",
        encode_s=encode_s,
    )


def preparer_for(setup: Setup, dataset: Dataset, encoder: Encoder) -> Preparer:
    """How the images of a dataset are prepared; the kind of views is "augmix" if the setup does not say."""
    views = setup.views_of(dataset)
    kind = setup.views_kind or "augmix"
    generator = open_generator(setup.generated, setup.device) if kind == "diffusion" and setup.generated else None
    return Preparer(encoder, views, SEED, kind=kind, generator=generator, upright=False, decoder="pillow")


def head_for(setup: Setup, dataset: Dataset, encoder: Encoder) -> Head:
    """The zero-shot classifier of a dataset."""
    templates = setup.prompts_of(dataset)
    names = {}
    for name in dataset.class_names:  # two pairs of ImageNet's classes have the same name, and so the same prompts
        names[name if name not in names else f"{name} (2)"] = name
    if learned := _learned(templates):
        return build_head(encoder, tuple(names), learned)
    prompts = prompts_for(list(names.values()), templates)
    return build_head(encoder, tuple(names), dict(zip(names, prompts, strict=True)))


def _learned(prompts: str) -> LearnedPrompts | None:
    """The prompts of a file that was named as learned:FILE."""
    return LearnedPrompts.load(prompts.removeprefix(PREFIX)) if prompts.startswith(PREFIX) else None


def description_of(setup: Setup, listing: Listing, prepare: Preparer) -> dict[str, Any]:
    """Everything that the features of a dataset depend on."""
    encoder = prepare.encoder
    pixels = "pillow" if gpu_of(encoder) is None else "torch"  # they round differently
    source = prepare.generator.source if prepare.generator else ""
    precision = precision_of(encoder)
    if isinstance(prepare.generator, GeneratedFolder):
        source += prepare.generator.stamp(map(str, listing.paths))
    return {
        "format": FORMAT,
        "dataset": listing.dataset.key,
        "encoder": encoder.fingerprint or setup.model,
        "images": _fingerprint(listing),
        "shape": [len(listing), prepare.views, encoder.dim],
        "views": None if prepare.views == 1 else [prepare.kind, SEED, VIEWS_VERSION, pixels, source],
        **({} if precision == "float32" else {"precision": precision}),
        **({} if prepare.decoder == "pillow" else {"decoder": prepare.decoder}),
    }


def _encode_missing(
    folder: Path, description: dict[str, Any], setup: Setup, listing: Listing, prepare: Preparer, progress: Advance
) -> float:
    """Encode the images that are not done yet; the seconds that all images took."""
    shape = tuple(description["shape"])
    done, encode_s = _done(folder, description)
    progress(done)
    if done == len(listing):
        return encode_s
    noted = done
    began = perf_counter() - encode_s
    batches = encode_ahead(
        listing.paths[done:], prepare, batch_size=setup.batch_size, workers=setup.workers, start=done
    )
    with _open(folder, shape, done) as file:
        try:
            for batch in batches:
                for path, error in zip(batch.names, batch.errors, strict=True):
                    if error is not None:
                        raise RunError(f"{path} cannot be read: {error}. Repair it; the next run continues here.")
                unit = unit_rows(to_host(batch.features).astype(np.float32), "features")
                file.write(unit.astype(np.float16).tobytes())
                done += len(batch.names)
                progress(len(batch.names))
                if (done - noted) * shape[1] >= CHECKPOINT:
                    _note(folder, file, description, done, perf_counter() - began)
                    noted = done
        finally:
            # Only whole batches are written, so the next call makes the same batches and rounds the same way.
            encode_s = perf_counter() - began
            _note(folder, file, description, done, encode_s)
    return encode_s


@contextmanager
def _open(folder: Path, shape: tuple[int, ...], done: int) -> Iterator[BinaryIO]:
    """The file of features, created unless some are done, at the position of the next image.

    It is written as a file and not through a memory map, in which a full disk would kill the process.
    """
    path = folder / "features.npy"
    with writing(f"to {folder}", hint="Free some space or choose a different store."):
        folder.mkdir(parents=True, exist_ok=True)
        features = np.lib.format.open_memmap(path, "r+" if done else "w+", np.float16, shape)
        with path.open("r+b") as file:
            file.seek(features.offset + done * features[0].nbytes)
            yield file


def _note(folder: Path, file: BinaryIO, description: dict[str, Any], done: int, encode_s: float) -> None:
    """Update the manifest, once the features are on disk."""
    file.flush()
    os.fsync(file.fileno())
    manifest = {**description, "done": done, "encode_s": encode_s}
    write_atomically(folder / "manifest.json", json.dumps(manifest, indent=2).encode() + b"\n")


def _done(folder: Path, description: dict[str, Any]) -> tuple[int, float]:
    """How many images are encoded, and how many seconds they took; 0 if the store is damaged."""
    with suppress(OSError, ValueError, KeyError):
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        features = np.load(folder / "features.npy", mmap_mode="r")
        if manifest.items() >= description.items() and list(features.shape) == description["shape"]:
            return int(manifest["done"]), float(manifest["encode_s"])
    return 0, 0.0


def _fingerprint(listing: Listing) -> str:
    """Of the image names below their folder and their labels, in order."""
    digest = hashlib.sha256()
    for path, label in zip(listing.paths, listing.labels.tolist(), strict=True):
        digest.update(f"{path.relative_to(listing.folder).as_posix()}\0{label}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
