"""From labels to a Head: every class is the mean direction of its prompts (the CLIP ensemble), kept on disk."""

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from safetensors import safe_open

from acclimate.arrays import HostArray, as_floats, to_host, unit_rows
from acclimate.errors import InputError
from acclimate.evidence import Head
from acclimate.files import to_bytes, write_atomically
from acclimate.prompts.templates import DEFAULT_SET, Templates, clean_labels, prompts_for

BATCH = 256
CACHE_VERSION = 2  # to be raised when the same prompts and encoder give other vectors
CANCELLED = 1e-6  # a mean of unit vectors shorter than this is rounding


class TextEncoder(Protocol):
    """The text side of an encoder; see `acclimate.encoders.Encoder`."""

    logit_scale: float
    logit_bias: float
    fingerprint: str

    def encode_text(self, texts: Sequence[str]) -> Any:
        """Vectors (n, d), of any length, for n texts."""


def default_cache_folder() -> Path | None:
    """$ACCLIMATE_CACHE, or else ~/.cache/acclimate; None where the user has no home."""
    with suppress(RuntimeError):
        return Path(os.environ.get("ACCLIMATE_CACHE") or "~/.cache/acclimate").expanduser()
    return None


def build_head(
    encoder: TextEncoder,
    labels: Sequence[str],
    templates: Templates = DEFAULT_SET,
    cache: Path | Literal[False] | None = None,
) -> Head:
    """Encode labels into the head of a zero-shot classifier.

    The vector of each prompt is scaled to unit length; a class vector is the mean of the vectors of its prompts.

    Args:
        encoder: the model. Its vectors are cached only if it has a fingerprint.
        labels: K class names.
        templates: see `prompts_for`.
        cache: the folder to keep vectors in; None for `default_cache_folder()`, False for none. It need not exist, and
            what is damaged or cannot be written there is computed again.

    Raises:
        InputError: labels or templates cannot be used, or the encoder gives a class no direction.

    Examples:
        >>> from acclimate import build_head, load_encoder
        >>> head = build_head(load_encoder("bundled"), ["cat", "dog"], "a photo of a {}.")
        >>> head.class_names, head.dim
        (('cat', 'dog'), 768)
    """
    labels = clean_labels(labels)
    prompts = prompts_for(labels, templates)
    folder = default_cache_folder() if cache is None else cache
    if not encoder.fingerprint or not folder:
        vectors = _encode(encoder, labels, prompts)
    else:
        key = hashlib.sha256(json.dumps([CACHE_VERSION, encoder.fingerprint, prompts]).encode()).hexdigest()
        path = Path(folder) / f"class-vectors-{key}.safetensors"
        kept = _read(path, len(labels))
        vectors = _encode(encoder, labels, prompts) if kept is None else kept
        if kept is None:
            with suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, to_bytes({"class_vectors": vectors}, {"sha256": _digest(vectors)}))
    return Head(vectors, encoder.logit_scale, encoder.logit_bias, labels)


def _encode(encoder: TextEncoder, labels: Sequence[str], prompts: Sequence[Sequence[str]]) -> HostArray:
    """The mean unit vector (K, d), float32, of each label's prompts."""
    place = {prompt: i for i, prompt in enumerate(dict.fromkeys(chain.from_iterable(prompts)))}
    distinct = list(place)
    batches = [_encode_batch(encoder, distinct[i : i + BATCH]) for i in range(0, len(distinct), BATCH)]
    if len({batch.shape[1] for batch in batches}) > 1:
        raise InputError("the encoder gave text vectors of different lengths; it must give (n, d) with one d.")
    vectors = np.concatenate(batches)
    peaks = np.abs(vectors).max(axis=1)
    usable = np.isfinite(peaks) & (peaks > 0)
    for label, own in zip(labels, prompts, strict=True):
        for prompt in own:
            if not usable[place[prompt]]:
                kind = "all zeros" if peaks[place[prompt]] == 0 else "NaN or infinity"
                raise InputError(f"label {label!r}: the encoder gives {kind} for {prompt!r}; write it differently.")
    units = unit_rows(vectors, "text vectors")
    means = np.stack([units[[place[prompt] for prompt in own]].mean(axis=0, dtype=np.float64) for own in prompts])
    for label, length in zip(labels, np.linalg.norm(means, axis=1), strict=True):
        if length < CANCELLED:
            raise InputError(f"label {label!r}: its prompts cancel each other out; use fewer or other templates.")
    return means.astype(np.float32)


def _encode_batch(encoder: TextEncoder, prompts: list[str]) -> HostArray:
    vectors = to_host(as_floats(encoder.encode_text(prompts), "text vectors"))
    if vectors.ndim != 2 or len(vectors) != len(prompts) or vectors.shape[1] == 0:
        raise InputError(f"the encoder gave text vectors of shape {vectors.shape} for {len(prompts)} prompts.")
    return vectors


def _digest(vectors: HostArray) -> str:
    return hashlib.sha256(vectors.tobytes()).hexdigest()


def _read(path: Path, classes: int) -> HostArray | None:
    """The vectors kept in a file, if they are whole."""
    with suppress(Exception), safe_open(path, framework="numpy") as file:  # a damaged cache is only a slow cache
        vectors: HostArray = file.get_tensor("class_vectors")
        whole = vectors.dtype == np.float32 and vectors.ndim == 2 and len(vectors) == classes
        if whole and file.metadata()["sha256"] == _digest(vectors):
            return vectors
    return None
