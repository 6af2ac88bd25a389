"""Fitted files: the state of a few-shot method, with a note on what it was fitted to."""

import os
from collections.abc import Mapping
from typing import Any

from acclimate.errors import StateError
from acclimate.files import read_snapshot
from acclimate.methods.few_shot import FewShot
from acclimate.methods.persist import VECTORS, build_adapter, check_description

MODEL = "model"  # among the notes of a state: fingerprint of the model that made the features
NOTE = "fitted"  # among the notes of a state: model, fingerprint, templates, shots, seed, source


def load_fitted(
    path: str | os.PathLike[str], encoder: Any = None, model: str = ""
) -> tuple[FewShot, Mapping[str, Any]]:
    """Read a few-shot adapter that was fitted and saved, and the note on what it was fitted to.

    Args:
        path: a file that `acclimate fit` or `Classifier.save` wrote.
        encoder: the model that will encode images; None if there are only features.
        model: its name, for errors.

    Raises:
        StateError: the file is not a state, is damaged, holds a method that is not few-shot or was not fitted, or was
            fitted with another model.
        InputError: the method needs the encoder's text tower, and there is none.
    """
    tensors, description = read_snapshot(path)
    check_description(description, path)
    about = fit_note(description["notes"])
    vectors = tensors.get(VECTORS)
    if encoder is not None and vectors is not None and vectors.ndim == 2:
        dims = (vectors.shape[1], encoder.dim)
        prints = (about.get("fingerprint"), encoder.fingerprint)
        if dims[0] != dims[1] or (all(prints) and prints[0] != prints[1]):
            raise StateError(
                f"{path} was fitted with the model {about.get('model', 'unknown')!r:.80} ({dims[0]} dimensions), "
                f"not with {model!r} ({dims[1]} dimensions); use that model, or fit again."
            )
    adapter, _ = build_adapter(tensors, description, path, text=encoder)
    if not isinstance(adapter, FewShot) or not adapter.seen:
        raise StateError(
            f"{path} is a state of {adapter.name!r} that was not fitted to labelled samples; "
            "write one with `acclimate fit`."
        )
    return adapter, about


def fit_note(notes: Mapping[str, Any]) -> Mapping[str, Any]:
    """The note on what it was fitted to, among the notes of a state; empty if there is none."""
    about = notes.get(NOTE)
    return about if isinstance(about, dict) else {}


def describe_fit(about: Mapping[str, Any]) -> str:
    """The note of a fitted file in words."""
    seed = "" if about.get("seed") is None else f", drawn with seed {about['seed']}"
    source = f" of {about['source']}" if about.get("source") else ""
    shots = f"{about.get('shots')} shot{'' if about.get('shots') == 1 else 's'} per class"
    return f"fitted to {shots}{source}{seed}, encoded with {about.get('model')}"
