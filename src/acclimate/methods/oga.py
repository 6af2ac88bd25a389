"""OGA: Gaussians of the most confident samples (Fuchs et al., CVPR 2025 workshops)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from acclimate.arrays import HostArray, device, index, move, namespace
from acclimate.errors import InputError
from acclimate.evidence import Evidence
from acclimate.methods import CLASSES, DIM, Adapter, Cache, Change, MergeRule, Step, Tensors, register
from acclimate.methods.jagged import add_by_class, lay_out


@register
@dataclass(eq=False, repr=False, kw_only=True)
class OGA(Adapter):
    """One Gaussian per class, of the lowest-entropy samples of the class, with zero-shot as the prior.

    A cache keeps the lowest-entropy samples of each predicted class. The mean m_k is that of the entries of class k, or
    the class vector if there are fewer than two. M is the covariance of all n entries about these means, the precision
    is `L = d ((n - 1) M + tr(M) I)^-1` for n up to 4 d, and `M^-1` above. The answer is
    `z_k - strength * (f - m_k)^T L (f - m_k) / 2`, up to a term that all classes share.

    Means and precision change every `refresh` samples of the stream and count only for the samples that follow, so that
    answers do not depend on batches.

    Args:
        cache_capacity: entries per class.
        strength: weight of the Gaussians' logarithms.
        refresh: samples from one refresh of means and precision to the next.

    Note:
        The settings are the paper's, which are the same for all data. The paper takes the pseudo-inverse of M; its
        released code divides the sum of a class by the capacity even where the class has fewer entries. With fewer
        than two entries in all, the answer is zero-shot's.

    Examples:
        >>> import numpy as np
        >>> from acclimate import Head, create
        >>> adapter = create("oga", Head(np.eye(3), logit_scale=10.0), cache_capacity=2)
        >>> adapter.step(np.tile([[0.9, 0.3, 0.1], [0.2, 0.9, 0.1]], (100, 1))).shape
        (200, 3)
        >>> adapter.learnt()["cache"]
        array([2, 2, 0])
    """

    name = "oga"
    summary = "Gaussians of the lowest-entropy samples of each class, pooled precision (OGA)"
    merges: ClassVar[MergeRule | None] = "union"

    cache_capacity: int = 8
    strength: float = 0.05
    refresh: int = 128

    def setup(self) -> None:
        """Declare the cache, and what was computed from it at the last refresh."""
        if min(self.cache_capacity, self.refresh) < 1:
            raise InputError("cache_capacity and refresh must be at least 1.")
        self.cache = self.declare("cache", Cache(self.head, self.cache_capacity))
        self.gaussians = self.declare("gaussians", Tensors(self.head, moved=(CLASSES, DIM), precision=(DIM, DIM)))

    def settle(self) -> None:
        """Compute the means, as displacements from the class vectors, and the precision from the cache as it is."""
        vectors = self.head.class_vectors
        keys = self.cache.keys
        classes = self.cache.classes
        xp = namespace(vectors)
        entries = len(classes)
        sums = xp.zeros_like(vectors)
        add_by_class(sums, keys, lay_out(classes[:, None], keys))
        counts = move(np.bincount(classes, minlength=len(self.head)), vectors)[:, None]
        means = xp.where(counts >= 2, sums / xp.clip(counts, min=1.0), vectors)
        centred = keys - means[index(classes, keys)]
        scatter = xp.astype(centred.T @ centred, xp.float64)
        variances = float(xp.linalg.trace(scatter)) / (entries - 1) if entries > 1 else 0.0
        identity = variances * xp.eye(self.head.dim, dtype=scatter.dtype, device=device(scatter))
        if variances == 0.0:  # nothing to learn from yet
            precision = xp.zeros_like(scatter)
        elif entries <= 4 * self.head.dim:
            precision = self.head.dim * xp.linalg.inv(scatter + identity)
        else:  # the covariance may be singular, so a millionth of the mean variance is added
            precision = xp.linalg.inv(scatter / (entries - 1) + 1e-6 / self.head.dim * identity)
        self.gaussians["moved"][...] = means - vectors
        self.gaussians["precision"][...] = xp.astype(precision, vectors.dtype)
        super().settle()

    def derive(self) -> None:
        """Compute the weights (K, d) and offsets (K,) of the Gaussians' logarithms, without what all classes share."""
        means = self.head.class_vectors + self.gaussians["moved"]
        self.weights = self.strength * (means @ self.gaussians["precision"])
        self.offsets = -0.5 * namespace(means).sum(self.weights * means, axis=-1)

    def respond(self, evidence: Evidence, ids: HostArray, learn: bool) -> Step:
        """Return zero-shot logits plus the logarithms of the Gaussians, (B, K)."""
        plan = self.cache.plan(np.full(len(ids), learn), evidence.predicted, evidence.host_entropy, ids)
        self.cache.commit(plan, evidence.features)
        return Step(
            evidence.logits + evidence.features @ self.weights.T + self.offsets,
            {"cache": Change(plan.samples, plan.dropped)},
        )
