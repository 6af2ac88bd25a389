"""What the rows of a run add up to, in memory that does not grow with their number."""

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from acclimate.classify.rows import Row
from acclimate.errors import InputError

BINS = 20  # of a confidence histogram
POINTS = 128  # along the stream, at most; at least half as many once there are that many rows
SHOWN = 24  # most changed rows
PAIRS = 10_000  # transitions counted at a time
REASONS = 20  # unreadable images listed


class Summary:
    """Counts over the rows of a run; the same rows in the same order give the same summary.

    Args:
        labels: every label that a row may have.

    Attributes:
        images: number of rows.
        unreadable: rows without an answer.
        reasons: (file, reason) of the first unreadable images.
        changed: rows whose answer adapting changed.
        before: number of zero-shot answers by label.
        after: number of adapted answers by label.
        before_bins: number of zero-shot scores in each of 20 equal bins from 0 to 1.
        after_bins: the same for adapted scores.
        bin_width: number of answered rows in a bin of the stream.
        stream: changed rows in each bin of the stream; the last bin may not be full.
        pairs_dropped: whether rare transitions were dropped, so that the counts of `transitions` are lower bounds.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        self.images = self.unreadable = self.changed = 0
        self.reasons: list[tuple[str, str]] = []
        self.before, self.after = dict.fromkeys(labels, 0), dict.fromkeys(labels, 0)
        self.before_bins, self.after_bins = [0] * BINS, [0] * BINS
        self.bin_width = 1
        self.stream: list[int] = []
        self.pairs_dropped = False
        self._pairs: Counter[tuple[str, str]] = Counter()
        self._most_changed: list[tuple[float, int, Row]] = []  # a heap, the least changed first

    @property
    def answered(self) -> int:
        """Rows with an answer."""
        return self.images - self.unreadable

    def add(self, row: Row) -> None:
        """Count one more row."""
        if row.error is not None:
            self.images += 1
            self.unreadable += 1
            if len(self.reasons) < REASONS:
                self.reasons.append((row.name, row.error))
            return
        for label in (row.zero_shot.label, row.label):
            if label not in self.after:
                raise InputError(f"row {row.index} has the label {label!r}, which is not among the summary's labels.")
        self._extend_stream(row.changed)
        self.images += 1
        self.before[row.zero_shot.label] += 1
        self.after[row.label] += 1
        self.before_bins[_bin(row.zero_shot.score)] += 1
        self.after_bins[_bin(row.score)] += 1
        if row.changed:
            self.changed += 1
            self._count_pair(row.zero_shot.label, row.label)
            # The new answer had a probability of at most 1 - zero_shot.score, so it rose by at least this much.
            rise = row.score + row.zero_shot.score - 1.0
            heapq.heappush(self._most_changed, (rise, -self.images, replace(row, top=row.top[:1])))  # the earlier first
            if len(self._most_changed) > SHOWN:
                heapq.heappop(self._most_changed)

    def most_changed(self) -> list[Row]:
        """The rows where a confident answer was replaced by another confident one, most changed first."""
        return [row for _, _, row in sorted(self._most_changed, reverse=True)]

    def transitions(self, most: int = 20) -> list[tuple[str, str, int]]:
        """The most frequent changes: zero-shot label, adapted label, number of rows."""
        ordered = sorted(self._pairs.items(), key=lambda item: (-item[1], item[0]))
        return [(old, new, count) for (old, new), count in ordered[:most]]

    def along_stream(self, least: int = 1) -> list[tuple[int, int, int]]:
        """Changes along the stream: (answered rows before the bin, rows in the bin, how many of them changed).

        Args:
            least: bins are joined until each has at least that many rows.
        """
        joined = -(-least // self.bin_width)
        bins = []
        for i in range(0, len(self.stream), joined):
            start = i * self.bin_width
            rows = min(self.answered, start + joined * self.bin_width) - start
            bins.append((start, rows, sum(self.stream[i : i + joined])))
        if len(bins) > 1 and bins[-1][1] < least:  # the last bin is too small: it becomes part of the one before
            (start, rows, changed), (_, more, more_changed) = bins[-2:]
            bins[-2:] = [(start, rows + more, changed + more_changed)]
        return bins

    def _extend_stream(self, changed: bool) -> None:
        if self.answered == len(self.stream) * self.bin_width:
            if len(self.stream) == POINTS:
                self.stream = [a + b for a, b in zip(self.stream[::2], self.stream[1::2], strict=True)]
                self.bin_width *= 2
            self.stream.append(0)
        self.stream[-1] += changed

    def _count_pair(self, old: str, new: str) -> None:
        self._pairs[old, new] += 1
        if len(self._pairs) > PAIRS:
            self._pairs = Counter({(old, new): count for old, new, count in self.transitions(PAIRS // 2)})
            self.pairs_dropped = True


def _bin(score: float) -> int:
    return min(BINS - 1, max(0, int(score * BINS)))
