"""What the predictions of a run add up to, in memory that does not grow with their number."""

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from acclimate.classify.outputs import to_record
from acclimate.predict import Prediction

BINS = 20  # of a confidence histogram
POINTS = 128  # bins along the stream, at most; then two become one
SHOWN = 24  # most changed predictions
PAIRS = 10_000  # kinds of changes counted at a time; then the rare ones are dropped
REASONS = 20  # unreadable images listed


@dataclass
class Summary:
    """Counts over the predictions of a run; the same predictions in the same order give the same summary."""

    images: int = 0
    passes: int = 1  # after which the answers are final
    reasons: list[list[str]] = field(default_factory=list)  # [file, reason] of the first unreadable images
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
    most_changed: list[list[Any]] = field(default_factory=list)  # heap of [rise of the score, minus position, record]

    @property
    def answered(self) -> int:
        """Number of images that could be read."""
        return sum(self.after_bins)

    @property
    def unreadable(self) -> int:
        """Number of images that could not be read."""
        return self.images - self.answered

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
        self._extend_stream(prediction.changed, changed_online)
        before, after = (self.before, self.before_bins, zero_shot), (self.after, self.after_bins, prediction.top[0])
        for labels, bins, answer in (before, after):
            labels[answer.label] += 1
            bins[min(int(answer.score * BINS), BINS - 1)] += 1
        if prediction.changed:
            self.changed += 1
            self.pairs[zero_shot.label, prediction.label] += 1
            if len(self.pairs) > PAIRS:
                self.pairs = Counter(dict(self.pairs.most_common(PAIRS // 2)))
            # The new answer had a probability of at most 1 - zero_shot.score, so it rose by at least this much.
            rise = prediction.score + zero_shot.score - 1.0
            record = {column: value for column, value in to_record(prediction).items() if column != "predictions"}
            heapq.heappush(self.most_changed, [rise, -self.images, record])  # of equal ones the earlier stays
            if len(self.most_changed) > SHOWN:
                heapq.heappop(self.most_changed)

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON can hold it."""
        return vars(self) | {"pairs": [[old, new, count] for (old, new), count in self.pairs.items()]}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Summary":
        """The summary that `to_json` was called on."""
        pairs = Counter({(old, new): count for old, new, count in content["pairs"]})
        counts = {name: Counter(content[name]) for name in ("before", "after")}
        return cls(**{**content, **counts, "pairs": pairs})

    def _extend_stream(self, changed: bool, changed_online: bool) -> None:
        if self.answered == len(self.stream) * self.bin_width:
            if len(self.stream) == POINTS:
                self.stream, self.stream_online = map(_halved, (self.stream, self.stream_online))
                self.bin_width *= 2
            self.stream.append(0)
            self.stream_online.append(0)
        self.stream[-1] += changed
        self.stream_online[-1] += changed_online


def _halved(bins: Sequence[int]) -> list[int]:
    """Two bins become one."""
    return [a + b for a, b in zip(bins[::2], bins[1::2], strict=True)]
