"""What the experts of `halves` are made of: the Gaussian classifier, its temperatures, and how they are weighed."""

from typing import NamedTuple

import numpy as np

from acclimate.arrays import Array, HostArray, namespace

RATIO = 1.8  # from one temperature of the head to the next
TAUS = 0.002 * RATIO ** np.arange(13)


class Pace(NamedTuple):
    """When parameters change."""

    block: int  # positions of changes are multiples of it
    every: int  # one sample in so many is measured
    growth: float  # from one change to the next


class Settled:
    """Stands for parameters that do not change any more: others get another."""


class Scorer(NamedTuple):
    """The Gaussian classifier of the whole stream, or of one half of it."""

    weights: Array  # (K, d)
    offsets: Array  # (K,)
    scale: Array  # (K,), below 1 for means of few samples
    known: Array  # (K,), from 0 for classes without samples to 1
    complete: bool  # every class is known

    def __call__(self, centred: Array, norms: Array, probs: Array) -> Array:
        """Log-densities (B, K), at most 0, of features less their mean (B, d) with norms (B, 1)."""
        xp = namespace(centred)
        scores = centred @ self.weights.T
        scores -= norms + self.offsets
        scores *= self.scale
        if not self.complete:  # a class that is not known gets what the others get on average
            share = (probs + 1e-6) * self.known
            scores -= (xp.vecdot(share, scores) / xp.sum(share, axis=-1))[:, None]
            scores *= self.known
        scores -= xp.max(scores, axis=-1, keepdims=True)
        return scores


class Answers(NamedTuple):
    """What the experts say of B samples."""

    logits: Array  # (B, K) calibrated
    answer: Array  # (B, K) before its temperature
    base: Array  # (B, K) of zero-shot and TDA
    seen: tuple[Array, Array, Array] | None  # what scorers take, once there are any
    scores: Array | None  # (B, K) of the head


def ramp(value: float, low: float, high: float) -> float:
    """0 up to `low`, 1 from `high`, and straight in between."""
    return min(1.0, max(0.0, (value - low) / (high - low)))


def effective(shares: HostArray) -> float:
    """How many classes these shares (K,) amount to: exp of their entropy."""
    shares = shares / shares.sum()
    return float(np.exp(-(shares * np.log(shares + 1e-12)).sum()))


def lowest_loss(losses: HostArray) -> float:
    """The temperature of least loss: of a parabola through the three lowest, in the logarithm."""
    i = int(losses.argmin())
    if not 0 < i < len(TAUS) - 1:
        return float(TAUS[i])
    left, middle, right = losses[i - 1 : i + 2]
    shift = 0.5 * (left - right) / max(left - 2 * middle + right, 1e-12)
    return float(TAUS[i] * RATIO ** max(-0.5, min(0.5, shift)))
