import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate.bench.orders import SHAPES, order_names, take_order
from acclimate.checks.synthetic import shifted_stream
from acclimate.errors import InputError

DOMAINS = ["photo"] * 150 + ["sketch"] * 50 + ["cartoon"] * 200


@pytest.fixture
def domains(stream):
    return replace(stream, metadata={"domains": json.dumps(DOMAINS)})


def test_stored_rows_and_shuffled(stream):
    stored = replace(stream, order=np.arange(400)[::-1])
    assert np.array_equal(take_order(stream, "stored"), np.arange(400))
    assert np.array_equal(take_order(stored, "stored"), np.arange(400)[::-1])
    assert np.array_equal(take_order(stored, "rows"), np.arange(400))
    assert np.array_equal(take_order(stream, "seed:3"), take_order(stored, "seed:3"))
    for wrong in ("seed", "seed:", "seed:x", "seed:-1", "random", "correlated"):
        with pytest.raises(InputError, match="use stored, rows, or a shape"):
            take_order(stream, wrong)


@given(st.sampled_from(sorted(SHAPES)), st.integers(0, 5), st.integers(10, 300))
def test_every_shape_takes_each_sample_once_and_goes_by_its_seed(shape, seed, samples):
    names = json.dumps([f"domain {i % 3}" for i in range(samples)])
    stream = replace(shifted_stream(samples=samples, classes=4, dim=8), metadata={"domains": names})
    order = take_order(stream, f"{shape}:{seed}")
    assert sorted(order) == list(range(samples))
    assert np.array_equal(order, take_order(stream, f"{shape}:{seed}"))
    assert not np.array_equal(order, take_order(stream, f"{shape}:{seed + 1}"))


def changes(values):
    return np.count_nonzero(values[1:] != values[:-1])


def test_classes_in_sequence_and_in_bursts(stream):
    labels = stream.labels
    assert changes(labels[take_order(stream, "class-sequential:0")]) == 7
    stream = shifted_stream(samples=4000, classes=8, dim=8)
    bursts = stream.labels[take_order(stream, "correlated:0")].reshape(-1, 100)
    shuffled = stream.labels[take_order(stream, "seed:0")].reshape(-1, 100)
    kinds = [np.mean([len(np.unique(part)) for part in parts]) for parts in (bursts, shuffled)]
    assert kinds[0] < 5 < 7.9 < kinds[1]


def test_domains_in_sequence_mixed_and_changing_once(domains):
    names = np.array(DOMAINS)
    assert changes(names[take_order(domains, "domains:0")]) == 2
    mixed = names[take_order(domains, "mixed-domains:0")].reshape(4, 100)
    assert all(abs(np.sum(part == "cartoon") - 50) <= 2 for part in mixed)
    for seed in range(6):
        taken = names[take_order(domains, f"domain-shift:{seed}")]
        before = np.isin(taken, taken[:50])
        assert changes(before) == 1
        assert 150 <= before.sum() <= 250  # no cut between whole domains is nearer to the middle


def test_a_shape_says_what_it_misses(stream):
    for shape in ("class-sequential:0", "correlated:0"):
        with pytest.raises(InputError, match="has no labels; use seed:N"):
            take_order(replace(stream, labels=None), shape)
    for metadata in ({}, {"domains": '["a", "b"]'}, {"domains": json.dumps(["a"] * 400)}):
        with pytest.raises(InputError, match="needs a stream of two domains or more"):
            take_order(replace(stream, metadata=metadata), "domains:0")


def test_many_orders_of_a_shape():
    assert order_names("stored", 0) == ["stored"]
    assert order_names("stored", 2) == order_names("seed:7", 2) == ["seed:0", "seed:1"]
    assert order_names("correlated:3", 2) == ["correlated:0", "correlated:1"]
