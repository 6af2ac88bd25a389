"""Adapters in the middle of a long stream, and encoded blocks to show them: what the parts of `cluster.py` time."""

import pickle
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa

from acclimate import Adapter, Head, create
from acclimate.reading.walk import Batch
from adapter_speed import SCALE, make_features, unit_class_vectors

METHODS = ("tda", "accord", "dota")
CLASSES = (10, 100, 1000)
DIM = 512


def filled(method: str, classes: int) -> tuple[Adapter, np.random.Generator]:
    """An adapter with full caches, and where random numbers go on."""
    rng = np.random.default_rng(classes)
    vectors = unit_class_vectors(rng, classes, DIM)
    adapter = create(method, Head(vectors, logit_scale=SCALE))
    stream = [make_features(rng, vectors, 6, sharp=True), make_features(rng, vectors, 40, sharp=False)]
    adapter.step(np.concatenate(stream))
    return adapter, rng


def features_of(adapter: Adapter, rng: np.random.Generator, count: int) -> np.ndarray:
    """More features (count, d) of the same stream."""
    vectors = np.asarray(adapter.head.class_vectors)
    repeat = -(-count // len(vectors))
    rows = np.concatenate([make_features(rng, vectors, repeat, sharp) for sharp in (True, False)])
    return rows[rng.permutation(len(rows))][:count]


def encoded_block(number: int, start: int, features: np.ndarray, batch: int) -> pa.Table:
    """A block of features as the encoders of the cluster leave it, in batches of so many images."""
    batches = []
    for first in range(0, len(features), batch):
        part = features[first : first + batch]
        names = [f"{start + first + place:09}.jpg" for place in range(len(part))]
        batches.append(Batch(start + first, names, [None] * len(part), part, [None] * len(part)))
    content = pickle.dumps(batches, protocol=5)
    return pa.table({"block": [number], "content": pa.array([content], pa.large_binary()), "error": [""]})


def median_seconds(work: Callable[[], Any], turns: int) -> float:
    """The median of the seconds of some turns; one more comes first, which does not count."""
    seconds = []
    for _ in range(turns + 1):
        began = perf_counter()
        work()
        seconds.append(perf_counter() - began)
    return float(np.median(seconds[1:]))
