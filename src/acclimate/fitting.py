"""Fit a few-shot method to labelled images."""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from acclimate.arrays import HostArray, to_host
from acclimate.encoders import Encoder
from acclimate.errors import ImageError, InputError, nearest
from acclimate.methods import MODEL, NOTE, Adapter, FewShot, fit_note, load_with_notes, save_state
from acclimate.prompts import LearnedPrompts
from acclimate.reading.walk import Preparer, encode_ahead, precision_of

Progress = Callable[[str, int, int], None]  # what is being done, how much of it since the last call, and out of what
Labelled = tuple[Sequence[Any], Sequence[str]]  # images and their labels


class Fit(NamedTuple):
    """What `Classifier.fit` did."""

    samples: int  # images it was fitted to
    skipped: list[tuple[str, str]]  # names of images that could not be read, and why
    validation: int  # validation images
    accuracy: dict[str, float]  # on these, of zero-shot and of the method; empty without such images


@dataclass
class Fitting:
    """The work of `Classifier.fit`, whose docstring has the meaning of its arguments."""

    adapter: Adapter
    encoder: Encoder
    model: str  # its name
    prepare: Callable[[int], Preparer]  # of images, given the number of views
    reading: Mapping[str, Any]  # options of `encode_ahead`
    progress: Progress

    def fit(
        self, images: Sequence[Any], labels: Sequence[str], validation: Labelled, views: int, templates: Any
    ) -> tuple[Fit, dict[str, Any]]:
        """Fit the adapter; returns what was done, and what a fitted file says of it."""
        adapter = self.adapter
        if not isinstance(adapter, FewShot):
            raise InputError(f"the method {adapter.name!r} learns without labels; there is nothing to fit.")
        held_images, held_labels = validation
        places = self._places(images, labels)
        held_places = self._places(held_images, held_labels)
        adapter.require_every_class(places)
        count = len(images) + len(held_images)
        features, kept, skipped = self._features(images, views, count)
        held_features, held_kept, held_skipped = self._features(held_images, 1, count)
        fitted_to = places[kept]
        truth = held_places[held_kept]
        names = adapter.head.class_names
        if lost := set(places.tolist()) - set(fitted_to.tolist()):
            name, why = skipped[0]
            raise ImageError(
                f"none of the images of {names[min(lost)]!r} can be read. The first of {len(skipped)} unreadable "
                f"images is {name}: {why}"
            )
        steps = adapter.fit_steps(len(fitted_to), len(truth))
        adapter.fit(
            features,
            fitted_to,
            validation=(held_features, truth) if len(truth) else None,
            progress=lambda done: self.progress("fitting", done, steps),
        )
        shots = int(np.bincount(fitted_to).min())
        about: dict[str, Any] = {"model": self.model, "fingerprint": self.encoder.fingerprint, "shots": shots}
        templates = templates.name if isinstance(templates, LearnedPrompts) else templates
        with suppress(TypeError):  # functions cannot be written to a file
            about |= {"templates": json.loads(json.dumps(templates))}
        accuracy = {}
        if len(truth):
            answers = {"zero-shot": adapter.head.observe(held_features).logits}
            answers[adapter.name] = adapter.step(held_features)
            accuracy = {name: float((to_host(given).argmax(axis=1) == truth).mean()) for name, given in answers.items()}
        return Fit(len(fitted_to), skipped + held_skipped, len(truth), accuracy), about

    def _places(self, images: Sequence[Any], labels: Sequence[str]) -> HostArray:
        """The class indices (n,) of the labels of n images."""
        if len(images) != len(labels):
            raise InputError(f"{len(images)} images and {len(labels)} labels; give one label per image.")
        names = self.adapter.head.class_names
        place = {label: i for i, label in enumerate(names)}
        if unknown := [label for label in labels if label not in place]:
            raise InputError(f"no class is named {unknown[0]!r}; {nearest(str(unknown[0]), names)}")
        return np.array([place[label] for label in labels], dtype=np.int64)

    def _features(
        self, images: Iterable[Any], views: int, count: int
    ) -> tuple[HostArray, list[int], list[tuple[str, str]]]:
        """Features of the images that can be read, their positions, and the names of the others with the reasons."""
        parts = [np.empty((0, self.encoder.dim), np.float32)]
        kept = []
        skipped = []
        for batch in encode_ahead(images, self.prepare(views), **self.reading):
            parts.append(to_host(batch.features))
            kept += batch.readable
            skipped += [(name, error) for name, error in zip(batch.names, batch.errors, strict=True) if error]
            self.progress("encoding", len(batch.names), count)
        return np.concatenate(parts[1:] or parts), kept, skipped


def save_fit(
    adapter: Adapter, path: str | os.PathLike[str], encoder: Encoder, decoder: str, about: Mapping[str, Any]
) -> None:
    """Write the state of an adapter, what its features were made by, and what it was fitted to if it was, to a file."""
    save_state(adapter, path, fit_notes(encoder, decoder, about))


def fit_notes(encoder: Encoder, decoder: str, about: Mapping[str, Any]) -> dict[str, Any]:
    """What a state says of the features it was made from, and of what it was fitted to if it was."""
    notes = {MODEL: encoder.fingerprint, "decoder": decoder, "precision": precision_of(encoder)}
    return notes | ({NOTE: about} if about else {})


def load_fit(path: str | os.PathLike[str], like: Adapter) -> tuple[Adapter, Mapping[str, Any]]:
    """Read a state of an adapter like this one, and what it was fitted to."""
    adapter, notes = load_with_notes(path, like)
    return adapter, fit_note(notes)
