import inspect
from dataclasses import dataclass

import numpy as np
import pytest

import acclimate
from acclimate import TDA, Adapter, Head, Step, create, list_methods, register, state_to_bytes
from acclimate.checks.synthetic import shifted_stream
from acclimate.errors import InputError
from acclimate.methods import require


def test_methods_are_found_by_name(stream):
    assert set(list_methods()) >= {"tda", "zero-shot"}
    assert isinstance(create("tda", stream.head, positive_alpha=1), TDA)
    with pytest.raises(InputError, match="unknown method 'tad'; did you mean 'tda'"):
        create("tad", stream.head)
    with pytest.raises(InputError, match="unknown method 'qqq'; there are: accord, bca, boost, cocoop, coop, difftpt"):
        create("qqq", stream.head)


def test_anybody_can_register_a_method(stream, monkeypatch):
    monkeypatch.setattr("acclimate.methods.registry._REGISTRY", list_methods())

    @register
    class Doubled(Adapter):
        name = "doubled"
        summary = "twice the logits"

        def respond(self, evidence, ids, learn):
            return Step(2 * evidence.logits)

    doubled = create("doubled", stream.head)
    plain = create("zero-shot", stream.head)
    np.testing.assert_allclose(doubled.step(stream.features), 2 * plain.step(stream.features))
    with pytest.raises(InputError, match="states of 'doubled' cannot be merged"):
        acclimate.merge_states([doubled, doubled])


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (np.ones(32), r"got shape \(32,\). Put one sample in a batch of one"),
        (np.ones((2, 3, 4, 32)), r"got shape \(2, 3, 4, 32\)"),
        (np.ones((5, 31)), "features have dim 31, the class vectors 32. Were they made by another model"),
        (np.ones((32, 5)), "features have dim 5, the class vectors 32. .* are they transposed"),
        (np.ones((0, 32)), r"no samples: features have shape \(0, 32\)"),
        (np.ones((5, 0, 32)), "no samples"),
        (np.ones((5, 32), np.int32), "features must be floating point"),
        (np.full((5, 32), np.nan), "features: row 0 holds NaN"),
        (None, r"got shape \(\)"),
        ("cat.jpg", "features cannot be read"),
    ],
)
def test_features_that_cannot_be_used(stream, features, message):
    adapter = TDA(stream.head)
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
        ({"class_names": ["a", "b", "a"]}, "class names must differ; 'a' is duplicated"),
        ({"class_names": ["a", "b", 3]}, "class names must be strings"),
    ],
)
def test_class_vectors_that_cannot_be_used(arguments, message):
    given = {"class_vectors": np.eye(3), "logit_scale": 10.0} | arguments
    with pytest.raises(InputError, match=message):
        Head(**given)


def test_ids_must_be_one_per_sample(stream):
    adapter = TDA(stream.head)
    for ids in ([1, 2], 3, ["a"] * 400, np.zeros(400)):
        with pytest.raises(InputError, match="ids must be 400 whole numbers"):
            adapter.step(stream.features, ids=ids)
    adapter.step(stream.features, ids=range(1000, 1400))
    assert min(entry.id for entry in adapter.entries()["positive"]) >= 1000
    assert adapter.next_id == 1 + max(entry.id for listed in adapter.entries().values() for entry in listed)


def test_removed_classes_are_forgotten_and_the_others_stay(stream):
    adapter = TDA(stream.head)
    adapter.step(stream.features)
    before = adapter.dump()
    adapter.remove_classes(["class 2", "class 5"])
    after = adapter.dump()
    kept = ~np.isin(before["positive.classes"], [2, 5])
    assert np.array_equal(after["positive.keys"], before["positive.keys"][kept])
    assert adapter.head.class_names == ("class 0", "class 1", "class 3", "class 4", "class 6", "class 7")
    adapter.add_classes(stream.head.class_vectors[2:3], ["class 2"])
    assert adapter.head.class_names[-1] == "class 2"
    assert np.array_equal(adapter.dump()["positive.keys"], after["positive.keys"])
    assert adapter.step(stream.features).shape == (400, 7)


def test_class_changes_that_make_no_sense(stream):
    adapter = TDA(stream.head)
    with pytest.raises(InputError, match="no class named 'class 99' to remove; did you mean"):
        adapter.remove_classes(["class 99"])
    with pytest.raises(InputError, match="keep at least one"):
        adapter.remove_classes(stream.head.class_names)
    with pytest.raises(InputError, match="class names must differ"):
        adapter.add_classes(stream.head.class_vectors[:1], ["class 0"])
    with pytest.raises(InputError, match="new class vectors have dim 16, the head 32"):
        adapter.add_classes(stream.head.class_vectors[:1, :16], ["new"])
    assert adapter.head.class_names == stream.head.class_names


