"""Accord against a naive version that follows the guide (`accord_reference`), and what it promises."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate import Accord, Head, merge_states, state_from_bytes, state_to_bytes
from acclimate.arrays import log_softmax, to_host
from acclimate.bench.orders import stream_order
from acclimate.checks.synthetic import shifted_stream
from acclimate.errors import InputError, StateError
from acclimate.methods.own.two_views import covariance_inverse
from accord_reference import CONSTANTS, NaiveAccord

BIAS = -2.0


def taken(samples, classes, dim, order="shuffled:0", scale=10.0, seed=3):
    """Return a head in float64, and features and labels in that order."""
    stream = shifted_stream(samples=samples, classes=classes, dim=dim, seed=seed)
    positions = stream_order(stream, order)
    head = Head(stream.head.class_vectors.astype(np.float64), scale, BIAS)
    return head, stream.features[positions].astype(np.float64), stream.targets[positions]


def naive(head, **settings):
    return NaiveAccord(head.class_vectors, head.logit_scale, head.logit_bias, **settings)


def accuracy(logits, labels):
    return float((logits.argmax(axis=1) == labels).mean())


def close(got, expected):
    np.testing.assert_allclose(log_softmax(got), log_softmax(expected), atol=1e-6)


@pytest.fixture(scope="module")
def shifted():
    """Return a stream on which adapting gains much: head, features and labels."""
    stream = shifted_stream(samples=3000, classes=20, dim=64, seed=0)
    order = stream_order(stream, "shuffled:0")
    return stream.head, stream.features[order], stream.targets[order]


@pytest.mark.parametrize(
    ("samples", "classes", "dim", "order", "scale"),
    [
        (260, 6, 16, "shuffled:0", 10.0),
        (60, 6, 16, "shuffled:0", 10.0),  # too short to compare the views online
        (10, 6, 16, "shuffled:0", 10.0),  # too short to be learnt anew
        (500, 6, 15, "long-tail:1", 10.0),  # uneven shares, and views of different sizes
        (400, 10, 12, "class-sequential:0", 10.0),  # runs of one class
        (600, 12, 16, "few-classes:0", 40.0),
        (600, 12, 16, "half-classes:0", 40.0),
        (300, 257, 4, "shuffled:0", 10.0),  # temperatures of every other sample
        (200, 2, 4, "shuffled:0", 30.0),
        (50, 1, 4, "shuffled:0", 10.0),
        (50, 3, 2, "shuffled:0", 10.0),  # views of one coordinate
    ],
)
def test_answers_are_the_formulas(samples, classes, dim, order, scale):
    head, features, _ = taken(samples, classes, dim, order, scale)
    adapter = Accord(head)
    expected = naive(head)
    close(adapter.step(features), expected.step(features))
    close(adapter.second_pass(features), expected.refine(features))


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_answers_are_the_formulas_for_other_rounds(rounds):
    head, features, _ = taken(400, 10, 12, "few-classes:2")
    adapter = Accord(head, rounds=rounds)
    expected = naive(head, rounds=rounds)
    close(adapter.step(features), expected.step(features))
    close(adapter.second_pass(features), expected.refine(features))


@pytest.mark.parametrize("constant", sorted(vars(CONSTANTS)))
def test_every_constant_is_a_setting(constant, monkeypatch):
    order = "class-sequential:0" if constant == "doubt" else "few-classes:2"
    scale = 1.0 if constant == "least" else 10.0
    head, features, _ = taken(200, 6, 12, order, scale)
    value = getattr(CONSTANTS, constant) / 2
    adapter = Accord(head, **{constant: value})
    usual = Accord(head)
    monkeypatch.setattr(CONSTANTS, constant, value)
    expected = naive(head)
    online = adapter.step(features)
    second = adapter.second_pass(features)
    close(online, expected.step(features))
    close(second, expected.refine(features))
    assert not np.allclose(np.append(online, second), np.append(usual.step(features), usual.second_pass(features)))
    again = state_from_bytes(state_to_bytes(adapter))
    assert np.array_equal(again.second_pass(features), second)
    with pytest.raises(StateError, match=f"{constant} {value} against"):
        state_from_bytes(state_to_bytes(adapter), like=usual)


@pytest.mark.parametrize(
    "constants",
    [{"anchor_even": 0.0}, {"anchor_seen": -1.0}, {"shrink": 1.1}, {"least": 0.0}, {"least": 2.0}, {"doubt": -1.0}],
)
def test_constants_without_a_meaning_are_refused(constants):
    with pytest.raises(InputError, match=f"{next(iter(constants))}.* (above|at most|at least|from)"):
        Accord(Head(np.eye(3), logit_scale=10.0), **constants)


def test_a_long_stream_is_measured_on_some_of_its_samples(monkeypatch):
    monkeypatch.setattr("acclimate.methods.own.accord.MEASURED_SAMPLES", 256)
    head, features, _ = taken(600, 5, 8)
    close(Accord(head).second_pass(features), naive(head, measured=256).refine(features))


def test_classes_that_come_and_go_are_the_formulas():
    head, features, _ = taken(300, 7, 12)
    late = head.class_vectors[-1]
    small = head.remove(["6"])
    adapter = Accord(small)
    expected = naive(small)
    close(adapter.step(features[:100]), expected.step(features[:100]))
    adapter.add_classes(late[None], ["late"])
    expected.add_class(late)
    close(adapter.step(features[100:200]), expected.step(features[100:200]))
    adapter.remove_classes(["2"])
    expected.remove_class(2)
    close(adapter.step(features[200:]), expected.step(features[200:]))
    close(adapter.second_pass(features), expected.refine(features))


def test_until_the_views_were_compared_answers_are_those_of_zero_shot(shifted):
    head, features, _ = shifted
    adapter = Accord(head)
    first = adapter.next_flush(0)
    compared = adapter.next_flush(first)
    assert (first, compared) == (32, 64)
    answers = adapter.step(features[:100])
    zero_shot = head.observe(features[:100]).logits
    np.testing.assert_allclose(log_softmax(answers[:compared]), log_softmax(zero_shot[:compared]), atol=1e-5)
    assert np.abs(log_softmax(answers[compared:]) - log_softmax(zero_shot[compared:])).max() > 0.5


def test_parameters_change_only_where_the_state_settles(shifted):
    head, features, _ = shifted
    adapter = Accord(head)
    changed = []
    for position in range(1, 401):
        before = adapter.parameters
        adapter.step(features[position - 1 : position])
        if adapter.parameters is not before:
            changed.append(position)
    assert changed == [32, 64, 96, 128, 160, 224, 288, 384]
    assert changed == [seen for seen in range(1, 401) if adapter.next_flush(seen - 1) == seen]


def test_the_first_change_has_seen_a_quarter_of_the_classes():
    assert Accord(Head(np.eye(1000), logit_scale=10.0)).next_flush(0) == 256


def test_the_second_pass_does_not_depend_on_the_order(shifted):
    head, features, labels = shifted
    features = features.astype(np.float64)
    by_class = np.argsort(labels, kind="stable")
    answers = []
    for order in (np.arange(len(labels)), by_class):
        adapter = Accord(head.to(features))
        adapter.step(features[order])
        answers.append(adapter.second_pass(features[order]))
    np.testing.assert_allclose(answers[1], answers[0][by_class], atol=1e-6)
    assert accuracy(answers[0], labels) > accuracy(head.observe(features).logits, labels) + 0.2


def test_a_sorted_stream_is_used(shifted):
    head, features, labels = shifted
    by_class = np.argsort(labels, kind="stable")
    adapter = Accord(head)
    online = adapter.step(features[by_class])
    assert adapter.likeness > 0.3
    assert accuracy(online, labels[by_class]) > accuracy(head.observe(features).logits, labels) + 0.1


def test_where_neighbours_are_not_alike_answers_do_not_depend_on_them(shifted):
    head, features, _ = shifted
    adapter = Accord(head)
    adapter.step(features)
    assert adapter.likeness == 0.0


def test_the_second_pass_does_not_change_the_adapter(shifted):
    head, features, _ = shifted
    adapter = Accord(head)
    untouched = Accord(head)
    for each in (adapter, untouched):
        each.step(features[:500])
    before = adapter.dump()
    first = adapter.second_pass(features[:500])
    assert all(np.array_equal(values, before[name]) for name, values in adapter.dump().items())
    np.testing.assert_array_equal(adapter.second_pass(features[:500]), first)
    np.testing.assert_array_equal(adapter.step(features[500:700]), untouched.step(features[500:700]))


def test_the_second_pass_reads_a_memory_map_of_half_precision(shifted, tmp_path):
    head, features, _ = shifted
    np.save(tmp_path / "features.npy", features[:700].astype(np.float16))
    mapped = np.load(tmp_path / "features.npy", mmap_mode="r")
    adapter = Accord(head)
    adapter.step(mapped)
    refined = np.concatenate(list(adapter.second_pass_blocks(mapped)))
    np.testing.assert_allclose(refined, adapter.second_pass(np.asarray(mapped, np.float32)), atol=1e-3)


def test_shards_merge_and_the_stream_goes_on(shifted):
    head, features, labels = shifted
    shards = []
    for name, part in (("a", slice(0, 700)), ("b", slice(700, 1300))):
        shards.append(Accord(head, origin=name))
        shards[-1].step(features[part], ids=np.arange(3000)[part])
    merged = merge_states(shards)
    other = merge_states(shards[::-1])
    samples = [each.class_statistics()["samples"] for each in (merged, *shards)]
    np.testing.assert_allclose(samples[0], samples[1] + samples[2], rtol=1e-5)
    assert merged.samples_seen == 1300
    answers = merged.step(features[1300:])
    np.testing.assert_allclose(answers, other.step(features[1300:]), atol=1e-2)
    alone = Accord(head)
    alone.step(features[:1300])
    rest = labels[1300:]
    assert accuracy(answers, rest) > accuracy(alone.step(features[1300:]), rest) - 0.02  # shards taught themselves less


def test_the_state_is_bounded_at_many_classes():
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((1000, 512)).astype(np.float32)
    adapter = Accord(Head(vectors, logit_scale=100.0))
    adapter.step(vectors[rng.integers(0, 1000, 300)] + 2 * rng.standard_normal((300, 512), np.float32))
    assert sum(values.nbytes for values in adapter.dump().values()) <= 6e6  # sums, and what waits to be added to them
    assert adapter.entries() == {}


def test_rounds_cannot_be_negative(shifted):
    with pytest.raises(InputError, match="rounds must be at least 0, got -1"):
        Accord(shifted[0], rounds=-1)


def test_batches_in_which_no_temperature_is_measured(to_backend):
    stream = shifted_stream(samples=400, classes=260, dim=16)
    features = to_backend(stream.features)
    single, whole = (Accord(stream.head.to(features)) for _ in range(2))
    expected = to_host(whole.step(features))
    logits = np.concatenate([to_host(single.step(features[i : i + 1])) for i in range(400)])
    np.testing.assert_allclose(logits, expected, atol=1e-3)
    assert single.dump().keys() == whole.dump().keys()


@given(st.integers(1, 300), st.integers(0, 2**32))
def test_covariances_are_inverted_by_halves(dim, seed):
    samples = np.random.default_rng(seed).standard_normal((dim + 5, dim))
    covariance = samples.T @ samples / len(samples) + 0.05 * np.eye(dim)
    inverse = covariance_inverse(covariance)
    assert np.allclose(inverse, np.linalg.inv(covariance), rtol=1e-9, atol=1e-11)
    assert np.allclose(inverse, inverse.T, rtol=1e-9, atol=1e-11)
