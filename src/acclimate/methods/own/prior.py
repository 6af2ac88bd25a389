"""Prior: zero-shot answers without the class shares that the model believes it has seen."""

from dataclasses import dataclass
from typing import ClassVar

from acclimate.arrays import Array, HostArray, namespace, to_host
from acclimate.errors import InputError
from acclimate.evidence import Evidence
from acclimate.methods import CLASSES, Adapter, MergeRule, Step, Sums, register


@register
@dataclass(eq=False, repr=False, kw_only=True)
class Prior(Adapter):
    """Running correction of class shares.

    A zero-shot model prefers some classes over others. The mean of its own answers over the stream shows how much,

        share_c = (smoothing + sum of p_c over the samples so far) / (K * smoothing + samples so far),

    and the answer is `z_c - strength * log(K * share_c)`: classes named too often are named less.

    Args:
        strength: strength of the correction; 0 for none, 1 for shares that come out equal.
        smoothing: samples per class that count as seen before the stream began.

    Note:
        It assumes that all classes are about equally frequent. Where they are not, it does harm.

    Examples:
        >>> import numpy as np
        >>> from acclimate import Head, create
        >>> adapter = create("prior", Head(np.eye(2), logit_scale=10.0), smoothing=1.0)
        >>> _ = adapter.step(np.tile([[0.8, 0.6]], (50, 1)))
        >>> adapter.class_statistics()["share"].round(2)
        array([0.87, 0.13])
    """

    name = "prior"
    summary = "correction of the class shares that the model has answered so far"
    published = "this library"
    merges: ClassVar[MergeRule | None] = "sum"

    strength: float = 0.5
    smoothing: float = 10.0

    def setup(self) -> None:
        """Declare the sum of all answers."""
        if self.smoothing <= 0:
            raise InputError(f"smoothing must be above 0, got {self.smoothing}.")
        self.answers = self.declare("answers", Sums(self.head, counts=(CLASSES,)))

    def respond(self, evidence: Evidence, ids: HostArray, learn: bool) -> Step:
        """Return zero-shot logits less the logarithm of the running shares, (B, K)."""
        xp = namespace(evidence.probs)
        counts = self.answers["counts"]
        if learn:  # every sample sees the shares up to itself
            probs = xp.astype(evidence.probs, counts.dtype)
            counts = counts + xp.cumulative_sum(probs, axis=0)
            self.answers.add(counts=xp.sum(probs, axis=0))
            self.answers.flush()
        correction = self.strength * xp.log(len(self.head) * self._shares(counts))
        return Step(evidence.logits - xp.astype(correction, evidence.logits.dtype))

    def class_statistics(self) -> dict[str, HostArray]:
        """Return the sum and the share of the answers per class."""
        counts = to_host(self.answers.total("counts"))
        return {"samples": counts, "share": self._shares(counts)}

    def _shares(self, counts: Array) -> Array:
        smoothed = counts + self.smoothing
        return smoothed / namespace(counts).sum(smoothed, axis=-1, keepdims=True)
