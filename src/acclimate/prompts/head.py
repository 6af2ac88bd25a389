"""From labels to a Head: each class is the mean direction of its prompts (the CLIP ensemble), cached on disk.

A broad class also has kinds, the nouns below its label, which are encoded in the same prompts; see `Head`. The
negatives of "none of these" are class vectors of everyday nouns, which are shipped for the bundled model.
"""

import hashlib
import json
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.resources import as_file
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, cast

import numpy as np

from acclimate.arrays import HostArray, as_floats, to_host, unit_rows
from acclimate.errors import InputError, StateError
from acclimate.evidence import Head
from acclimate.files import keep_recent, read_snapshot, snapshot_bytes, write_atomically
from acclimate.prompts.expansion import Table, kind_words, kinds_of, nouns
from acclimate.prompts.templates import DATA, DEFAULT_SET, LearnedPrompts, Templates, clean_labels, prompts_for

BATCH_PROMPTS = 32  # larger batches take more memory and are not faster on a CPU
CACHE_VERSION = 2  # increases whenever the same prompts and encoder give different vectors
# Limits of the cache; the files that were used least recently are removed.
CACHE_FILES = 1000
CACHE_BYTES = 256 * 2**20
CANCELLED = 1e-6  # a mean of unit vectors shorter than this is rounding
Result = TypeVar("Result")
Steps = Generator[tuple[int, int], None, Result]  # yields prompts encoded since its last step, and their total


class TextEncoder(Protocol):
    """The text side of an encoder; see `acclimate.encoders.Encoder`."""

    logit_scale: float
    logit_bias: float
    fingerprint: str

    def encode_text(self, texts: Sequence[str]) -> Any:
        """Return vectors (n, d), of any length, for n texts."""


def default_cache_folder() -> Path | None:
    """Return $ACCLIMATE_CACHE, or else ~/.cache/acclimate; None where the user has no home."""
    with suppress(RuntimeError):
        return Path(os.environ.get("ACCLIMATE_CACHE") or "~/.cache/acclimate").expanduser()
    return None


def build_head(
    encoder: TextEncoder,
    labels: Sequence[str],
    templates: Templates | LearnedPrompts = DEFAULT_SET,
    cache: Path | Literal[False] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    expand: bool = True,
    known: Head | None = None,
) -> Head:
    """Encode labels into the head of a zero-shot classifier.

    The vector of each prompt is scaled to unit length; a class vector is the mean of the vectors of its prompts.
    Broad labels, such as "mammal" or "vehicle", are answered through the everyday nouns below them.

    Args:
        encoder: the model. Its vectors are cached only if it has a fingerprint.
        labels: K class names.
        templates: see `prompts_for`; or learned prompts.
        cache: the folder of cached vectors; None for `default_cache_folder()`, False for no cache. It need not exist,
            and what is damaged or cannot be written there is computed again. The files used last are kept.
        progress: called with the number of prompts encoded since its last call, and their total; that of the labels,
            and then that of the nouns below broad ones, if they have to be encoded.
        expand: answer broad labels through the nouns below them; not where each class has prompts of its own, or
            learned ones.
        known: a head of the same model and prompts, whose labels need not be encoded again.

    Raises:
        InputError: labels or templates cannot be used, or the encoder gives a class no direction.

    Examples:
        >>> from acclimate import build_head, load_encoder
        >>> head = build_head(load_encoder("bundled"), ["cat", "dog"], "a photo of a {}.")
        >>> head.class_names, head.dim
        (('cat', 'dog'), 768)
        >>> build_head(load_encoder("bundled"), ["mammal", "guitar"]).expanded["mammal"] > 100
        True
    """
    return finish(head_steps(encoder, labels, templates, cache, expand=expand, known=known), progress)


def finish(steps: Steps[Result], progress: Callable[[int, int], None]) -> Result:
    """Return the result of all steps; `progress` is called after each."""
    while True:
        try:
            progress(*next(steps))
        except StopIteration as end:
            return cast(Result, end.value)


def head_steps(
    encoder: TextEncoder,
    labels: Sequence[str],
    templates: Templates | LearnedPrompts = DEFAULT_SET,
    cache: Path | Literal[False] | None = None,
    *,
    expand: bool = True,
    known: Head | None = None,
) -> Steps[Head]:
    """Run `build_head` in steps, one per batch of prompts; its caller can do other things in between, or stop."""
    labels = clean_labels(labels)
    vectors = dict(zip(known.class_names, known.name_vectors, strict=True)) if known else {}
    if new := [label for label in labels if label not in vectors]:
        found = yield from _vector_steps(encoder, new, templates, cache)
        vectors |= dict(zip(new, found, strict=True))
    own = np.stack([vectors[label] for label in labels])
    head = Head(own, encoder.logit_scale, encoder.logit_bias, labels)
    if not expand or isinstance(templates, Mapping | LearnedPrompts) or not (kinds := kinds_of(labels)):
        return head
    vector_of = yield from _kind_steps(encoder, kinds, templates, cache)
    own = to_host(head.class_vectors)
    groups = [[vector_of[noun] for noun in kinds.get(label, ())] for label in labels]
    groups = [[vector, *group] if group else [] for vector, group in zip(own, groups, strict=True)]
    return replace(
        head,
        class_vectors=np.stack([np.mean(group or [name], axis=0) for name, group in zip(own, groups, strict=True)]),
        kinds=np.concatenate([np.stack(group) for group in groups if group]),
        kind_counts=tuple(map(len, groups)),
    )


