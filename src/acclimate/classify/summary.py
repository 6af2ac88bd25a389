"""The numbers that a run ends with: counts of answers, changes and right answers, computed from their columns."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from acclimate.arrays import HostArray
from acclimate.errors import count
from acclimate.predict import Predictions

Z = 1.959963984540054  # 95 % of a normal distribution lie within this many standard deviations
FEW_IMAGES = 30  # accuracy on fewer images says little
BINS = 20  # bins of a histogram of scores
SHOWN = 24  # least sure, and most changed predictions
WRONG = 48  # most confident wrong answers
EXAMPLES = 6  # images per label
REASONS = 20  # unreadable images that are listed

MAX_STREAM_BINS = 128
LEAST_BIN_WIDTH = 50  # answers in a bin of the stream; with fewer, the share of changes would be chance

Pair = tuple[str, str]


def wilson(right: int, total: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of a proportion (Wilson, 1927).

    Examples:
        >>> low, high = wilson(9, 10)
        >>> f"{low:.3f} to {high:.3f}"
        '0.596 to 0.982'
    """
    centre = right + Z * Z / 2
    scale = total + Z * Z
    spread = Z * sqrt(right * (total - right) / total + Z * Z / 4)
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def paired_difference(gained: int, lost: int, total: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of the difference of two accuracies on the same images.

    Only the images that one of the two answers correctly matter: `gained` and `lost` of `total`. Half an image is added
    to each of the four outcomes, which makes the interval hold for few images, too (Agresti and Min, 2005).

    Examples:
        >>> low, high = paired_difference(gained=12, lost=4, total=100)
        >>> f"{low:+.3f} to {high:+.3f}"
        '+0.001 to +0.156'
    """
    total += 2
    difference = (gained - lost) / total
    spread = Z * sqrt((gained + lost + 1) / total - difference**2) / sqrt(total)
    return max(-1.0, difference - spread), min(1.0, difference + spread)


class Accuracy(NamedTuple):
    """Counts of right answers among those whose truth is known, by the model alone and adapted."""

    known: int  # images that could be read and whose true label is known
    right: int  # right adapted answers
    gained: int  # answers that are right after adapting only
    lost: int  # answers that are right before adapting only
    left_out: int = 0  # images beside these that a person has corrected

    @property
    def right_before(self) -> int:
        """Zero-shot answers that are right."""
        return self.right - self.gained + self.lost

    def __str__(self) -> str:
        r"""Return one line; "" where no truth is known.

        Examples:
            >>> print(str(Accuracy(known=200, right=180, gained=12, lost=2)).replace(", ", ",\n"))
            Accuracy on 200 images: model alone 85.0 % (95 % interval 79.4 to 89.3),
            adapted 90.0 % (85.1 to 93.4),
            difference +5.0 points (+1.3 to +8.6).
        """
        if not self.known:
            return ""
        parts = []
        for who, right, extra in (("model alone", self.right_before, "95 % interval "), ("adapted", self.right, "")):
            low, high = wilson(right, self.known)
            parts.append(f"{who} {100 * right / self.known:.1f} % ({extra}{100 * low:.1f} to {100 * high:.1f})")
        low, high = paired_difference(self.gained, self.lost, self.known)
        points = 100 * (self.gained - self.lost) / self.known
        parts.append(f"difference {points:+.1f} points ({100 * low:+.1f} to {100 * high:+.1f})")
        without = f", without {count(self.left_out, 'corrected one')}" if self.left_out else ""
        few = " So few images say little." if self.known < FEW_IMAGES else ""
        return f"Accuracy on {count(self.known, 'image')}{without}: {', '.join(parts)}.{few}"


def score_text(score: float) -> str:
    """Return a score in whole percent; one that is nearly 0 or 1 is not said to be 0 or 1.

    Examples:
        >>> score_text(0.99998), score_text(0.723), score_text(0.001)
        ('> 99 %', '72 %', '< 1 %')
    """
    if score > 0.99:
        return "> 99 %"
    return "< 1 %" if score < 0.01 else f"{100 * score:.0f} %"


class Example(NamedTuple):
    """An image of a label."""

    position: int  # in the stream
    score: float
    right: bool  # False if the answer is known to be wrong


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Counts over the predictions of a run; records are rows of the results.

    Attributes:
        images: images, those that could not be read among them.
        passes: passes after which the answers are final.
        answered: images that could be read.
        reasons: names and reasons of the first unreadable images.
        unsure: answers with a score below the threshold.
        unsure_none: those among them that are "none of these".
        changed: final answers that differ from zero-shot.
        changed_online: answers that differed from zero-shot when the image came.
        changed_again: final answers that differ from those given when the image came.
        before: zero-shot answers by label.
        after: final answers by label.
        groups: final answers by group of labels.
        before_bins: zero-shot scores in equal bins from 0 to 1.
        after_bins: the same for the final scores.
        bin_width: answers in a bin of the stream.
        stream: changed answers in each bin; the last bin may not be full.
        stream_online: the same for the answers given when the image came.
        pairs: changes by old and new label.
        most_changed: records whose score rose most.
        least_sure: records with the lowest scores.
        examples: random images by final answer.
        left_out: images with a known truth that a person has corrected; they are in none of the following.
        truths: images by true label.
        judged: images with a known truth by final answer.
        right: right final answers by label.
        right_before: right zero-shot answers by label.
        gained: answers that are right after adapting only.
        judged_bins: final scores of images with a known truth.
        right_bins: scores of right answers.
        confusions: images by truth and wrong answer.
        wrong: records of the most confident wrong answers.
    """

    images: int
    passes: int
    answered: int
    reasons: list[tuple[str, str]]
    unsure: int = 0
    unsure_none: int = 0
    changed: int = 0
    changed_online: int = 0
    changed_again: int = 0
    before: Counter[str] = field(default_factory=Counter)
    after: Counter[str] = field(default_factory=Counter)
    groups: Counter[str] = field(default_factory=Counter)
    before_bins: list[int] = field(default_factory=lambda: [0] * BINS)
    after_bins: list[int] = field(default_factory=lambda: [0] * BINS)
    bin_width: int = LEAST_BIN_WIDTH
    stream: list[int] = field(default_factory=list)
    stream_online: list[int] = field(default_factory=list)
    pairs: Counter[Pair] = field(default_factory=Counter)
    most_changed: list[dict[str, Any]] = field(default_factory=list)
    least_sure: list[dict[str, Any]] = field(default_factory=list)
    examples: dict[str, list[Example]] = field(default_factory=dict)
    left_out: int = 0
    truths: Counter[str] = field(default_factory=Counter)
    judged: Counter[str] = field(default_factory=Counter)
    right: Counter[str] = field(default_factory=Counter)
    right_before: Counter[str] = field(default_factory=Counter)
    gained: int = 0
    judged_bins: list[int] = field(default_factory=lambda: [0] * BINS)
    right_bins: list[int] = field(default_factory=lambda: [0] * BINS)
    confusions: Counter[Pair] = field(default_factory=Counter)
    wrong: list[dict[str, Any]] = field(default_factory=list)

    @property
    def unreadable(self) -> int:
        """Number of images that could not be read."""
        return self.images - self.answered

    @property
    def accuracy(self) -> Accuracy:
        """The accuracy before and after adapting."""
        right = self.right.total()
        lost = self.right_before.total() - right + self.gained
        return Accuracy(self.truths.total(), right, self.gained, lost, self.left_out)


def summarise(blocks: Sequence[Predictions], passes: int = 1) -> Summary:
    """Count the predictions of a run, given in order as blocks with the same labels."""
    unread = [(name, error) for block in blocks for name, error in zip(block.names, block.errors, strict=True) if error]
    images = sum(map(len, blocks))
    counts: dict[str, Any] = {
        "images": images,
        "passes": passes,
        "answered": images - len(unread),
        "reasons": unread[:REASONS],
    }
    if len(unread) == images:
        return Summary(**counts)
    columns = _Columns(blocks)
    labels = columns.labels
    changed = columns.best != columns.zero_shot
    changed_online = columns.online != columns.zero_shot
    unsure_none = columns.unsure & (columns.best == len(labels) - 1)
    width = LEAST_BIN_WIDTH
    while len(columns.best) > width * MAX_STREAM_BINS:
        width *= 2
    rise = columns.scores.astype(np.float64) + columns.zero_shot_scores - 1.0  # at least, as scores sum to 1
    counts |= {
        "unsure": int(columns.unsure.sum()),
        "unsure_none": int(unsure_none.sum()),
        "changed": int(changed.sum()),
        "changed_online": int(changed_online.sum()),
        "changed_again": int((columns.online != columns.best).sum()),
        "before": _counted(labels, columns.zero_shot),
        "after": _counted(labels, columns.best),
        "groups": Counter(group.label for block in blocks for group in block.groups if group),
        "before_bins": _histogram(columns.zero_shot_scores),
        "after_bins": _histogram(columns.scores),
        "bin_width": width,
        "stream": _sums(changed, width),
        "stream_online": _sums(changed_online, width),
        "pairs": _counted_pairs(labels, columns.zero_shot[changed], columns.best[changed]),
        "most_changed": columns.records(_first(np.flatnonzero(changed), -rise[changed], SHOWN)),
        "least_sure": columns.records(_first(np.arange(len(rise)), columns.scores, SHOWN)),
        "examples": _examples(columns),
    }
    return Summary(**counts, **_judged(columns))


def _judged(columns: "_Columns") -> dict[str, Any]:
    """Return the counts over the images whose true label is known."""
    labels = columns.labels
    judged = np.flatnonzero((columns.truths >= 0) & ~columns.corrected)
    truth = columns.truths[judged]
    best = columns.best[judged]
    score = columns.scores[judged]
    right = best == truth
    was_right = columns.zero_shot[judged] == truth
    return {
        "left_out": int(((columns.truths >= 0) & columns.corrected).sum()),
        "truths": _counted(labels, truth),
        "judged": _counted(labels, best),
        "right": _counted(labels, truth[right]),
        "right_before": _counted(labels, truth[was_right]),
        "gained": int((right & ~was_right).sum()),
        "judged_bins": _histogram(score),
        "right_bins": _histogram(score[right]),
        "confusions": _counted_pairs(labels, truth[~right], best[~right]),
        "wrong": columns.records(_first(judged[~right], -score[~right], WRONG)),
    }


class _Columns:
    """The columns of the images that could be read, of all blocks together."""

    def __init__(self, blocks: Sequence[Predictions]) -> None:
        self.labels = blocks[0].labels
        self.blocks = blocks
        self._read = [np.array([error is None for error in block.errors]) for block in blocks]
        self.best = self._joined([block.classes[:, 0] if block.classes.size else block.ids for block in blocks])
        self.scores = self._joined([block.scores[:, 0] if block.scores.size else block.entropy for block in blocks])
        self.zero_shot = self._joined([block.zero_shot_classes for block in blocks])
        self.zero_shot_scores = self._joined([block.zero_shot_scores for block in blocks])
        self.online = self._joined([block.online_classes for block in blocks])
        self.unsure = self._joined([block.unsure for block in blocks])
        self.indices = self._joined([np.arange(block.start, block.start + len(block)) for block in blocks])
        rows = {label: row for row, label in enumerate(self.labels)} | {None: -1}
        self.truths = self._joined([np.array([rows[truth] for truth in block.truths]) for block in blocks])
        self.corrected = self._joined([np.array([each is not None for each in block.corrected]) for block in blocks])
        self._ends = np.cumsum([len(block) for block in blocks])
        self._positions = np.flatnonzero(np.concatenate(self._read))

    def _joined(self, columns: Sequence[HostArray]) -> HostArray:
        return np.concatenate([column[read] for column, read in zip(columns, self._read, strict=True)])

    def records(self, rows: HostArray) -> list[dict[str, Any]]:
        """Return rows of the results, with two answers each."""
        found = []
        for position in self._positions[rows].tolist():
            block = int(np.searchsorted(self._ends, position, "right"))
            row = position - int(self._ends[block]) + len(self.blocks[block])
            record = self.blocks[block][row].to_record()
            found.append(record | {"predictions": record["predictions"][:2]})
        return found


def _examples(columns: _Columns) -> dict[str, list[Example]]:
    """Return some random images of each label, always the same."""
    drawn = columns.indices.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)
    order = np.lexsort((drawn, columns.best))
    wrong = (columns.truths >= 0) & (columns.truths != columns.best)
    classes, firsts = np.unique(columns.best[order], return_index=True)
    ends = [*firsts[1:].tolist(), len(order)]
    found = {}
    for label, first, end in zip(classes.tolist(), firsts.tolist(), ends, strict=True):
        rows = order[first : min(end, first + EXAMPLES)].tolist()
        found[columns.labels[label]] = [
            Example(int(columns.indices[row]), round(float(columns.scores[row]), 4), not wrong[row]) for row in rows
        ]
    return found


