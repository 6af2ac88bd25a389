"""TDA, the training-free dynamic adapter (Karmanov et al., CVPR 2024)."""

from dataclasses import dataclass
from math import log2
from typing import ClassVar, Literal

import numpy as np

from acclimate.arrays import HostArray, device, index, namespace, to_host
from acclimate.errors import InputError
from acclimate.evidence import Evidence
from acclimate.methods import Adapter, Cache, Change, MergeRule, Step, register
from acclimate.methods.jagged import compact


@register
@dataclass(eq=False, repr=False, kw_only=True)
class TDA(Adapter):
    """Two key-value caches of the model's own most useful answers (Karmanov et al., 2024, section 3).

    Positive (eq. 3): the lowest-entropy samples of each predicted class vote for their class,
    `P_pos[c] = alpha * sum over entries q of class c of exp(-beta (1 - f.q))`.

    Negative (eqs. 4-6): moderately uncertain samples vote against the classes they found likely,
    `P_neg = -alpha' * sum over entries q of exp(-beta' (1 - f.q)) m_q`, with `m_q = 1[mask_low < p_q < mask_high]`.

    The answer (eq. 7) is `z + P_pos + P_neg`. What enters a cache depends on the zero-shot answer alone. The defaults
    are one set for all datasets: the paper's, and where it gives no figure, those of the authors' code.

    Args:
        positive: use the positive cache.
        positive_capacity: entries per class (the paper's shot capacity).
        positive_alpha: weight of the positive votes.
        positive_beta: sharpness of the positive affinity.
        negative: use the negative cache.
        negative_capacity: entries per class.
        negative_alpha: weight of the negative votes.
        negative_beta: sharpness of the negative affinity.
        negative_keep: keep the "lowest" or the "highest" entropies in range.
        entropy_low: samples enter the negative cache only if entropy_low < H / log2(K) < entropy_high, with H the
            entropy of the zero-shot answer (how undecided it is) and K the number of classes.
        entropy_high: see entropy_low.
        mask_low: an entry votes against the classes to which zero-shot gave a probability p with
            mask_low < p < mask_high.
        mask_high: see mask_low.
        self_match: update first, then read, so that an admitted sample meets itself; else read first, then update.
        bypass: number of samples at the start of the stream that are answered zero-shot while the caches fill.

    Note:
        H is in nats and is divided by log2(K): the ratio's maximum is ln 2, not 1. This stands in the authors' code
        only, and it is what their published settings mean. So do negative_alpha (0.117), negative_beta (1.0) and
        mask_high (1.0).

        The paper writes a minus both in the mask and in the read-out, which would cancel; the authors' published
        results subtract, and so does this.

    Examples:
        >>> import numpy as np
        >>> from acclimate import TDA, Head
        >>> adapter = TDA(Head(np.eye(3), logit_scale=10.0), positive_capacity=1)
        >>> adapter.step(np.array([[0.9, 0.3, 0.1], [0.2, 0.9, 0.1]])).argmax(axis=1)
        array([0, 1])
        >>> adapter.entries()["positive"][0].id
        0
    """

    name = "tda"
    summary = "positive and negative caches of the most useful samples of the stream"
    published = "paper and authors' code (kdiAAA/TDA), the paper's one setting for all data"
    merges: ClassVar[MergeRule | None] = "union"

    positive: bool = True
    positive_capacity: int = 3
    positive_alpha: float = 2.0
    positive_beta: float = 5.0
    negative: bool = True
    negative_capacity: int = 2
    negative_alpha: float = 0.117
    negative_beta: float = 1.0
    negative_keep: Literal["lowest", "highest"] = "lowest"
    entropy_low: float = 0.2
    entropy_high: float = 0.5
    mask_low: float = 0.03
    mask_high: float = 1.0
    self_match: bool = True
    bypass: int = 0

    def setup(self) -> None:
        """Declare both caches. A cache that is switched off is offered nothing and stays empty."""
        if min(self.positive_capacity, self.negative_capacity) < 1 or self.bypass < 0:
            raise InputError(
                "positive_capacity and negative_capacity must be at least 1, and bypass at least 0; to do without a "
                "cache, switch it off."
            )
        self.positive_cache = self.declare("positive", Cache(self.head, self.positive_capacity))
        self.negative_cache = self.declare(
            "negative", Cache(self.head, self.negative_capacity, highest=self.negative_keep == "highest")
        )

    def respond(self, evidence: Evidence, ids: HostArray, learn: bool) -> Step:
        """Return zero-shot logits plus the votes of both caches, except for samples that bypass them."""
        features = evidence.features
        logits = evidence.logits
        predicted = evidence.predicted
        entropy = evidence.host_entropy
        positive = self.positive_cache.plan(np.full(len(ids), learn and self.positive), predicted, entropy, ids)
        unit = log2(len(self.head))
        uncertain = (self.entropy_low * unit < entropy) & (entropy < self.entropy_high * unit)
        negative = self.negative_cache.plan(uncertain & (learn and self.negative), predicted, entropy, ids)
        if negative.samples:
            probs = to_host(evidence.probs[index(negative.samples, evidence.probs)])
            negative.targets = compact((self.mask_low < probs) & (probs < self.mask_high))
        votes = namespace(logits).empty(logits.shape[::-1], dtype=logits.dtype, device=device(logits))
        votes[...] = logits.T
        self.positive_cache.vote(
            votes,
            features,
            positive,
            alpha=self.positive_alpha,
            beta=self.positive_beta,
            self_match=self.self_match,
        )
        self.negative_cache.vote(
            votes,
            features,
            negative,
            alpha=-self.negative_alpha,
            beta=self.negative_beta,
            self_match=self.self_match,
        )
        if bypassing := self._bypassing(len(ids), learn):
            votes[:, :bypassing] = logits.T[:, :bypassing]
        self.positive_cache.commit(positive, features)
        self.negative_cache.commit(negative, features)
        return Step(
            votes.T,
            {
                "positive": Change(positive.samples, positive.dropped),
                "negative": Change(negative.samples, negative.dropped),
            },
        )

    def _bypassing(self, samples: int, learn: bool) -> int:
        """Return the number of the next samples to answer zero-shot; all or none when nothing is learnt."""
        missing = max(0, self.bypass - self.samples_seen)
        return min(samples, missing) if learn or not missing else samples
