from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate.classify.summary import Accuracy, paired_difference, score_text, wilson

Z = 1.959963984540054
outcomes = st.tuples(*[st.integers(0, 200)] * 4).filter(any)  # both wrong, gained, lost, both right


def bisect(inside, outside, holds):
    """Return the border between a point where something holds and one where it does not."""
    for _ in range(200):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if holds(middle) else (inside, middle)
    return inside


@given(st.integers(0, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)).filter(lambda pair: pair[1])))
def test_wilson_holds_all_shares_that_the_score_test_does_not_reject(counted):
    right, total = counted
    share = right / total

    def accepted(true):
        return abs(share - true) <= Z * sqrt(true * (1 - true) / total) + 1e-12

    low, high = wilson(right, total)
    assert low == pytest.approx(bisect(share, 0.0, accepted), abs=1e-4)
    assert high == pytest.approx(bisect(share, 1.0, accepted), abs=1e-4)


@given(outcomes)
def test_paired_interval_is_that_of_a_mean_of_differences_with_half_an_image_more_per_outcome(counts):
    wrong, gained, lost, right = counts
    values = {0: wrong + right + 1.0, 1: gained + 0.5, -1: lost + 0.5}
    total = sum(values.values())
    mean = sum(value * number for value, number in values.items()) / total
    variance = sum((value - mean) ** 2 * number for value, number in values.items()) / total
    low, high = paired_difference(gained, lost, sum(counts))
    assert low == pytest.approx(max(-1.0, mean - Z * sqrt(variance / total)))
    assert high == pytest.approx(min(1.0, mean + Z * sqrt(variance / total)))
    assert low <= (gained - lost) / sum(counts) <= high
    assert paired_difference(lost, gained, sum(counts)) == pytest.approx((-high, -low))


def test_one_line_says_all():
    assert str(Accuracy(0, 0, 0, 0)) == ""
    line = str(Accuracy(known=518, right=446, gained=13, lost=5))
    assert line == (
        "Accuracy on 518 images: model alone 84.6 % (95 % interval 81.2 to 87.4), adapted 86.1 % (82.9 to 88.8), "
        "difference +1.5 points (-0.1 to +3.2)."
    )
    assert str(Accuracy(1, 1, 0, 0)).startswith("Accuracy on 1 image: model alone 100.0 % (95 % interval 20.7 to")
    assert str(Accuracy(29, 20, 0, 0)).endswith(" So few images say little.")
    assert "little" not in str(Accuracy(30, 20, 0, 0))


@pytest.mark.parametrize(
    ("score", "text"),
    [(1.0, "> 99 %"), (0.991, "> 99 %"), (0.99, "99 %"), (0.5, "50 %"), (0.01, "1 %"), (0.0, "< 1 %")],
)
def test_no_score_is_said_to_be_certain(score, text):
    assert score_text(score) == text