def _counted(labels: Sequence[str], classes: HostArray) -> Counter[str]:
    counts = np.bincount(classes, minlength=len(labels)).tolist()
    return Counter({label: number for label, number in zip(labels, counts, strict=True) if number})


def _counted_pairs(labels: Sequence[str], first: HostArray, second: HostArray) -> Counter[Pair]:
    codes, counts = np.unique(first * len(labels) + second, return_counts=True)
    pairs = [divmod(code, len(labels)) for code in codes.tolist()]
    return Counter({(labels[a], labels[b]): number for (a, b), number in zip(pairs, counts.tolist(), strict=True)})


def _first(rows: HostArray, ranks: HostArray, most: int) -> HostArray:
    """Return those of the rows with the lowest ranks, of equal ones the earlier."""
    if len(rows) > 2 * most:  # sorting all of a million takes longer
        low = ranks <= np.partition(ranks, most)[most]
        rows = rows[low]
        ranks = ranks[low]
    return np.asarray(rows[np.argsort(ranks, kind="stable")[:most]])


def _sums(flags: HostArray, width: int) -> list[int]:
    found: list[int] = np.add.reduceat(flags.astype(np.int64), np.arange(0, len(flags), width)).tolist()
    return found


def _histogram(scores: HostArray) -> list[int]:
    bins = np.minimum((scores.astype(np.float64) * BINS).astype(np.int64), BINS - 1)
    found: list[int] = np.bincount(bins, minlength=BINS).tolist()
    return found
