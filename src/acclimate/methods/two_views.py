"""A Gaussian classifier on two views of the features, which answers under two beliefs about the classes.

The views are the even and the odd coordinates of a feature: they share no coordinate, so what one of them gets wrong
by chance the other does not. Each view has one Gaussian per class, with a covariance in common. The classifier answers
twice: "even" believes that all classes are equally frequent, "seen" that they are as frequent as they were seen.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from acclimate.arrays import Array, device, namespace
from acclimate.methods.state import Sums

VIEWS = (slice(0, None, 2), slice(1, None, 2))  # the coordinates of each view
# The beliefs
EVEN = 0
SEEN = 1
TINY = 1e-6  # added to variances and counts that may be 0
DIRECT_INVERSE_DIM = 128  # smaller matrices are inverted directly


class Scores(NamedTuple):
    """Log-densities of B samples under each belief, up to their temperatures."""

    views: tuple[list[Array], list[Array]]  # by belief and view: (B, K)
    log_shares: Array  # (K,), or (B, K) where a sample does not count itself

    def of_view(self, belief: int, view: int, tau: float) -> Array:
        """Return what one view says (B, K); it counts for half of the answer, so half of the shares belong to it."""
        scores = tau * self.views[belief][view]
        return scores if belief == EVEN else scores + 0.5 * self.log_shares

    def of_both(self, belief: int, tau: float, trust: float) -> Array:
        """Return what both views say together (B, K), where shares are believed as far as `trust`."""
        scores = tau * self.distances(belief)
        return scores if belief == EVEN else scores + trust * self.log_shares

    def distances(self, belief: int) -> Array:
        """Return the sum of both views (B, K), without the shares."""
        first, second = self.views[belief]
        return first + second


class View(NamedTuple):
    """The Gaussians of one view with h coordinates."""

    precision: Array  # (h, h) inverse of the covariance
    weights: list[Array]  # by belief: (K, h) means times precision
    offsets: list[Array]  # by belief: (K,) half the squared lengths of the means


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
        text = class_vectors - xp.mean(class_vectors, axis=0)
        around = sums["by_class"] - self.counts[:, None] * self.mean
        self.views = []
        for number, view in enumerate(VIEWS):
            outer = sums[f"outer_{number}"] / samples - self.mean[view][:, None] * self.mean[view]
            self.views.append(self._fit(outer, around[:, view], text[:, view], shrink))

    def _fit(self, total: Array, around: Array, text: Array, shrink: float) -> View:
        """Fit one view to its total covariance (h, h), sums around the mean (K, h) and centred text (K, h)."""
        xp = namespace(total)
        dim = total.shape[0]
        follow = xp.sum(around * text) / (self.counts @ xp.vecdot(text, text) + TINY)
        between = around / xp.sqrt(self.samples * xp.clip(self.counts, min=TINY))[:, None]
        within = total - between.T @ between
        share = (shrink * self.samples + dim) / (self.samples + dim)
        variance = xp.clip(xp.linalg.trace(within) / dim, min=TINY)
        identity = xp.eye(dim, dtype=within.dtype, device=device(within))
        precision = covariance_inverse((1.0 - share) * within + (share * variance + TINY) * identity)
        means = [(around + anchor * follow * text) / (self.counts + anchor)[:, None] for anchor in self.anchors]
        weights = [each @ precision for each in means]
        offsets = [0.5 * xp.vecdot(mean, weight) for mean, weight in zip(means, weights, strict=True)]
        return View(precision, weights, offsets)

    def __call__(self, features: Array, own: Array | None = None) -> Scores:
        """Score features (B, d).

        `own` (B, K) are the labels with which the samples were learnt, if they were: a sample is not judged by itself.
        Without it, the mean of a class of size N lies N / (N - own) times as far away.
        """
        xp = namespace(features)
        centred = features - self.mean
        spreads = [self._spread(belief, own) for belief in (EVEN, SEEN)]
        views: tuple[list[Array], list[Array]] = ([], [])
        for coordinates, view in zip(VIEWS, self.views, strict=True):
            part = centred[:, coordinates]
            lengths = 0.5 * xp.vecdot(part @ view.precision, part)[:, None]
            for belief, spread in enumerate(spreads):
                scores = part @ view.weights[belief].T
                scores -= view.offsets[belief]
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
    than half of the time.
    """
    half = len(x) // 2
    if not isinstance(x, np.ndarray) or len(x) < DIRECT_INVERSE_DIM:
        return namespace(x).linalg.inv(x)
    first = covariance_inverse(x[:half, :half])
    across = x[:half, half:]
    spread = first @ across
    last = covariance_inverse(x[half:, half:] - across.T @ spread)
    corner = spread @ last
    return np.block([[first + corner @ spread.T, -corner], [-corner.T, last]])
