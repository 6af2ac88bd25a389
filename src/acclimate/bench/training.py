"""Few-shot methods fitted to ImageNet's training images, as the train-time rows of the paper's tables are.

Shots are drawn by a seed and encoded into the feature store. What is fitted is a state file in the store; its name ends
in a fingerprint of everything it depends on, so that it is read where it was fitted before.
"""

import hashlib
import json
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from acclimate.bench.datasets import DATASETS, Dataset, Listing, read_dataset
from acclimate.bench.prequential import Variant, on_device
from acclimate.bench.recipes import SEARCHED, Protocol, trained_on
from acclimate.bench.store import Setup, description_of, preparer_for, stored_stream
from acclimate.encoders import Encoder
from acclimate.errors import StateError
from acclimate.evidence import Head
from acclimate.files import writing
from acclimate.methods import NOTE, FewShot, create, duplicate, find_method, load_fitted, save_state
from acclimate.reading.walk import gpu_of
from acclimate.sources.shots import MOST_HELD_OUT, draw_shots
from acclimate.stream import FeatureStream

IMAGENET = DATASETS["imagenet"]
TRAINING = replace(IMAGENET, images="images/train")  # in folders named by WordNet ids, like the validation images
SEED = 1  # of the draw
VERSIONS = 16  # of each shot: the image and 15 random crops; the authors crop anew in each epoch
HELD_OUT = f" (settings searched on other training images, up to {MOST_HELD_OUT} per class)"


def training_folder(root: Path) -> Path:
    """Where ImageNet's training images are, below the folder of all datasets."""
    return TRAINING.image_folder(root)


class Trainer:
    """Fits few-shot methods to ImageNet's training images, each once.

    Args:
        setup: where the images and the store are, and the model.
        shots: training images per class; None for the number of each protocol.
    """

    def __init__(self, setup: Setup, shots: int | None = None) -> None:
        self._setup = setup
        self._shots = shots
        self._adapters: dict[Path, FewShot] = {}
        self._drawn = cache(self._draw)

    def check(self, protocol: Protocol) -> None:
        """InputError if there are too few training images for a protocol."""
        self._drawn(self._shots or protocol.shots)

    def fitted(self, protocol: Protocol, variant: Variant, dataset: Dataset, head: Head, encoder: Encoder) -> Variant:
        """A variant together with its adapter, fitted by the protocol and then given the classes of a dataset.

        Where settings are searched, this is done on ImageNet's validation images. If these are the test images, other
        training images take their place; if there are none, the settings stay as they are.
        """
        count = self._shots or protocol.shots
        shots, rest = self._drawn(count)
        validation = None
        trained = trained_on(count)
        if protocol.validation:
            unseen = dataset.key != IMAGENET.key
            validation = read_dataset(IMAGENET, self._setup.root) if unseen else rest or None
            trained += SEARCHED if unseen else HELD_OUT if rest else ""
        adapter = self._adapter(replace(self._setup, prompts=protocol.prompts), variant, shots, validation, encoder)
        return replace(variant, fitted=_with_classes(adapter, dataset, head), trained=trained)

    def _draw(self, count: int) -> tuple[Listing, Listing]:
        """Shots, and other images of the same classes."""
        every = read_dataset(TRAINING, self._setup.root)
        drawn = draw_shots(every.labels, IMAGENET.class_names, count, SEED, MOST_HELD_OUT)
        shots, rest = (
            replace(every, paths=[every.paths[place] for place in places], labels=every.labels[places])
            for places in drawn
        )
        return shots, rest

    def _adapter(
        self, setup: Setup, variant: Variant, shots: Listing, validation: Listing | None, encoder: Encoder
    ) -> FewShot:
        """The adapter with all classes of ImageNet; read from the store if it was fitted before."""
        versions = replace(setup, views=VERSIONS, views_kind=find_method(variant.method).views_kind)
        plain = replace(setup, views=1)
        description = {
            "method": variant.method,
            "settings": variant.config,
            "prompts": setup.prompts,
            "shots": description_of(versions, shots, preparer_for(versions, TRAINING, encoder)),
            "validation": validation and description_of(plain, validation, preparer_for(plain, IMAGENET, encoder)),
        }
        name = hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:16]
        path = setup.store / "fitted" / f"{variant.method}-{name}.safetensors"
        if path not in self._adapters:
            with suppress(StateError):  # not there, or damaged
                self._adapters[path] = load_fitted(path, encoder, setup.model)[0]
        if path not in self._adapters:
            stream = self._encoded(versions, shots, "shots", encoder)
            other = None if validation is None else self._encoded(plain, validation, "validation images", encoder)
            head = on_device(stream.head, gpu_of(encoder) or "numpy")
            text = encoder if "text" in find_method(variant.method).needs else None
            adapter = create(variant.method, head, text=text, **variant.settings)
            assert isinstance(adapter, FewShot)
            steps = adapter.fit_steps(len(shots), 0 if validation is None else len(validation))
            with setup.progress(steps, f"fitting {variant.method}", "steps") as advance:
                held_out = None if other is None or validation is None else (other.features, validation.labels)
                adapter.fit(stream.features, shots.labels, validation=held_out, progress=advance)
            notes: dict[str, Any] = {"model": setup.model, "fingerprint": encoder.fingerprint, "seed": SEED}
            notes |= {"shots": len(shots) // len(head), "templates": setup.prompts_of(IMAGENET)}
            notes["source"] = "ImageNet's training images"
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            save_state(adapter, path, {NOTE: notes})
            self._adapters[path] = adapter
        return self._adapters[path]

    def _encoded(self, setup: Setup, listing: Listing, what: str, encoder: Encoder) -> FeatureStream:
        with setup.progress(len(listing), f"encoding {what} of imagenet", "images") as advance:
            return stored_stream(setup, listing, encoder, advance)


def _with_classes(adapter: FewShot, dataset: Dataset, head: Head) -> FewShot:
    """An adapter fitted to ImageNet, for the classes of a dataset with that head."""
    adapter = duplicate(adapter)
    names = dict(zip(IMAGENET.wnids, adapter.head.class_names, strict=True))
    if not dataset.wnids:
        adapter.relabel(head)
    elif gone := [name for wnid, name in names.items() if wnid not in dataset.wnids]:
        adapter.remove_classes(gone)  # the others stay in the order that all kinds of ImageNet have: by WordNet id
    return adapter
