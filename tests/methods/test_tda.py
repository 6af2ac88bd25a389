"""TDA against the paper's algorithm, written naively (`reference.NaiveTDA`)."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate import TDA, Head, ZeroShot, create
from acclimate.arrays import to_host
from acclimate.checks.synthetic import shifted_stream
from acclimate.errors import InputError
from reference import NaiveTDA

settings = st.fixed_dictionaries(
    {},
    optional={
        "positive": st.booleans(),
        "negative": st.booleans(),
        "positive_capacity": st.integers(1, 5),
        "negative_capacity": st.integers(1, 4),
        "positive_alpha": st.sampled_from([0.0, 1.0, 5.0]),
        "positive_beta": st.sampled_from([0.5, 8.0]),
        "negative_beta": st.sampled_from([0.5, 8.0]),
        "negative_alpha": st.sampled_from([0.0, 1.0]),
        "negative_keep": st.sampled_from(["lowest", "highest"]),
        "entropy_low": st.sampled_from([-1.0, 0.1]),
        "entropy_high": st.sampled_from([0.4, 1.0]),
        "mask_low": st.sampled_from([0.0, 0.1]),
        "mask_high": st.sampled_from([0.5, 1.0]),
        "self_match": st.booleans(),
        "bypass": st.sampled_from([0, 1, 40, 200]),
    },
)


@given(settings, st.integers(1, 9), st.integers(0, 999), st.lists(st.integers(1, 79), max_size=4))
def test_answers_are_the_papers_for_any_settings_and_any_cut(settings, classes, seed, cuts):
    stream = shifted_stream(samples=80, classes=classes, dim=16, seed=seed)
    vectors = stream.head.class_vectors
    adapter = TDA(Head(vectors.astype(np.float64), 10.0, logit_bias=-2.0), **settings)
    parts = np.split(stream.features.astype(np.float64), sorted(set(cuts)))
    logits = np.concatenate([adapter.step(part) for part in parts])
    expected = NaiveTDA(vectors, 10.0, -2.0, **settings).step(stream.features)
    np.testing.assert_allclose(logits, expected, atol=1e-9)


@pytest.mark.parametrize("batch_size", [1, 7, 300])
def test_float32_on_any_library(to_backend, batch_size):
    stream = shifted_stream(samples=300, classes=12, dim=32, seed=5)
    adapter = TDA(stream.head.to(to_backend(stream.features)))
    parts = [to_backend(stream.features[i : i + batch_size]) for i in range(0, 300, batch_size)]
    answers = [adapter.step(part) for part in parts]
    assert all(type(answer) is type(parts[0]) and answer.dtype == parts[0].dtype for answer in answers)
    expected = NaiveTDA(stream.head.class_vectors, 10.0).step(stream.features)
    np.testing.assert_allclose(np.concatenate([to_host(answer) for answer in answers]), expected, atol=2e-4)


def test_more_samples_than_a_block_are_one_stream():
    stream = shifted_stream(samples=2500, classes=5, dim=16)
    logits = TDA(stream.head).step(stream.features)
    np.testing.assert_allclose(logits, NaiveTDA(stream.head.class_vectors, 10.0).step(stream.features), atol=2e-4)


def test_views_go_through_step_and_through_evidence(to_backend, stream):
    views = stream.features[:, None] + 0.1 * np.random.default_rng(0).standard_normal((400, 20, 32)).astype(np.float32)
    expected = NaiveTDA(stream.head.class_vectors, 10.0).step_views(views)
    head = stream.head.to(to_backend(stream.features))
    stepped = TDA(head).step(to_backend(views))
    np.testing.assert_allclose(to_host(stepped), expected, atol=1e-3)
    adapted = TDA(head).adapt(head.observe(to_backend(views[:200])))
    np.testing.assert_allclose(to_host(adapted.logits), expected[:200], atol=1e-3)


def test_libraries_meet(stream):
    torch = pytest.importorskip("torch")
    on_torch = TDA(stream.head.to(torch.empty(0)))
    on_numpy = TDA(stream.head)
    from_numpy = on_torch.step(stream.features)
    from_torch = on_numpy.step(torch.asarray(stream.features, dtype=torch.bfloat16).requires_grad_())
    assert isinstance(from_numpy, np.ndarray)
    assert from_torch.dtype == torch.bfloat16
    assert np.mean(from_numpy.argmax(1) == to_host(from_torch).argmax(1)) > 0.95
    assert on_numpy.step(stream.features[:3].tolist()).dtype == np.float64


def test_half_precision_features_are_adapted_in_float32(stream):
    adapter = TDA(stream.head)
    wide = TDA(stream.head)
    halves = stream.features.astype(np.float16)
    assert np.array_equal(adapter.step(halves), wide.step(halves.astype(np.float32)).astype(np.float16))


def test_on_equal_entropy_the_first_sample_stays():
    head = Head(np.eye(3, dtype=np.float32), logit_scale=10.0)
    evidence = head.observe(np.array([[1.0, 0.3, 0.0], [1.0, 0.0, 0.3]] * 3, np.float32))
    adapter = TDA(head, positive_capacity=2, negative=False)
    adapter.adapt(replace(evidence, entropy=np.full(6, 0.5, np.float32)))
    assert [entry.id for entry in adapter.entries()["positive"]] == [0, 1]


def test_the_entropy_gate_is_nats_over_log2():
    # Two classes: H = 0.6 nats, H / log2(2) = 0.6, H / ln(2) = 0.87; a gate of (0.5, 0.65) must let it in.
    z = np.log(0.7121 / 0.2879)
    vectors = np.eye(2, dtype=np.float64)
    feature = np.array(
        [[np.sin(np.pi / 4 + np.arcsin(z / (10 * np.sqrt(2)))), np.cos(np.pi / 4 + np.arcsin(z / 14.142136))]]
    )
    for gate, entries in (((0.5, 0.65), 1), ((0.8, 0.9), 0)):
        adapter = TDA(Head(vectors, logit_scale=10.0), entropy_low=gate[0], entropy_high=gate[1])
        adapter.step(feature)
        assert len(adapter.entries()["negative"]) == entries


def test_an_admitted_sample_meets_itself_unless_told_not_to(stream):
    alone = stream.features[:1]
    zero_shot = ZeroShot(stream.head).step(alone)
    met = TDA(stream.head, negative=False).step(alone)
    assert met.max() == pytest.approx(zero_shot.max() + 2.0)  # alpha times an affinity of 1
    np.testing.assert_array_equal(TDA(stream.head, self_match=False).step(alone), zero_shot)


def test_the_caches_fill_while_they_are_bypassed(stream):
    without = TDA(stream.head)
    bypassing = TDA(stream.head, bypass=100)
    ids = np.arange(1000, 1000 + len(stream))  # names of samples, not their positions
    expected = without.step(stream.features, ids)
    logits = bypassing.step(stream.features, ids)
    np.testing.assert_array_equal(logits[:100], ZeroShot(stream.head).step(stream.features)[:100])
    np.testing.assert_array_equal(logits[100:], expected[100:])
    assert bypassing.entries() == without.entries()


def test_an_adapter_that_has_seen_too_little_bypasses_its_caches_when_frozen(stream):
    zero_shot = ZeroShot(stream.head).step(stream.features)
    adapter = TDA(stream.head, bypass=100)
    adapter.step(stream.features[:99])
    np.testing.assert_array_equal(adapter.step(stream.features, learn=False), zero_shot)
    adapter.step(stream.features[99:100])
    assert (adapter.step(stream.features, learn=False) != zero_shot).any()


def test_with_both_caches_off_it_is_zero_shot(stream):
    off = TDA(stream.head, positive=False, negative=False)
    zero_shot = create("zero-shot", stream.head)
    np.testing.assert_array_equal(off.step(stream.features), zero_shot.step(stream.features))


def test_twenty_thousand_classes_of_768_channels():
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((20_000, 768), dtype=np.float32)
    adapter = TDA(Head(vectors, logit_scale=100.0))
    adapter.step(vectors[:64] + 0.1 * rng.standard_normal((64, 768), dtype=np.float32))
    assert sum(values.nbytes for values in adapter.dump().values()) < 1_000_000


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"positive_capacty": 3}, "has no setting 'positive_capacty'; did you mean 'positive_capacity'"),
        ({"zzz": 3}, "has no setting 'zzz'; there are: positive, positive_capacity"),
        (
            {"positive_capacity": 0},
            "capacity must be at least 1, .* to do without a cache, switch it off",
        ),
        ({"bypass": -1}, "bypass at least 0"),
        ({"positive_capacity": 2.5}, "positive_capacity must be a whole number, got 2.5"),
        ({"positive": 1}, "positive must be True or False, got 1"),
        ({"positive_alpha": "2"}, "positive_alpha must be a number, got '2'"),
        ({"negative_beta": float("nan")}, "negative_beta must be a number, got nan"),
        ({"negative_keep": "best"}, "negative_keep must be 'lowest' or 'highest', got 'best'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(stream, settings, message):
    with pytest.raises(InputError, match=message):
        create("tda", stream.head, **settings)


def test_evidence_that_is_not_finite_is_refused_before_anything_is_learnt(stream):
    adapter = TDA(stream.head)
    evidence = adapter.head.observe(stream.features[:4, None])
    evidence.entropy[2] = np.nan
    with pytest.raises(InputError, match="evidence holds NaN"):
        adapter.adapt(evidence)
    assert adapter.samples_seen == 0
    assert adapter.entries()["positive"] == []
