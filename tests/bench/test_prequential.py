from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate.bench.prequential import Variant, compare
from acclimate.bench.results import summarise
from acclimate.checks.synthetic import shifted_stream
from acclimate.errors import InputError
from acclimate.evidence import Head
from acclimate.methods import Adapter, Step, create, observed, register

TDA = Variant("tda")


def test_zero_shot_runs_with_every_method(stream):
    done = []
    zero_shot, tda = compare(stream, [TDA], ["shuffled:0", "shuffled:1"], batch_size=64, progress=done.append)
    assert (zero_shot.variant.method, tda.variant) == ("zero-shot", TDA)
    assert list(zero_shot.runs) == list(tda.runs) == ["shuffled:0", "shuffled:1"]
    assert sum(done) == 4 * 400
    result = summarise("shifted", stream, tda, zero_shot)
    by_hand = [np.mean(run.predictions == stream.targets[run.order]) for run in tda.runs.values()]
    assert result.metrics["acc1"] == pytest.approx(np.mean(by_hand), abs=1e-6)
    assert result.orders["sd"] == pytest.approx(np.std(by_hand, ddof=1), abs=1e-6)
    assert result.orders["worst_tenth"] == pytest.approx(min(by_hand), abs=1e-6)
    assert result.gain == pytest.approx(np.mean(by_hand) - result.baseline["acc1"], abs=1e-6)
    assert 0 < result.changed < 1
    assert result.helpful - result.harmful == pytest.approx(result.gain, abs=1e-5)


def test_zero_shot_does_not_depend_on_the_order(stream):
    (zero_shot,) = compare(stream, [], ["shuffled:0", "shuffled:1"])
    first, second = (run.predictions[np.argsort(run.order)] for run in zero_shot.runs.values())
    assert np.array_equal(first, second)


def test_devices_agree(stream):
    pytest.importorskip("torch")
    on_numpy, on_torch = (compare(stream, [TDA], device=device)[1].runs["stored"] for device in ("numpy", "cpu"))
    assert np.array_equal(on_numpy.predictions, on_torch.predictions)
    for device in ("cuda:99", "toaster"):
        with pytest.raises(InputError, match=f"cannot use device '{device}'"):
            compare(stream, [], device=device)


def test_many_settings_in_one_pass_answer_as_each_alone(stream):
    settings = [{}, {"positive_alpha": 4.0}, {"negative": False}, {"positive_capacity": 6}]
    variants = [Variant("tda", each) for each in settings]
    _, *outcomes = compare(stream, variants, ["shuffled:0", "shuffled:1"], batch_size=37)
    for variant, outcome in zip(variants, outcomes, strict=True):
        alone = compare(stream, [variant], ["shuffled:0", "shuffled:1"])[1]
        for order, run in outcome.runs.items():
            assert np.array_equal(run.predictions, alone.runs[order].predictions)
            np.testing.assert_allclose(run.confidence, alone.runs[order].confidence, rtol=1e-4)


@given(st.integers(2, 12), st.integers(0, 20))
def test_the_top_five_are_the_five_highest(classes, seed):
    stream = shifted_stream(samples=30, classes=classes, dim=8, seed=seed)
    top = compare(stream, [])[0].runs["stored"].top
    logits = stream.features @ stream.head.class_vectors.T
    assert np.array_equal(top, np.argsort(-logits, axis=1)[:, :5])


@pytest.fixture
def views(stream):
    """Return the stream with eight views per sample, in float16 as a store keeps them."""
    noise = 0.1 * np.random.default_rng(0).standard_normal((400, 8, 32))
    noise[:, 0] = 0
    return replace(stream, features=(stream.features[:, None] + noise).astype(np.float16))


@pytest.mark.parametrize("method", ["tda", "dota", "prior", "zero", "mta"])
def test_every_method_answers_views_as_it_does_alone(views, method):
    zero_shot, outcome = compare(views, [Variant(method)], batch_size=64)
    assert np.array_equal(
        zero_shot.runs["stored"].predictions, views.head.observe(views.features).logits.argmax(axis=1)
    )
    alone = create(method, views.head).step(views.features)
    assert np.array_equal(outcome.runs["stored"].predictions, alone.argmax(axis=1))
    result = summarise("views", views, outcome, zero_shot)
    assert (result.method, result.views) == (method, 8)


