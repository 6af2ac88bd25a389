"""What can be counted without labels: how far two views agree, what is at stake, and which temperatures fit.

All of it is measured on samples that the views have not learnt from, and all of it adds up over samples.
"""

from collections.abc import Mapping, Sequence
from math import log

import numpy as np

from acclimate.arrays import Array, HostArray, device, move, namespace
from acclimate.methods.two_views import EVEN, SEEN, VIEWS, Scores

RATIO = 1.8  # of a temperature of the classifier to the one before
TAUS = 0.002 * RATIO ** np.arange(13)  # temperatures of the classifier
BETAS = 2.0 ** np.arange(-2.0, 5.5, 0.5)  # temperatures of the answer
FIRST_TAU = 0.05  # temperature of the classifier until one was measured

Figures = Mapping[str, HostArray]  # what was counted, by name


def compare_views(scores: Scores, taus: Sequence[float], probs: Array) -> dict[str, Array]:
    """Compare the views of B samples with each other and with zero-shot's probabilities (B, K)."""
    xp = namespace(probs)
    rows = xp.arange(probs.shape[0], device=device(probs))
    own = xp.argmax(probs, axis=-1)
    sure = probs[rows, own]
    found: dict[str, list[Array]] = {"agree": [], "with_zero_shot": [], "stake": []}
    for belief, tau in enumerate(taus):
        tops = [xp.argmax(scores.of_view(belief, view, tau), axis=-1) for view in range(len(VIEWS))]
        found["agree"].append(_count_equal(*tops))
        found["with_zero_shot"].append(sum(_count_equal(top, own) for top in tops) / 2)
        found["stake"].append(sum(xp.sum(sure - probs[rows, top]) for top in tops) / 2)
    terms = {name: xp.stack([xp.astype(each, probs.dtype) for each in values]) for name, values in found.items()}
    return terms | {"compared": xp.ones_like(sure[:1]) * probs.shape[0], "confidence": xp.sum(sure)[None]}


def _count_equal(one: Array, other: Array) -> Array:
    xp = namespace(one)
    return xp.sum(xp.astype(one == other, xp.float32))


def cross_entropies(scores: Scores, probs: Array, rows: slice) -> Array:
    """Return cross-entropies (2, T) between zero-shot and each belief, by temperature."""
    xp = namespace(probs)
    taus = move(TAUS, probs)[:, None, None]
    losses = []
    for belief in (EVEN, SEEN):
        distances = scores.distances(belief)[rows]
        distances = distances - xp.max(distances, axis=-1, keepdims=True)
        expected = xp.sum(probs[rows] * distances)
        partitions = xp.sum(xp.log(xp.sum(xp.exp(taus * distances), axis=-1)), axis=-1)
        losses.append(partitions - taus[:, 0, 0] * expected)
    return xp.stack(losses)


def confidence_reached(pooled: Array) -> dict[str, Array]:
    """Return the confidence of pooled log-probabilities (B, K) at each temperature."""
    xp = namespace(pooled)
    shifted = pooled - xp.max(pooled, axis=-1, keepdims=True)
    sums = xp.sum(xp.exp(move(BETAS, pooled)[:, None, None] * shifted), axis=-1)
    return {"reached": xp.sum(1.0 / sums, axis=-1), "tempered": xp.ones_like(sums[:1, 0]) * pooled.shape[0]}


def best_tau(losses: HostArray) -> float:
    """Return the temperature of least loss: of a parabola through the three lowest, in the logarithm."""
    i = int(losses.argmin())
    if not 0 < i < len(TAUS) - 1:
        return float(TAUS[i])
    left, middle, right = losses[i - 1 : i + 2]
    shift = 0.5 * (left - right) / max(left - 2 * middle + right, 1e-12)
    return float(TAUS[i] * RATIO ** max(-0.5, min(0.5, shift)))


def information(scores: Scores, rows: slice) -> Array:
    """Return how much likelier features are by the shares of the classes than by equal ones, in units of log K: (1,).

    It is about 0 where classes are equally frequent, and 1 where all samples are of one class.
    """
    distances = scores.distances(SEEN)[rows]
    xp = namespace(distances)
    log_shares = scores.log_shares if scores.log_shares.ndim == 1 else scores.log_shares[rows]
    classes = distances.shape[1]
    gained = _log_sums(distances + log_shares) - _log_sums(distances) + log(classes)
    return xp.sum(gained)[None] / log(classes)


def _log_sums(x: Array) -> Array:
    """Return the logarithms (B,) of the sums of exp(x) over classes."""
    xp = namespace(x)
    top = xp.max(x, axis=-1, keepdims=True)
    return xp.log(xp.sum(xp.exp(x - top), axis=-1)) + top[:, 0]


def temperature(figures: Figures, weights: Sequence[float]) -> float:
    """Return the temperature at which the answer is as confident as zero-shot is and as agreement says, on average.

    Were errors independent, the views would agree with each other in a^2 of the samples and with zero-shot in a b,
    where a and b are how often they are right.
    """
    compared = float(figures["compared"][0])
    right = figures["with_zero_shot"] / np.sqrt(np.maximum(figures["agree"] * compared, 1e-9))
    experts = np.asarray(weights[1:])
    deserved = float(experts @ np.minimum(right, 1.0) / max(experts.sum(), 1e-9))
    target = 0.5 * (float(figures["confidence"][0]) / compared + deserved)
    reached = figures["reached"] / figures["tempered"][0]
    return float(np.exp(np.interp(min(0.98, target), reached, np.log(BETAS))))
