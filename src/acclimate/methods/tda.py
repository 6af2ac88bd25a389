"""TDA, the training-free dynamic adapter (Karmanov et al., CVPR 2024)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import log2
from typing import ClassVar, Literal

import numpy as np

from acclimate.arrays import Array, HostArray, device, is_tensor, namespace, repeat, to_host
from acclimate.errors import InputError
from acclimate.evidence import Evidence
from acclimate.methods.adapter import Adapter, Change, Step
from acclimate.methods.cache import Cache, affinities
from acclimate.methods.jagged import Layout, add_by_class, compact
from acclimate.methods.registry import register
from acclimate.methods.schedule import Plan
from acclimate.methods.state import MergeRule

STEADY = 64  # reads of caches that do not change, after which a graph of their sums pays for its capture


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
    merges: ClassVar[MergeRule | None] = "union"
    checks_evidence = True

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
        for name in ("positive_capacity", "negative_capacity"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1; to do without a cache, switch it off.")
        if self.bypass < 0:
            raise InputError(f"bypass must be at least 0, got {self.bypass}.")
        highest = self.negative_keep == "highest"
        self.positive_cache = self.declare("positive", Cache(self.head, self.positive_capacity))
        self.negative_cache = self.declare("negative", Cache(self.head, self.negative_capacity, highest=highest))

    def respond(self, evidence: Evidence, ids: HostArray, learn: bool) -> Step:
        """Zero-shot logits plus the votes of both caches, except for samples that bypass them."""
        caches = {"positive": self.positive_cache, "negative": self.negative_cache}
        features = evidence.features
        found = self._read_ahead(evidence) if is_tensor(features) else {"votes": _transposed(evidence.logits)}
        positive, negative = plans = self._plan(evidence, ids, learn)
        votes = found.get("sums")
        if votes is None or positive.samples or negative.samples:
            votes = found["votes"]
            alphas = self._alphas()
            betas = (self.positive_beta, self.negative_beta)
            for (name, cache), plan, alpha, beta in zip(caches.items(), plans, alphas, betas, strict=True):
                known = found.get(name)
                cache.vote(votes, features, plan, alpha=alpha, beta=beta, self_match=self.self_match, weights=known)
        if bypassing := self._bypassing(len(ids), learn):
            votes[:, :bypassing] = evidence.logits.T[:, :bypassing]
        self.positive_cache.commit(positive, features)
        self.negative_cache.commit(negative, features)
        changes = {
            "positive": Change(positive.samples, positive.dropped),
            "negative": Change(negative.samples, negative.dropped),
        }
        return Step(votes.T, changes)

    def _alphas(self) -> tuple[float, float]:
        return self.positive_alpha, -self.negative_alpha  # negative votes are against

    def _read_ahead(self, evidence: Evidence) -> Mapping[str, Array]:
        """What a GPU does while the host waits for the evidence, as a graph where shapes repeat.

        These are the votes (K, B) without the caches, and the affinities of both; of caches that have long been steady,
        also the sums of all votes (K, B), which hold if no sample enters.
        """
        caches = (self.positive_cache, self.negative_cache)
        for cache in caches:
            cache.prepare()
        steady = min(cache.steady for cache in caches) > STEADY
        layouts = [cache.layout for cache in caches] if steady else []
        held = [(cache.size, cache.keys.data_ptr(), steady and cache.layout_number) for cache in caches]
        key = (*held, self.positive_beta, self.negative_beta, *self._alphas(), steady)
        size = len(evidence) * max(len(self.head), *(cache.size for cache in caches))
        work = partial(self._ahead, layouts)
        inputs = [evidence.features, evidence.logits]
        return repeat(self, key, work, inputs, size, ("votes", "sums"))

    def _ahead(self, layouts: list[Layout], features: Array, logits: Array) -> dict[str, Array]:
        found = {
            "votes": _transposed(logits),
            "positive": affinities(self.positive_cache.keys, features, self.positive_beta),
            "negative": affinities(self.negative_cache.keys, features, self.negative_beta),
        }
        if layouts:
            found["sums"] = _transposed(logits)
            for name, layout, alpha in zip(("positive", "negative"), layouts, self._alphas(), strict=True):
                add_by_class(found["sums"], found[name], layout, alpha)
        return found

    def _plan(self, evidence: Evidence, ids: HostArray, learn: bool) -> tuple[Plan, Plan]:
        """What a batch does to the positive and to the negative cache."""
        if not learn:
            evidence.require_rows()
            return Plan(), Plan()
        evidence.require_finite()
        predicted = evidence.predicted
        entropy = evidence.host_entropy
        everyone = np.full(len(ids), self.positive)
        positive = self.positive_cache.plan(everyone, predicted, entropy, ids)
        negative = self.negative_cache.plan(self._in_range(entropy) & self.negative, predicted, entropy, ids)
        if negative.samples:
            # The classes that each newcomer votes against
            probs = evidence.probs[negative.on(evidence.probs, len(ids)).samples]
            mask = (self.mask_low < probs) & (probs < self.mask_high)
            if is_tensor(mask):
                negative.mask = mask  # on a GPU, to look at it would be to wait once more
            else:
                negative.targets = compact(to_host(mask))
        return positive, negative

    def _bypassing(self, samples: int, learn: bool) -> int:
        """How many of the next samples, from the first, are answered zero-shot; all or none when nothing is learnt."""
        missing = max(0, self.bypass - self.samples_seen)
        return min(samples, missing) if learn or not missing else samples

    def _in_range(self, entropy: HostArray) -> HostArray:
        """Which samples (B,) are uncertain enough for the negative cache, and not too uncertain."""
        unit = log2(len(self.head))
        return (self.entropy_low * unit < entropy) & (entropy < self.entropy_high * unit)


def _transposed(logits: Array) -> Array:
    """A copy (K, B) of logits (B, K), class by class."""
    xp = namespace(logits)
    votes = xp.empty(logits.shape[::-1], dtype=logits.dtype, device=device(logits))
    votes[...] = logits.T
    return votes
