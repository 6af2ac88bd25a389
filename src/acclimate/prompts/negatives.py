"""The negatives of "none of these": a list of everyday nouns, and their vectors, shipped for the bundled model."""

from collections.abc import Callable
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Literal

import numpy as np

from acclimate.arrays import HostArray, to_host
from acclimate.files import read_snapshot
from acclimate.prompts.head import Steps, TextEncoder, finish, head_steps, vectors_key
from acclimate.prompts.templates import DEFAULT_SET, prompts_for

DATA = files("acclimate.prompts") / "data"


@cache
def nouns() -> tuple[str, ...]:
    """Return some thousands of things that photographs show, in alphabetical order.

    Examples:
        >>> nouns()[:3], len(nouns()) > 3000
        (('aardvark', 'abacus', 'abbey'), True)
    """
    return tuple((DATA / "nouns.txt").read_text(encoding="utf-8").splitlines())


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
    with as_file(DATA / "nouns.safetensors") as path:
        shipped, about = read_snapshot(path)
    if about["key"] != vectors_key(encoder, prompts_for(nouns(), DEFAULT_SET)):
        head = yield from head_steps(encoder, nouns(), DEFAULT_SET, cache)
        return to_host(head.class_vectors)
    # 8-bit numbers with a scale per vector, without the zeros at the end of all of them
    vectors = shipped["vectors"].astype(np.float32) * shipped["scale"][:, None]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.pad(vectors, ((0, 0), (0, about["dim"] - vectors.shape[1])))
