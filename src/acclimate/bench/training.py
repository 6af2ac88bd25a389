"""Few-shot methods fitted to ImageNet's training images, as the train-time rows of the paper's tables are.

Shots are drawn by a seed and encoded into the feature store. A fitted adapter is a state file in the store; its name
ends in a fingerprint of everything it depends on, so that it is read where it was fitted before.
"""

from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from acclimate.bench.datasets import DATASETS, Dataset, Listing, read_dataset
from acclimate.bench.prequential import Variant, on_device
from acclimate.bench.recipes import SEARCHED, trained_on
from acclimate.bench.store import FeatureStore, digest, template_name
from acclimate.errors import StateError
from acclimate.evidence import Head
from acclimate.files import writing
from acclimate.methods import NOTE, FewShot, create, duplicate, find_method, load_fitted, save_state
from acclimate.reading.walk import gpu_of
from acclimate.sources.shots import MOST_HELD_OUT, draw_shots

IMAGENET = DATASETS["imagenet"]
TRAINING = replace(IMAGENET, images="images/train")  # folders named by WordNet ids, like the validation images
DRAW_SEED = 1
VERSIONS = 16  # each shot is the image and 15 random crops; the authors crop anew in each epoch
HELD_OUT = f" (settings searched on other training images, up to {MOST_HELD_OUT} per class)"


def training_folder(root: Path) -> Path:
    """Return the folder of ImageNet's training images, below the folder of all datasets."""
    return TRAINING.image_folder(root)


class Trainer:
    """Few-shot methods fitted to ImageNet's training images, each once.

    Args:
        store: the images, the model and the folder of what is fitted.
        shots: training images per class; None for the number of each row.
    """

    def __init__(self, store: FeatureStore, shots: int | None = None) -> None:
        self._store = store
        self._shots = shots
        self._adapters: dict[Path, FewShot] = {}
        self._drawn = cache(self._draw)

    def check(self, row: Variant) -> None:
        """Raise InputError if there are too few training images for a row."""
        self._drawn(self._shots or row.shots)

    def fitted(self, variant: Variant, dataset: Dataset, head: Head) -> Variant:
        """Return what to run on a dataset with that head: a variant, with a fitted adapter if it is few-shot.

        Where settings are searched, this is done on ImageNet's validation images. If these are the test images, other
        training images take their place; if there are none, the settings stay as they are.
        """
        if find_method(variant.method).kind != "few-shot":
            return variant
        if variant.fitted is not None:
            adapter = duplicate(variant.fitted)
            if adapter.head.class_names != head.class_names:
                adapter.relabel(head)
            return replace(variant, fitted=adapter)
        count = self._shots or variant.shots
        shots, rest = self._drawn(count)
        validation = None
        trained = trained_on(count)
        if variant.validation:
            unseen = dataset.key != IMAGENET.key
            validation = read_dataset(IMAGENET, self._store.root) if unseen else rest or None
            trained += SEARCHED if unseen else HELD_OUT if rest else ""
        adapter = duplicate(self._adapter(variant, shots, validation))
        names = dict(zip(IMAGENET.wnids, adapter.head.class_names, strict=True))
        if not dataset.wnids:
            adapter.relabel(head)
        elif gone := [name for wnid, name in names.items() if wnid not in dataset.wnids]:
            adapter.remove_classes(gone)  # the others stay in the order that all kinds of ImageNet have: by WordNet id
        return replace(variant, fitted=adapter, trained=trained)

    def _draw(self, count: int) -> tuple[Listing, Listing]:
        """Return shots, and other images of the same classes."""
        every = read_dataset(TRAINING, self._store.root)
        drawn = draw_shots(every.labels, IMAGENET.class_names, count, DRAW_SEED, MOST_HELD_OUT)
        shots, rest = (every.part(positions) for positions in drawn)
        return shots, rest

    def _adapter(self, variant: Variant, shots: Listing, validation: Listing | None) -> FewShot:
        """Return the adapter with all classes of ImageNet; it is read from the store if it was fitted before."""
        store = self._store
        versions = replace(variant, views=VERSIONS, views_kind=None)
        original = replace(variant, views=1)
        others = validation and store.describe(validation, store.preparer(IMAGENET, original))
        description = {
            "method": variant.method,
            "settings": variant.config,
            "prompts": variant.prompts,
            "shots": store.describe(shots, store.preparer(TRAINING, versions)),
            "validation": others,
        }
        path = store.folder / "fitted" / f"{variant.method}-{digest(description)}.safetensors"
        if path not in self._adapters:
            with suppress(StateError):  # missing or damaged
                self._adapters[path] = load_fitted(path, store.encoder, store.model)[0]
        if path not in self._adapters:
            adapter = self._fit(variant, versions, shots, validation)
            notes: dict[str, Any] = {"model": store.model, "fingerprint": store.encoder.fingerprint, "seed": DRAW_SEED}
            notes |= {"shots": len(shots) // len(adapter.head), "templates": template_name(IMAGENET, variant)}
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            save_state(adapter, path, {NOTE: {**notes, "source": "ImageNet's training images"}})
            self._adapters[path] = adapter
        return self._adapters[path]

    def _fit(self, variant: Variant, versions: Variant, shots: Listing, validation: Listing | None) -> FewShot:
        store = self._store
        with store.progress(len(shots), "encoding shots of imagenet", "images") as advance:
            stream = store.stream(shots, versions, advance)
        held_out = None
        if validation is not None:
            with store.progress(len(validation), "encoding validation images of imagenet", "images") as advance:
                held_out = (store.stream(validation, replace(variant, views=1), advance).features, validation.labels)
        head = on_device(stream.head, gpu_of(store.encoder) or "numpy")
        text = store.encoder if "text" in find_method(variant.method).needs else None
        adapter = create(variant.method, head, text=text, **variant.settings)
        assert isinstance(adapter, FewShot)
        steps = adapter.fit_steps(len(shots), 0 if validation is None else len(validation))
        with store.progress(steps, f"fitting {variant.method}", "steps") as advance:
            adapter.fit(stream.features, shots.labels, validation=held_out, progress=advance)
        return adapter
