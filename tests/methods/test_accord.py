"""Accord against a naive version that follows the guide (`halves_reference`), and what it promises."""

from copy import deepcopy

import numpy as np
import pytest

from acclimate import Accord, Head, merge_states, refine
from acclimate.arrays import log_softmax, to_host
from acclimate.bench.orders import stream_order
from acclimate.checks.synthetic import shifted_stream
from acclimate.errors import InputError
from halves_reference import NaiveHalves

BIAS = -2.0


def taken(samples, classes, dim, order="seed:0", scale=10.0, seed=3):
    """A head in float64, and features and labels in that order."""
    stream = shifted_stream(samples=samples, classes=classes, dim=dim, seed=seed)
    positions = stream_order(stream, order)
    head = Head(stream.head.class_vectors.astype(np.float64), scale, BIAS)
    return head, stream.features[positions].astype(np.float64), stream.labels[positions]


def naive(head, **settings):
    return NaiveHalves(head.class_vectors, head.logit_scale, head.logit_bias, **settings)


def accuracy(logits, labels):
    return float((logits.argmax(axis=1) == labels).mean())


def close(got, expected):
    np.testing.assert_allclose(got, expected, atol=1e-6)


@pytest.fixture(scope="module")
def plain():
    """A stream on which adapting gains much: head, features and labels."""
    stream = shifted_stream(samples=3000, classes=20, dim=64, seed=0)
    order = stream_order(stream, "seed:0")
    return stream.head, stream.features[order], stream.labels[order]


@pytest.mark.parametrize(
    ("samples", "classes", "dim", "order", "scale"),
    [
        (260, 6, 16, "seed:0", 10.0),  # the head at its largest weight
        (60, 6, 16, "seed:0", 10.0),  # too short to compare the halves online
        (900, 6, 16, "long-tail:1", 10.0),  # uneven shares
        (400, 10, 12, "class-sequential:0", 10.0),  # runs of one class, classes without samples
        (800, 12, 16, "few-classes:0", 40.0),  # few classes and a sure zero-shot: votes and head nearly closed
        (800, 12, 16, "half-classes:0", 40.0),
        (300, 257, 4, "seed:0", 10.0),  # the slower pace of many classes
        (200, 2, 4, "seed:0", 30.0),
        (50, 1, 4, "seed:0", 10.0),
    ],
)
def test_answers_are_the_formulas(samples, classes, dim, order, scale):
    head, features, _ = taken(samples, classes, dim, order, scale)
    adapter, expected = Accord(head), naive(head)
    close(adapter.step(features), expected.step(features))
    close(refine(adapter, features), expected.refine(features))


@pytest.mark.parametrize("settings", [{"few_classes": True}, {"rounds": 0}, {"rounds": 1}, {"rounds": 3}], ids=str)
def test_answers_are_the_formulas_with_settings(settings):
    head, features, _ = taken(800, 10, 12, "few-classes:2")
    adapter, expected = Accord(head, **settings), naive(head, **settings)
    close(adapter.step(features), expected.step(features))
    close(refine(adapter, features), expected.refine(features))


def test_a_long_stream_is_checked_on_some_samples_of_both_halves(monkeypatch):
    monkeypatch.setattr("acclimate.methods.halves.CHECKED", 256)
    head, features, _ = taken(600, 5, 8)
    adapter, expected = Accord(head), naive(head, checked=256)
    adapter.step(features)
    expected.step(features)
    close(refine(adapter, features), expected.refine(features))


def test_classes_that_come_and_go_are_the_formulas():
    head, features, _ = taken(300, 7, 12)
    late = head.class_vectors[-1]
    small = head.remove(["6"])
    adapter, expected = Accord(small), naive(small)
    close(adapter.step(features[:100]), expected.step(features[:100]))
    adapter.add_classes(late[None], ["late"])
    expected.add_class(late)
    close(adapter.step(features[100:200]), expected.step(features[100:200]))
    adapter.remove_classes(["2"])
    expected.remove_class(2)
    close(adapter.step(features[200:]), expected.step(features[200:]))
    close(refine(adapter, features), expected.refine(features))


def test_until_the_halves_were_compared_answers_are_those_of_zero_shot(plain):
    head, features, _ = plain
    adapter = Accord(head)
    first = adapter.settles_at(0)
    compared = adapter.settles_at(first)
    assert (first, compared) == (32, 64)
    answers, zero_shot = adapter.step(features[:100]), head.observe(features[:100]).logits
    np.testing.assert_array_equal(answers[:compared], zero_shot[:compared])
    assert np.abs(answers[compared:] - zero_shot[compared:]).max() > 1


def test_parameters_change_only_where_the_state_settles(plain):
    head, features, _ = plain
    adapter = Accord(head)

    def parameters():
        head_parts = [part for scorer in adapter.scorers for part in scorer[:4]]
        rest = (adapter.shares, adapter.prior, adapter.weight, adapter.tau, adapter.votes, adapter.beta)
        return [np.array(each) for each in (*head_parts, *rest)]

    changed, before = [], parameters()
    for position in range(1, 401):
        adapter.step(features[position - 1 : position])
        now = parameters()
        if len(now) != len(before) or not all(map(np.array_equal, now, before)):
            changed.append(position)
        before = now
    assert changed == [32, 64, 96, 128, 160, 224, 288, 384]
    assert changed == [place for place in range(1, 401) if adapter.settles_at(place - 1) == place]


