"""A row of the page: what the authors' code and this library gave for the same inputs."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from acclimate import create
from acclimate.arrays import HostArray

# The largest differences between equal systems, as a share of what the method changes and of the largest number
LIMIT = 0.005
VALUES_LIMIT = 0.001
BATCH = 64


@dataclass(frozen=True)
class Row:
    """A comparison.

    Attributes:
        system: the method, and the model.
        compared: the authors' function, and the inputs of both sides.
        difference: largest difference between numbers of both sides.
        effect: the largest change by the method, to compare it with; None where there is no such thing.
        equal: how many answers are equal.
        answers: of how many.
        deviation: what is different on purpose; "" for nothing.
        limit: how large the difference may be, as a share of the effect.
    """

    system: str
    compared: str
    difference: float
    effect: float | None
    equal: int
    answers: int
    deviation: str = ""
    limit: float = LIMIT

    @property
    def agrees(self) -> bool:
        """True if all answers are equal and the difference is rounding."""
        return self.equal == self.answers and self.difference <= self.limit * (self.effect or 1.0)

    def line(self) -> str:
        """Return the row in Markdown."""
        difference = f"{self.difference:.1e}" if self.difference else "0"
        effect = "" if self.effect is None else f"{self.effect:.3g}"
        answers = f"{self.equal:,} of {self.answers:,}"
        verdict = "equal" if self.agrees else "differs, see the last column" if self.deviation else "**differs**"
        return (
            f"| {self.system} | {self.compared} | {difference} | {effect} | {answers} | {verdict} | {self.deviation} |"
        )


def logits_row(
    system: str, compared: str, theirs: HostArray, ours: HostArray, base: HostArray, deviation: str = ""
) -> Row:
    """Return the row of logits (n, K) of both sides; `base` has the logits that the method changed."""
    equal = int(np.sum(theirs.argmax(axis=1) == ours.argmax(axis=1)))
    difference = float(np.abs(theirs - ours).max())
    return Row(system, compared, difference, float(np.abs(theirs - base).max()), equal, len(theirs), deviation)


def values_row(system: str, compared: str, theirs: Any, ours: Any, deviation: str = "") -> Row:
    """Return the row of numbers (n, ...) of both sides, of which the largest is the effect."""
    theirs = np.asarray(theirs, dtype=np.float64)
    ours = np.asarray(ours, dtype=np.float64)
    each = np.abs(theirs - ours).reshape(len(theirs), -1).max(axis=1)
    effect = float(np.abs(theirs).max())
    equal = int(np.sum(each <= VALUES_LIMIT * effect))
    return Row(system, compared, float(each.max()), effect, equal, len(theirs), deviation, VALUES_LIMIT)


def exact_row(system: str, compared: str, theirs: list[Any], ours: list[Any], deviation: str = "") -> Row:
    """Return the row of things that must be the same on both sides."""
    equal = sum(one == other for one, other in zip(theirs, ours, strict=True))
    return Row(system, compared, 0.0, None, equal, len(theirs), deviation)


def answer(method: str, head: Any, features: Any, encoder: Any = None, **settings: Any) -> HostArray:
    """Return the logits (n, K) of a method for a stream of features, in batches."""
    adapter = create(method, head, encoder, **settings)
    return np.concatenate([adapter.step(features[i : i + BATCH]) for i in range(0, len(features), BATCH)])
