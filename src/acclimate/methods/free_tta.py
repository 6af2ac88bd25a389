"""FreeTTA: online expectation maximisation of Gaussians with a pooled covariance (Dai and Yang, CVPR 2025)."""

from dataclasses import dataclass
from math import log

from acclimate.arrays import HostArray, namespace, softmax_and_entropy
from acclimate.errors import InputError
from acclimate.evidence import Evidence
from acclimate.methods import Adapter, Moments, Step, register
from acclimate.methods.dota import gaussians


@register
@dataclass(eq=False, repr=False, kw_only=True)
class FreeTTA(Adapter):
    """DOTA's Gaussian discriminant with text as the start, running class shares, and its own answers as labels.

    A sample counts `w = exp(-decay * H / log K)`, and for class k `w y_k` with the softmax y of its adapted answer.
    Means start at the class vectors and the covariance at the identity, as if one sample had been seen:
    `n_k = 1 / K + sum w y_k`, `mu_k = (W_k / K + sum w y_k x) / n_k`, and
    `S = (I + sum over samples and classes of w y_k (x - mu_k)(x - mu_k)^T) / sum n_k`. The answer is

        z_k + weight * (x^T S^-1 mu_k - mu_k^T S^-1 mu_k / 2 + log(n_k / sum n)).

    What was learnt changes every `refresh` samples of the stream and counts only for the samples that follow, so that
    answers do not depend on batches. Labels depend on what was learnt before them, so states cannot be merged.

    Args:
        weight: weight of the discriminant.
        decay: how fast the count of a sample falls with its entropy.
        refresh: samples from one refresh of means and covariance to the next.

    Note:
        Posteriors of the Gaussians alone are nearly uniform while the covariance is near the identity, and then stay
        so. So labels have the zero-shot answer as their prior, that is, they are the adapted answer.

        The published count is `exp(-4.5 H)` with H in nats, which grows with log K: with many classes or a low logit
        scale next to nothing counts. Here H is divided by its maximum, log K. Deviations are from the current means.

    Examples:
        >>> import numpy as np
        >>> from acclimate import Head, create
        >>> adapter = create("free-tta", Head(np.eye(3), logit_scale=20.0))
        >>> adapter.step(np.tile(np.eye(3), (64, 1))).shape
        (192, 3)
        >>> adapter.learnt()["samples"].round()
        array([64., 64., 64.])
    """

    name = "free-tta"
    summary = "online EM of Gaussians that start at the text, pooled covariance, class shares (FreeTTA)"

    weight: float = 0.2
    decay: float = 4.5
    refresh: int = 64

    def setup(self) -> None:
        """Declare the sums that means, covariance and shares follow from."""
        if self.refresh < 1 or self.decay < 0:
            raise InputError("refresh must be at least 1, and decay at least 0.")
        self.sums = self.declare("sums", Moments(self.head))

    def derive(self) -> None:
        """Compute the discriminant's weights (K, d) and offsets (K,) from the sums."""
        xp = namespace(self.sums["outer"])
        vectors = self.head.class_vectors
        mass, means, covariance = gaussians(
            self.sums, start=xp.astype(vectors, xp.float64), mass=1.0 / len(self.head), variance=1.0
        )
        weights = xp.linalg.solve(covariance, means.T).T
        offsets = xp.log(mass / xp.sum(mass)) - 0.5 * xp.sum(weights * means, axis=-1)
        self.weights = xp.astype(self.weight * weights, vectors.dtype)
        self.offsets = xp.astype(self.weight * offsets, vectors.dtype)

    def respond(self, evidence: Evidence, ids: HostArray, learn: bool) -> Step:
        """Return zero-shot logits plus the weighted discriminant, (B, K)."""
        x = evidence.features
        xp = namespace(x)
        logits = evidence.logits + x @ self.weights.T + self.offsets
        if learn:
            highest = log(len(self.head)) or 1.0  # highest entropy; with one class it is 0
            count = xp.exp(-self.decay / highest * evidence.entropy)[:, None]
            labels = count * softmax_and_entropy(logits)[0]
            self.sums.add(counts=xp.sum(labels, axis=0), features=labels.T @ x, outer=(count * x).T @ x)
        return Step(logits)

    def learnt(self) -> dict[str, HostArray]:
        """Return the sum of the samples' counts by class, and the share of each class in it."""
        counts = self.sums.total("counts")
        mass = counts + 1.0 / len(self.head)
        return {"samples": counts, "share": mass / mass.sum()}