def _kind_steps(
    encoder: TextEncoder, kinds: Table, templates: Templates, cache: Path | Literal[False] | None
) -> Steps[dict[str, HostArray]]:
    """Encode the nouns below labels; the result is the unit vector (d,) of each."""
    words = kind_words(kinds)
    if prompts_for(words, templates) == prompts_for(words, DEFAULT_SET):
        shipped = shipped_vectors(encoder)
        if shipped is not None:
            return dict(zip(nouns(), shipped, strict=True))
    vectors = yield from _vector_steps(encoder, words, templates, cache)
    return dict(zip(words, unit_rows(vectors, "text vectors"), strict=True))


def _vector_steps(
    encoder: TextEncoder,
    labels: Sequence[str],
    templates: Templates | LearnedPrompts,
    cache: Path | Literal[False] | None,
) -> Steps[HostArray]:
    """Encode labels; the result is the vector (K, d) of each, of any length."""
    if isinstance(templates, LearnedPrompts):  # cheap to compute: one prompt per label
        batches = []
        yield 0, len(labels)
        for i in range(0, len(labels), BATCH_PROMPTS):
            batches.append(templates.vectors(encoder, labels[i : i + BATCH_PROMPTS]))
            yield len(batches[-1]), len(labels)
        return np.concatenate(batches)
    prompts = prompts_for(labels, templates)
    folder = default_cache_folder() if cache is None else cache
    if not encoder.fingerprint or not folder:
        return (yield from _encode(encoder, labels, prompts))
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
            keep_recent(path.parent, "class-vectors-*.safetensors", CACHE_FILES, CACHE_BYTES)
    return vectors


def vectors_key(encoder: TextEncoder, prompts: Sequence[Sequence[str]]) -> str:
    """Return a key of the vectors that an encoder makes of each class's prompts."""
    return hashlib.sha256(json.dumps([CACHE_VERSION, encoder.fingerprint, prompts]).encode()).hexdigest()


def _encode(encoder: TextEncoder, labels: Sequence[str], prompts: Sequence[Sequence[str]]) -> Steps[HostArray]:
    """Encode prompts in batches; the result is the mean unit vector (K, d), float32, of each label's prompts.

    Only sums are kept, as the prompts can be many times the classes.
    """
    classes: dict[str, list[int]] = {}  # prompt -> the classes that have it
    for position, group in enumerate(prompts):
        for prompt in group:
            classes.setdefault(prompt, []).append(position)
    distinct = list(classes)
    sums = np.zeros((len(labels), 0))
    yield 0, len(distinct)
    for i in range(0, len(distinct), BATCH_PROMPTS):
        batch = distinct[i : i + BATCH_PROMPTS]
        vectors = to_host(as_floats(encoder.encode_text(batch), "text vectors"))
        sums = sums if i else np.zeros((len(labels), vectors.shape[-1]))
        if vectors.shape != (len(batch), sums.shape[1]) or vectors.size == 0:
            raise InputError(
                f"the encoder gave text vectors of shape {vectors.shape} for {len(batch)} prompts; "
                "it must give (n, d) with the same d for all."
            )
        for prompt, peak in zip(batch, np.abs(vectors).max(axis=1), strict=True):
            if not 0 < peak < np.inf:
                kind = "all zeros" if peak == 0 else "NaN or infinity"
                raise InputError(
                    f"label {labels[classes[prompt][-1]]!r}: the encoder gives {kind} for {prompt!r}; "
                    "write it differently."
                )
        for prompt, unit in zip(batch, unit_rows(vectors, "text vectors"), strict=True):
            for position in classes[prompt]:
                sums[position] += unit
        yield len(batch), len(distinct)
    means = sums / np.array([[len(group)] for group in prompts])
    if (lengths := np.linalg.norm(means, axis=1)).min() < CANCELLED:
        raise InputError(
            f"label {labels[lengths.argmin()]!r}: its prompts cancel each other out; use fewer or other templates."
        )
    return np.asarray(means, np.float32)


def negative_vectors(
    encoder: TextEncoder,
    cache: Path | Literal[False] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> HostArray:
    """Return unit vectors (M, d) of the nouns, in the prompt "a photo of a {}.".

    Those of the bundled model are shipped with 8 bits per number. For other models the nouns are encoded once and
    cached as class vectors are; `cache` and `progress` are those of `build_head`.

    Examples:
        >>> from acclimate import load_encoder
        >>> negative_vectors(load_encoder("bundled")).shape == (len(nouns()), 768)
        True
    """
    return finish(negative_steps(encoder, cache), progress)


def negative_steps(encoder: TextEncoder, cache: Path | Literal[False] | None = None) -> Steps[HostArray]:
    """Run `negative_vectors` in steps, as `head_steps` does for `build_head`."""
    vectors = shipped_vectors(encoder)
    if vectors is None:
        vectors = unit_rows((yield from _vector_steps(encoder, nouns(), DEFAULT_SET, cache)), "text vectors")
    return vectors


def shipped_vectors(encoder: TextEncoder) -> HostArray | None:
    """Return unit vectors (M, d) of the nouns in the prompts of DEFAULT_SET, if they are shipped for this model."""
    with as_file(DATA / "nouns.safetensors") as path:
        shipped, about = read_snapshot(path)
    if about["key"] != vectors_key(encoder, prompts_for(nouns(), DEFAULT_SET)):
        return None
    # 8-bit numbers with a scale per vector, without the zeros at the end of all of them
    vectors = shipped["vectors"].astype(np.float32) * shipped["scale"][:, None]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.pad(vectors, ((0, 0), (0, about["dim"] - vectors.shape[1])))
