"""Methods whose states add up, against naive versions that remember every sample (`reference`)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate import DOTA, Head, Prior, create
from acclimate.arrays import to_host
from acclimate.checks.synthetic import shifted_stream
from acclimate.errors import InputError, StateError
from acclimate.methods import CLASSES, DIM, Sums
from reference import NaiveDOTA, NaivePrior

cuts = st.lists(st.integers(1, 79), max_size=4)


def answers(adapter, features, cuts):
    return np.concatenate([adapter.step(part) for part in np.split(features, sorted(set(cuts)))])


@given(st.integers(1, 7), st.sampled_from([1, 7, 32, 200]), st.sampled_from([0.05, 0.5]), st.integers(0, 99), cuts)
def test_dota_is_its_formula_for_any_cut(classes, refresh, limit, seed, cuts):
    stream = shifted_stream(samples=80, classes=classes, dim=12, seed=seed)
    head = Head(stream.head.class_vectors.astype(np.float64), 10.0, -2.0)
    settings = {"refresh": refresh, "limit": limit}
    logits = answers(DOTA(head, **settings), stream.features.astype(np.float64), cuts)
    expected = NaiveDOTA(head.class_vectors, 10.0, -2.0, **settings).step(stream.features)
    np.testing.assert_allclose(logits, expected, atol=1e-8)


@given(st.integers(1, 7), st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.1, 10.0]), st.integers(0, 99), cuts)
def test_prior_is_its_formula_for_any_cut(classes, strength, smoothing, seed, cuts):
    stream = shifted_stream(samples=80, classes=classes, dim=12, seed=seed)
    head = Head(stream.head.class_vectors.astype(np.float64), 10.0, -2.0)
    settings = {"strength": strength, "smoothing": smoothing}
    logits = answers(Prior(head, **settings), stream.features.astype(np.float64), cuts)
    expected = NaivePrior(head.class_vectors, 10.0, -2.0, **settings).step(stream.features)
    np.testing.assert_allclose(logits, expected, atol=1e-9)


@pytest.mark.parametrize("method", ["dota", "prior"])
def test_float32_on_any_library(to_backend, stream, method):
    adapter = create(method, stream.head.to(to_backend(stream.features)))
    logits = adapter.step(to_backend(stream.features))
    assert type(logits) is type(to_backend(stream.features))
    naive = {"dota": NaiveDOTA, "prior": NaivePrior}[method](stream.head.class_vectors, 10.0)
    np.testing.assert_allclose(to_host(logits), naive.step(stream.features), atol=2e-3)


@pytest.mark.parametrize("method", ["dota", "prior"])
def test_learnt_values_are_listed_per_class(stream, method):
    adapter = create(method, stream.head)
    adapter.step(stream.features[:10])  # fewer than one refresh
    columns = adapter.class_statistics()
    assert all(values.shape == (8,) for values in columns.values())
    assert columns["samples"].sum() == pytest.approx(10)
    assert adapter.entries() == {}
    assert adapter.entries() == {}


def test_dota_says_how_far_means_are_from_the_text(stream):
    adapter = DOTA(stream.head)
    assert (adapter.class_statistics()["degrees from text"] == 90).all()
    adapter.step(stream.features)
    assert (adapter.class_statistics()["degrees from text"] < 80).all()


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("dota", {"refresh": 0}, "refresh must be at least 1"),
        ("dota", {"variance": 0.0}, "variance above 0"),
        ("dota", {"ridge": 2.0}, "ridge from 0 to 1"),
        ("prior", {"smoothing": 0.0}, "smoothing must be above 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(stream, method, settings, message):
    with pytest.raises(InputError, match=message):
        create(method, stream.head, **settings)


def test_evidence_that_is_not_finite_is_refused_before_anything_is_learnt(stream):
    adapter = DOTA(stream.head, refresh=2)
    evidence = adapter.head.observe(stream.features[:8])
    evidence.entropy[7] = np.nan
    before = adapter.dump()
    with pytest.raises(InputError, match="evidence holds NaN"):
        adapter.adapt(evidence)
    assert adapter.samples_seen == 0
    assert all(np.array_equal(values, before[name]) for name, values in adapter.dump().items())


def test_sums_follow_the_classes(stream):
    sums = Sums(stream.head, counts=(CLASSES,), totals=(CLASSES, DIM), pair=(2,))
    sums.add(counts=np.arange(8.0), totals=np.ones((8, 32)), pair=np.array([1.0, 2.0]))
    head = stream.head.remove(["class 0", "class 5"]).add(np.ones((1, 32)), ["new"])
    sums.move(head, np.array([-1, 0, 1, 2, 3, -1, 4, 5]))
    sums.flush()
    assert sums["counts"].tolist() == [1, 2, 3, 4, 6, 7, 0]
    assert sums["totals"].sum() == 6 * 32
    assert sums["pair"].tolist() == [1, 2]


def test_only_what_was_added_waits(stream):
    sums = Sums(stream.head, counts=(CLASSES,), totals=(CLASSES, DIM))
    assert set(sums.dump()) == {"counts", "totals"}
    sums.add(counts=np.ones(8, np.float32))
    assert set(sums.dump()) == {"counts", "totals", "waiting.counts"}
    assert sums.total("counts").sum() == 8
    assert sums.total("totals").sum() == 0
    sums.flush()
    assert set(sums.dump()) == {"counts", "totals"}
    assert sums["counts"].dtype == np.float64


def test_a_dump_may_have_waiting_arrays_of_zeros(stream):
    sums = Sums(stream.head, counts=(CLASSES,))
    sums.restore({"counts": np.arange(8.0), "waiting.counts": np.zeros(8)})
    sums.add(counts=np.ones(8))
    sums.flush()
    assert sums["counts"].tolist() == list(range(1, 9))


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=4))
def test_sums_merge_whether_or_not_something_waits(parts):
    head = Head(np.eye(2), logit_scale=1.0)
    dumps = []
    for additions, settled in parts:
        sums = Sums(head, counts=(CLASSES,), other=(3,))
        for _ in range(additions):
            sums.add(counts=np.ones(2))
        if settled:
            sums.flush()
        dumps.append(sums.dump())
    merged = Sums(head, counts=(CLASSES,), other=(3,))
    merged.restore(merged.merged(dumps))
    assert merged.total("counts").tolist() == [sum(additions for additions, _ in parts)] * 2
    assert merged.total("other").tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda arrays: arrays.pop("counts"), "it must hold the arrays counts"),
        (lambda arrays: arrays.update(counts=np.zeros(7)), r"counts must be float64 \(8,\)"),
        (lambda arrays: arrays.update(counts=np.zeros(8, np.float32)), "counts must be float64"),
        (lambda arrays: arrays.update(other=np.zeros(8)), "it must hold the arrays counts"),
        (lambda arrays: arrays.update({"waiting.counts": np.full(8, np.inf)}), "waiting.counts must be finite"),
        (lambda arrays: arrays.update({"waiting.counts": np.zeros(7)}), r"waiting.counts must be float64 \(8,\)"),
    ],
)
def test_sums_that_break_a_rule_are_refused(stream, change, rule):
    sums = Sums(stream.head, counts=(CLASSES,))
    arrays = sums.dump()
    change(arrays)
    with pytest.raises(StateError, match=rule):
        sums.restore(arrays)
