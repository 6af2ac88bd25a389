"""The feature store: a dataset is encoded once per model, and every method then runs on its features in seconds.

One folder holds `features.npy` (n, views, d), unit rows in float16, and `manifest.json`, which describes the features
and counts those that are done. The folder's name ends in a fingerprint of the model with its preprocessing, the images
with their labels, and the views, so that features are never mistaken for others. Prompts are not part of it: class
vectors are made separately.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any, BinaryIO

import numpy as np

from acclimate.arrays import HostArray, to_host, unit_rows
from acclimate.bench import Advance, Progress, silent
from acclimate.bench.datasets import Dataset, Listing
from acclimate.bench.prequential import Variant
from acclimate.encoders import Encoder, Precision, load_encoder
from acclimate.errors import RunError
from acclimate.evidence import Head
from acclimate.files import write_atomically, writing
from acclimate.prompts import LearnedPrompts, build_head, prompts_for
from acclimate.prompts.templates import LEARNED_PREFIX
from acclimate.reading.walk import Preparer, encode_ahead, gpu_of, precision_of
from acclimate.run import Batch
from acclimate.stream import FeatureStream
from acclimate.views import VERSION as VIEWS_VERSION
from acclimate.views.generated import GeneratedFolder, open_generator

FORMAT = 2  # raised whenever the same images are stored differently
VIEWS_SEED = 0
CHECKPOINT_IMAGES = 4096  # images, counting views, between two updates of the manifest


@dataclass
class FeatureStore:
    """Datasets below a folder, the model that encodes them, and the folder of the features.

    Attributes:
        root: the folder of all datasets.
        model: the name of the encoder; also distinguishes encoders without a fingerprint.
        folder: the folder of encoded features.
        batch_size: images encoded at once, counting views.
        workers: threads that read and augment images.
        device: the device of the encoder; the methods use it too if it is a GPU.
        precision: the precision of the encoder.
        generated: for diffusion views, the folder of generated images, or `diffusers:MODEL`.
        progress: shows progress bars.
    """

    root: Path
    model: str
    folder: Path
    batch_size: int = 64
    workers: int | None = None
    device: str = "auto"
    precision: Precision = "float32"
    generated: str | None = None
    progress: Progress = silent

    @cached_property
    def encoder(self) -> Encoder:
        """The model, loaded when it is needed first."""
        return load_encoder(self.model, self.device, self.precision)

    def stream(self, listing: Listing, variant: Variant, progress: Advance = lambda images: None) -> FeatureStream:
        """Return the features of a dataset with its labels and head; they are encoded unless they are in the store.

        Images are read as published benchmarks read them: by Pillow, as they are stored, whatever their EXIF
        orientation says. If the encoding is interrupted, the next call continues where it stopped. The features are
        (n, d), float32, for one view, and (n, views, d), float16 and mapped from disk, for several. An image that
        cannot be read is a RunError: to skip it would make a different dataset.
        """
        dataset = listing.dataset
        prepare = self.preparer(dataset, variant)
        description = self.describe(listing, prepare)
        folder = self.folder / f"{dataset.key}-{prepare.views}-{digest(description)}"
        encode_s = self._encode_missing(folder, description, listing, prepare, progress)
        features: HostArray = np.load(folder / "features.npy", mmap_mode="r")
        if prepare.views == 1:
            features = unit_rows(features[:, 0].astype(np.float32), "features")
        return FeatureStream(
            features,
            self.head(dataset, variant),
            labels=listing.labels,
            domains=listing.domains,
            encoder=self.model,
            prompts=template_name(dataset, variant),
            views_kind=prepare.kind if prepare.views > 1 else "",
            encode_s=encode_s,
        )

    def preparer(self, dataset: Dataset, variant: Variant) -> Preparer:
        """Return how the images of a dataset are prepared for a variant."""
        views = dataset.views_of(variant.views)
        kind = variant.views_kind if variant.views_kind and views > 1 else "augmix"
        return Preparer(
            self.encoder,
            views,
            VIEWS_SEED,
            kind=kind,
            generator=open_generator(self.generated, self.device) if kind == "diffusion" and self.generated else None,
            upright=False,
            decoder="pillow",
        )

    def head(self, dataset: Dataset, variant: Variant) -> Head:
        """Return the zero-shot classifier of a dataset with the prompts of a variant."""
        templates = template_name(dataset, variant)
        names = {}
        for name in dataset.class_names:  # two pairs of ImageNet's classes have the same name, and so the same prompts
            names[name if name not in names else f"{name} (2)"] = name
        if templates.startswith(LEARNED_PREFIX):
            return build_head(self.encoder, tuple(names), LearnedPrompts.load(templates.removeprefix(LEARNED_PREFIX)))
        prompts = zip(names, prompts_for(list(names.values()), templates), strict=True)
        return build_head(self.encoder, tuple(names), dict(prompts))

    def describe(self, listing: Listing, prepare: Preparer) -> dict[str, Any]:
        """Return everything that the features of a dataset depend on."""
        pixels = "pillow" if gpu_of(self.encoder) is None else "torch"  # they round differently
        precision = precision_of(self.encoder)
        source = prepare.generator.source if prepare.generator else ""
        if isinstance(prepare.generator, GeneratedFolder):
            source += prepare.generator.stamp(map(str, listing.paths))
        images = hashlib.sha256()
        for path, label in zip(listing.paths, listing.labels.tolist(), strict=True):
            images.update(f"{path.relative_to(listing.folder).as_posix()}\0{label}\n".encode("utf-8", "surrogatepass"))
        return {
            "format": FORMAT,
            "dataset": listing.dataset.key,
            "encoder": self.encoder.fingerprint or self.model,
            "images": images.hexdigest(),
            "shape": [len(listing), prepare.views, self.encoder.dim],
            "views": None if prepare.views == 1 else [prepare.kind, VIEWS_SEED, VIEWS_VERSION, pixels, source],
            **({} if precision == "float32" else {"precision": precision}),
        }

    def _encode_missing(
        self, folder: Path, description: dict[str, Any], listing: Listing, prepare: Preparer, progress: Advance
    ) -> float:
        """Encode the images that are not done yet, and return the seconds that all images took."""
        done, encode_s = _done(folder, description)
        progress(done)
        if done == len(listing):
            return encode_s
        noted = done
        began = perf_counter() - encode_s
        path = folder / "features.npy"
        batches = encode_ahead(
            listing.paths[done:], prepare, batch_size=self.batch_size, workers=self.workers, start=done
        )
        with writing(f"to {folder}", hint="Free some space or choose a different store."):
            folder.mkdir(parents=True, exist_ok=True)
            features = np.lib.format.open_memmap(path, "r+" if done else "w+", np.float16, tuple(description["shape"]))
            # Written as a file: in a memory map, a full disk would kill the process.
            with path.open("r+b") as file:
                file.seek(features.offset + done * features[0].nbytes)
                try:
                    for batch in batches:
                        check_readable(batch, "the next run continues here")
                        unit = unit_rows(to_host(batch.features).astype(np.float32), "features")
                        file.write(unit.astype(np.float16).tobytes())
                        done += len(batch.names)
                        progress(len(batch.names))
                        if (done - noted) * prepare.views >= CHECKPOINT_IMAGES:
                            _note(folder, file, description, done, perf_counter() - began)
                            noted = done
                finally:
                    # Only whole batches are written, so the next call makes the same batches and rounds the same way.
                    encode_s = perf_counter() - began
                    _note(folder, file, description, done, encode_s)
        return encode_s


def template_name(dataset: Dataset, variant: Variant) -> str:
    """Return the name of the template set of a variant on a dataset."""
    return dataset.key if variant.prompts == "dataset" else variant.prompts


def digest(description: Mapping[str, Any]) -> str:
    """Return a fingerprint of a description, for the name of a file."""
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:16]


def check_readable(batch: Batch, advice: str) -> None:
    """Raise RunError if an image of a batch could not be read."""
    for path, error in zip(batch.names, batch.errors, strict=True):
        if error is not None:
            raise RunError(f"{path} cannot be read: {error}. Repair it; {advice}.")


def _note(folder: Path, file: BinaryIO, description: dict[str, Any], done: int, encode_s: float) -> None:
    file.flush()
    os.fsync(file.fileno())
    manifest = {**description, "done": done, "encode_s": encode_s}
    write_atomically(folder / "manifest.json", json.dumps(manifest, indent=2).encode() + b"\n")


def _done(folder: Path, description: dict[str, Any]) -> tuple[int, float]:
    with suppress(OSError, ValueError, KeyError):
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        features = np.load(folder / "features.npy", mmap_mode="r")
        if manifest.items() >= description.items() and list(features.shape) == description["shape"]:
            return int(manifest["done"]), float(manifest["encode_s"])
    return 0, 0.0
