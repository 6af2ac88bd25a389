"""Zero-shot: the model's own answer, unchanged. The row beside every other row."""

from collections.abc import Sequence

from acclimate.arrays import Array, HostArray
from acclimate.evidence import Evidence
from acclimate.methods.base import Adapter, register


@register
class ZeroShot(Adapter):
    """The zero-shot classifier `z = s f W^T + bias` (Radford et al., 2021); it learns nothing."""

    name = "zero-shot"
    summary = "the model's own answer, nothing learnt"
    mergeable = True

    def respond(self, evidence: Evidence, ids: HostArray, learn: bool) -> Array:
        """The evidence's logits."""
        return evidence.logits

    def absorb(self, others: Sequence[Adapter]) -> None:
        """There is nothing to merge."""
