"""Corrections: certain evidence that can be taken back to the bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate import Head, ZeroShot, create, load_state, merge_states, save_state
from acclimate.arrays import to_host
from acclimate.checks.synthetic import shifted_stream
from acclimate.errors import InputError, StateError
from acclimate.methods.corrections import (
    EVIDENCE_NATS,
    GAMMA_BROAD,
    GAMMA_LOCAL,
    MAX_CORRECTIONS,
    RIDGE,
    STRENGTH,
    Corrections,
    id_of,
)

STREAM = shifted_stream(samples=120, classes=5, dim=16, seed=1)
METHODS = ("zero-shot", "tda", "accord", "dota", "dmn", "oga", "prior")


def shown(method="tda", samples=80, **settings):
    adapter = create(method, STREAM.head, **settings)
    adapter.step(STREAM.features[:samples])
    return adapter


def test_corrections_leave_what_was_learnt_as_it_is():
    adapter = shown()
    untouched = shown()
    entries = adapter.entries()["positive"]
    ids = [entry.id for entry in entries]
    adapter.corrections.correct(STREAM.features[ids], [(entry.class_index + 1) % 5 for entry in entries], ids)
    assert adapter.entries() == untouched.entries()
    for each in (adapter, untouched):
        each.step(STREAM.features[80:])
    assert adapter.entries() == untouched.entries()
    adapter.corrections.undo(ids)
    assert_same(adapter, untouched)


def assert_same(one, other):
    ours = one.dump()
    theirs = other.dump()
    assert ours.keys() == theirs.keys()
    for name, values in ours.items():
        np.testing.assert_array_equal(values, theirs[name], err_msg=name)


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=15)
@given(data=st.data())
def test_undo_restores_the_state_to_the_bit_in_any_order(method, data):
    adapter = shown(method)
    untouched = shown(method)
    ids = data.draw(st.lists(st.integers(0, 79), min_size=1, max_size=8, unique=True))
    classes = data.draw(st.lists(st.integers(0, 4), min_size=len(ids), max_size=len(ids)))
    for sample, label in zip(ids, classes, strict=True):
        adapter.corrections.correct(STREAM.features[sample : sample + 1], [label], ids=[sample])
    assert {(each.id, each.class_index) for each in adapter.corrections} == set(zip(ids, classes, strict=True))
    for sample in data.draw(st.permutations(ids)):
        adapter.corrections.undo([sample])
    assert_same(adapter, untouched)
    np.testing.assert_array_equal(adapter.step(STREAM.features[80:]), untouched.step(STREAM.features[80:]))


@pytest.mark.parametrize("method", METHODS)
def test_a_corrected_image_gets_its_class_when_it_is_shown_again(method):
    adapter = shown(method)
    classes = np.arange(20) % 5
    adapter.corrections.correct(STREAM.features[:20], classes, np.arange(20))
    seen = adapter.samples_seen
    np.testing.assert_array_equal(adapter.step(STREAM.features[:20]).argmax(axis=1), classes)
    assert adapter.samples_seen == seen  # its class is known: there is nothing to learn
    halved = STREAM.features[:20].astype(np.float16)
    np.testing.assert_array_equal(adapter.second_pass(halved).argmax(axis=1), classes)


@pytest.mark.parametrize(("corrected", "sharpness"), [(6, GAMMA_LOCAL), (60, GAMMA_BROAD)])
def test_votes_are_kernel_ridge_regression_of_the_errors(corrected, sharpness):
    """Votes reach far where the corrections predict each other, and near-duplicates alone where they do not."""
    adapter = ZeroShot(STREAM.head)
    keys = STREAM.features[:corrected].astype(np.float64)
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    labels = (STREAM.targets[:corrected] + (corrected == 60)) % 5  # a shift of all labels is easy to learn
    adapter.corrections.correct(STREAM.features[:corrected], labels, range(corrected))
    queries = STREAM.features[60:].astype(np.float64)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    vectors = to_host(STREAM.head.class_vectors).astype(np.float64)

    def log_probs(rows):
        logits = STREAM.head.logit_scale * rows @ vectors.T
        return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))

    def likeness(rows, keys, sharpness):
        overlap = np.exp(log_probs(rows) / 2) @ np.exp(log_probs(keys) / 2).T
        return np.exp(-sharpness * (1 - rows @ keys.T)) * overlap**2

    def votes(keys, labels, queries, sharpness):
        errors = np.eye(5)[labels] - np.exp(log_probs(keys))
        weights = np.linalg.inv(likeness(keys, keys, sharpness) + RIDGE * np.eye(len(keys))) @ errors
        return STRENGTH * likeness(queries, keys, sharpness) @ weights

    def fit(sharpness):
        """Return the log-likelihood of the corrections, each predicted by the others."""
        total = 0.0
        for row in range(corrected):
            others = np.arange(corrected) != row
            key = keys[[row]]
            logits = (log_probs(key) + votes(keys[others], labels[others], key, sharpness))[0]
            total += np.log(np.exp(logits)[labels[row]] / np.exp(logits).sum() + 1e-6)
        return total

    assert (fit(GAMMA_BROAD) > fit(GAMMA_LOCAL) + EVIDENCE_NATS) == (sharpness == GAMMA_BROAD)
    moved = adapter.step(STREAM.features[60:]) - STREAM.head.observe(STREAM.features[60:]).logits
    np.testing.assert_allclose(moved, votes(keys, labels, queries, sharpness), atol=1e-3)


def test_confirmations_of_sure_answers_change_nothing_and_are_listed():
    head = Head(np.eye(3), logit_scale=100.0)
    adapter = ZeroShot(head)
    adapter.corrections.correct(np.eye(3)[:1], [0], [4], names=["a.jpg"])
    [corrected] = adapter.corrections
    assert (corrected.id, corrected.label, corrected.name) == (4, "0", "a.jpg")
    other = np.array([[0.6, 0.8, 0.0]])
    np.testing.assert_allclose(adapter.step(other), head.observe(other).logits, atol=1e-6)


def test_correcting_again_replaces():
    adapter = shown()
    adapter.corrections.correct(STREAM.features[:2], [0, 1], [0, 1])
    adapter.corrections.correct(STREAM.features[:1], [2])  # the same image, without its id
    assert sorted(each.class_index for each in adapter.corrections) == [1, 2]
    adapter.corrections.correct(STREAM.features[5:6], [3], [1])  # the same id
    assert sorted(each.class_index for each in adapter.corrections) == [2, 3]


def test_the_order_of_corrections_does_not_matter():
    one = shown()
    other = shown()
    one.corrections.correct(STREAM.features[:6], np.arange(6) % 5, range(6), names=list("abcdef"))
    for sample in (3, 0, 5, 1, 4, 2):
        other.corrections.correct(STREAM.features[[sample]], [sample % 5], [sample], names=["abcdef"[sample]])
    assert_same(one, other)


def test_corrections_survive_saving_resetting_clears_and_frozen_adapters_take_them(tmp_path):
    adapter = shown("accord")
    adapter.freeze()
    adapter.corrections.correct(STREAM.features[:3], [1, 2, 3], names=["ä.jpg", "", "c/" * 50])
    save_state(adapter, tmp_path / "state.safetensors")
    loaded = load_state(tmp_path / "state.safetensors")
    assert list(loaded.corrections) == list(adapter.corrections)
    assert sorted(each.name for each in loaded.corrections) == ["", "c/" * 50, "ä.jpg"]
    np.testing.assert_array_equal(loaded.step(STREAM.features), adapter.step(STREAM.features))
    adapter.reset()
    assert list(adapter.corrections) == []
    assert adapter.dump().keys() == create("accord", STREAM.head).dump().keys()


def test_merging_unites_corrections():
    one = shown(origin="a")
    other = shown(origin="b")
    sample = 7
    label = 2
    one.corrections.correct(STREAM.features[[sample]], [label], [sample])
    other.corrections.correct(STREAM.features[[sample, 3]], [(label + 1) % 5, 0], [sample, 3])
    merged = merge_states([one, other])
    kept = min(label, (label + 1) % 5)  # the first of two different answers
    assert {(each.id, each.class_index) for each in merged.corrections} == {(sample, kept), (3, 0)}
    assert_same(merged, merge_states([other, one]))
    assert_same(merged, merge_states([merged, one]))


def rounded(features, seed):
    """Return features that differ as those of one image do from machine to machine."""
    noise = np.random.default_rng(seed).standard_normal(features.shape, np.float32)
    return features + 1e-4 * np.linalg.norm(features, axis=1, keepdims=True) * noise


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), min_size=1, max_size=6), min_size=3, max_size=3)
)
def test_merging_keeps_one_class_for_each_image_in_any_order(shards):
    adapters = []
    for number, corrected in enumerate(shards):
        adapters.append(create("zero-shot", STREAM.head))
        images, classes = zip(*corrected, strict=True)
        adapters[-1].corrections.correct(rounded(STREAM.features[list(images)], number), classes)
    one, two, three = adapters
    merged = merge_states(adapters)
    assert_same(merged, merge_states([three, one, two]))
    assert_same(merged, merge_states([merge_states([one, two]), three]))
    assert_same(merged, merge_states([one, merge_states([two, three])]))
    assert_same(merged, merge_states([merged, two]))
    last = [dict(corrected) for corrected in shards]
    expected = {image: min(each[image] for each in last if image in each) for each in last for image in each}
    assert len(merged.corrections) == len(expected)
    for image, label in expected.items():
        assert merged.step(STREAM.features[[image]]).argmax() == label


def test_as_many_as_there_may_be_are_told_at_once_and_no_more():
    head = Head(np.eye(64, dtype=np.float32)[:3], logit_scale=10.0)
    features = np.random.default_rng(0).standard_normal((MAX_CORRECTIONS, 64), np.float32)
    adapter = ZeroShot(head)
    adapter.corrections.correct(features, np.arange(MAX_CORRECTIONS) % 3)
    assert len(adapter.corrections) == MAX_CORRECTIONS
    adapter.corrections.correct(features[:5], [1] * 5)  # known ones
    before = adapter.dump()
    for more in (-features[:1], np.concatenate([features, -features])):
        with pytest.raises(InputError, match=r"at most 2000 images can be corrected; .* `acclimate fit` instead"):
            adapter.corrections.correct(more, np.zeros(len(more), int))
    other = ZeroShot(head)
    other.corrections.correct(-features[:1], [0])
    with pytest.raises(StateError, match="the state has 2001 corrections; at most 2000"):
        merge_states([adapter, other])
    assert all(np.array_equal(values, before[name]) for name, values in adapter.dump().items())


def test_the_last_word_on_an_image_counts_within_a_call():
    one = shown()
    other = shown()
    places = [0, 1, 0, 2, 3]
    classes = [0, 1, 2, 3, 4]
    ids = [0, 1, 7, 2, 2]
    one.corrections.correct(STREAM.features[places], classes, ids)
    for place, label, name in zip(places, classes, ids, strict=True):
        other.corrections.correct(STREAM.features[[place]], [label], [name])
    assert [(each.id, each.class_index) for each in one.corrections] == [(1, 1), (2, 4), (7, 2)]
    assert_same(one, other)


def test_corrections_follow_the_classes():
    adapter = shown()
    adapter.corrections.correct(STREAM.features[:3], [1, 2, 4], [0, 1, 2])
    adapter.remove_classes(["class 2"])
    assert [(each.id, each.label) for each in adapter.corrections] == [(0, "class 1"), (2, "class 4")]
    adapter.add_classes(STREAM.head.class_vectors[2:3], ["class 2"])
    assert adapter.step(STREAM.features[:1]).argmax() == 1
    assert adapter.step(STREAM.features[2:3]).argmax() == 3  # class 4 moved down


def test_corrections_move_with_the_adapter(to_backend):
    adapter = shown("accord")
    moved = shown("accord")
    for each in (adapter, moved):
        each.corrections.correct(STREAM.features[:4], [0, 1, 2, 3])
    moved.to(to_backend(np.empty(0, np.float32)))
    features = STREAM.features[80:]
    np.testing.assert_allclose(moved.step(features), adapter.step(features), rtol=1e-3, atol=1e-3)


def views_of(features, seed=0):
    """Return each image and seven versions of it."""
    noise = 0.05 * np.random.default_rng(seed).standard_normal((len(features), 8, 16), np.float32)
    noise[:, 0] = 0
    return features[:, None] + noise


@pytest.mark.parametrize("method", METHODS)
def test_an_image_is_recognised_whatever_its_other_views(method):
    plain = STREAM.features[:10]
    classes = np.arange(10) % 5
    versions = (plain, views_of(plain, 1), views_of(plain, 2))
    for corrected in versions:
        adapter = shown(method)
        ids = adapter.corrections.correct(corrected, classes)
        for again in versions:
            assert adapter.corrections.is_corrected(STREAM.head.observe(again)).all()
            np.testing.assert_array_equal(adapter.step(again).argmax(axis=1), classes)
        assert adapter.samples_seen == 80
        assert ids == adapter.corrections.correct(plain, classes)


def test_invalid_corrections_are_refused_and_change_nothing():
    adapter = shown()
    untouched = shown()
    good = STREAM.features[:2]
    bad = good.copy()
    bad[1] = np.nan
    for features, classes, ids in [
        (bad, [0, 1], [0, 1]),
        (good[:, :3], [0, 1], [0, 1]),
        (good, [0, 5], [0, 1]),
        (good, [0, -1], [0, 1]),
        (good, [0], [0, 1]),
        (good, [0.0, 1.0], [0, 1]),
        (good, [0, 1], [0.5, 1.5]),
        (good, [0, 1], [0]),
        (good[:0], [], []),
    ]:
        with pytest.raises(InputError):
            adapter.corrections.correct(features, classes, ids)
    with pytest.raises(InputError, match="no correction has the id 3; there are: none"):
        adapter.corrections.undo([3])
    adapter.corrections.correct(good, [0, 1], [7, 8])
    with pytest.raises(InputError, match="no correction has the id 3; there are: 7, 8"):
        adapter.corrections.undo([7, 3])
    assert len(adapter.corrections) == 2
    adapter.corrections.undo([7, 8])
    assert_same(adapter, untouched)


@pytest.mark.parametrize("field", ["keys", "classes", "ids", "names"])
def test_damaged_corrections_are_refused(field):
    corrections = Corrections(STREAM.head)
    corrections.correct(STREAM.head.class_vectors[:2], [0, 1], [0, 1])
    dump = corrections.dump()
    for broken in (dump[field][:1], dump[field].astype(np.complex64), dump[field][None]):
        with pytest.raises(StateError):
            corrections.restore(dump | {field: broken})
    with pytest.raises(StateError):
        corrections.restore({name: values for name, values in dump.items() if name != field})
    with pytest.raises(StateError, match="classes"):
        corrections.restore(dump | {"classes": np.array([0, 5])})
    with pytest.raises(StateError, match="keys must be finite"):
        corrections.restore(dump | {"keys": np.nan * dump["keys"]})


def test_ids_of_images_are_stable_and_fit_into_a_double():
    ids = {id_of(feature) for feature in STREAM.features}
    assert len(ids) == len(STREAM.features)
    assert all(2**48 <= each < 2**53 for each in ids)


def test_names_are_bounded():
    adapter = ZeroShot(Head(np.eye(2), logit_scale=10.0))
    adapter.corrections.correct(np.eye(2)[:1], [1], names=["x" * 5000 + "end.jpg"])
    [correction] = adapter.corrections
    assert len(correction.name) == 4096
    assert correction.name.endswith("end.jpg")
    state = adapter.dump()
    state["corrections.names"] = np.full((1, 5000), 120, np.uint8)
    with pytest.raises(StateError, match="names must have 1 to 4096 bytes"):
        adapter.restore(state)
