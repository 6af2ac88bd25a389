"""SCA: a ridge classifier of the whole stream (Guan et al., NeurIPS 2025)."""

from dataclasses import dataclass
from typing import ClassVar

from acclimate.arrays import HostArray, device, namespace, softmax_and_entropy, to_host
from acclimate.errors import InputError
from acclimate.evidence import Evidence
from acclimate.methods import CLASSES, DIM, Adapter, MergeRule, Step, Sums, Tensors, register

SHORTEST = 1e-12  # weights shorter than this do not become unit vectors; PyTorch's default, as in the authors' code


@register
@dataclass(eq=False, repr=False, kw_only=True)
class SCA(Adapter):
    """Least squares from the features seen so far to their soft labels, mixed with zero-shot by entropy.

    With `G = ridge I + sum x x^T` and `C = sum y x^T`, the weights are `V = C G^-1`, and the logits of the cache are
    the cosines of x with the rows of V, times the model's logit scale. With the entropies H and H' of the softmax of
    both kinds of logits, the answer is `a z + a' z'`, `(a, a') = softmax(-trust (H, H'))`.

    The label y of a sample is its zero-shot distribution, cut to the top class and the most likely others that hold at
    least the share `cover` of the rest, and scaled to sum 1. A batch is learnt before it is answered, so answers depend
    on batches. G^-1 and V follow every batch by the Woodbury identity.

    Args:
        ridge: ridge of the least squares.
        cover: share of the probability outside the top class that labels keep; 0 for hard labels.
        trust: weight of the entropies.
        batch: the most samples that are learnt together and then answered; with 1, answers do not depend on batches.

    Note:
        The authors' code is Yuqin-G/SCA, which could not be read here. The order (learn one sample, then answer it)
        and `trust` 0.5 are the paper's; the cosine read-out, `ridge` 10,000 and `cover` 0.5 are those of a public port
        of that code. It gains on shuffled streams. Where classes are missing or come one after the other it does harm:
        labels hold a little of every class, so that classes of which nothing was seen have a direction, too. There is
        no setting `rounds`: to learn the stream anew from its own answers was worse in the second pass than to read the
        frozen cache once more.

    Examples:
        >>> import numpy as np
        >>> from acclimate import Head, create
        >>> adapter = create("sca", Head(np.eye(3), logit_scale=10.0))
        >>> adapter.step(np.tile(np.eye(3), (64, 1))).argmax(axis=1)[-3:]
        array([0, 1, 2])
        >>> adapter.class_statistics()["samples"].round()
        array([64., 64., 64.])
    """

    name = "sca"
    summary = "ridge classifier on soft labels of the whole stream (SCA)"
    published = "paper (order, weight of the entropies), and a public port of the authors' code (Yuqin-G/SCA)"
    merges: ClassVar[MergeRule | None] = "sum"
    answers_batches = True

    ridge: float = 10_000.0
    cover: float = 0.5
    trust: float = 0.5
    batch: int = 1

    def setup(self) -> None:
        """Declare the sums that the classifier follows from, and the classifier."""
        if self.batch < 1 or self.ridge <= 0 or not 0 <= self.cover <= 1:
            raise InputError("batch must be at least 1, ridge above 0, and cover from 0 to 1.")
        self.sums = self.declare("sums", Sums(self.head, counts=(CLASSES,), features=(CLASSES, DIM), outer=(DIM, DIM)))
        self.solution = self.declare(
            "solution", Tensors(self.head, dtype="float64", inverse=(DIM, DIM), weights=(CLASSES, DIM))
        )

    def recompute(self) -> None:
        """Compute the classifier from the sums where it is lost: in a new, a cleared and a merged state."""
        inverse = self.solution["inverse"]
        xp = namespace(inverse)
        if float(xp.linalg.trace(inverse)) == 0.0:
            identity = xp.eye(self.head.dim, dtype=inverse.dtype, device=device(inverse))
            inverse[...] = xp.linalg.inv(self.sums["outer"] + self.ridge * identity)
            self.solution["weights"][...] = self.sums["features"] @ inverse

    def respond(self, evidence: Evidence, ids: HostArray, learn: bool) -> Step:
        """Return zero-shot logits and those of the cache, weighted by their entropies, (B, K)."""
        if learn:
            self._learn(evidence)
        weights = self.solution["weights"]
        xp = namespace(weights)
        lengths = xp.linalg.vector_norm(weights, axis=-1, keepdims=True)
        directions = xp.astype(weights / xp.clip(lengths, min=SHORTEST), evidence.features.dtype)
        cached = self.head.logit_scale * (evidence.features @ directions.T)
        _, entropy = softmax_and_entropy(cached)
        share = 1.0 / (1.0 + xp.exp(self.trust * (entropy - evidence.entropy)))[:, None]
        return Step((1.0 - share) * evidence.logits + share * cached)

    def _learn(self, evidence: Evidence) -> None:
        """Learn samples with their zero-shot distributions, cut and scaled, as labels."""
        probs = evidence.probs
        xp = namespace(probs)
        falling = xp.flip(xp.sort(probs, axis=-1), axis=-1)
        others = falling[:, 1:]
        before = xp.cumulative_sum(others, axis=-1) - others
        kept = xp.sum(xp.astype(before < self.cover * xp.sum(others, axis=-1, keepdims=True), xp.int64), axis=-1)
        least = falling[xp.arange(len(evidence), device=device(probs)), kept][:, None]
        labels = xp.where(probs >= least, probs, xp.zeros_like(probs))
        labels = xp.astype(labels / xp.sum(labels, axis=-1, keepdims=True), xp.float64)
        x = xp.astype(evidence.features, xp.float64)
        self.sums["counts"][...] += xp.sum(labels, axis=0)
        self.sums["features"][...] += labels.T @ x
        self.sums["outer"][...] += x.T @ x
        inverse = self.solution["inverse"]
        projected = x @ inverse
        small = x @ projected.T + xp.eye(len(evidence), dtype=x.dtype, device=device(x))
        gain = xp.linalg.solve(small, projected)
        self.solution["weights"][...] += (labels - x @ self.solution["weights"].T).T @ gain
        inverse -= projected.T @ gain

    def class_statistics(self) -> dict[str, HostArray]:
        """Return the samples per class."""
        return {"samples": to_host(self.sums.total("counts"))}
