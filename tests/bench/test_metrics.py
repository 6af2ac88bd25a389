import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate.bench.metrics import expected_calibration_error, mean_per_class_recall, running_accuracy, worst_tenth


def test_recall_is_averaged_over_the_classes_that_occur():
    labels = np.array([0, 0, 0, 2])
    assert mean_per_class_recall(np.array([0, 0, 1, 2]), labels) == pytest.approx((2 / 3 + 1) / 2)


@given(st.integers(1, 200), st.integers(0, 99))
def test_calibration_error_is_the_textbook_one(count, seed):
    rng = np.random.default_rng(seed)
    confidence, correct = rng.random(count), rng.random(count) < 0.5
    error = 0.0
    for low in np.arange(15) / 15:
        inside = (confidence >= low) & (confidence < low + 1 / 15)
        if inside.any():
            error += inside.mean() * abs(confidence[inside].mean() - correct[inside].mean())
    assert expected_calibration_error(confidence, correct) == pytest.approx(error)


def test_full_confidence_has_a_bin():
    assert expected_calibration_error(np.ones(4), np.array([True, True, False, False])) == pytest.approx(0.5)


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(1, 20))
def test_running_accuracy_looks_back_over_a_window(correct, window):
    got = running_accuracy(np.array(correct), window)
    assert got == pytest.approx([np.mean(correct[max(0, i + 1 - window) : i + 1]) for i in range(len(correct))])


def test_the_worst_tenth():
    assert worst_tenth(np.arange(100) / 100) == pytest.approx(np.mean(np.arange(10) / 100))
    assert worst_tenth(np.array([0.5, 0.4, 0.9])) == 0.4
