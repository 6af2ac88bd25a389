"""What the predictions of a run add up to, in memory that does not grow with their number."""

import heapq
import sys
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar
from zlib import crc32

from acclimate.classify.accuracy import Accuracy
from acclimate.predict import Prediction

BINS = 20  # of a confidence histogram
POINTS = 128  # bins along the stream, at most; then two become one
SHOWN = 24  # least sure, and most changed predictions
WRONG = 48  # most confident wrong answers
EXAMPLES = 6  # images per label
PAIRS = 10_000  # kinds of changes or confusions counted at a time; then the rare ones are dropped
REASONS = 20  # unreadable images listed

Key = TypeVar("Key", bound=Hashable)
Heap = list[list[Any]]  # [rank, minus position, record]: of equal ranks the earlier stays


@dataclass
class Summary:
    """Counts over the predictions of a run; the same predictions in the same order give the same summary."""

    images: int = 0
    passes: int = 1  # after which the answers are final
    reasons: list[list[str]] = field(default_factory=list)  # [file, reason] of the first unreadable images
    unsure: int = 0  # answers with a score below the threshold
    changed: int = 0  # final answers that differ from zero-shot
    changed_online: int = 0  # answers that differed from zero-shot when the image came
    changed_again: int = 0  # final answers that differ from those given when the image came
    before: Counter[str] = field(default_factory=Counter)  # zero-shot answers by label
    after: Counter[str] = field(default_factory=Counter)  # adapted answers by label
    before_bins: list[int] = field(default_factory=lambda: [0] * BINS)  # zero-shot scores in equal bins from 0 to 1
    after_bins: list[int] = field(default_factory=lambda: [0] * BINS)  # the same for adapted scores
    bin_width: int = 50  # answers in a bin of the stream; in fewer, the share of changes would be chance
    stream: list[int] = field(default_factory=list)  # changed answers in each bin; the last bin may not be full
    stream_online: list[int] = field(default_factory=list)  # the same for the answers given when the image came
    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)  # changes by old and new label; see PAIRS
    most_changed: Heap = field(default_factory=list)  # by the rise of the score
    least_sure: Heap = field(default_factory=list)  # by the score
    examples: dict[str, Heap] = field(
        default_factory=dict
    )  # by answer, images at random: [index, score, not known to be wrong]

    # Images that could be read and whose true label is known:
    truths: Counter[str] = field(default_factory=Counter)  # by true label
    judged: Counter[str] = field(default_factory=Counter)  # by adapted answer
    right: Counter[str] = field(default_factory=Counter)  # right adapted answers by label
    right_before: Counter[str] = field(default_factory=Counter)  # right zero-shot answers by label
    gained: int = 0  # right after adapting only
    judged_bins: list[int] = field(default_factory=lambda: [0] * BINS)  # adapted scores, as in `after_bins`
    right_bins: list[int] = field(default_factory=lambda: [0] * BINS)  # those of right answers
    confusions: Counter[tuple[str, str]] = field(default_factory=Counter)  # by truth and wrong answer; see PAIRS
    wrong: Heap = field(default_factory=list)  # by the score

    most_bins: ClassVar[int] = POINTS  # along the stream

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
        """How many answers are right."""
        known = self.truths.total()
        right = self.right.total()
        before = self.right_before.total()
        return Accuracy(known, right, self.gained, lost=before - right + self.gained)

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
        before = (self.before, self.before_bins, zero_shot)
        after = (self.after, self.after_bins, prediction.top[0])
        for labels, bins, answer in (before, after):
            labels[answer.label] += 1
            bins[_bin(answer.score)] += 1
        self.unsure += prediction.unsure
        record = prediction.to_record()
        record["predictions"] = record["predictions"][:2]
        self._keep(self.least_sure, -prediction.score, record)
        example = [prediction.index, record["score"], prediction.truth in (None, prediction.label)]
        drawn = crc32(b"%d" % prediction.index)  # as good as random, and always the same
        self._keep(self.examples.setdefault(prediction.label, []), drawn, example, EXAMPLES)
        if prediction.changed:
            self.changed += 1
            self.pairs = _count(self.pairs, (zero_shot.label, prediction.label))
            # The new answer had a probability of at most 1 - zero_shot.score, so it rose by at least this much.
            self._keep(self.most_changed, prediction.score + zero_shot.score - 1.0, record)
        if prediction.truth is not None:
            self._judge(prediction, prediction.truth, record)

    def update(self, block: "BlockSummary") -> None:
        """Count the predictions that follow those counted so far; the same as adding them one by one."""
        before = self.images
        answered = self.answered
        for place, flags in enumerate(zip(block.stream, block.stream_online, strict=True)):
            self._extend_stream(bool(flags[0]), bool(flags[1]), answered + place)
        self.reasons += block.reasons[: REASONS - len(self.reasons)]
        self.images += block.images
        for name in ("unsure", "changed", "changed_online", "changed_again", "gained"):
            setattr(self, name, getattr(self, name) + getattr(block, name))
        for name in COUNTED:
            getattr(self, name).update(getattr(block, name))
        for name in PAIRED:
            setattr(self, name, _bounded(getattr(self, name) + getattr(block, name)))
        for name in ("before_bins", "after_bins", "judged_bins", "right_bins"):
            setattr(self, name, [a + b for a, b in zip(getattr(self, name), getattr(block, name), strict=True)])
        heaps = [(getattr(self, name), getattr(block, name), MOST[name]) for name in HEAPS]
        heaps += [(self.examples.setdefault(label, []), heap, EXAMPLES) for label, heap in block.examples.items()]
        for heap, new, most in heaps:
            for rank, position, record in new:
                _push(heap, [rank, position - before, record], most)

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON can hold it."""
        pairs = {name: [[*pair, number] for pair, number in getattr(self, name).items()] for name in PAIRED}
        return vars(self) | pairs

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Summary":
        """Return the summary that `to_json` was called on."""
        counted = {name: Counter(content[name]) for name in COUNTED}
        pairs = {name: Counter({(a, b): number for a, b, number in content[name]}) for name in PAIRED}
        return cls(**{**content, **counted, **pairs})

    def _judge(self, prediction: Prediction, truth: str, record: dict[str, Any]) -> None:
        """Count a prediction whose truth is known."""
        right = prediction.label == truth
        was_right = prediction.zero_shot.label == truth
        self.truths[truth] += 1
        self.judged[prediction.label] += 1
        self.judged_bins[_bin(prediction.score)] += 1
        self.gained += right and not was_right
        if was_right:
            self.right_before[truth] += 1
        if right:
            self.right[truth] += 1
            self.right_bins[_bin(prediction.score)] += 1
        else:
            self.confusions = _count(self.confusions, (truth, prediction.label))
            self._keep(self.wrong, prediction.score, record, WRONG)

    def _keep(self, heap: Heap, rank: float, record: Any, most: int = SHOWN) -> None:
        _push(heap, [rank, -self.images, record], most)

    def _extend_stream(self, changed: bool, changed_online: bool, answered: int) -> None:
        if answered == len(self.stream) * self.bin_width:
            if len(self.stream) == self.most_bins:
                self.stream, self.stream_online = map(_halved, (self.stream, self.stream_online))
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
    most_bins: ClassVar[int] = sys.maxsize


PAIRED = ("pairs", "confusions")
HEAPS = ("most_changed", "least_sure", "wrong")
MOST = {"most_changed": SHOWN, "least_sure": SHOWN, "wrong": WRONG}  # entries of a heap
COUNTED = ("before", "after", "truths", "judged", "right", "right_before")


def ranked(heap: Heap) -> list[Any]:
    """The records of a heap, that of the highest rank first."""
    return [record for _, _, record in sorted(heap, key=lambda entry: entry[:2], reverse=True)]


def _bin(score: float) -> int:
    return min(int(score * BINS), BINS - 1)


def _count(counter: Counter[Key], key: Key) -> Counter[Key]:
    """The counter with one more of a key, without the rare half of its keys if there are too many."""
    counter[key] += 1
    return _bounded(counter)


def _bounded(counter: Counter[Key]) -> Counter[Key]:
    return counter if len(counter) <= PAIRS else Counter(dict(counter.most_common(PAIRS // 2)))


def _push(heap: Heap, entry: list[Any], most: int) -> None:
    """Add an entry, and drop the lowest if there are too many."""
    heapq.heappush(heap, entry)
    if len(heap) > most:
        heapq.heappop(heap)


def _halved(bins: Sequence[int]) -> list[int]:
    """Two bins become one."""
    return [a + b for a, b in zip(bins[::2], bins[1::2], strict=True)]
