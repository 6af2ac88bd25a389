from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate import create, list_methods
from acclimate.bench.few_shot import Curve, curves, halve, measure, plan_few_shot
from acclimate.bench.prequential import Variant, compare
from acclimate.bench.results import score_all
from acclimate.checks.synthetic import shifted_stream
from acclimate.errors import InputError
from acclimate.sources.source import draw_shots
from acclimate.stream import read_stream, write_stream

VARIANTS = [Variant("zero-shot"), Variant("tda"), Variant("tip-adapter"), Variant("tip-adapter-f", {"epochs": 3})]


@pytest.fixture
def paths(tmp_path):
    """Return two labelled streams: one with 10 samples or more of each class in each half, one with fewer."""
    write_stream(shifted_stream(samples=300, classes=6, dim=16, seed=1), tmp_path / "long.safetensors")
    write_stream(shifted_stream(samples=40, classes=4, dim=16, seed=2), tmp_path / "short.safetensors")
    return [tmp_path / "long.safetensors", tmp_path / "short.safetensors"]


@given(samples=st.integers(4, 80), classes=st.integers(1, 5), seed=st.integers(0, 9))
def test_halves_share_no_sample_and_have_half_of_every_class(samples, classes, seed):
    stream = shifted_stream(samples=samples, classes=classes, dim=4, seed=seed)
    order = np.random.default_rng(seed).permutation(samples)
    stream = replace(stream, order=order)
    drawn, scored = halve(stream, seed)
    assert sorted([*drawn, *scored]) == list(range(samples))
    counts = [np.bincount(stream.labels[half], minlength=classes) for half in (drawn, scored)]
    assert set(counts[0] - counts[1]) <= {0, 1}
    assert scored.tolist() == [position for position in order if position in set(scored)]
    np.testing.assert_array_equal(drawn, halve(stream, seed)[0])


@pytest.mark.parametrize("held_out", [None, 0, 2])
def test_the_scores_of_a_run(paths, held_out):
    scores = measure(paths[0], 5, (1, 4), VARIANTS, held_out)
    keys = [("zero-shot", 0), ("tda", 0), *((name, n) for name in ("tip-adapter", "tip-adapter-f") for n in (1, 4))]
    assert [(score.method, score.learnt["fit"]["shots"]) for score in scores] == keys
    stream = read_stream(paths[0])
    drawn, scored = halve(stream, 5)
    for score in scores:
        adapter = create(score.method, stream.head, **({"epochs": 3} if score.method == "tip-adapter-f" else {}))
        fit = score.learnt["fit"]
        if fit["shots"]:
            most = len(drawn) if held_out is None else held_out
            shots, rest = draw_shots(stream.labels[drawn], stream.head.class_names, fit["shots"], 5, most)
            assert not set(drawn[shots]) & set(drawn[rest])
            assert len(rest) == fit["validation"] == (6 * held_out if held_out is not None else len(drawn) - len(shots))
            validation = (stream.features[drawn[rest]], stream.labels[drawn[rest]]) if len(rest) else None
            adapter.fit(stream.features[drawn[shots]], stream.labels[drawn[shots]], validation=validation)
            assert {"alpha": fit["alpha"], "beta": fit["beta"]} == adapter.chosen()
        right = adapter.step(stream.features[scored]).argmax(axis=1) == stream.labels[scored]
        assert (score.stream, score.seed, score.samples) == ("long", 5, len(scored))
        assert score.accuracy == pytest.approx(right.mean())
        assert score.gain == pytest.approx(score.accuracy - scores[0].accuracy)
    assert scores[0].gain == 0
    assert scores[0].learnt["fit"]["alpha"] is scores[1].learnt["fit"]["alpha"] is None


def test_classes_with_fewer_samples_are_used_and_listed(paths):
    plan = plan_few_shot(paths, VARIANTS, [10, 1], seeds=2)
    assert [tuple(task.keywords[name] for name in ("path", "seed", "shots")) for task in plan.tasks] == [
        (path, seed, (1, 10)) for path in paths for seed in (0, 1)
    ]
    (sentence,) = plan.notes
    assert sentence.startswith("short at 10 shots: 4 of 4 classes give fewer, ")
    assert [score.learnt["fit"]["shots"] for score in plan.tasks[-1]()] == [0, 0, 1, 10, 1, 10]
    with pytest.raises(InputError, match=r"no class has 99 samples in its half of a stream; choose at most \d+ "):
        plan_few_shot(paths, VARIANTS, [1, 10, 99])
    stream = read_stream(paths[1])
    write_stream(replace(stream, labels=np.minimum(stream.labels, 2)), paths[1])
    with pytest.raises(InputError, match="short has no sample of the class 'class 3'; every class needs one"):
        plan_few_shot(paths, VARIANTS, [1])


def test_methods_that_cannot_run_are_refused(paths, monkeypatch):
    with pytest.raises(InputError, match="none of these methods learns from labelled samples"):
        plan_few_shot(paths, [Variant("tda")], [1])
    with pytest.raises(InputError, match="the method 'zero' needs several views"):
        plan_few_shot(paths, [Variant("zero"), Variant("tip-adapter")], [1])
    monkeypatch.setattr(list_methods()["tip-adapter"], "needs", frozenset({"labels", "text"}))
    with pytest.raises(InputError, match="the method 'tip-adapter' needs the text tower of a model"):
        plan_few_shot(paths, [Variant("tip-adapter")], [1])


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([0, 1]), st.floats(0, 1)), min_size=1, max_size=20))
def test_means_are_over_streams_and_deviations_over_seeds(rows):
    known = {(stream, seed): acc1 for stream, seed, acc1 in rows}
    stream = shifted_stream(samples=20, classes=3, dim=4)
    (base,) = score_all("a", stream, compare(stream, []))
    base = replace(base, method="tip-adapter", learnt={"fit": {"shots": 2}})
    scores = [replace(base, dataset=name, seed=seed, metrics={"acc1": a}) for (name, seed), a in known.items()]
    (curve,) = curves(scores)
    assert curve == Curve("tip-adapter", tuple(scores))
    assert curve.shots == (2,)
    by_seed = {seed: [a for (_, each), a in known.items() if each == seed] for _, seed in known}
    means = [sum(each) / len(each) for each in by_seed.values()]
    mean, sd = curve.accuracy(2, ["a", "b"])
    assert mean == pytest.approx(sum(means) / len(means))
    assert sd == (pytest.approx(abs(means[0] - means[1]) / np.sqrt(2)) if len(means) == 2 else None)
