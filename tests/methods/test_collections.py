"""The methods that answer a set: against dense float64 versions of their formulas, and as what they say they are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate import Head, create
from acclimate.arrays import to_host
from acclimate.checks import LAWS, Trial
from acclimate.checks.synthetic import shifted_stream
from acclimate.errors import InputError
from acclimate.methods import list_methods
from acclimate.methods.rivals import collection
from collections_reference import REFERENCES

VALUES = {
    "stata": {
        "alpha": [0.5, 1.0, 10.0],
        "neighbours": [0, 3, 50],
        "tau": [5.0, 50.0],
        "iterations": [1, 3],
        "label_iterations": [1, 5],
    },
    "transclip": {
        "text_weight": [0.5, 1.0],
        "neighbours": [0, 3, 50],
        "confident": [1, 8, 50],
        "tau": [5.0, 50.0],
        "iterations": [1, 3],
        "label_iterations": [1, 5],
    },
    "zlap": {"neighbours": [1, 2, 5, 50], "gamma": [0.0, 1.0, 5.0], "alpha": [0.1, 0.3, 0.9]},
}
methods = pytest.mark.parametrize("method", REFERENCES)
(no_order,) = (law for law in LAWS if law.__name__ == "a_set_has_no_order")


def settings_of(method):
    return st.fixed_dictionaries({}, optional={name: st.sampled_from(each) for name, each in VALUES[method].items()})


def centred(logits):
    """Return logits less what all classes share, which has no meaning."""
    return logits - logits.mean(axis=1, keepdims=True)


def example(samples=40, classes=5, dim=12, seed=0):
    stream = shifted_stream(samples=samples, classes=classes, dim=dim, seed=seed)
    return Head(stream.head.class_vectors.astype(np.float64), 10.0, -2.0), stream.features.astype(np.float64)


def test_the_references_are_those_of_all_methods_that_answer_sets():
    assert REFERENCES.keys() == {name for name, each in list_methods().items() if each.kind == "collection"}


@methods
@given(
    data=st.data(),
    samples=st.sampled_from([1, 2, 3, 30]),
    classes=st.integers(1, 7),
    dim=st.sampled_from([4, 12]),
    seed=st.integers(0, 99),
    block=st.sampled_from([1, 50, 2**23]),
)
def test_answers_are_the_formula_for_any_settings_and_any_blocks(method, data, samples, classes, dim, seed, block):
    settings = data.draw(settings_of(method))
    head, features = example(samples, classes, dim, seed)
    evidence = head.observe(features)
    expected = REFERENCES[method](evidence.features, head.class_vectors, evidence.logits, **settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collection, "BLOCK_PAIRS", block)
        answers = create(method, head, **settings).second_pass(features)
    np.testing.assert_allclose(centred(answers), centred(expected), rtol=1e-5, atol=1e-5)


@methods
def test_single_samples_are_answered_zero_shot_and_teach_nothing(method):
    head, features = example()
    adapter = create(method, head)
    before = adapter.second_pass(features[:20])
    np.testing.assert_array_equal(adapter.step(features), head.observe(features).logits)
    np.testing.assert_array_equal(adapter.second_pass(features[:20]), before)


@methods
def test_equal_samples_get_equal_answers_and_more_of_them_than_neighbours_do_no_harm(method):
    head, features = example(samples=4)
    answers = create(method, head).second_pass(np.tile(features, (10, 1)))
    assert np.isfinite(answers).all()
    assert (answers.argmax(axis=1).reshape(10, 4) == answers.argmax(axis=1)[:4]).all()


@methods
def test_a_set_of_equal_samples_is_answered(method):
    head, features = example(samples=1)
    answers = create(method, head).second_pass(np.tile(features, (30, 1)))
    assert (answers.argmax(axis=1) == head.observe(features).predicted[0]).all()


@methods
def test_torch_and_single_precision_answer_as_numpy_does(method):
    torch = pytest.importorskip("torch")
    head, features = example(samples=60)
    expected = create(method, head).second_pass(features)
    answers = create(method, head.to(torch.empty(0))).second_pass(torch.asarray(features, dtype=torch.float32))
    assert isinstance(answers, torch.Tensor)
    np.testing.assert_allclose(centred(to_host(answers)), centred(expected), rtol=1e-3, atol=1e-3)


@methods
def test_views_are_averaged(method):
    head, features = example()
    views = features[:, None] + 0.01 * np.random.default_rng(0).standard_normal((40, 10, 12))
    kept = head.observe(views).features
    answers = create(method, head).second_pass(views)
    expected = REFERENCES[method](kept, head.class_vectors, head.observe(views).logits)
    np.testing.assert_allclose(centred(answers), centred(expected), rtol=1e-5, atol=1e-5)


@methods
def test_a_corrected_sample_gets_its_class(method):
    head, features = example()
    adapter = create(method, head)
    wrong = (adapter.second_pass(features).argmax(axis=1) + 1) % 5
    adapter.corrections.correct(features[:3], wrong[:3])
    assert (adapter.second_pass(features)[:3].argmax(axis=1) == wrong[:3]).all()


def test_the_second_pass_of_the_default_has_no_order_either():
    no_order(Trial(list_methods()["accord"]))


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("stata", {"alpha": 0.0}),
        ("stata", {"iterations": 0}),
        ("stata", {"neighbours": -1}),
        ("transclip", {"tau": 0.0}),
        ("transclip", {"confident": 0}),
        ("transclip", {"label_iterations": 0}),
        ("zlap", {"alpha": 1.0}),
        ("zlap", {"neighbours": 0}),
        ("zlap", {"gamma": -1.0}),
    ],
)
def test_settings_that_mean_nothing_are_refused(method, settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        create(method, example()[0], **settings)


@methods
def test_answers_on_real_features_equal_the_formula(clip_stream, method):
    drawn = np.random.default_rng(0).permutation(len(clip_stream))[:250]
    features = np.asarray(clip_stream.features[drawn], np.float32)
    head = clip_stream.head
    exact = head.to(np.empty(0, np.float64)).observe(features.astype(np.float64))
    expected = REFERENCES[method](exact.features, exact_vectors(head), exact.logits).argmax(axis=1)
    assert (create(method, head).second_pass(features).argmax(axis=1) == expected).sum() >= 249


def exact_vectors(head):
    return to_host(head.to(np.empty(0, np.float64)).class_vectors)
