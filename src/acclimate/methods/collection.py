"""Methods that answer a collection as a whole, and the graph of nearest neighbours that they share."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from acclimate.arrays import Array, HostArray, device, index, log_softmax, move, namespace, softmax_and_entropy
from acclimate.evidence import Evidence
from acclimate.methods.adapter import Adapter, MethodKind, Step, observed
from acclimate.methods.state import MergeRule

BLOCK_PAIRS = 2**23  # similarities, or responsibilities, computed at once
SMALLEST_VARIANCE = 1e-6  # of a coordinate of the features; the samples of a class may all be equal
FAN = 16  # terms of a sparse sum that are added at once


@dataclass(eq=False, repr=False, kw_only=True)
class Collection(Adapter):
    """An adapter that answers a finished set of samples as a whole (`refine`), and single samples zero-shot.

    It learns nothing from the samples it is shown one by one. A subclass answers the set in `answer_set`. The whole set
    is held at once: its features (n, d), and a few arrays of responsibilities (n, K).
    """

    kind: ClassVar[MethodKind] = "collection"
    merges: ClassVar[MergeRule | None] = "union"

    @abstractmethod
    def answer_set(self, features: Array, log_probs: Array) -> Array:
        """Return logits (n, K) for a set with features (n, d) and zero-shot's log-probabilities (n, K)."""

    def respond(self, evidence: Evidence, ids: HostArray, learn: bool) -> Step:
        """Return the logits of the evidence: a sample by itself is no set."""
        return Step(evidence.logits)

    def refined(self, features: Array) -> Iterator[Array]:
        """Answer the set; the order of its samples does not matter."""
        blocks = [(each.features, log_softmax(each.logits)) for _, each in observed(self.head, features)]
        concat = namespace(blocks[0][0]).concat
        answers = self.answer_set(*(concat(parts) for parts in zip(*blocks, strict=True)))
        del blocks
        for start, evidence in observed(self.head, features):
            yield self.corrections.vote(answers[start : start + len(evidence), :], evidence)


class Neighbours(NamedTuple):
    """The nearest neighbours of n samples: positions and cosines, both (n, k), the nearest first."""

    positions: Array
    cosines: Array


def nearest(features: Array, count: int, among: Array | None = None) -> Neighbours:
    """Find the nearest rows of `among` for each row, block by block; without `among`, the nearest other rows.

    Where there are fewer than `count`, all of them are taken. Cosines below 0 become 0.

    Examples:
        >>> nearest(np.eye(3)[[0, 1, 0]], count=1).positions.tolist()
        [[2], [0], [0]]
    """
    xp = namespace(features)
    others = features if among is None else among
    count = min(count, others.shape[0] - (among is None))
    found = []
    for rows in row_blocks(features.shape[0], others.shape[0]):
        cosines = features[rows, :] @ others.T
        if among is None:
            here = xp.arange(cosines.shape[0], device=device(cosines))
            cosines[here, here + rows.start] = xp.full_like(cosines[:, 0], -xp.inf)
        found.append(largest(cosines, count))
    positions, cosines = (xp.concat(parts) for parts in zip(*found, strict=True))
    return Neighbours(positions, xp.clip(cosines, min=0.0))


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


def assign(unary: Array, labels: Array, neighbours: Neighbours, rounds: int) -> tuple[Array, Array]:
    """Let neighbours agree on their labels, in rounds that each follow from the labels of the one before.

    Args:
        unary: (n, K) logits of each sample by itself.
        labels: (n, K) soft labels to begin with.
        neighbours: the sum of their labels, times their cosines, is added to the logits.
        rounds: at least 1.

    Returns:
        The logits of the last round, and its labels, their softmax.
    """
    xp = namespace(unary)
    logits = xp.empty_like(unary)
    for _ in range(rounds):
        following = xp.empty_like(labels)
        for rows in row_blocks(*labels.shape):
            logits[rows, :] = unary[rows, :]
            for place in range(neighbours.positions.shape[1]):
                votes = labels[neighbours.positions[rows, place]]
                logits[rows, :] += neighbours.cosines[rows, place][:, None] * votes
            following[rows, :] = softmax_and_entropy(logits[rows, :])[0]
        labels = following
    return logits, labels


def add_gaussians(log_probs: Array, features: Array, means: Array, variances: Array, tau: float) -> Array:
    """Add the logarithms of Gaussians with means and variances (K, d), divided by tau, to logits (n, K)."""
    xp = namespace(features)
    precision = 1.0 / variances
    offsets = -0.5 * xp.sum(means * means * precision + xp.log(variances), axis=-1)
    logits = xp.empty_like(log_probs)
    for rows in row_blocks(*log_probs.shape):
        part = features[rows, :]
        logs = part @ (means * precision).T - 0.5 * ((part * part) @ precision.T) + offsets
        logits[rows, :] = log_probs[rows, :] + logs / tau
    return logits


def row_blocks(rows: int, columns: int) -> Iterator[slice]:
    """Yield the rows of an array in slices that have at most `BLOCK_PAIRS` elements, or one row."""
    size = max(1, BLOCK_PAIRS // max(1, columns))
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


class SparseMatrix:
    """A square sparse matrix that multiplies dense ones on any array library, in the same order on every machine.

    Scatter-add has no place in the array API. So the terms of each sum are gathered, `FAN` at a time. The partial sums
    of rows with more terms are gathered in turn, until one is left.

    Args:
        rows: (E,) of the entries; entries of the same row and column add up.
        columns: (E,)
        values: (E,)
        count: number of rows and of columns.
        like: an array that lives where products will be made.

    Examples:
        >>> matrix = SparseMatrix(np.array([0, 0, 1]), np.array([0, 1, 1]), np.array([2.0, 3.0, 4.0]), 2, np.empty(0))
        >>> matrix @ np.array([[1.0], [10.0]])
        array([[32.],
               [40.]])
    """

    def __init__(self, rows: HostArray, columns: HostArray, values: HostArray, count: int, like: Array) -> None:
        self.levels: list[tuple[list[Array], Array]] = []
        most = FAN + 1
        while most > FAN:
            order = np.argsort(rows, kind="stable")
            counts = np.bincount(rows, minlength=count)
            most = int(counts.max())
            place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
            fans = np.maximum(1, -(-counts // FAN))
            fan = (np.cumsum(fans) - fans)[rows[order]] + place // FAN
            gathered = np.zeros((min(FAN, max(1, most)), fans.sum()), np.int64)
            weights = np.zeros(gathered.shape)
            gathered[place % FAN, fan] = columns[order]
            weights[place % FAN, fan] = values[order]
            self.levels.append(([index(each, like) for each in gathered], move(weights, like)))
            rows = np.repeat(np.arange(count), fans)
            columns = np.arange(len(rows))
            values = np.ones(len(rows))

    def __matmul__(self, x: Array) -> Array:
        for gathered, weights in self.levels:
            total = weights[0, :][:, None] * x[gathered[0]]
            for place in range(1, len(gathered)):
                total += weights[place, :][:, None] * x[gathered[place]]
            x = total
        return x
