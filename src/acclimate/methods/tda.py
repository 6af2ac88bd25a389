"""TDA, the training-free dynamic adapter (Karmanov et al., CVPR 2024)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2
from typing import Any, Literal

import numpy as np

from acclimate.arrays import Array, HostArray, device, index, namespace, to_host
from acclimate.errors import InputError, StateError
from acclimate.evidence import Evidence
from acclimate.methods.base import Adapter, Change, register
from acclimate.methods.cache import FIELDS, Cache, pad_marks
from acclimate.methods.schedule import Plan


@dataclass(frozen=True)
class TDAConfig:
    """TDA's settings; the defaults are the paper's, one set for all datasets.

    Attributes:
        positive: use the positive cache.
        positive_capacity: entries a class (shot capacity).
        positive_alpha: weight of the cache's votes.
        positive_beta: sharpness of the affinity.
        negative: use the negative cache.
        negative_capacity: entries a class.
        negative_alpha: weight of the cache's votes.
        negative_beta: sharpness of the affinity.
        negative_keep: keep the "lowest" or the "highest" entropies in range.
        entropy_low: samples enter the negative cache only if entropy_low < H / log2(K) < entropy_high.
        entropy_high: see entropy_low.
        mask_low: an entry speaks against the classes with mask_low < p < mask_high.
        mask_high: see mask_low.
        self_match: update first, then read, so that an admitted sample meets itself; else read first, then update.

    Note:
        H is in nats and is divided by log2(K): the ratio's maximum is ln 2, not 1. This is what the authors' published
        settings mean.
    """

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

    def __post_init__(self) -> None:
        for name in ("positive_capacity", "negative_capacity"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1; to go without a cache, switch it off.")
        if self.negative_keep not in ("lowest", "highest"):
            raise InputError(f"negative_keep must be 'lowest' or 'highest', got {self.negative_keep!r}.")


@register
class TDA(Adapter):
    """Two key-value caches of the model's own most useful answers (Karmanov et al., 2024, section 3).

    Positive (eq. 3-4): the lowest-entropy samples of each predicted class speak for their class,
    `P_pos[c] = alpha * sum over entries q of class c of exp(-beta (1 - f.q))`.

    Negative (eq. 5-7): moderately uncertain samples speak against the classes they found likely,
    `P_neg = -alpha' * sum over entries q of exp(-beta' (1 - f.q)) m_q`, with `m_q = 1[mask_low < p_q < mask_high]`.

    The answer is `z + P_pos + P_neg`. What enters a cache depends on the zero-shot answer alone.

    Note:
        The paper writes a minus both in the mask and in the read-out, which would cancel; the authors' published
        results subtract, and so does this.
    """

    name = "tda"
    summary = "positive and negative caches of the stream's most useful samples"
    Config = TDAConfig
    mergeable = True
    config: TDAConfig

    def __init__(self, class_vectors: Array, **arguments: Any) -> None:
        super().__init__(class_vectors, **arguments)
        config = self.config
        self.caches: dict[str, Cache] = {}
        if config.positive:
            self.caches["positive"] = Cache(config.positive_capacity, self.class_vectors)
        if config.negative:
            highest = config.negative_keep == "highest"
            self.caches["negative"] = Cache(config.negative_capacity, self.class_vectors, highest)
        self._reading = {
            "positive": (config.positive_alpha, config.positive_beta),
            "negative": (-config.negative_alpha, config.negative_beta),
        }

    def respond(self, evidence: Evidence, ids: HostArray, learn: bool) -> Array:
        """Zero-shot logits plus the votes of both caches, (B, K)."""
        xp = namespace(evidence.logits)
        predicted = to_host(xp.argmax(evidence.logits, axis=-1))
        entropy = to_host(evidence.entropy)
        if not np.isfinite(entropy).all():
            raise InputError("the evidence holds NaN or infinity; check the features and class vectors it was made of.")
        offered = {"positive": np.ones(len(entropy), bool), "negative": self._uncertain(entropy)}
        votes = xp.empty(evidence.logits.shape[::-1], dtype=evidence.logits.dtype, device=device(evidence.logits))
        votes[...] = evidence.logits.T
        commits = []
        changes = {}
        for kind, cache in self.caches.items():
            plan = cache.plan(offered[kind], predicted, entropy, ids) if learn else Plan()
            marks = predicted[plan.samples, None] if kind == "positive" else self._marks(evidence.probs, plan)
            cache.vote(votes, evidence.features, *self._reading[kind], plan, marks, self.config.self_match)
            commits.append((cache, plan, marks))
            changes[kind] = Change(plan.samples, plan.dropped)
        for cache, plan, marks in commits:
            cache.commit(plan, evidence.features, marks)
        self.changes = changes
        return votes.T

    def _uncertain(self, entropy: HostArray) -> HostArray:
        """Which samples the negative cache is offered."""
        unit = log2(len(self.class_names))
        return (self.config.entropy_low * unit < entropy) & (entropy < self.config.entropy_high * unit)

    def _marks(self, probs: Array, plan: Plan) -> HostArray:
        """The classes that each newcomer of the negative cache speaks against."""
        chosen = to_host(probs[index(np.array(plan.samples, dtype=np.int64), probs)])
        return pad_marks((self.config.mask_low < chosen) & (chosen < self.config.mask_high))

    def clear(self) -> None:
        """Empty both caches."""
        for cache in self.caches.values():
            cache.clear()

    def dump(self) -> dict[str, HostArray]:
        """Both caches' entries, named "positive.keys" and so on."""
        return {
            f"{kind}.{name}": values for kind, cache in self.caches.items() for name, values in cache.dump().items()
        }

    def restore(self, tensors: Mapping[str, HostArray]) -> None:
        """Fill both caches."""
        expected = {f"{kind}.{name}" for kind in self.caches for name in FIELDS}
        if set(tensors) != expected:
            raise StateError(f"a TDA state with these caches holds {sorted(expected)}, this one {sorted(tensors)}.")
        for kind, cache in self.caches.items():
            cache.restore({name: tensors[f"{kind}.{name}"] for name in FIELDS})

    def reindex(self, position: HostArray) -> None:
        """Keep the entries of the classes that remain."""
        for cache in self.caches.values():
            cache.reindex(position, self.class_vectors)

    def absorb(self, others: Sequence["Adapter"]) -> None:
        """Keep the best entries of all."""
        for kind, cache in self.caches.items():
            cache.merge([other.caches[kind] for other in others if isinstance(other, TDA)])
