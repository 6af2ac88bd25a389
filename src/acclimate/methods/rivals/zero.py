"""ZERO: the most confident views of an image vote (Farina et al., NeurIPS 2024)."""

from dataclasses import dataclass
from typing import ClassVar

from acclimate.arrays import Array, HostArray, device, namespace
from acclimate.evidence import Evidence
from acclimate.methods import Adapter, MergeRule, MethodKind, Step, ViewsKind, register


@register
@dataclass(eq=False, repr=False, kw_only=True)
class Zero(Adapter):
    """The most confident views vote, each for its best class.

    A tie is decided by the next most confident view that is for one of the tied classes; where there is none, by the
    most confident voter. The logits are the mean over the voters for the winner, so the winner has the highest logit,
    on the model's own scale.

    Args:
        voters: share of the views that vote; at least one does.

    Examples:
        >>> import numpy as np
        >>> from acclimate import Head, create
        >>> views = np.array([[[0.9, 0.1, 0.0], [0.9, 0.0, 0.1], [0.1, 0.7, 0.7], [0.8, 0.3, 0.1]]])
        >>> create("zero", Head(np.eye(3), logit_scale=10.0)).step(views).argmax(axis=1)
        array([0])
    """

    name = "zero"
    summary = "vote of the most confident views of each image (ZERO)"
    kind: ClassVar[MethodKind] = "episodic"
    merges: ClassVar[MergeRule | None] = "union"
    needs = frozenset({"views"})
    views_kind: ClassVar[ViewsKind] = "crop"

    voters: float = 0.3

    def respond(self, evidence: Evidence, ids: HostArray, learn: bool) -> Step:
        """Return the mean logits of the views that voted for the winner, (B, K)."""
        unit: Array = evidence.views  # `adapt` refuses evidence without views
        xp = namespace(unit)
        samples, views, dim = unit.shape
        each = self.head.observe_unit(xp.reshape(unit, (-1, dim)))
        order = xp.argsort(xp.reshape(each.entropy, (samples, views)), axis=-1, stable=True)
        rows = xp.arange(samples, device=device(unit))
        flat = order + views * rows[:, None]
        best = xp.argmax(each.logits, axis=-1)[flat]
        voters = max(1, int(self.voters * views))
        votes = best[:, :voters]
        counts = xp.sum(
            xp.astype(votes[:, :, None] == xp.arange(len(self.head), device=device(unit)), unit.dtype), axis=1
        )
        leads = counts == xp.max(counts, axis=-1, keepdims=True)

        # Where one class leads alone, its first follower in this walk is for the winner as well.
        walk = xp.concat([best[:, voters:], votes], axis=1)
        decides = xp.argmax(xp.astype(leads[rows[:, None], walk], xp.int64), axis=1)
        winner = walk[rows, decides][:, None]
        agree = xp.astype(votes == winner, unit.dtype)
        shares = agree / xp.sum(agree, axis=-1, keepdims=True)
        return Step(xp.sum(shares[:, :, None] * each.logits[flat[:, :voters]], axis=1))
