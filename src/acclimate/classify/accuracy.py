"""Accuracy with confidence intervals, and scores in words."""

from math import sqrt
from typing import NamedTuple

from acclimate.errors import count

Z = 1.959963984540054  # 95 % of a normal distribution lie within this many standard deviations
FEW_IMAGES = 30  # accuracy on fewer images says little

Interval = tuple[float, float]


def wilson(right: int, total: int) -> Interval:
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


def paired_difference(gained: int, lost: int, total: int) -> Interval:
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

    @property
    def right_before(self) -> int:
        """Zero-shot answers that are right."""
        return self.right - self.gained + self.lost

    def __str__(self) -> str:
        r"""Return one line; "" where no truth is known.

        Examples:
            >>> print(str(Accuracy(known=200, right=180, gained=12, lost=2)).replace(", ", ",\n"))
            Accuracy on 200 images: zero-shot 85.0 % (95 % interval 79.4 to 89.3),
            adapted 90.0 % (85.1 to 93.4),
            difference +5.0 points (+1.3 to +8.6).
        """
        if not self.known:
            return ""
        parts = []
        for who, right, extra in (("zero-shot", self.right_before, "95 % interval "), ("adapted", self.right, "")):
            low, high = wilson(right, self.known)
            parts.append(f"{who} {100 * right / self.known:.1f} % ({extra}{100 * low:.1f} to {100 * high:.1f})")
        low, high = paired_difference(self.gained, self.lost, self.known)
        points = 100 * (self.gained - self.lost) / self.known
        parts.append(f"difference {points:+.1f} points ({100 * low:+.1f} to {100 * high:+.1f})")
        few = " So few images say little." if self.known < FEW_IMAGES else ""
        return f"Accuracy on {count(self.known, 'image')}: {', '.join(parts)}.{few}"


def score_text(score: float) -> str:
    """Return a score in whole percent; one that is nearly 0 or 1 is not said to be 0 or 1.

    Examples:
        >>> score_text(0.99998), score_text(0.723), score_text(0.001)
        ('> 99 %', '72 %', '< 1 %')
    """
    if score > 0.99:
        return "> 99 %"
    return "< 1 %" if score < 0.01 else f"{100 * score:.0f} %"
