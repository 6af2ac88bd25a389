"""Sums over rows by class, on any array library: the jagged diagonals of a sparse matrix class x entry.

Every entry of a cache votes on one class or several. Summing the votes by class is a product with a sparse 0-1 matrix.
Scatter-add has no place in the array API and is not deterministic on GPUs, and a dense matrix is mostly zeros. So the
matrix is cut into its jagged diagonals: classes are sorted by falling number of entries, and diagonal t holds the t-th
entry of every class that has so many. Each diagonal is one gather and one addition to the first rows of the sum, in the
same order on every machine.
"""

from typing import NamedTuple

import numpy as np

from acclimate.arrays import Array, HostArray, index


class Diagonals(NamedTuple):
    """Which entries vote on which classes."""

    classes: Array  # (C,) the classes with entries, those with most entries first
    entries: list[Array]  # for each diagonal t the t-th entry of the first classes


def jagged_diagonals(targets: HostArray, like: Array) -> Diagonals:
    """Lay targets out by diagonals.

    Args:
        targets: (E, width) the classes each entry votes on, padded with -1.
        like: an array that lives where the sums will be made.

    Examples:
        Entries 0 and 2 vote on class 7, entry 1 on class 4:

        >>> classes, entries = jagged_diagonals(np.array([[7], [4], [7]]), np.empty(0))
        >>> classes.tolist(), [each.tolist() for each in entries]
        ([7, 4], [[0, 1], [2]])
    """
    entries, columns = np.nonzero(targets >= 0)
    classes = targets[entries, columns]
    by_class = _stable_order(classes)
    classes, entries = classes[by_class], entries[by_class]
    counts = np.bincount(classes)
    most_first = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    diagonal = np.arange(len(classes)) - np.repeat(np.cumsum(counts) - counts, counts)
    row = np.empty(len(counts), np.int64)
    row[most_first] = np.arange(len(most_first))
    by_row = _stable_order(row[classes])
    by_diagonal = by_row[_stable_order(diagonal[by_row])]
    ends = np.cumsum(np.bincount(diagonal)).tolist()
    ordered = index(entries[by_diagonal], like)
    pieces = [ordered[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return Diagonals(index(most_first, like), pieces)


def add_by_class(sums: Array, weights: Array, diagonals: Diagonals) -> None:
    """Add weights (E, B) of entries to the sums (K, B) of the classes they vote on, in place."""
    if diagonals.entries:
        total = weights[diagonals.entries[0]]
        for entries in diagonals.entries[1:]:
            total[: entries.shape[0]] += weights[entries]
        sums[diagonals.classes] += total


def compact(mask: HostArray) -> HostArray:
    """A boolean mask (E, K) as targets (E, width): the classes of each row, padded with -1.

    Examples:
        >>> compact(np.array([[True, False, True], [False, True, False]])).tolist()
        [[0, 2], [1, -1]]
    """
    entries, classes = np.nonzero(mask)
    counts = mask.sum(axis=1)
    targets = np.full((len(mask), max(1, int(counts.max(initial=0)))), -1, np.int32)
    targets[entries, np.arange(len(entries)) - np.repeat(np.cumsum(counts) - counts, counts)] = classes
    return targets


def _stable_order(numbers: HostArray) -> HostArray:
    """Stable argsort of small numbers, ten times faster in the narrowest type, where NumPy sorts by radix."""
    return np.argsort(numbers.astype(np.min_scalar_type(int(numbers.max(initial=0)))), kind="stable")
