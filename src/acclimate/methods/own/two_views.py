"""A Gaussian classifier on two views of the features, and measurements of it that need no labels.

The views are the even and the odd coordinates of a feature: they share no coordinate, so what one of them gets wrong
by chance the other does not. Each view has one Gaussian per class, with a covariance in common. The classifier answers
twice: "even" believes that all classes are equally frequent, "seen" that they are as frequent as they were seen.

Measured without labels are the agreement of the views, the stake of following them, and the temperatures that fit: on
samples that the views have not learnt from, as sums over samples.
"""

from collections.abc import Mapping, Sequence
from math import log
from typing import NamedTuple

import numpy as np

from acclimate.arrays import Array, HostArray, device, log_sum_exp, move, namespace
from acclimate.methods.state import Sums

VIEWS = (slice(0, None, 2), slice(1, None, 2))  # the coordinates of each view
# The beliefs
EVEN = 0
SEEN = 1
TINY = 1e-6  # added to variances and counts that may be 0
TAU_RATIO = 1.8  # ratio of each temperature of the classifier to the one before
TAUS = 0.002 * TAU_RATIO ** np.arange(13)  # temperatures of the classifier
BETAS = 2.0 ** np.arange(-2.0, 5.5, 0.5)  # temperatures of the answer

Figures = Mapping[str, HostArray]  # sums over samples, by name


class Scores(NamedTuple):
    """Log-densities of B samples under each belief, up to their temperatures."""

    views: tuple[list[Array], list[Array]]  # (B, K) by belief and view
    log_shares: Array  # (K,), or (B, K) where a sample does not count itself

    def scored(self, belief: int, distances: Array, tau: float, trust: float) -> Array:
        """Return the scores (B, K) of one view or of both, where shares are believed as far as `trust`."""
        return tau * distances if belief == EVEN else tau * distances + trust * self.log_shares

    def distances(self, belief: int) -> Array:
        """Return the sum of both views (B, K), without the shares."""
        return self.views[belief][0] + self.views[belief][1]


class TwoViews:
    """The classifier that follows from sums of samples with soft labels.

    With c_k the sum of the labels of class k, S_k the sum of `label * (x - mean)` and t_k the centred class vector,
    the mean of a class is `(S_k + A a t_k) / (c_k + A)`: the text counts for A samples, and a is how far class means
    follow the text, by least squares. The covariance is shrunk towards a round one.

    Args:
        sums: "counts" (K,), "by_class" (K, d), "features" (d,), and "outer_0" and "outer_1" of the views.
        samples: number of samples behind the sums.
        class_vectors: (K, d) of the head.
        anchors: samples that the text counts for in the mean of a class, by belief.
        shrink: share of the round part in the covariance of a long stream.
    """

    def __init__(
        self, sums: Sums, samples: float, class_vectors: Array, anchors: Sequence[float], shrink: float
    ) -> None:
        xp = namespace(class_vectors)
        self.samples = samples
        self.anchors = anchors
        self.counts = sums["counts"]
        self.mean = sums["features"] / samples
        # For each view with h coordinates: the precision (h, h), and by belief the means times precision (K, h) and
        # half the squared lengths of the means (K,).
        self.views: list[tuple[Array, list[Array], list[Array]]] = []
        all_text = class_vectors - xp.mean(class_vectors, axis=0)
        all_around = sums["by_class"] - self.counts[:, None] * self.mean
        for number, view in enumerate(VIEWS):
            text = all_text[:, view]
            around = all_around[:, view]
            total = sums[f"outer_{number}"] / samples - self.mean[view][:, None] * self.mean[view]
            dim = total.shape[0]
            follow = xp.sum(around * text) / (self.counts @ xp.vecdot(text, text) + TINY)
            between = around / xp.sqrt(samples * xp.clip(self.counts, min=TINY))[:, None]
            within = total - between.T @ between
            share = (shrink * samples + dim) / (samples + dim)
            variance = xp.clip(xp.linalg.trace(within) / dim, min=TINY)
            identity = xp.eye(dim, dtype=within.dtype, device=device(within))
            precision = covariance_inverse((1.0 - share) * within + (share * variance + TINY) * identity)
            means = [(around + anchor * follow * text) / (self.counts + anchor)[:, None] for anchor in anchors]
            weights = [each @ precision for each in means]
            offsets = [0.5 * xp.vecdot(mean, weight) for mean, weight in zip(means, weights, strict=True)]
            self.views.append((precision, weights, offsets))

    def __call__(self, features: Array, own: Array | None = None) -> Scores:
        """Score features (B, d).

        `own` (B, K) are the labels with which the samples were learnt, if they were: a sample is not judged by itself.
        Without it, the mean of a class of size N lies N / (N - own) times as far away.
        """
        xp = namespace(features)
        centred = features - self.mean
        spreads = [self._spread(belief, own) for belief in (EVEN, SEEN)]
        views: tuple[list[Array], list[Array]] = ([], [])
        for coordinates, (precision, weights, offsets) in zip(VIEWS, self.views, strict=True):
            part = centred[:, coordinates]
            lengths = 0.5 * xp.vecdot(part @ precision, part)[:, None]
            for belief, spread in enumerate(spreads):
                scores = part @ weights[belief].T
                scores -= offsets[belief]
                scores -= lengths
                if spread is not None:
                    scores *= spread
                views[belief].append(scores)
        counts = self.counts if own is None else self.counts - own
        return Scores(views, xp.log((counts + 1.0) / (self.samples + len(self.counts))))

    def _spread(self, belief: int, own: Array | None) -> Array | None:
        """Return factors (K,) or (B, K) of squared distances to the means of a belief; None where all are 1.

        A sample lies further from the mean of N samples than from the true one, by a factor of 1 + 1/N. Believing that
        classes are equally frequent, distances are divided by it.
        """
        size = self.counts + self.anchors[belief]
        others = size if own is None else size - own
        if belief == SEEN:
            return None if own is None else (size / others) ** 2
        return size / (size + 1.0) if own is None else size**2 / (others * (others + 1.0))


