"""Counts over the predictions of a run, in memory that does not grow with their number; accuracy with intervals."""

import heapq
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Any, ClassVar, NamedTuple
from zlib import crc32

from acclimate.errors import count
from acclimate.predict import NONE, Prediction

Z = 1.959963984540054  # 95 % of a normal distribution lie within this many standard deviations
FEW_IMAGES = 30  # accuracy on fewer images says little
BINS = 20  # bins of a histogram of scores
SHOWN = 24  # least sure, and most changed predictions
WRONG = 48  # most confident wrong answers
EXAMPLES = 6  # images per label
MAX_PAIRS = 10_000  # kinds of changes or confusions counted at a time; beyond, the rare ones are dropped
REASONS = 20  # unreadable images that are listed

Pair = tuple[str, str]
Heap = list[list[Any]]  # [rank, minus position, record]: of equal ranks the earlier stays


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


@dataclass
class Summary:
    """Counts over the predictions of a run; the same predictions in the same order give the same summary."""

    images: int = 0
    passes: int = 1  # passes after which the answers are final
    reasons: list[list[str]] = field(default_factory=list)  # [file, reason] of the first unreadable images
    unsure: int = 0  # answers with a score below the threshold
    unsure_none: int = 0  # those among them that are "none of these"
    changed: int = 0  # final answers that differ from zero-shot
    changed_online: int = 0  # answers that differed from zero-shot when the image came
    changed_again: int = 0  # final answers that differ from those given when the image came
    before: Counter[str] = field(default_factory=Counter)  # zero-shot answers by label
    after: Counter[str] = field(default_factory=Counter)  # adapted answers by label
    groups: Counter[str] = field(default_factory=Counter)  # adapted answers by group of labels
    before_bins: list[int] = field(default_factory=lambda: [0] * BINS)  # zero-shot scores in equal bins from 0 to 1
    after_bins: list[int] = field(default_factory=lambda: [0] * BINS)  # the same for adapted scores
    bin_width: int = 50  # answers in a bin of the stream; with fewer, the share of changes would be chance
    stream: list[int] = field(default_factory=list)  # changed answers in each bin; the last bin may not be full
    stream_online: list[int] = field(default_factory=list)  # the same for the answers given when the image came
    pairs: Counter[Pair] = field(default_factory=Counter)  # changes by old and new label; see MAX_PAIRS
    most_changed: Heap = field(default_factory=list)  # ranked by the rise of the score
    least_sure: Heap = field(default_factory=list)  # ranked by the score, the lowest first
    # Random images by answer: [index, score, True unless known to be wrong]
    examples: dict[str, Heap] = field(default_factory=dict)

    # Images that could be read and whose true label is known, without those that a person has corrected:
    left_out: int = 0  # the corrected ones
    truths: Counter[str] = field(default_factory=Counter)  # images by true label
    judged: Counter[str] = field(default_factory=Counter)  # images by adapted answer
    right: Counter[str] = field(default_factory=Counter)  # right adapted answers by label
    right_before: Counter[str] = field(default_factory=Counter)  # right zero-shot answers by label
    gained: int = 0  # answers that are right after adapting only
    judged_bins: list[int] = field(default_factory=lambda: [0] * BINS)  # adapted scores, as in `after_bins`
    right_bins: list[int] = field(default_factory=lambda: [0] * BINS)  # scores of right answers
    confusions: Counter[Pair] = field(default_factory=Counter)  # images by truth and wrong answer
    wrong: Heap = field(default_factory=list)  # ranked by the score

    max_bins: ClassVar[int] = 128  # bins along the stream; with more, two become one

    @property
    def answered(self) -> int:
        """Number of images that could be read."""
        return sum(self.after_bins)

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

    def extend(self, predictions: Iterable[Prediction]) -> None:
        """Count more predictions."""
        for prediction in predictions:
            self.add(prediction)

    def add(self, prediction: Prediction) -> None:
        """Count one more prediction."""
        self.images += 1
        if prediction.error is not None:
            self.reasons += [[prediction.name, prediction.error]] if len(self.reasons) < REASONS else []
            return
        zero_shot = prediction.zero_shot
        changed_online = prediction.online.label != zero_shot.label
        self.changed_online += changed_online
        self.changed_again += prediction.online.label != prediction.label
        self._extend_stream(prediction.changed, changed_online, self.answered)
        self.before[zero_shot.label] += 1
        self.before_bins[_bin(zero_shot.score)] += 1
        self.after[prediction.label] += 1
        self.groups.update([prediction.group.label] if prediction.group else [])
        self.after_bins[_bin(prediction.score)] += 1
        self.unsure += prediction.unsure
        self.unsure_none += prediction.unsure and prediction.label == NONE
        record = prediction.to_record()
        record["predictions"] = record["predictions"][:2]
        self._push(self.least_sure, -prediction.score, record, SHOWN)
        example = [prediction.index, record["score"], prediction.truth in (None, prediction.label)]
        drawn = crc32(b"%d" % prediction.index)  # pseudo-random, and always the same
        self._push(self.examples.setdefault(prediction.label, []), drawn, example, EXAMPLES)
        if prediction.changed:
            self.changed += 1
            self.pairs = _bounded(self.pairs, [(zero_shot.label, prediction.label)])
            # The new answer had a probability of at most 1 - zero_shot.score, so it rose by at least this much.
            self._push(self.most_changed, prediction.score + zero_shot.score - 1.0, record, SHOWN)
        if (truth := prediction.truth) is None:
            return
        if prediction.correct_label is not None:
            self.left_out += 1
            return
        right = prediction.label == truth
        was_right = zero_shot.label == truth
        self.truths[truth] += 1
        self.judged[prediction.label] += 1
        self.judged_bins[_bin(prediction.score)] += 1
        self.gained += right and not was_right
        self.right_before[truth] += was_right
        if right:
            self.right[truth] += 1
            self.right_bins[_bin(prediction.score)] += 1
        else:
            self.confusions = _bounded(self.confusions, [(truth, prediction.label)])
            self._push(self.wrong, prediction.score, record, WRONG)

    def update(self, block: "BlockSummary") -> None:
        """Count the predictions that follow those counted so far; the same as adding them one by one."""
        answered = self.answered
        for row, flags in enumerate(zip(block.stream, block.stream_online, strict=True)):
            self._extend_stream(bool(flags[0]), bool(flags[1]), answered + row)
        self.reasons += block.reasons[: REASONS - len(self.reasons)]
        heaps = [
            (self.most_changed, block.most_changed, SHOWN),
            (self.least_sure, block.least_sure, SHOWN),
            (self.wrong, block.wrong, WRONG),
        ]
        heaps += [(self.examples.setdefault(label, []), heap, EXAMPLES) for label, heap in block.examples.items()]
        for heap, new, most in heaps:
            for rank, position, record in new:
                self._push(heap, rank, record, most, position)
        for name in (
            "images",
            "unsure",
            "unsure_none",
            "changed",
            "changed_online",
            "changed_again",
            "gained",
            "left_out",
        ):
            setattr(self, name, getattr(self, name) + getattr(block, name))
        for name in COUNTED:
            getattr(self, name).update(getattr(block, name))
        for name in PAIRED:
            setattr(self, name, _bounded(getattr(self, name), getattr(block, name)))
        for name in ("before_bins", "after_bins", "judged_bins", "right_bins"):
            setattr(self, name, [a + b for a, b in zip(getattr(self, name), getattr(block, name), strict=True)])

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON can hold it."""
        return vars(self) | {name: [[*pair, number] for pair, number in getattr(self, name).items()] for name in PAIRED}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Summary":
        """Return the summary that `to_json` was called on."""
        counted = {name: Counter(content.get(name, {})) for name in COUNTED}
        pairs = {name: Counter({(a, b): number for a, b, number in content[name]}) for name in PAIRED}
        return cls(**{**content, **counted, **pairs})

    def _push(self, heap: Heap, rank: float, record: Any, most: int, position: int = 0) -> None:
        """Add a record at a position after the images so far, and drop the lowest if there are too many."""
        heapq.heappush(heap, [rank, position - self.images, record])
        if len(heap) > most:
            heapq.heappop(heap)

    def _extend_stream(self, changed: bool, changed_online: bool, answered: int) -> None:
        if answered == len(self.stream) * self.bin_width:
            if len(self.stream) == self.max_bins:
                self.stream = [a + b for a, b in zip(self.stream[::2], self.stream[1::2], strict=True)]
                online = self.stream_online
                self.stream_online = [a + b for a, b in zip(online[::2], online[1::2], strict=True)]
                self.bin_width *= 2
            self.stream.append(0)
            self.stream_online.append(0)
        self.stream[-1] += changed
        self.stream_online[-1] += changed_online


@dataclass
class BlockSummary(Summary):
    """The summary of some predictions, to `update` that of all with: its bins along the stream hold one answer each.

    Examples:
        >>> whole, block = Summary(), BlockSummary()
        >>> block.add(Prediction(0, name="a.jpg", error="it is not an image"))
        >>> whole.update(block)
        >>> whole.images, whole.unreadable
        (1, 1)
    """

    bin_width: int = 1
    max_bins: ClassVar[int] = sys.maxsize


PAIRED = ("pairs", "confusions")
COUNTED = ("before", "after", "groups", "truths", "judged", "right", "right_before")


def ranked(heap: Heap) -> list[Any]:
    """Return the records of a heap, that of the highest rank first."""
    return [record for _, _, record in sorted(heap, key=lambda entry: entry[:2], reverse=True)]


def _bin(score: float) -> int:
    return min(int(score * BINS), BINS - 1)


def _bounded(counter: Counter[Pair], more: Iterable[Pair] | Mapping[Pair, int]) -> Counter[Pair]:
    """Count more keys, and drop the rare half of the keys if there are too many."""
    counter.update(more)
    return counter if len(counter) <= MAX_PAIRS else Counter(dict(counter.most_common(MAX_PAIRS // 2)))
