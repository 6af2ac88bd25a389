"""OGA: Gaussians of the most confident samples (Fuchs et al., CVPR 2025 workshops)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from acclimate.arrays import HostArray, device, index, move, namespace
from acclimate.errors import InputError
from acclimate.evidence import Evidence
from acclimate.methods import Adapter, Cache, Change, MergeRule, Step, register
from acclimate.methods.jagged import add_by_class, lay_out


@register
@dataclass(eq=False, repr=False, kw_only=True)
class OGA(Adapter):
    """One Gaussian per class, of the lowest-entropy samples of the class, with zero-shot as the prior.

    A cache keeps the lowest-entropy samples of each predicted class. The mean m_k is that of the entries of class k, or
    the class vector if there are fewer than two. M is the covariance of all n entries about these means. The precision
    L is `d I` until a class has three entries, then `d ((n - 1) M + tr(M) I)^-1` for n up to 4 d, and the
    pseudo-inverse of M above; without any entry it is 0. The answer is
    `z_k - strength * (f - m_k)^T L (f - m_k) / 2`, up to a term that all classes share.

    A batch is learnt before it is answered, so answers depend on batches.

    Args:
        cache_capacity: entries per class.
        strength: weight of the Gaussians' logarithms.
        batch: the most samples that are learnt together and then answered; with 1, answers do not depend on batches.

    Note:
        The settings are those of the paper and the defaults of the authors' main.py (cfuchs2023/OGA), which are the
        same for all data: 8 entries per class, tau 0.05, batches of 32. Their code divides the sum of a class by the
        capacity even where the class has fewer entries; here a mean is a mean, as in the paper, which was a little
        better on average over our streams. Their cache is in half precision.

    Examples:
        >>> import numpy as np
        >>> from acclimate import Head, create
        >>> adapter = create("oga", Head(np.eye(3), logit_scale=10.0), cache_capacity=2)
        >>> adapter.step(np.tile([[0.9, 0.3, 0.1], [0.2, 0.9, 0.1]], (100, 1))).shape
        (200, 3)
        >>> adapter.class_statistics()["cache"]
        array([2, 2, 0])
    """

    name = "oga"
    summary = "Gaussians of the lowest-entropy samples of each class, pooled precision (OGA)"
    published = "paper, and defaults of the authors' code (cfuchs2023/OGA, main.py), the same for all data"
    merges: ClassVar[MergeRule | None] = "union"
    answers_batches = True

    cache_capacity: int = 8
    strength: float = 0.05
    batch: int = 32

    def setup(self) -> None:
        """Declare the cache."""
        if min(self.cache_capacity, self.batch) < 1:
            raise InputError("cache_capacity and batch must be at least 1.")
        self.cache = self.declare("cache", Cache(self.head, self.cache_capacity))

    def flush(self) -> None:
        """Do nothing: everything that was learnt counts already."""

    def recompute(self) -> None:
        """Compute the weights (K, d) and offsets (K,) of the Gaussians' logarithms, without what all classes share."""
        vectors = self.head.class_vectors
        xp = namespace(vectors)
        queues = sorted(self.cache.queues.items())
        slots = [entry.slot for _, queue in queues for entry in queue]  # the order of arrival does not matter
        classes = np.repeat(np.array([label for label, _ in queues], np.int64), [len(queue) for _, queue in queues])
        keys = self.cache.keys[index(np.array(slots, np.int64), vectors)]
        sums = xp.zeros_like(vectors)
        add_by_class(sums, keys, lay_out(classes[:, None], keys))
        held = np.bincount(classes, minlength=len(self.head))
        counts = move(held, vectors)[:, None]
        means = xp.where(counts >= 2, sums / xp.clip(counts, min=1.0), vectors)
        identity = xp.eye(self.head.dim, dtype=xp.float64, device=device(vectors))
        precision = (self.head.dim if slots else 0.0) * identity
        if held.max() > 2:
            centred = xp.astype(keys - means[index(classes, keys)], xp.float64)
            centred -= xp.mean(centred, axis=0)
            scatter = centred.T @ centred
            entries = len(classes)
            variances = float(xp.linalg.trace(scatter)) / (entries - 1)
            if variances > 0.0 and entries <= 4 * self.head.dim:
                precision = self.head.dim * xp.linalg.inv(scatter + variances * identity)
            else:
                precision = xp.linalg.pinv(scatter / (entries - 1))
        self.weights = self.strength * (means @ xp.astype(precision, vectors.dtype))
        self.offsets = -0.5 * xp.sum(self.weights * means, axis=-1)

    def respond(self, evidence: Evidence, ids: HostArray, learn: bool) -> Step:
        """Return zero-shot logits plus the logarithms of the Gaussians, (B, K)."""
        plan = self.cache.plan(np.full(len(ids), learn), evidence.predicted, evidence.host_entropy, ids)
        if plan.samples:
            self.cache.commit(plan, evidence.features)
            self.recompute()
        return Step(
            evidence.logits + evidence.features @ self.weights.T + self.offsets,
            {"cache": Change(plan.samples, plan.dropped)},
        )
