"""Gates: the samples that an adapter may learn from."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate import Classifier, Head, create
from acclimate.errors import InputError
from acclimate.methods.gates import NearDuplicates

HEAD = Head(np.eye(4), logit_scale=10.0)


def drawn(seed: int, samples: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    scenes = rng.standard_normal((5, 4))
    return scenes[rng.integers(0, 5, samples)] + 0.01 * rng.standard_normal((samples, 4))


def test_a_gate_compares_with_what_it_let_through():
    angles = 0.1 * np.arange(40)  # a scene that turns slowly is learnt again once it has turned far enough
    scenes = np.stack([np.cos(angles), np.sin(angles), 0 * angles, 0 * angles], axis=1)
    allowed = NearDuplicates(threshold=float(np.cos(0.35)))(HEAD.observe(scenes), np.full(40, True))
    assert np.flatnonzero(allowed).tolist() == list(range(0, 40, 4))


def test_a_gate_forgets_old_scenes():
    scenes = np.eye(4)[[0, 1, 2, 0]]
    assert NearDuplicates(remembered=2)(HEAD.observe(scenes), np.full(4, True)).all()
    assert NearDuplicates(remembered=3)(HEAD.observe(scenes), np.full(4, True)).tolist() == [True, True, True, False]


def test_samples_that_are_not_offered_are_neither_allowed_nor_remembered():
    gate = NearDuplicates()
    assert not gate(HEAD.observe(np.eye(4)), np.full(4, False)).any()
    assert gate(HEAD.observe(np.eye(4)), np.full(4, True)).all()


@given(st.integers(0, 99), st.lists(st.integers(1, 9), min_size=1, max_size=5))
@settings(max_examples=40, deadline=None)
def test_batches_do_not_matter(seed, cuts):
    features = drawn(seed, sum(cuts))
    whole = NearDuplicates(remembered=3)(HEAD.observe(features), np.full(len(features), True))
    gate = NearDuplicates(remembered=3)
    found = []
    for part in np.split(features, np.cumsum(cuts)[:-1]):
        remembered = gate.dump()  # a run that is resumed goes on with the same memory
        gate = NearDuplicates(remembered=3)
        gate.restore(remembered)
        found.append(gate(HEAD.observe(part), np.full(len(part), True)))
    assert np.concatenate(found).tolist() == whole.tolist()


@given(st.integers(0, 99), st.lists(st.booleans(), min_size=1, max_size=80), st.sampled_from(["tda", "accord", "dota"]))
@settings(max_examples=40, deadline=None)
def test_learning_from_some_samples_of_a_batch_is_as_one_by_one(seed, chosen, method):
    features = drawn(seed, len(chosen))
    mask = np.array(chosen)
    whole = create(method, HEAD)
    single = create(method, HEAD)
    logits = whole.adapt(HEAD.observe(features), learn=mask).logits
    for row, learn in enumerate(chosen):
        answer = single.adapt(HEAD.observe(features[row : row + 1]), learn=learn).logits
        np.testing.assert_allclose(answer[0], logits[row], atol=1e-9)
    assert whole.seen == single.seen
    for name, values in single.dump().items():
        np.testing.assert_allclose(whole.dump()[name], values, atol=1e-9)


@pytest.mark.parametrize(("threshold", "remembered"), [(0.0, 1), (1.5, 1), (0.9, 0)])
def test_numbers_out_of_range_are_refused(threshold, remembered):
    with pytest.raises(InputError, match="threshold must be in"):
        NearDuplicates(threshold, remembered)


def test_a_camera_that_stands_still_does_not_fill_the_caches():
    image = np.full((32, 32, 3), (200, 30, 30), np.uint8)
    classifier = Classifier(["red", "blue"], method="tda", skip_duplicates=True)
    found = list(classifier.stream([image] * 5))
    assert classifier.adapter.samples_seen == 1
    assert [each.id for each in found] == [0, None, None, None, None]
    assert found[1].refused == NearDuplicates.reason
    assert {each.label for each in found} == {found[0].label}
