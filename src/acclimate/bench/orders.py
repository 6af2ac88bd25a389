"""Orders in which a run takes the samples of a stream: shuffled, or as unlike that as real streams are.

Some shapes take a part of the samples only: few classes, a long tail, the first 200. The head keeps all its classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from acclimate.arrays import HostArray
from acclimate.errors import InputError, nearest
from acclimate.sources.source import parse_order
from acclimate.stream import FeatureStream

SHORT_SAMPLES = 200  # length of a short stream
LEAVING_OUT_CLASSES = 4  # fewest classes of a stream of which some can be left out


def take_order(
    order: str,
    count: int,
    labels: HostArray | None = None,
    domains: Sequence[str] | None = None,
    stored: HostArray | None = None,
) -> HostArray:
    """Return positions (m,) in the order to take them: no sample twice, and the same name always gives the same order.

    An order is "rows", "stored" (the same without `stored`), or a name of `SHAPES` with a seed, such as
    "shuffled:1" or "correlated:1". Orders by class need labels (n,), those by domain a name for each of n samples. All
    n samples are taken (m = n), except by few-classes, half-classes, long-tail and first-200.
    """
    if order in ("stored", "rows"):
        return np.arange(count) if order == "rows" or stored is None else stored
    shape, seed = parse_order(order)
    if seed is None or shape not in SHAPES:
        known = ("stored", "rows", *(f"{name}:{seed or 0}" for name in SHAPES))
        raise InputError(f"unknown order {order!r}; {nearest(order, known)}")
    by, arrange = SHAPES[shape]
    groups = np.zeros(count, np.int64)
    if by == "class":
        if labels is None:
            raise InputError(f"the order {shape!r} needs labels; add them to this stream, or use shuffled:N.")
        groups = labels
        present = len(np.unique(labels))
        if shape in ("few-classes", "half-classes") and present < LEAVING_OUT_CLASSES:
            raise InputError(
                f"the order {shape!r} leaves classes out and needs samples of at least {LEAVING_OUT_CLASSES}, "
                f"but the stream has samples of {present}; use shuffled:N."
            )
    elif by == "domain":
        names = domains or ()
        if len(names) != count or len(set(names)) < 2:
            raise InputError(
                f"an order by domain needs at least two domains and one domain name for each of the {count} samples, "
                f"but the stream has {len(names)} names of {len(set(names))} domains; use shuffled:N."
            )
        groups = np.unique(names, return_inverse=True)[1]
    return arrange(groups, np.random.default_rng(seed))


def stream_order(stream: FeatureStream, order: str) -> HostArray:
    """Return the positions of the samples of a stream in an order, as `take_order` does.

    Orders by class leave out the samples whose class is unknown.
    """
    targets = stream.targets
    if targets is None or targets.min() >= 0 or SHAPES.get(parse_order(order)[0], ("",))[0] != "class":
        return take_order(order, len(stream), targets, stream.domains, stream.order)
    known = np.flatnonzero(targets >= 0)
    return known[take_order(order, len(known), targets[known])]


def part_of(stream: FeatureStream, positions: HostArray) -> FeatureStream:
    """Return a stream of the samples at positions (m,), in this order."""
    return replace(
        stream,
        features=stream.features[positions],
        targets=None if stream.targets is None else stream.targets[positions],
        domains=None if stream.domains is None else tuple(stream.domains[i] for i in positions),
        order=None,
        files=None,
    )


def order_names(order: str, count: int) -> list[str]:
    """Return the orders to run: `count` orders of the same shape as `order` (or shuffled), or `order` if 0."""
    shape = "shuffled" if order in ("stored", "rows") else parse_order(order)[0]
    return [f"{shape}:{number}" for number in range(count)] or [order]


def _sequential(groups: HostArray, rng: np.random.Generator) -> HostArray:
    """Take one group after another, in random order; shuffled within each group."""
    rank = rng.permutation(int(groups.max()) + 1)
    return np.asarray(np.lexsort((rng.random(len(groups)), rank[groups])))


def _correlated(
    groups: HostArray, rng: np.random.Generator, segment_samples: int = 100, concentration: float = 0.1
) -> HostArray:
    """Take each group in bursts: it is spread over segments of the stream in shares drawn from a Dirichlet.

    Segments have `segment_samples` samples on average; 0.1 is the usual concentration for strongly correlated streams.
    """
    segments = max(2, len(groups) // segment_samples)
    segment = np.empty(len(groups), np.int64)
    for group in np.unique(groups):
        members = rng.permutation(np.flatnonzero(groups == group))
        ends = np.round(np.cumsum(rng.dirichlet(np.full(segments, concentration))) * len(members))
        segment[members] = np.searchsorted(ends, np.arange(len(members)), side="right")
    return np.asarray(np.lexsort((rng.random(len(groups)), segment)))


def _mixed(groups: HostArray, rng: np.random.Generator) -> HostArray:
    moment = np.empty(len(groups))
    for group in np.unique(groups):
        members = rng.permutation(np.flatnonzero(groups == group))
        moment[members] = (np.arange(len(members)) + rng.random(len(members))) / len(members)
    return np.argsort(moment, kind="stable")


def _shift(groups: HostArray, rng: np.random.Generator) -> HostArray:
    """Take some groups mixed, then the others mixed: one change, as close to the middle as whole groups allow."""
    counts = np.bincount(groups)
    sequence = rng.permutation(len(counts))
    seen = np.cumsum(counts[sequence])[:-1]
    first = sequence[: 1 + int(np.argmin(np.abs(seen - len(groups) / 2)))]
    return np.asarray(np.lexsort((rng.random(len(groups)), ~np.isin(groups, first))))


def _few(groups: HostArray, rng: np.random.Generator) -> HostArray:
    """Take samples of 2 to K/5 groups, up to 3 if K is small, shuffled; the number of groups is drawn as well."""
    count = len(np.unique(groups))
    return _some(groups, int(rng.integers(2, max(count // 5, min(3, count // 2)), endpoint=True)), rng)


def _some(groups: HostArray, count: int, rng: np.random.Generator) -> HostArray:
    return rng.permutation(np.flatnonzero(np.isin(groups, rng.choice(np.unique(groups), count, replace=False))))


def _tail(groups: HostArray, rng: np.random.Generator, ratio: float = 50) -> HostArray:
    """Take groups in random order, with falling shares of their samples, at least one each; shuffled.

    The share that the first group keeps is `ratio` times that of the last.
    """
    present = rng.permutation(np.unique(groups))
    kept = []
    for group, share in zip(present, np.geomspace(1, 1 / ratio, len(present)), strict=True):
        members = rng.permutation(np.flatnonzero(groups == group))
        kept.append(members[: max(1, round(share * len(members)))])
    return rng.permutation(np.concatenate(kept))


# What the groups of samples are, and how they are arranged: the group of each sample (n,) -> positions, at most n.
SHAPES: dict[str, tuple[Literal["class", "domain"] | None, Callable[[HostArray, np.random.Generator], HostArray]]] = {
    "shuffled": (None, lambda groups, rng: rng.permutation(len(groups))),
    "class-sequential": ("class", _sequential),
    "correlated": ("class", _correlated),
    "domains": ("domain", _sequential),
    "mixed-domains": ("domain", _mixed),
    "domain-shift": ("domain", _shift),
    "few-classes": ("class", _few),
    "half-classes": ("class", lambda groups, rng: _some(groups, len(np.unique(groups)) // 2, rng)),
    "long-tail": ("class", _tail),
    f"first-{SHORT_SAMPLES}": (None, lambda groups, rng: rng.permutation(len(groups))[:SHORT_SAMPLES]),
}
