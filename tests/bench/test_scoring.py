from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate import DOTA, TDA
from acclimate.bench.scoring import (
    accuracy_over_time,
    changes,
    early_phase,
    expected_calibration_error,
    learnt,
    mean_per_class_recall,
    running_accuracy,
    squared_errors,
    worst_tenth,
)
from acclimate.methods import Entry


def test_recall_is_averaged_over_the_classes_that_occur():
    labels = np.array([0, 0, 0, 2])
    assert mean_per_class_recall(np.array([0, 0, 1, 2]), labels) == pytest.approx((2 / 3 + 1) / 2)


@given(st.integers(1, 200), st.integers(0, 99))
def test_calibration_error_is_the_textbook_one(count, seed):
    rng = np.random.default_rng(seed)
    confidence = rng.random(count)
    correct = rng.random(count) < 0.5
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


@given(st.integers(1, 30), st.integers(2, 6), st.integers(0, 99))
def test_squared_errors_are_briers(count, classes, seed):
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.ones(classes), count)
    labels = rng.integers(0, classes, count)
    by_hand = ((probs - np.eye(classes)[labels]) ** 2).sum(axis=1)
    np.testing.assert_allclose(squared_errors(probs, labels), by_hand, atol=1e-12)


@given(st.lists(st.booleans(), min_size=1, max_size=90))
def test_accuracy_over_time_covers_the_stream(correct):
    parts = accuracy_over_time(np.array(correct))
    assert len(parts) == min(20, len(correct))
    if len(correct) % len(parts) == 0:
        assert parts.mean() == pytest.approx(np.mean(correct))


def test_the_early_phase_is_a_hundredth():
    assert [early_phase(n) for n in (1, 99, 1000, 50000)] == [1, 1, 10, 500]


def test_changes_help_or_harm():
    unadapted = np.array([0, 0, 1, 1])
    labels = np.array([0, 1, 1, 0])
    shares = changes(np.array([0, 1, 0, 2]), unadapted, labels)
    assert shares == {"changed": 0.75, "helpful": 0.25, "harmful": 0.25}
    assert changes(unadapted, unadapted, None) == {"changed": 0.0, "helpful": None, "harmful": None}


def test_what_caches_hold(stream):
    adapter = TDA(stream.head)
    order = np.random.default_rng(0).permutation(len(stream))
    adapter.step(stream.features[order])
    summary = learnt(adapter, stream.targets[order])
    right = [stream.targets[order[entry.id]] == entry.class_index for entry in adapter.entries()["positive"]]
    assert summary["positive"]["entries"] == len(right) == 24
    assert summary["positive"]["label_accuracy"] == pytest.approx(np.mean(right))
    assert summary["positive"]["imbalance"] == summary["positive"]["empty_classes"] == 0
    assert summary["positive"]["short_classes"] == 0
    assert set(summary) == {"positive", "negative"}
    assert learnt(adapter, None)["positive"]["label_accuracy"] is None


def test_what_sums_hold(stream):
    adapter = DOTA(stream.head)
    adapter.step(stream.features)
    summary = learnt(adapter, stream.targets)
    columns = adapter.class_statistics()
    assert set(summary) == set(columns)
    for name, values in columns.items():
        assert summary[name] == pytest.approx({"mean": values.mean(), "min": values.min(), "max": values.max()})


def test_imbalance_of_a_cache(stream):
    def quality(classes):
        entries = [Entry(label, 0.0, index) for index, label in enumerate(classes)]
        adapter = SimpleNamespace(
            head=range(4),
            class_statistics=dict,
            entries=lambda: {"c": entries},
            parts={"c": SimpleNamespace(capacity=2)},
        )
        return learnt(adapter, np.zeros(9, int))["c"]

    assert quality([2, 2, 2])["imbalance"] == 1
    assert quality([0, 0, 1, 1])["imbalance"] == pytest.approx(0.5)
    assert quality([0, 1])["empty_classes"] == 0.5
    assert quality([0, 0, 1])["short_classes"] == 0.75
    assert quality([]) == {
        **{"entries": 0, "label_accuracy": None, "empty_classes": 1, "short_classes": 1, "imbalance": 0}
    }
    assert quality([0, 1])["label_accuracy"] == 0.5
