"""Sums over rows by class, on any array library: the jagged diagonals of a sparse matrix class x entry.

Every entry of a cache votes on one class or several. Summing the votes by class is a product with a sparse 0-1 matrix.
Scatter-add has no place in the array API and is not deterministic on GPUs, and a dense matrix is mostly zeros. So the
matrix is cut into its jagged diagonals: classes are sorted by falling number of entries, and diagonal t holds the t-th
entry of every class that has so many. Each diagonal is one gather and one addition to the first rows of the sum, in the
same order on every machine. PyTorch has one kernel for the whole sum, `embedding_bag`, which takes the entries class by
class and adds them in that order, too.
"""

from typing import NamedTuple

import numpy as np

from acclimate.arrays import Array, HostArray, index, is_tensor, namespace


class Rows(NamedTuple):
    """The entries that vote on each class, class by class."""

    classes: Array  # (C,) the classes with entries, in order
    entries: Array  # (n,) the entries of the first class, then those of the second, ...
    starts: Array  # (C,) the position in `entries` where those of each class start


class Diagonals(NamedTuple):
    """The entries that vote on each class, diagonal by diagonal."""

    classes: Array  # (C,) the classes with entries, those with most entries first
    entries: list[Array]  # diagonal t holds the t-th entry of the first classes


Layout = Rows | Diagonals


def lay_out(targets: HostArray, like: Array) -> Layout:
    """Lay targets out for `add_by_class`: by rows on PyTorch, by diagonals on other array libraries.

    Args:
        targets: (E, width) the classes each entry votes on, padded with -1.
        like: an array that lives where the sums will be made.

    Examples:
        Entries 0 and 2 vote on class 7, entry 1 on class 4:

        >>> classes, entries = lay_out(np.array([[7], [4], [7]]), np.empty(0))
        >>> classes.tolist(), [each.tolist() for each in entries]
        ([7, 4], [[0, 1], [2]])
    """
    flat = np.ravel(targets)
    used = np.flatnonzero(flat >= 0)
    used = used[_stable_order(flat[used])]
    entries = used // targets.shape[1]
    classes = flat[used]
    counts = np.bincount(classes)
    if is_tensor(like):
        held = np.flatnonzero(counts)
        starts = (np.cumsum(counts) - counts)[held]
        return Rows(index(held, like), index(entries, like), index(starts, like))
    most_first = np.argsort(-counts, kind="stable")
    diagonal = np.arange(len(classes)) - np.repeat(np.cumsum(counts) - counts, counts)
    by_row = _stable_order(np.argsort(most_first)[classes])
    by_diagonal = by_row[_stable_order(diagonal[by_row])]
    ends = np.cumsum(np.bincount(diagonal)).tolist()
    ordered = index(entries[by_diagonal], like)
    pieces = [ordered[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return Diagonals(index(most_first[: np.count_nonzero(counts)], like), pieces)


def add_by_class(sums: Array, weights: Array, layout: Layout, factor: float = 1.0) -> None:
    """Add weights (E, B) of entries, times a factor, to the sums (K, B) of the classes they vote on, in place.

    The weights may be overwritten.
    """
    if isinstance(layout, Rows):
        if layout.classes.shape[0]:
            total = namespace(weights).embedding_bag(weights, layout.entries, layout.starts, mode=0)[0]
            sums.index_add_(0, layout.classes, total, alpha=factor)
    elif layout.entries:
        weights *= factor
        total = weights[layout.entries[0]]
        for entries in layout.entries[1:]:
            total[: entries.shape[0]] += weights[entries]
        sums[layout.classes] += total


def compact(mask: HostArray) -> HostArray:
    """Return a boolean mask (E, K) as targets (E, width): the classes of each row, padded with -1.

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
    """Return the stable argsort of small numbers, by radix: ten times faster, and only in a narrow type."""
    return np.argsort(numbers.astype(np.min_scalar_type(int(numbers.max(initial=0)))), kind="stable")
