import numpy as np
import pytest

import acclimate
from acclimate import TDA, Adapter, create, list_methods, register
from acclimate.errors import InputError


def test_methods_are_found_by_name(stream):
    assert set(list_methods()) >= {"tda", "zero-shot"}
    assert isinstance(create("tda", stream.class_vectors, logit_scale=10.0, positive_alpha=1), TDA)
    with pytest.raises(InputError, match="unknown method 'tad'; did you mean 'tda'"):
        create("tad", stream.class_vectors, logit_scale=10.0)
    with pytest.raises(InputError, match="unknown method 'qqq'; there are: tda, zero-shot"):
        create("qqq", stream.class_vectors, logit_scale=10.0)


def test_anybody_can_register_a_method(stream, monkeypatch):
    monkeypatch.setattr("acclimate.methods.base._REGISTRY", list_methods())

    @register
    class Doubled(Adapter):
        name = "doubled"
        summary = "twice the logits"

        def respond(self, evidence, ids, learn):
            return 2 * evidence.logits

    doubled = create("doubled", stream.class_vectors, logit_scale=10.0)
    plain = create("zero-shot", stream.class_vectors, logit_scale=10.0)
    np.testing.assert_allclose(doubled.step(stream.features), 2 * plain.step(stream.features))
    with pytest.raises(InputError, match="states of 'doubled' cannot be merged"):
        acclimate.merge([doubled, doubled])


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (np.ones(32), r"got shape \(32,\). Put one sample in a batch of one"),
        (np.ones((2, 3, 4, 32)), r"got shape \(2, 3, 4, 32\)"),
        (np.ones((5, 31)), "features have dim 31, the class vectors 32. Were they made by another model"),
        (np.ones((32, 5)), "features have dim 5, the class vectors 32. Were they given transposed"),
        (np.ones((0, 32)), r"no samples: features have shape \(0, 32\)"),
        (np.ones((5, 0, 32)), "no samples"),
        (np.ones((5, 32), np.int32), "features must be floating point"),
        (np.full((5, 32), np.nan), "features: row 0 holds NaN"),
        (None, r"got shape \(\)"),
        ("cat.jpg", "features cannot be read"),
    ],
)
def test_features_that_cannot_be_used(stream, features, message):
    adapter = TDA(stream.class_vectors, logit_scale=10.0)
    with pytest.raises(InputError, match=message):
        adapter.step(features)
    assert adapter.samples_seen == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"class_vectors": np.ones((0, 4))}, "at least one class"),
        ({"class_vectors": np.ones(4)}, "at least one class"),
        ({"class_vectors": np.zeros((2, 4))}, "class vectors: row 0 is all zeros"),
        ({"logit_scale": 0}, "logit_scale must be a positive number"),
        ({"logit_scale": float("inf")}, "logit_scale must be a positive number"),
        ({"logit_bias": float("nan")}, "logit_bias a number"),
        ({"class_names": ["a"]}, "1 class names for 3 class vectors"),
        ({"class_names": ["a", "b", "a"]}, "class names must differ; 'a' comes more than once"),
    ],
)
def test_class_vectors_that_cannot_be_used(arguments, message):
    given = {"class_vectors": np.eye(3), "logit_scale": 10.0} | arguments
    with pytest.raises(InputError, match=message):
        TDA(given.pop("class_vectors"), **given)


def test_ids_must_be_one_a_sample(stream):
    adapter = TDA(stream.class_vectors, logit_scale=10.0)
    for ids in ([1, 2], 3, ["a"] * 400, np.zeros(400)):
        with pytest.raises(InputError, match="ids must be one integer a sample: 400 samples"):
            adapter.step(stream.features, ids=ids)
    adapter.step(stream.features, ids=range(1000, 1400))
    assert adapter.dump()["positive.ids"].min() >= 1000


def test_removed_classes_are_forgotten_and_the_others_stay(stream):
    adapter = TDA(stream.class_vectors, logit_scale=10.0, class_names=stream.class_names)
    adapter.step(stream.features)
    before = adapter.dump()
    adapter.remove_classes(["class 2", "class 5"])
    after = adapter.dump()
    kept = ~np.isin(before["positive.classes"], [2, 5])
    assert np.array_equal(after["positive.keys"], before["positive.keys"][kept])
    assert adapter.class_names == ("class 0", "class 1", "class 3", "class 4", "class 6", "class 7")
    adapter.add_classes(stream.class_vectors[2:3], ["class 2"])
    assert adapter.class_names[-1] == "class 2"
    assert np.array_equal(adapter.dump()["positive.keys"], after["positive.keys"])
    assert adapter.step(stream.features).shape == (400, 7)


def test_class_changes_that_make_no_sense(stream):
    adapter = TDA(stream.class_vectors, logit_scale=10.0, class_names=stream.class_names)
    with pytest.raises(InputError, match="no class named 'class 99' to remove; did you mean"):
        adapter.remove_classes(["class 99"])
    with pytest.raises(InputError, match="keep at least one"):
        adapter.remove_classes(stream.class_names)
    with pytest.raises(InputError, match="class names must differ"):
        adapter.add_classes(stream.class_vectors[:1], ["class 0"])
    with pytest.raises(InputError, match="new class vectors have dim 16, the adapter 32"):
        adapter.add_classes(stream.class_vectors[:1, :16], ["new"])
    assert adapter.class_names == stream.class_names


def test_an_adapter_says_what_it_is(stream):
    adapter = TDA(stream.class_vectors, logit_scale=10.0)
    adapter.step(stream.features)
    adapter.freeze()
    assert "samples_seen=400, frozen, positive=True, positive_capacity=3" in repr(adapter)
    assert repr(create("zero-shot", np.eye(2), logit_scale=1)) == "ZeroShot(classes=2, dim=2, samples_seen=0)"
