"""Paired comparison of methods that answered the same samples in the same orders.

Intervals come from a bootstrap that draws samples and orders with replacement, independently of each other, and gives
the same draw to every method. So they say how a difference would vary with other samples and other orders of the kind.
"""

from collections.abc import Sequence

import numpy as np

from acclimate.arrays import HostArray
from acclimate.bench.prequential import Run

RESAMPLES = 2000
LEVEL = 0.95
RESAMPLES_AT_ONCE = 100  # bounds the memory


def gather(samples: int, runs: Sequence[Sequence[Run]]) -> HostArray:
    """Return the answers (M, n, O) of M methods to n samples in O orders; -1 where an order leaves a sample out."""
    predictions = np.full((len(runs), samples, len(runs[0])), -1, np.int32)
    for method, by_order in enumerate(runs):
        for order, run in enumerate(by_order):
            predictions[method, run.order, order] = run.predictions
    return predictions


def resample(right: HostArray, taken: HostArray, resamples: int = RESAMPLES, seed: int = 0) -> HostArray:
    """Return accuracies (M, resamples), the mean over the orders, of samples and orders drawn with replacement.

    `right` (M, n, O) says which answers are right, and `taken` (n, O) which samples each order takes. One order is
    always drawn: there is nothing to say of others.
    """
    methods, samples, orders = right.shape
    table = np.concatenate([right.transpose(1, 0, 2).reshape(samples, -1), taken], axis=1)  # (n, (M + 1) O)
    # Samples with the same answers are interchangeable: how often one of them is drawn is all that counts.
    _, first, counts = np.unique(np.packbits(table, axis=1), axis=0, return_index=True, return_counts=True)
    table = table[first].astype(np.float32)  # exact for counts below 2^24
    rng = np.random.default_rng(seed)
    blocks = []
    for start in range(0, resamples, RESAMPLES_AT_ONCE):
        size = min(RESAMPLES_AT_ONCE, resamples - start)
        drawn = rng.multinomial(samples, counts / samples, size).astype(np.float32) @ table  # (size, (M + 1) O)
        answered = drawn.reshape(size, methods + 1, orders)
        accuracies = answered[:, :-1] / np.maximum(answered[:, -1:], 1)  # (size, M, O)
        shares = rng.multinomial(orders, np.full(orders, 1 / orders), size) / orders
        blocks.append((accuracies * shares[:, None]).sum(axis=2).T)
    return np.concatenate(blocks, axis=1)


def interval(resampled: HostArray) -> tuple[float, float]:
    """Return the middle part, 95 %, of resampled differences."""
    low, high = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
