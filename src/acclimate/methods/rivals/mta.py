"""MTA: the mode of the views of an image (Zanella and Ben Ayed, CVPR 2024)."""

from dataclasses import dataclass
from typing import ClassVar

from acclimate.arrays import Array, HostArray, namespace, softmax_and_entropy, unit_rows
from acclimate.evidence import Evidence
from acclimate.methods import Adapter, MergeRule, MethodKind, Step, ViewsKind, register

ROUNDS = 5  # the published method's limit on iterations of either kind


@register
@dataclass(eq=False, repr=False, kw_only=True)
class MTA(Adapter):
    """The mode of the views' density, with a lower weight on outliers.

    Each view i has a Gaussian kernel k_i, whose squared bandwidth is half the mean squared distance to the nearest
    share of the others, and an inlier score y_i. In turns, with m starting at the first view (the image itself):

        y = softmax((k(m) + agreement * A y) / sharpness), A = P P^T the agreement of the views' zero-shot answers P;
        m = sum_i y_i k_i(m) f_i, scaled to unit length.

    The answer is the zero-shot answer for m.

    Args:
        neighbours: share of the views that set the bandwidth of a view.
        agreement: weight of the agreement of views (the paper's lambda_q).
        sharpness: temperature of the inlier scores (the paper's lambda_y).

    Note:
        Five rounds of five steps of either kind, the published method's limits. It may stop earlier where nothing moves
        any more; here the count is fixed, so that an answer cannot depend on the rest of its batch.

    Examples:
        >>> import numpy as np
        >>> from acclimate import Head, create
        >>> views = np.array([[[0.9, 0.1, 0.0], [0.9, 0.0, 0.1], [0.1, 0.7, 0.7], [0.8, 0.3, 0.1]]])
        >>> create("mta", Head(np.eye(3), logit_scale=10.0)).step(views).argmax(axis=1)
        array([0])
    """

    name = "mta"
    summary = "mode of the views of each image (MTA)"
    kind: ClassVar[MethodKind] = "episodic"
    merges: ClassVar[MergeRule | None] = "union"
    needs = frozenset({"views"})
    views_kind: ClassVar[ViewsKind] = "crop"

    neighbours: float = 0.3
    agreement: float = 4.0
    sharpness: float = 0.2

    def respond(self, evidence: Evidence, ids: HostArray, learn: bool) -> Step:
        """Return zero-shot logits of the modes, (B, K)."""
        unit: Array = evidence.views  # `adapt` refuses evidence without views
        xp = namespace(unit)
        samples, views, dim = unit.shape
        probs = xp.reshape(self.head.observe_unit(xp.reshape(unit, (-1, dim))).probs, (samples, views, -1))
        agreement = probs @ xp.matrix_transpose(probs)
        # Distances of unit vectors from their products; the nearest of a view is itself, which is left out.
        squares = xp.sort(2.0 - 2.0 * unit @ xp.matrix_transpose(unit), axis=-1)
        near = squares[:, :, 1 : 1 + max(1, int(self.neighbours * (views - 1)))] if views > 1 else squares
        # Twice the squared bandwidth; squared distances below 1e-6 are rounding.
        spread = xp.clip(xp.mean(near, axis=-1), min=1e-6)

        def log_kernels(mode: Array) -> Array:
            return -xp.clip(2.0 - 2.0 * xp.sum(unit * mode[:, None], axis=-1), min=0.0) / spread

        mode = unit[:, 0]  # (B, d)
        inliers = xp.full_like(spread, 1.0 / views)
        for _ in range(ROUNDS):
            kernels = xp.exp(log_kernels(mode))
            for _ in range(ROUNDS):
                scores = (kernels + self.agreement * (agreement @ inliers[:, :, None])[:, :, 0]) / self.sharpness
                inliers, _ = softmax_and_entropy(scores)
            for _ in range(ROUNDS):
                # Only the ratios of the kernels count, and ratios do not vanish where all kernels do.
                logs = log_kernels(mode)
                pull = inliers * xp.exp(logs - xp.max(logs, axis=-1, keepdims=True))
                mode = unit_rows(xp.sum(pull[:, :, None] * unit, axis=1), "views")
        return Step(self.head.observe_unit(mode).logits)
