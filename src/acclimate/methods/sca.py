"""SCA: a ridge classifier of the whole stream (Guan et al., NeurIPS 2025)."""

from dataclasses import dataclass
from typing import ClassVar

from acclimate.arrays import HostArray, device, namespace, softmax_and_entropy
from acclimate.errors import InputError
from acclimate.evidence import Evidence
from acclimate.methods import Adapter, MergeRule, Moments, Step, register


@register
@dataclass(eq=False, repr=False, kw_only=True)
class SCA(Adapter):
    """Least squares from the features seen so far to their soft labels, mixed with zero-shot by entropy.

    With `G = ridge I + sum x x^T` and `C = sum y x^T`, the ridge logits are `z' = cache_scale * s * C G^-1 x`. With the
    entropies H and H' of the softmax of z and z', the answer is `a z + a' z'`, `(a, a') = softmax(-trust (H, H'))`.

    The label y of a sample is its zero-shot distribution, cut to the top class and the most likely others that hold at
    least the share `cover` of the rest, and scaled to sum 1. The classifier changes every `refresh` samples of the
    stream and counts only for the samples that follow, so that answers do not depend on batches.

    Args:
        ridge: ridge of the least squares.
        cover: share of the probability outside the top class that labels keep; 0 for hard labels.
        trust: weight of the entropies.
        cache_scale: scale of the ridge answers, as a share of the model's logit scale.
        refresh: samples from one refresh of the classifier to the next.

    Note:
        The paper updates the classifier with every sample. `ridge`, `cover` and `cache_scale` are not the authors': 1
        and 0.5 are round numbers, and 0.25 makes the two kinds of logits comparable, as the responses of least squares
        span 0 to 1 and CLIP's cosines with the classes about a quarter of that.

    Examples:
        >>> import numpy as np
        >>> from acclimate import Head, create
        >>> adapter = create("sca", Head(np.eye(3), logit_scale=10.0))
        >>> adapter.step(np.tile(np.eye(3), (64, 1))).argmax(axis=1)[-3:]
        array([0, 1, 2])
        >>> adapter.learnt()["samples"].round()
        array([64., 64., 64.])
    """

    name = "sca"
    summary = "ridge classifier on soft labels of the whole stream (SCA)"
    merges: ClassVar[MergeRule | None] = "sum"

    ridge: float = 1.0
    cover: float = 0.5
    trust: float = 0.5
    cache_scale: float = 0.25
    refresh: int = 64

    def setup(self) -> None:
        """Declare the sums that the classifier follows from."""
        if self.refresh < 1 or self.ridge <= 0 or not 0 <= self.cover <= 1:
            raise InputError("refresh must be at least 1, ridge above 0, and cover from 0 to 1.")
        self.sums = self.declare("sums", Moments(self.head))

    def derive(self) -> None:
        """Compute the weights (K, d) of the ridge classifier, on the scale of logits."""
        outer = self.sums["outer"]
        xp = namespace(outer)
        gram = outer + self.ridge * xp.eye(self.head.dim, dtype=outer.dtype, device=device(outer))
        weights = xp.linalg.solve(gram, self.sums["features"].T).T
        self.weights = xp.astype(self.cache_scale * self.head.logit_scale * weights, self.head.class_vectors.dtype)

    def respond(self, evidence: Evidence, ids: HostArray, learn: bool) -> Step:
        """Return zero-shot and ridge logits, weighted by their entropies, (B, K)."""
        xp = namespace(evidence.logits)
        x = evidence.features
        ridge = x @ self.weights.T
        _, entropy = softmax_and_entropy(ridge)
        share = 1.0 / (1.0 + xp.exp(self.trust * (entropy - evidence.entropy)))[:, None]
        if learn:
            falling = xp.flip(xp.sort(evidence.probs, axis=-1), axis=-1)
            others = falling[:, 1:]
            before = xp.cumulative_sum(others, axis=-1) - others
            kept = xp.sum(xp.astype(before < self.cover * xp.sum(others, axis=-1, keepdims=True), xp.int64), axis=-1)
            least = falling[xp.arange(len(evidence), device=device(x)), kept][:, None]
            labels = xp.where(evidence.probs >= least, evidence.probs, xp.zeros_like(falling))
            labels /= xp.sum(labels, axis=-1, keepdims=True)
            self.sums.add(counts=xp.sum(labels, axis=0), features=labels.T @ x, outer=x.T @ x)
        return Step((1.0 - share) * evidence.logits + share * ridge)

    def learnt(self) -> dict[str, HostArray]:
        """Return the samples per class."""
        return {"samples": self.sums.total("counts")}
