"""From labels to a Head: each class is the mean direction of its prompts (the CLIP ensemble), cached on disk."""

import hashlib
import json
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

from acclimate.arrays import HostArray, as_floats, to_host, unit_rows
from acclimate.errors import InputError, StateError
from acclimate.evidence import Head
from acclimate.files import keep_recent, read_snapshot, snapshot_bytes, write_atomically
from acclimate.prompts.learned import LearnedPrompts
from acclimate.prompts.templates import DEFAULT_SET, Templates, clean_labels, prompts_for

BATCH = 32  # prompts at once: larger batches take more memory and are not faster on a CPU
CACHE_VERSION = 2  # increases whenever the same prompts and encoder give different vectors
CACHED = 1000, 256 * 2**20  # files and bytes in the cache; those that were used least recently are removed
CANCELLED = 1e-6  # a mean of unit vectors shorter than this is rounding
Result = TypeVar("Result")
Steps = Generator[tuple[int, int], None, Result]  # yields prompts encoded since its last step, and their total


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
    templates: Templates | LearnedPrompts = DEFAULT_SET,
    cache: Path | Literal[False] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Head:
    """Encode labels into the head of a zero-shot classifier.

    The vector of each prompt is scaled to unit length; a class vector is the mean of the vectors of its prompts.

    Args:
        encoder: the model. Its vectors are cached only if it has a fingerprint.
        labels: K class names.
        templates: see `prompts_for`; or learned prompts.
        cache: the folder of cached vectors; None for `default_cache_folder()`, False for no cache. It need not exist,
            and what is damaged or cannot be written there is computed again. It keeps the `CACHED` files used last.
        progress: called with the number of prompts encoded since its last call, and their total.

    Raises:
        InputError: labels or templates cannot be used, or the encoder gives a class no direction.

    Examples:
        >>> from acclimate import build_head, load_encoder
        >>> head = build_head(load_encoder("bundled"), ["cat", "dog"], "a photo of a {}.")
        >>> head.class_names, head.dim
        (('cat', 'dog'), 768)
    """
    return finish(head_steps(encoder, labels, templates, cache), progress)


def finish(steps: Steps[Result], progress: Callable[[int, int], None]) -> Result:
    """The result of all steps; `progress` is called after each."""
    while True:
        try:
            progress(*next(steps))
        except StopIteration as end:
            result: Result = end.value
            return result


def head_steps(
    encoder: TextEncoder,
    labels: Sequence[str],
    templates: Templates | LearnedPrompts = DEFAULT_SET,
    cache: Path | Literal[False] | None = None,
) -> Steps[Head]:
    """`build_head` in steps, one per batch of prompts; its caller can do other things in between, or stop."""
    labels = clean_labels(labels)
    if isinstance(templates, LearnedPrompts):  # cheap to compute: one prompt per label
        return Head((yield from _learned(encoder, labels, templates)), encoder.logit_scale, encoder.logit_bias, labels)
    prompts = prompts_for(labels, templates)
    folder = default_cache_folder() if cache is None else cache
    if not encoder.fingerprint or not folder:
        vectors = yield from _encode(encoder, labels, prompts)
    else:
        path = Path(folder) / f"class-vectors-{vectors_key(encoder, prompts)}.safetensors"
        try:
            vectors = read_snapshot(path)[0]["class_vectors"]
            with suppress(OSError):
                os.utime(path)  # it was used
        except (StateError, OSError, KeyError):  # missing, unreadable, damaged or foreign
            vectors = yield from _encode(encoder, labels, prompts)
            with suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, snapshot_bytes({"class_vectors": vectors}, {}))
                keep_recent(path.parent, "class-vectors-*.safetensors", *CACHED)
    return Head(vectors, encoder.logit_scale, encoder.logit_bias, labels)


def vectors_key(encoder: TextEncoder, prompts: Sequence[Sequence[str]]) -> str:
    """Identifies the vectors that an encoder makes of each class's prompts."""
    return hashlib.sha256(json.dumps([CACHE_VERSION, encoder.fingerprint, prompts]).encode()).hexdigest()


def _learned(encoder: TextEncoder, labels: Sequence[str], learned: LearnedPrompts) -> Steps[HostArray]:
    """The unit vector (K, d) of each label's learned prompt."""
    batches = []
    yield 0, len(labels)
    for i in range(0, len(labels), BATCH):
        batches.append(learned.vectors(encoder, labels[i : i + BATCH]))
        yield len(batches[-1]), len(labels)
    return np.concatenate(batches)


def _encode(encoder: TextEncoder, labels: Sequence[str], prompts: Sequence[Sequence[str]]) -> Steps[HostArray]:
    """The mean unit vector (K, d), float32, of each label's prompts.

    The vector of a prompt is kept until the last class that has it is done: the prompts can be many times the classes.
    """
    label_of = {prompt: label for label, group in zip(labels, prompts, strict=True) for prompt in group}
    last_use = {prompt: position for position, group in enumerate(prompts) for prompt in group}
    distinct = list(label_of)
    units: dict[str, HostArray] = {}
    means: list[HostArray] = []
    dim = 0
    yield 0, len(distinct)
    for i in range(0, len(distinct), BATCH):
        batch = distinct[i : i + BATCH]
        vectors = _encode_batch(encoder, batch)
        dim = dim or vectors.shape[1]
        if vectors.shape[1] != dim:
            raise InputError("the encoder gave text vectors of different lengths; it must give (n, d) with one d.")
        for prompt, peak in zip(batch, np.abs(vectors).max(axis=1), strict=True):
            if not 0 < peak < np.inf:
                kind = "all zeros" if peak == 0 else "NaN or infinity"
                label = label_of[prompt]
                raise InputError(f"label {label!r}: the encoder gives {kind} for {prompt!r}; write it differently.")
        units.update(zip(batch, unit_rows(vectors, "text vectors"), strict=True))
        while len(means) < len(prompts) and all(prompt in units for prompt in prompts[len(means)]):
            group = prompts[len(means)]
            mean = np.mean([units[prompt] for prompt in group], axis=0, dtype=np.float64)
            if np.linalg.norm(mean) < CANCELLED:
                label = labels[len(means)]
                raise InputError(f"label {label!r}: its prompts cancel each other out; use fewer or other templates.")
            for prompt in group:
                if last_use[prompt] == len(means):
                    units.pop(prompt, None)
            means.append(np.asarray(mean, np.float32))
        yield len(batch), len(distinct)
    return np.stack(means)


def _encode_batch(encoder: TextEncoder, prompts: list[str]) -> HostArray:
    vectors = to_host(as_floats(encoder.encode_text(prompts), "text vectors"))
    if vectors.ndim != 2 or len(vectors) != len(prompts) or vectors.shape[1] == 0:
        raise InputError(f"the encoder gave text vectors of shape {vectors.shape} for {len(prompts)} prompts.")
    return vectors
