from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate.arrays import unit_rows
from acclimate.bench.compare import compare, sweep
from acclimate.bench.results import summarise
from acclimate.checks.synthetic import shifted_stream
from acclimate.errors import InputError
from acclimate.views import REDUCERS


def test_zero_shot_stands_beside_every_method(stream):
    done = []
    outcomes = compare(stream, {"tda": {}}, ["seed:0", "seed:1"], batch_size=64, progress=done.append)
    assert list(outcomes) == ["zero-shot", "tda"]
    assert list(outcomes["tda"].runs) == ["seed:0", "seed:1"]
    assert sum(done) == 3 * 400
    result = summarise("shifted", stream, outcomes["tda"], outcomes["zero-shot"])
    by_hand = [np.mean(run.predictions == stream.labels[run.order]) for run in outcomes["tda"].runs.values()]
    assert result.mean("acc1") == pytest.approx(np.mean(by_hand))
    assert result.spread()["sd"] == pytest.approx(np.std(by_hand, ddof=1))
    assert result.spread()["worst_tenth"] == pytest.approx(min(by_hand))
    assert result.gain == pytest.approx(np.mean(by_hand) - result.baseline["acc1"])
    assert 0 < result.changes["changed"] < 1
    assert result.changes["helpful"] - result.changes["harmful"] == pytest.approx(result.gain)


def test_devices_agree(stream):
    pytest.importorskip("torch")
    on_numpy, on_torch = (
        compare(stream, {"tda": {}}, device=device)["tda"].runs["stored"] for device in ("numpy", "cpu")
    )
    assert np.array_equal(on_numpy.predictions, on_torch.predictions)
    for device in ("cuda:99", "toaster"):
        with pytest.raises(InputError, match=f"device '{device}' cannot be used here"):
            compare(stream, {}, device=device)


def test_many_settings_over_one_pass_answer_as_each_alone(stream):
    settings = [{}, {"positive_alpha": 4.0}, {"negative": False}, {"positive_capacity": 6}]
    zero_shot, outcomes = sweep(stream, [("tda", each) for each in settings], ["seed:0", "seed:1"], batch_size=37)
    assert list(zero_shot.runs) == ["seed:0"]
    for each, outcome in zip(settings, outcomes, strict=True):
        alone = compare(stream, {"tda": each}, ["seed:0", "seed:1"])["tda"]
        for order, run in outcome.runs.items():
            assert np.array_equal(run.predictions, alone.runs[order].predictions)
            np.testing.assert_allclose(run.confidence, alone.runs[order].confidence, rtol=1e-4)
    assert sweep(stream, [], ["seed:0", "seed:1"])[1] == []


@given(st.integers(2, 12), st.integers(0, 20))
def test_the_top_five_are_the_five_highest(classes, seed):
    stream = shifted_stream(samples=30, classes=classes, dim=8, seed=seed)
    top = compare(stream, {})["zero-shot"].runs["stored"].top
    logits = stream.features @ stream.class_vectors.T
    assert np.array_equal(top, np.argsort(-logits, axis=1)[:, :5])


@pytest.mark.parametrize("reducer", sorted(REDUCERS))
def test_views_are_reduced_and_adapted(stream, reducer):
    rng = np.random.default_rng(0)
    noise = 0.1 * rng.standard_normal((400, 8, 32))
    noise[:, 0] = 0
    views = replace(stream, features=(stream.features[:, None] + noise).astype(np.float16))
    outcomes = compare(views, {"tda": {}}, batch_size=64, reducer=reducer)
    by_hand = REDUCERS[reducer](
        unit_rows(views.features.astype(np.float32), "views"), stream.class_vectors, stream.logit_scale, 0.0
    )
    assert np.array_equal(outcomes["zero-shot"].runs["stored"].predictions, by_hand.logits.argmax(axis=1))
    result = summarise("views", views, outcomes["tda"], outcomes["zero-shot"])
    assert (result.views, result.reducer) == (8, reducer)
    with pytest.raises(InputError, match="unknown reducer 'median'; there are: confident-mean"):
        compare(views, {}, reducer="median")


def test_tda_recovers_from_the_synthetic_shift():
    stream = shifted_stream()
    outcomes = compare(stream, {"tda": {}})
    before, after = (outcomes[name].runs["stored"].correct for name in ("zero-shot", "tda"))
    assert before[:1000].mean() > before[1000:].mean() + 0.2  # the shift is visible
    assert after[1000:].mean() > before[1000:].mean() + 0.1  # and adapting helps after it
