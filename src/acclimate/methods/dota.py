"""DOTA: a Gaussian discriminant that is learnt from the stream (Han et al., NeurIPS 2025), with a pooled covariance."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from acclimate.arrays import Array, HostArray, device, namespace, to_host
from acclimate.errors import InputError
from acclimate.evidence import Evidence
from acclimate.methods import Adapter, MergeRule, Moments, Step, register


def gaussians(sums: Moments, *, start: Array | float, mass: float, variance: float) -> tuple[Array, Array, Array]:
    """Return masses (K,), means (K, d) and the pooled covariance (d, d) of samples with soft labels.

    Args:
        sums: sums of the labels ("counts", (K,)), of the features by label ("features", (K, d)) and of the outer
            products of the features ("outer", (d, d)).
        start: means (K, d) before anything was seen.
        mass: samples per class that they count for.
        variance: variance of every feature before anything was seen.
    """
    counts = sums["counts"]
    features = sums["features"]
    outer = sums["outer"]
    xp = namespace(outer)
    masses = counts + mass
    means = (features + mass * start) / masses[:, None]
    cross = features.T @ means
    within = outer - cross - cross.T + (counts[:, None] * means).T @ means
    identity = xp.eye(outer.shape[0], dtype=outer.dtype, device=device(outer))
    covariance = (within + counts.shape[0] * mass * variance * identity) / xp.sum(masses)
    return masses, means, covariance


@register
@dataclass(eq=False, repr=False, kw_only=True)
class DOTA(Adapter):
    """Running class means and one covariance, weighted by the zero-shot probabilities.

    With `c_k = 1 + sum p_k`, `mu_k = sum p_k x / c_k` and the pooled covariance
    `S = (K variance I + sum over samples and classes of p_k (x - mu_k)(x - mu_k)^T) / sum c_k`, the discriminant is
    `g_k = x^T L mu_k - mu_k^T L mu_k / 2`, `L = ((1 - ridge) S + ridge I)^-1`. The answer is
    `z + min(rate * mean c_k, limit) * g`: the more was seen, the more it counts.

    Means and covariance change every `refresh` samples of the stream and count only for the samples that follow, so
    that answers do not depend on batches.

    Args:
        rate: weight of the discriminant per sample and class.
        limit: largest weight of the discriminant.
        variance: variance of every feature before anything was seen.
        ridge: share of the identity in the covariance.
        refresh: samples from one refresh of means and covariance to the next.

    Note:
        DOTA as published keeps one covariance per class, K x d x d numbers, and uses their mean. Here the covariances
        are pooled, weighted by what each class has seen: d x d numbers. Means start at 0 instead of 0.001, and
        deviations are taken from the current means. Settings are the same for all streams.

    Examples:
        >>> import numpy as np
        >>> from acclimate import Head, create
        >>> adapter = create("dota", Head(np.eye(3), logit_scale=10.0))
        >>> adapter.step(np.tile(np.eye(3), (64, 1))).shape
        (192, 3)
        >>> adapter.learnt()["samples"].round()
        array([64., 64., 64.])
    """

    name = "dota"
    summary = "running Gaussian discriminant of the stream, soft labels, pooled covariance"
    merges: ClassVar[MergeRule | None] = "sum"

    rate: float = 0.02
    limit: float = 0.2
    variance: float = 0.004
    ridge: float = 1e-4
    refresh: int = 64

    def setup(self) -> None:
        """Declare the sums that means and covariance follow from."""
        if self.refresh < 1 or self.variance <= 0 or not 0 <= self.ridge <= 1:
            raise InputError("refresh must be at least 1, variance above 0, and ridge from 0 to 1.")
        self.sums = self.declare("sums", Moments(self.head))

    def derive(self) -> None:
        """Compute the discriminant's weights (K, d) and offsets (K,) from the sums."""
        xp = namespace(self.sums["outer"])
        mass, means, covariance = gaussians(self.sums, start=0.0, mass=1.0, variance=self.variance)
        identity = xp.eye(self.head.dim, dtype=covariance.dtype, device=device(covariance))
        weights = xp.linalg.solve((1.0 - self.ridge) * covariance + self.ridge * identity, means.T).T
        strength = min(self.rate * float(xp.mean(mass)), self.limit) if bool(xp.any(mass > 1.0)) else 0.0
        self.weights = xp.astype(strength * weights, self.head.class_vectors.dtype)
        self.offsets = xp.astype(-0.5 * strength * xp.sum(weights * means, axis=-1), self.weights.dtype)

    def respond(self, evidence: Evidence, ids: HostArray, learn: bool) -> Step:
        """Return zero-shot logits plus the weighted discriminant, (B, K)."""
        x = evidence.features
        p = evidence.probs
        if learn:
            self.sums.add(counts=namespace(p).sum(p, axis=0), features=p.T @ x, outer=x.T @ x)
        return Step(evidence.logits + x @ self.weights.T + self.offsets)

    def learnt(self) -> dict[str, HostArray]:
        """Return samples per class, and the angle in degrees between its mean and its text vector (90 for no mean)."""
        means = self.sums.total("features")
        lengths = np.maximum(np.linalg.norm(means, axis=1), np.finfo(means.dtype).tiny)
        cosines = np.clip((means * to_host(self.head.class_vectors)).sum(axis=1) / lengths, -1.0, 1.0)
        return {"samples": self.sums.total("counts"), "degrees from text": np.degrees(np.arccos(cosines))}
