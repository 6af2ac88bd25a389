"""The order in which a run takes the samples of a stream: shuffled, or in one of the shapes that real streams have."""

import json
from collections.abc import Callable

import numpy as np

from acclimate.arrays import HostArray
from acclimate.errors import InputError
from acclimate.stream import FeatureStream

CONCENTRATION = 0.1  # of the Dirichlet in `correlated`: the usual choice for strongly correlated streams
STRETCH = 100  # samples that a stretch of a correlated stream holds on average


def take_order(stream: FeatureStream, order: str) -> HostArray:
    """Positions (n,) in the order to take them; every sample comes once, and the same name gives the same order.

    Args:
        stream: the samples.
        order: "stored" (the file's own `order`, or the order of its rows where it has none), "rows", or a shape of
            `SHAPES` with a seed, such as "seed:1" (shuffled) or "correlated:1".
    """
    if order == "stored":
        return np.arange(len(stream)) if stream.order is None else stream.order
    if order == "rows":
        return np.arange(len(stream))
    shape, _, seed = order.partition(":")
    if shape not in SHAPES or not seed.isdecimal():
        raise InputError(
            f"unknown order {order!r}; use stored, rows, or a shape with a whole number as its seed, such as "
            f"{', '.join(f'{name}:1' for name in SHAPES)}."
        )
    return SHAPES[shape](stream, np.random.default_rng(int(seed)))


def order_names(order: str, count: int) -> list[str]:
    """The orders to run: `order` itself, or if `count` is given so many of its shape (shuffled, if it has none)."""
    shape = order.partition(":")[0]
    shape = "seed" if shape in ("stored", "rows") else shape
    return [f"{shape}:{seed}" for seed in range(count)] or [order]


def _shuffled(stream: FeatureStream, rng: np.random.Generator) -> HostArray:
    return rng.permutation(len(stream))


def _class_sequential(stream: FeatureStream, rng: np.random.Generator) -> HostArray:
    """Classes one after another, in random order; shuffled within each."""
    return _one_after_another(_labels(stream, "class-sequential"), rng)


def _correlated(stream: FeatureStream, rng: np.random.Generator) -> HostArray:
    """Each class comes in bursts: it is dealt out over stretches of the stream in shares drawn from a Dirichlet."""
    labels = _labels(stream, "correlated")
    stretches = max(2, len(stream) // STRETCH)
    stretch = np.empty(len(stream), np.int64)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(stretches, CONCENTRATION))
        ends = np.round(np.cumsum(shares) * len(members)).astype(int)
        stretch[members] = np.searchsorted(ends, np.arange(len(members)), side="right")
    return np.lexsort((rng.random(len(stream)), stretch))


def _domains(stream: FeatureStream, rng: np.random.Generator) -> HostArray:
    """Domains one after another, in random order; shuffled within each."""
    return _one_after_another(_domains_of(stream), rng)


def _mixed_domains(stream: FeatureStream, rng: np.random.Generator) -> HostArray:
    """Every stretch of the stream holds all domains in their shares."""
    domains = _domains_of(stream)
    place = np.empty(len(stream))
    for domain in np.unique(domains):
        members = rng.permutation(np.flatnonzero(domains == domain))
        place[members] = (np.arange(len(members)) + rng.random(len(members))) / len(members)
    return np.argsort(place, kind="stable")


def _domain_shift(stream: FeatureStream, rng: np.random.Generator) -> HostArray:
    """Some domains mixed, then the others mixed: one change, as near to mid-stream as whole domains allow."""
    domains = _domains_of(stream)
    counts = np.bincount(domains)
    by_turn = rng.permutation(len(counts))
    seen = np.cumsum(counts[by_turn])[:-1]
    first = by_turn[: 1 + int(np.argmin(np.abs(seen - len(stream) / 2)))]
    return np.lexsort((rng.random(len(stream)), ~np.isin(domains, first)))


SHAPES: dict[str, Callable[[FeatureStream, np.random.Generator], HostArray]] = {
    "seed": _shuffled,
    "class-sequential": _class_sequential,
    "correlated": _correlated,
    "domains": _domains,
    "mixed-domains": _mixed_domains,
    "domain-shift": _domain_shift,
}


def _one_after_another(groups: HostArray, rng: np.random.Generator) -> HostArray:
    turn = rng.permutation(int(groups.max()) + 1)
    return np.lexsort((rng.random(len(groups)), turn[groups]))


def _labels(stream: FeatureStream, shape: str) -> HostArray:
    if stream.labels is None:
        raise InputError(
            f"the order {shape!r} goes by class, and this stream has no labels; use seed:N, or add labels."
        )
    return stream.labels


def _domains_of(stream: FeatureStream) -> HostArray:
    """Each sample's domain as a number, from the stream's metadata."""
    names = json.loads(stream.metadata.get("domains", "[]"))
    if len(names) != len(stream) or len(set(names)) < 2:
        raise InputError(
            "an order by domain needs a stream of two domains or more: metadata 'domains', a JSON list with one name a "
            f"sample ({len(stream)}), but it holds {len(names)} of {len(set(names))} domains; use seed:N."
        )
    return np.unique(names, return_inverse=True)[1]
