"""The order in which a run takes the samples of a stream."""

import numpy as np

from acclimate.arrays import HostArray
from acclimate.errors import InputError
from acclimate.sources.features import FeatureStream


def take_order(stream: FeatureStream, order: str) -> HostArray:
    """Positions (n,) in the order to take them.

    Args:
        stream: the samples.
        order: "stored" (the file's own `order`, or the order of its rows where it has none), "rows", or "seed:N" for a
            random order that is the same on every machine.
    """
    if order == "stored":
        return np.arange(len(stream)) if stream.order is None else stream.order
    if order == "rows":
        return np.arange(len(stream))
    kind, _, seed = order.partition(":")
    if kind == "seed" and seed.isdecimal():
        return np.random.default_rng(int(seed)).permutation(len(stream))
    raise InputError(f"unknown order {order!r}; use stored, rows, or seed:N with a whole number.")