@pytest.mark.parametrize(("classes", "positions"), [(100, [32, 64, 96]), (200, [64, 96, 128]), (300, [128, 256, 512])])
def test_the_pace_follows_the_number_of_classes(classes, positions):
    adapter = Accord(Head(np.random.default_rng(0).standard_normal((classes, 8)), logit_scale=10.0))
    seen = [0]
    while len(seen) <= len(positions):
        seen.append(adapter.settles_at(seen[-1]))
    assert seen[1:] == positions
    assert Accord(Head(np.eye(1000), logit_scale=10.0)).settles_at(0) == 256  # a quarter of the classes


def test_the_second_pass_hardly_depends_on_the_order(plain):
    head, features, labels = plain
    by_class = np.argsort(labels, kind="stable")
    found = []
    for order in (np.arange(len(labels)), by_class):
        adapter = Accord(head)
        online = adapter.step(features[order])
        found.append((accuracy(online, labels[order]), accuracy(refine(adapter, features[order]), labels[order])))
    (online, shuffled), (online_sorted, again_sorted) = found
    assert abs(shuffled - again_sorted) < 0.01
    assert shuffled > online > online_sorted
    assert again_sorted > accuracy(head.observe(features).logits, labels) + 0.2


def test_the_second_pass_does_not_change_the_adapter(plain):
    head, features, _ = plain
    adapter, untouched = Accord(head), Accord(head)
    for each in (adapter, untouched):
        each.step(features[:500])
    before = adapter.dump()
    first = refine(adapter, features[:500])
    assert all(np.array_equal(values, before[name]) for name, values in adapter.dump().items())
    np.testing.assert_array_equal(refine(adapter, features[:500]), first)
    np.testing.assert_array_equal(adapter.step(features[500:700]), untouched.step(features[500:700]))


def test_the_second_pass_reads_a_memory_map_of_half_precision(plain, tmp_path):
    head, features, _ = plain
    np.save(tmp_path / "features.npy", features[:700].astype(np.float16))
    mapped = np.load(tmp_path / "features.npy", mmap_mode="r")
    adapter = Accord(head)
    adapter.step(mapped)
    refined = np.concatenate(list(adapter.refined(mapped)))
    np.testing.assert_allclose(refined, refine(adapter, np.asarray(mapped, np.float32)), atol=1e-4)


def test_shards_merge_and_the_stream_goes_on(plain):
    head, features, labels = plain
    shards = []
    for name, part in (("a", slice(0, 700)), ("b", slice(700, 1300))):
        shards.append(Accord(head, origin=name))
        shards[-1].step(features[part], ids=np.arange(3000)[part])
    merged, other = merge_states(shards), merge_states(shards[::-1])
    samples = [each.learnt()["samples"] for each in (merged, *shards)]
    np.testing.assert_allclose(samples[0], samples[1] + samples[2], rtol=1e-5)
    assert merged.samples_seen == 1300
    answers = merged.step(features[1300:])
    np.testing.assert_allclose(answers, other.step(features[1300:]), atol=1e-3)
    alone = Accord(head)
    alone.step(features[:1300])
    rest = labels[1300:]
    assert accuracy(answers, rest) > accuracy(alone.step(features[1300:]), rest) - 0.02  # shards taught themselves less
    assert accuracy(refine(merged, features), labels) > 0.95


def test_few_classes_can_be_said():
    head, features, labels = taken(3000, 20, 64, "few-classes:1", seed=0)
    zero_shot = accuracy(head.observe(features).logits, labels)
    told = Accord(head, few_classes=True)
    online = told.step(features)
    assert accuracy(online, labels) > zero_shot + 0.05
    assert accuracy(refine(told, features), labels) >= accuracy(online, labels)
    assert not told.scorers  # nothing but the classes' shares is learnt


def test_confidence_reaches_its_target(plain):
    head, features, _ = plain
    adapter = Accord(head)
    online = adapter.step(features)
    again = deepcopy(adapter)
    for _ in range(again.rounds):
        again._relearn(features)
    # Online, temperatures were measured along a stream on which the answer became surer.
    for state, logits, within in ((adapter, online[1500:], 0.06), (again, refine(adapter, features), 0.01)):
        measured, halves, zero_shot = (float(state.agreement[name][0]) for name in ("samples", "halves", "zero_shot"))
        own = float(state.confidence["zero_shot"][0] / state.confidence["samples"][0])
        target = max(own, zero_shot / np.sqrt(halves * measured) - state.SHARED / 2)
        assert np.exp(log_softmax(logits)).max(axis=1).mean() == pytest.approx(target, abs=within)


def test_the_state_is_bounded_at_many_classes():
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((1000, 512)).astype(np.float32)
    adapter = Accord(Head(vectors, logit_scale=100.0))
    adapter.step(vectors[rng.integers(0, 1000, 300)] + 2 * rng.standard_normal((300, 512), np.float32))
    cached = sum(map(len, adapter.entries().values()))
    full = sum(values.nbytes for values in adapter.dump().values()) + (5 * 1000 - cached) * 512 * 4
    assert full <= 25e6


def test_rounds_cannot_be_negative(plain):
    with pytest.raises(InputError, match="rounds must be at least 0, got -1"):
        Accord(plain[0], rounds=-1)


def test_batches_in_which_no_sample_is_measured(to_backend):
    stream = shifted_stream(samples=300, classes=260, dim=16)
    features = to_backend(stream.features)
    single, whole = (Accord(stream.head.to(features)) for _ in range(2))
    expected = to_host(whole.step(features))
    logits = np.concatenate([to_host(single.step(features[i : i + 1])) for i in range(300)])
    np.testing.assert_allclose(logits, expected, atol=1e-3)
    assert single.dump().keys() == whole.dump().keys()
