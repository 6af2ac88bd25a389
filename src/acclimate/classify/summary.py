"""What a job's rows add up to, in memory that does not grow with their number."""

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
REASONS = 20  # unreadable images named


class Summary:
    """Counts over the rows of a job; the same rows in the same order give the same summary.

    Args:
        labels: every label a row may name.

    Attributes:
        images: rows taken in.
        unreadable: rows without an answer.
        reasons: (file, reason) of the first unreadable images.
        changed: rows whose answer adapting changed.
        before: zero-shot answers of each label.
        after: adapted answers of each label.
        before_bins: how many zero-shot scores lie in each of 20 equal bins from 0 to 1.
        after_bins: the same for adapted scores.
        bin_width: answered rows that a bin of the stream holds.
        stream: changed rows in each bin of the stream; the last bin may not be full.
        pairs_dropped: whether rare transitions were forgotten, so that the counts of `transitions` are lower bounds.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = tuple(labels)
        self.images = self.unreadable = self.changed = 0
        self.reasons: list[tuple[str, str]] = []
        self.before, self.after = [0] * len(self.labels), [0] * len(self.labels)
        self.before_bins, self.after_bins = [0] * BINS, [0] * BINS
        self.bin_width = 1
        self.stream: list[int] = []
        self.pairs_dropped = False
        self._position = {label: i for i, label in enumerate(self.labels)}
        self._pairs: Counter[tuple[int, int]] = Counter()
        self._most_changed: list[tuple[float, int, Row]] = []  # a heap, the least changed first

    @property
    def answered(self) -> int:
        """Rows with an answer."""
        return self.images - self.unreadable

    def add(self, row: Row) -> None:
        """Take in one more row."""
        label, score, old_label, old_score = row.label, row.score, row.zero_shot_label, row.zero_shot_score
        if label is None or score is None or old_label is None or old_score is None:
            self.images += 1
            self.unreadable += 1
            if len(self.reasons) < REASONS:
                self.reasons.append((row.file, row.error or "no reason was given"))
            return
        try:
            old, new = self._position[old_label], self._position[label]
        except KeyError as error:
            raise InputError(f"row {row.index} names the label {error}, which the summary was not given.") from None
        self._extend_stream(bool(row.changed))
        self.images += 1
        self.before[old] += 1
        self.after[new] += 1
        self.before_bins[_bin(old_score)] += 1
        self.after_bins[_bin(score)] += 1
        if row.changed:
            self.changed += 1
            self._count_pair(old, new)
            # The new answer had at most 1 - old_score before, so its probability rose by at least this much.
            rise = score + old_score - 1.0
            entry = (rise, -self.images, replace(row, top=()))  # of equals the earlier one is kept
            if len(self._most_changed) < SHOWN:
                heapq.heappush(self._most_changed, entry)
            else:
                heapq.heappushpop(self._most_changed, entry)

    def most_changed(self) -> list[Row]:
        """The rows where a sure answer gave way to another sure one, most changed first."""
        return [row for _, _, row in sorted(self._most_changed, reverse=True)]

    def transitions(self, most: int = 20) -> list[tuple[str, str, int]]:
        """The commonest changes: zero-shot label, adapted label, number of rows."""
        ordered = sorted(self._pairs.items(), key=lambda item: (-item[1], item[0]))
        return [(self.labels[old], self.labels[new], count) for (old, new), count in ordered[:most]]

    def along_stream(self, least: int = 1) -> list[tuple[int, int, int]]:
        """Changes along the stream: (answered rows before the bin, rows in the bin, how many of them changed).

        Args:
            least: join bins until each holds that many rows.
        """
        joined = -(-least // self.bin_width)
        bins = []
        for i in range(0, len(self.stream), joined):
            start = i * self.bin_width
            rows = min(self.answered, start + joined * self.bin_width) - start
            bins.append((start, rows, sum(self.stream[i : i + joined])))
        if len(bins) > 1 and bins[-1][1] < least:
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

    def _count_pair(self, old: int, new: int) -> None:
        self._pairs[old, new] += 1
        if len(self._pairs) > PAIRS:
            ordered = sorted(self._pairs.items(), key=lambda item: (-item[1], item[0]))
            self._pairs = Counter(dict(ordered[: PAIRS // 2]))
            self.pairs_dropped = True


def _bin(score: float) -> int:
    return min(BINS - 1, max(0, int(score * BINS)))
