import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate.bench.evaluation import gather, interval, resample
from acclimate.bench.orders import stream_order
from acclimate.bench.prequential import Variant, compare


def naive(right, taken, resamples, seed):
    """Draw samples and orders one by one."""
    methods, samples, orders = right.shape
    rng = np.random.default_rng(seed)
    found = np.zeros((methods, resamples))
    for draw in range(resamples):
        rows = rng.integers(samples, size=samples)
        for method in range(methods):
            columns = np.random.default_rng([seed, draw]).integers(orders, size=orders)
            accuracies = [right[method, rows, o].sum() / max(1, taken[rows, o].sum()) for o in columns]
            found[method, draw] = np.mean(accuracies)
    return found


def answers(samples, orders, seed=0, part=1.0):
    """Return answers of two methods that share most of their mistakes; each order takes a part of the samples."""
    rng = np.random.default_rng(seed)
    taken = rng.random((samples, orders)) < part
    easy = rng.random((samples, 1)) < 0.7
    first = np.broadcast_to(easy, (samples, orders))
    second = np.where(rng.random((samples, orders)) < 0.1, ~first, first)
    return np.stack([first, second]) & taken, taken


def test_one_order_gives_the_textbook_interval():
    right, taken = answers(3000, 1)
    first, second = resample(right, taken)
    difference = right[1, :, 0] * 1.0 - right[0, :, 0]
    error = 1.96 * difference.std() / np.sqrt(len(difference))
    assert interval(second - first) == pytest.approx(
        (difference.mean() - error, difference.mean() + error), abs=0.1 * error
    )


@pytest.mark.parametrize("part", [1.0, 0.6])
def test_the_same_as_drawing_one_by_one(part):
    right, taken = answers(60, 4, part=part)
    fast = resample(right, taken, 4000)
    slow = naive(right, taken, 1500, 1)
    for each in (lambda found: found[0], lambda found: found[1] - found[0]):
        assert each(fast).mean() == pytest.approx(each(slow).mean(), abs=0.15 * each(slow).std())
        assert each(fast).std() == pytest.approx(each(slow).std(), rel=0.1)


def test_pairing_makes_the_interval_narrow():
    right, taken = answers(2000, 5)
    first, second = resample(right, taken)
    low, high = interval(second - first)
    unpaired = np.hypot(*(np.diff(interval(each)) for each in (first, second)))
    assert high - low < 0.5 * unpaired


def test_intervals_cover_the_truth():
    """Of 100 streams with a known difference of 4 points, about 95 intervals cover it."""
    covered = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        base = rng.random((400, 1)) < 0.7
        gained = ~base & (rng.random((400, 3)) < 0.04 / 0.3)
        right = np.stack([np.broadcast_to(base, (400, 3)), base | gained])
        first, second = resample(right, np.ones((400, 3), bool), 500)
        low, high = interval(second - first)
        covered += low <= 0.04 <= high
    assert covered >= 88


@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(1, 40))
def test_laws(seed, orders, samples):
    right, taken = answers(samples, orders, seed, part=0.8)
    found = resample(right, taken, 50)
    assert found.shape == (2, 50)
    assert ((found >= 0) & (found <= 1 + 1e-12)).all()
    assert np.array_equal(found, resample(right, taken, 50))
    same = resample(right[[0, 0]], taken, 50)
    assert np.array_equal(same[0], same[1])


def test_answers_stand_at_the_positions_of_their_samples(stream):
    orders = ["shuffled:0", "few-classes:1"]
    zero_shot, tda = compare(stream, [Variant("tda")], orders)
    found = gather(len(stream), [list(each.runs.values()) for each in (zero_shot, tda)])
    assert found.shape == (2, 400, 2)
    assert np.array_equal(np.flatnonzero(found[0, :, 1] >= 0), np.sort(stream_order(stream, "few-classes:1")))
    for method, outcome in enumerate((zero_shot, tda)):
        for position, run in enumerate(outcome.runs.values()):
            assert (found[method, :, position] == stream.targets).sum() == run.correct.sum()
