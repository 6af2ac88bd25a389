"""Zero-shot: the model's own answer, unchanged. The baseline of every comparison."""

from dataclasses import dataclass
from typing import ClassVar

from acclimate.arrays import HostArray
from acclimate.evidence import Evidence
from acclimate.methods import Adapter, MergeRule, MethodKind, Step, register


@register
@dataclass(eq=False, repr=False, kw_only=True)
class ZeroShot(Adapter):
    """The zero-shot classifier `z = s f W^T + bias` (Radford et al., 2021); it learns nothing.

    Examples:
        >>> import numpy as np
        >>> from acclimate import Head, ZeroShot
        >>> ZeroShot(Head(np.eye(2), logit_scale=100.0)).step(np.array([[0.8, 0.6]]))
        array([[80., 60.]])
    """

    name = "zero-shot"
    summary = "the model's own answer; nothing is learnt"
    kind: ClassVar[MethodKind] = "episodic"
    merges: ClassVar[MergeRule | None] = "union"

    def respond(self, evidence: Evidence, ids: HostArray, learn: bool) -> Step:
        """Return the logits of the evidence."""
        return Step(evidence.logits)
