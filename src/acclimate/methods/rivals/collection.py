"""Methods that answer a collection as a whole, and the graph of nearest neighbours that they share."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from acclimate.arrays import Array, device, log_softmax, namespace, softmax_and_entropy
from acclimate.methods.adapter import MethodKind, observed
from acclimate.methods.paper.zero_shot import ZeroShot

BLOCK_PAIRS = 2**23  # similarities computed at once
SMALLEST_VARIANCE = 1e-6  # the samples of a class may all be equal in a coordinate


@dataclass(eq=False, repr=False, kw_only=True)
class Collection(ZeroShot):
    """An adapter that answers a finished set of samples as a whole (`second_pass`), and single samples zero-shot.

    It learns nothing from the samples it is shown one by one. A subclass answers the set in `answer_set`. The whole set
    is held at once: its features (n, d), and a few arrays of responsibilities (n, K).
    """

    kind: ClassVar[MethodKind] = "collection"

    @abstractmethod
    def answer_set(self, features: Array, log_probs: Array) -> Array:
        """Return logits (n, K) for a set with features (n, d) and zero-shot's log-probabilities (n, K)."""

    def second_pass_blocks(self, features: Array) -> Iterator[Array]:
        """Answer the set; the order of its samples does not matter."""
        blocks = [(each.features, log_softmax(each.logits)) for _, each in observed(self.head, features)]
        concat = namespace(blocks[0][0]).concat
        answers = self.answer_set(*(concat(parts) for parts in zip(*blocks, strict=True)))
        for start, evidence in observed(self.head, features):
            yield self.corrections.vote(answers[start : start + len(evidence), :], evidence)


def nearest(features: Array, count: int) -> tuple[Array, Array]:
    """Find the nearest other rows for each row, block by block.

    Returns positions and cosines, both (n, count), the nearest first. Where there are fewer than `count`, all of them
    are taken. Cosines below 0 become 0.

    Examples:
        >>> import numpy as np
        >>> nearest(np.eye(3)[[0, 1, 0]], count=1)[0].tolist()
        [[2], [0], [0]]
    """
    xp = namespace(features)
    count = min(count, features.shape[0] - 1)
    found = []
    size = max(1, BLOCK_PAIRS // features.shape[0])
    for start in range(0, features.shape[0], size):
        cosines = features[start : start + size, :] @ features.T
        here = xp.arange(cosines.shape[0], device=device(cosines))
        cosines[here, here + start] = xp.full_like(cosines[:, 0], -xp.inf)
        found.append(largest(cosines, count))
    positions, cosines = (xp.concat(parts) for parts in zip(*found, strict=True))
    return positions, xp.clip(cosines, min=0.0)


def largest(scores: Array, count: int) -> tuple[Array, Array]:
    """Return positions and values (n, count) of the largest scores of each row (n, m), which are overwritten."""
    xp = namespace(scores)
    rows = xp.arange(scores.shape[0], device=device(scores))
    positions = xp.zeros((scores.shape[0], count), dtype=xp.int64, device=device(scores))
    values = xp.zeros((scores.shape[0], count), dtype=scores.dtype, device=device(scores))
    for place in range(count):
        positions[:, place] = xp.argmax(scores, axis=-1)
        values[:, place] = scores[rows, positions[:, place]]
        scores[rows, positions[:, place]] = xp.full_like(values[:, place], -xp.inf)
    return positions, values


def assign(unary: Array, labels: Array, positions: Array, weights: Array, rounds: int) -> tuple[Array, Array]:
    """Let neighbours agree on their labels, in rounds that each follow from the labels of the one before.

    Args:
        unary: (n, K) logits of each sample by itself.
        labels: (n, K) soft labels to begin with.
        positions: (n, k) of the neighbours of each sample.
        weights: (n, k) of the neighbours; the sum of their labels, times their weights, is added to the logits.
        rounds: at least 1.

    Returns:
        The logits of the last round, and its labels, their softmax.
    """
    for _ in range(rounds):
        logits = unary
        for place in range(positions.shape[1]):
            logits = logits + weights[:, place][:, None] * labels[positions[:, place]]
        labels, _ = softmax_and_entropy(logits)
    return logits, labels


def add_gaussians(log_probs: Array, features: Array, means: Array, variances: Array, tau: float) -> Array:
    """Add the logarithms of Gaussians with means and variances (K, d), divided by tau, to logits (n, K)."""
    xp = namespace(features)
    precision = 1.0 / variances
    offsets = -0.5 * xp.sum(means * means * precision + xp.log(variances), axis=-1)
    logs = features @ (means * precision).T - 0.5 * ((features * features) @ precision.T) + offsets
    return log_probs + logs / tau