def test_an_adapter_says_what_it_is(stream):
    adapter = TDA(stream.head)
    adapter.step(stream.features)
    adapter.freeze()
    assert "samples_seen=400, frozen, positive=True, positive_capacity=3" in repr(adapter)
    assert repr(create("zero-shot", Head(np.eye(2), logit_scale=1))) == "ZeroShot(classes=2, dim=2, samples_seen=0)"


def test_settings_are_in_the_signature():
    parameters = inspect.signature(TDA).parameters
    assert parameters["positive_capacity"].default == 3
    assert parameters["positive_alpha"].annotation is float
    assert set(TDA.default_settings()) == set(parameters) - {"head", "origin"}


def test_numpy_scalars_and_optional_settings_are_accepted(stream):
    @dataclass(eq=False, repr=False, kw_only=True)
    class Tempered(Adapter):
        name = "tempered"
        summary = "logits over a temperature, if there is one"
        temperature: float | None = None

        def respond(self, evidence, ids, learn):
            return Step(evidence.logits / (self.temperature or 1.0))

    for alpha in np.linspace(1, 2, 3):
        adapter = TDA(stream.head, positive_alpha=alpha, positive_capacity=np.int64(2), positive=np.bool_(True))
        assert type(adapter.positive_alpha) is float
        assert type(adapter.positive_capacity) is int
        assert adapter.positive is True
    assert Tempered(stream.head).settings == {"temperature": None}
    assert Tempered(stream.head, temperature=2).settings == {"temperature": 2}
    with pytest.raises(InputError, match="temperature must be a number or None, got 'hot'"):
        Tempered(stream.head, temperature="hot")


def test_an_adapter_needs_a_head(stream):
    with pytest.raises(InputError, match=r"an adapter needs a Head, got ndarray; write Head\(class_vectors"):
        TDA(stream.head.class_vectors)


def test_needs_of_a_method_are_reported_before_the_work(stream):
    class Hungry(Adapter):
        name = "hungry"
        summary = "needs everything"
        needs = frozenset({"views", "text", "labels"})

        def respond(self, evidence, ids, learn):
            return Step(evidence.logits)

    require(Hungry, views=True, text=True, labels=True)
    for there, message in (
        ({}, "to be fitted to labelled samples first"),
        ({"labels": True}, "the text tower of a model"),
        ({"labels": True, "text": True}, "several views per image"),
    ):
        with pytest.raises(InputError, match=f"the method 'hungry' needs {message}"):
            require(Hungry, **there)


def test_a_period_cuts_batches_and_joins_what_happened(stream):
    class Periodic(TDA):
        name = "periodic"
        seen_sizes = ()

        def next_flush(self, seen):
            return (seen // 30 + 1) * 30

        def respond(self, evidence, ids, learn):
            self.seen_sizes += (len(ids),)
            return super().respond(evidence, ids, learn)

    periodic = Periodic(stream.head)
    plain = TDA(stream.head)
    for part in (slice(0, 20), slice(20, 100)):
        evidence = stream.head.observe(stream.features[part])
        one = periodic.adapt(evidence)
        other = plain.adapt(evidence)
        np.testing.assert_allclose(one.logits, other.logits, atol=1e-5)
        assert one.changes == other.changes
    assert periodic.seen_sizes == (20, 10, 30, 30, 10)


def test_refine_answers_the_stream_again_from_everything_learnt_and_changes_nothing():
    stream = shifted_stream(samples=150, classes=4, dim=12, seed=1)
    for name, settings in (("tda", {}), ("dota", {"rounds": 0}), ("zero-shot", {})):
        adapter = create(name, stream.head, **settings)
        frozen = create(name, stream.head, **settings)
        adapter.step(stream.features)
        frozen.step(stream.features)
        frozen.flush()  # DOTA's last samples wait for the end of their block
        before = state_to_bytes(adapter)
        answers = adapter.second_pass(stream.features.astype(np.float16))
        assert answers.dtype == np.float16
        np.testing.assert_allclose(answers, frozen.step(stream.features, learn=False), atol=0.2)
        assert state_to_bytes(adapter) == before
