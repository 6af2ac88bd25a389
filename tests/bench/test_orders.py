import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate.bench.orders import SHAPES, order_names, take_order
from acclimate.checks.synthetic import shifted_stream
from acclimate.errors import InputError
from acclimate.sources.source import Sample, order_samples

DOMAINS = ["photo"] * 150 + ["sketch"] * 50 + ["cartoon"] * 200


def test_stored_rows_and_shuffled():
    backwards = np.arange(400)[::-1]
    assert np.array_equal(take_order("stored", 400), np.arange(400))
    assert np.array_equal(take_order("stored", 400, stored=backwards), backwards)
    assert np.array_equal(take_order("rows", 400, stored=backwards), np.arange(400))
    assert np.array_equal(take_order("shuffled:3", 400), take_order("shuffled:3", 400, stored=backwards))
    for wrong in ("seed", "shuffled:", "shuffled:x", "shuffled:-1", "random", "correlated"):
        with pytest.raises(InputError, match=rf"unknown order {wrong!r}; (did you mean|there are: stored, rows)"):
            take_order(wrong, 400)
    for wrong, meant in (("shuffled", "shuffled:0"), ("shuffle:3", "shuffled:3"), ("long-tails:1", "long-tail:1")):
        with pytest.raises(InputError, match=f"did you mean '{meant}'"):
            take_order(wrong, 400)


def test_shuffled_may_be_called_seed_as_in_older_results():
    assert np.array_equal(take_order("seed:3", 400), take_order("shuffled:3", 400))
    assert order_names("seed:7", 2) == ["shuffled:0", "shuffled:1"]


def test_orders_stay_the_same_between_versions():
    assert take_order("shuffled:1", 5).tolist() == [4, 0, 1, 2, 3]
    assert take_order("domains:0", 4, domains=["photo", "sketch", "photo", "sketch"]).tolist() == [2, 0, 1, 3]


def test_a_seed_shuffles_images_and_features_alike():
    samples = [Sample(str(i), bytes) for i in range(40)]
    shuffled = [int(sample.name) for sample in order_samples(samples, "shuffled:3")]
    assert shuffled == take_order("shuffled:3", 40).tolist()


PARTIAL = ("few-classes", "half-classes", "long-tail", "first-200")


@given(st.sampled_from(sorted(SHAPES)), st.integers(0, 5), st.integers(10, 300))
def test_every_shape_takes_no_sample_twice_and_depends_on_its_seed(shape, seed, samples):
    labels = shifted_stream(samples=samples, classes=4, dim=8).targets
    labels[:4] = range(4)
    names = [f"domain {i % 3}" for i in range(samples)]
    order = take_order(f"{shape}:{seed}", samples, labels, names)
    if shape in PARTIAL:
        assert len(np.unique(order)) == len(order) > 0
        assert 0 <= order.min() <= order.max() < samples
    else:
        assert sorted(order) == list(range(samples))
    assert np.array_equal(order, take_order(f"{shape}:{seed}", samples, labels, names))
    others = [take_order(f"{shape}:{other}", samples, labels, names) for other in range(100, 105)]
    assert not all(np.array_equal(order, other) for other in others)


many_labels = st.lists(st.integers(0, 40), min_size=4, max_size=400).filter(lambda labels: len(set(labels)) >= 4)


@given(many_labels, st.integers(0, 20))
def test_few_and_half_of_the_classes(labels, seed):
    labels = np.array(labels)
    present = len(np.unique(labels))
    few, half = (take_order(f"{shape}:{seed}", len(labels), labels) for shape in ("few-classes", "half-classes"))
    for order in (few, half):  # every sample of the classes that are kept
        assert sorted(order) == np.flatnonzero(np.isin(labels, labels[order])).tolist()
    assert 2 <= len(np.unique(labels[few])) <= max(present // 5, min(3, present // 2))
    assert len(np.unique(labels[half])) == present // 2


@given(many_labels, st.integers(0, 20))
def test_a_long_tail_keeps_every_class(labels, seed):
    labels = np.array(labels)
    sizes = np.bincount(labels, minlength=41)
    kept = np.bincount(labels[take_order(f"long-tail:{seed}", len(labels), labels)], minlength=41)
    assert np.array_equal(kept > 0, sizes > 0)
    assert (kept == sizes).any()  # the most frequent class is complete
    sizes = np.array([1000] * 11)
    labels = np.repeat(np.arange(11), sizes)
    kept = np.sort(np.bincount(labels[take_order(f"long-tail:{seed}", len(labels), labels)]))
    assert (kept[0], kept[-1]) == (20, 1000)
    assert kept[1:] / kept[:-1] == pytest.approx(50**0.1, rel=0.05)


@given(st.integers(1, 500), st.integers(0, 20))
def test_a_short_stream_is_the_start_of_the_shuffled_one(samples, seed):
    assert np.array_equal(take_order(f"first-200:{seed}", samples), take_order(f"shuffled:{seed}", samples)[:200])


def test_the_number_of_few_classes_varies():
    labels = np.arange(100)
    assert {len(take_order(f"few-classes:{seed}", 100, labels)) for seed in range(300)} == set(range(2, 21))
    for classes, numbers in ((4, {2}), (7, {2, 3}), (10, {2, 3})):
        labels = np.arange(classes)
        assert {len(take_order(f"few-classes:{seed}", classes, labels)) for seed in range(30)} == numbers


def changes(values):
    return np.count_nonzero(values[1:] != values[:-1])


def test_classes_in_sequence_and_in_bursts(stream):
    assert changes(stream.targets[take_order("class-sequential:0", 400, stream.targets)]) == 7
    labels = shifted_stream(samples=4000, classes=8, dim=8).targets
    bursts = labels[take_order("correlated:0", 4000, labels)].reshape(-1, 100)
    shuffled = labels[take_order("shuffled:0", 4000)].reshape(-1, 100)
    kinds = [np.mean([len(np.unique(part)) for part in parts]) for parts in (bursts, shuffled)]
    assert kinds[0] < 5 < 7.9 < kinds[1]


def test_domains_in_sequence_mixed_and_changing_once():
    names = np.array(DOMAINS)
    assert changes(names[take_order("domains:0", 400, domains=DOMAINS)]) == 2
    mixed = names[take_order("mixed-domains:0", 400, domains=DOMAINS)].reshape(4, 100)
    assert all(abs(np.sum(part == "cartoon") - 50) <= 2 for part in mixed)
    for seed in range(6):
        taken = names[take_order(f"domain-shift:{seed}", 400, domains=DOMAINS)]
        before = np.isin(taken, taken[:50])
        assert changes(before) == 1
        assert 150 <= before.sum() <= 250  # no cut between whole domains is nearer to the middle


def test_a_shape_says_what_is_missing():
    for shape in ("class-sequential:0", "correlated:0"):
        with pytest.raises(InputError, match=r"needs labels; add them to this stream, or use shuffled:N"):
            take_order(shape, 400)
    for shape in ("few-classes", "half-classes"):
        with pytest.raises(InputError, match="at least 4, but the stream has samples of 3; use shuffled:N"):
            take_order(f"{shape}:0", 400, np.arange(400) % 3)
    for domains in (None, ["a", "b"], ["a"] * 400):
        with pytest.raises(InputError, match="an order by domain needs at least two domains"):
            take_order("domains:0", 400, domains=domains)


def test_many_orders_of_a_shape():
    assert order_names("stored", 0) == ["stored"]
    assert order_names("stored", 2) == order_names("shuffled:7", 2) == ["shuffled:0", "shuffled:1"]
    assert order_names("correlated:3", 2) == ["correlated:0", "correlated:1"]