def test_a_variant_is_checked_at_once():
    with pytest.raises(InputError, match="unknown method 'tad'; did you mean 'tda'"):
        Variant("tad")
    with pytest.raises(InputError, match="'dota' has no setting 'positive_alpha'"):
        Variant("dota", {"positive_alpha": 1.0})
    assert type(Variant("tda", {"positive_capacity": np.int64(2)}).config["positive_capacity"]) is int
    assert Variant("dota", {"rate": 0.1}).config == {**create("dota", Head(np.eye(2), 1.0)).settings, "rate": 0.1}


def test_the_second_pass_answers_from_everything_learnt(stream):
    done = []
    orders = ["shuffled:0", "class-sequential:0"]
    zero_shot, tda, dota = compare(stream, [TDA, Variant("dota")], orders, progress=done.append, passes=2)
    assert sum(done) == 2 * (3 + 2) * 400
    assert zero_shot.second_pass == {}  # it learns nothing, so there is nothing to add
    for outcome in (tda, dota):
        assert list(outcome.second_pass) == orders
        alone = compare(stream, [outcome.variant], orders)[1]
        assert alone.second_pass == {}
        for order, run in outcome.second_pass.items():
            assert np.array_equal(outcome.runs[order].predictions, alone.runs[order].predictions)
            features = stream.features[run.order]
            adapter = create(outcome.variant.method, stream.head)
            adapter.step(features)
            assert np.array_equal(run.predictions, adapter.second_pass(features).argmax(axis=1))
            assert run.wall_s > 0
    result = summarise("shifted", stream, tda, zero_shot, passes=2)
    assert (result.method, result.passes, result.title) == ("tda", 2, "tda, second pass")
    assert result.metrics["acc1"] == pytest.approx(
        np.mean([run.correct.mean() for run in tda.second_pass.values()]), abs=1e-6
    )


def test_the_second_pass_of_views_and_of_unlabelled_streams(views):
    _, outcome = compare(replace(views, targets=None), [TDA], passes=2)
    adapter = create("tda", views.head)
    adapter.step(views.features)
    expected = adapter.second_pass(views.features)
    assert np.mean(outcome.second_pass["stored"].predictions == expected.argmax(axis=1)) > 0.99
    assert outcome.second_pass["stored"].scores() == {}


@dataclass(eq=False, repr=False, kw_only=True)
class Levelled(Adapter):
    """Zero-shot logits less the mean logits of the set."""

    name = "levelled"
    summary = "zero-shot logits less their mean over the set"
    kind = "collection"

    def respond(self, evidence, ids, learn):
        return Step(evidence.logits)

    def second_pass_blocks(self, features):
        mean = np.concatenate([each.logits for _, each in observed(self.head, features)]).mean(axis=0)
        for _, evidence in observed(self.head, features):
            yield evidence.logits - mean


def test_a_collection_is_answered_once_as_a_whole(stream, own_registry):
    register(Levelled)
    with pytest.raises(InputError, match="'levelled' answers a stream as a whole: --passes 2"):
        compare(stream, [Variant("levelled")])
    done = []
    outcomes = compare(stream, [TDA, Variant("levelled")], ["few-classes:0"], progress=done.append, passes=2)
    run = outcomes[2].runs["few-classes:0"]
    assert sum(done) == len(run.order) * (1 + 2 + 1)
    assert outcomes[2].second_pass == {}
    logits = stream.head.observe(stream.features[run.order]).logits
    assert np.array_equal(run.predictions, (logits - logits.mean(axis=0)).argmax(axis=1))
    alone = compare(stream, [TDA], ["few-classes:0"])[1]
    assert np.array_equal(outcomes[1].runs["few-classes:0"].predictions, alone.runs["few-classes:0"].predictions)