def covariance_inverse(x: Array) -> Array:
    """Return the inverse of a symmetric, positive definite matrix (d, d).

    NumPy would solve d equations with a general matrix. Inverting by halves is mostly matrix products, which take less
    than half of the time; below 128 rows it is not worth it.
    """
    half = len(x) // 2
    if not isinstance(x, np.ndarray) or len(x) < 128:
        return namespace(x).linalg.inv(x)
    first = covariance_inverse(x[:half, :half])
    across = x[:half, half:]
    spread = first @ across
    last = covariance_inverse(x[half:, half:] - across.T @ spread)
    corner = spread @ last
    return np.block([[first + corner @ spread.T, -corner], [-corner.T, last]])


# Measured without labels


def compare_views(scores: Scores, taus: Sequence[float], probs: Array) -> dict[str, Array]:
    """Compare the views of B samples with each other and with zero-shot's probabilities (B, K)."""
    xp = namespace(probs)
    rows = xp.arange(probs.shape[0], device=device(probs))
    own = xp.argmax(probs, axis=-1)
    sure = probs[rows, own]
    found: dict[str, list[Array]] = {"agree": [], "with_zero_shot": [], "stake": []}
    for belief, tau in enumerate(taus):
        # A view counts for half of the answer, so with half of the shares.
        tops = [xp.argmax(scores.scored(belief, view, tau, 0.5), axis=-1) for view in scores.views[belief]]
        found["agree"].append(xp.sum(xp.astype(tops[0] == tops[1], xp.float32)))
        found["with_zero_shot"].append(sum(xp.sum(xp.astype(top == own, xp.float32)) for top in tops) / 2)
        found["stake"].append(sum(xp.sum(sure - probs[rows, top]) for top in tops) / 2)
    terms = {name: xp.stack([xp.astype(each, probs.dtype) for each in values]) for name, values in found.items()}
    return terms | {"compared": xp.ones_like(sure[:1]) * probs.shape[0], "confidence": xp.sum(sure)[None]}


def cross_entropies(scores: Scores, probs: Array, rows: slice) -> Array:
    """Return cross-entropies (2, T) between zero-shot and each belief, by temperature."""
    xp = namespace(probs)
    taus = move(TAUS, probs)[:, None, None]
    losses = []
    for belief in (EVEN, SEEN):
        distances = scores.distances(belief)[rows]
        distances = distances - xp.max(distances, axis=-1, keepdims=True)
        partitions = xp.sum(xp.log(xp.sum(xp.exp(taus * distances), axis=-1)), axis=-1)
        losses.append(partitions - taus[:, 0, 0] * xp.sum(probs[rows] * distances))
    return xp.stack(losses)


def best_tau(losses: HostArray) -> float:
    """Return the temperature of least loss: of a parabola through the three lowest, in the logarithm."""
    i = int(losses.argmin())
    if not 0 < i < len(TAUS) - 1:
        return float(TAUS[i])
    left, middle, right = losses[i - 1 : i + 2]
    shift = 0.5 * (left - right) / max(left - 2 * middle + right, 1e-12)
    return float(TAUS[i] * TAU_RATIO ** max(-0.5, min(0.5, shift)))


def information(scores: Scores, rows: slice) -> dict[str, Array]:
    """Return how much likelier features are by the shares of the classes than by equal ones, in units of log K.

    It is about 0 per sample where classes are equally frequent, and 1 where all samples are of one class.
    """
    distances = scores.distances(SEEN)[rows]
    xp = namespace(distances)
    log_shares = scores.log_shares if scores.log_shares.ndim == 1 else scores.log_shares[rows]
    unit = log(distances.shape[1])
    gained = log_sum_exp(distances + log_shares) - log_sum_exp(distances) + unit
    return {"information": xp.sum(gained)[None] / unit, "tempered": xp.ones_like(gained[:1]) * len(gained)}


def confidence_reached(pooled: Array) -> Array:
    """Return the sum of the confidences of pooled log-probabilities (B, K) at each temperature of the answer."""
    xp = namespace(pooled)
    shifted = pooled - xp.max(pooled, axis=-1, keepdims=True)
    sums = xp.sum(xp.exp(move(BETAS, pooled)[:, None, None] * shifted), axis=-1)
    return xp.sum(1.0 / sums, axis=-1)


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
    return float(np.exp(np.interp(min(0.98, target), figures["reached"] / figures["tempered"][0], np.log(BETAS))))
