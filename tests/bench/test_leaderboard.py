import csv
from collections import defaultdict
from dataclasses import replace
from functools import partial
from math import isfinite

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate import create, list_methods, refine
from acclimate.bench.leaderboard import (
    DEFAULT_SHAPES,
    Standing,
    csv_row,
    measure,
    plan_board,
    standings,
    summary_rows,
)
from acclimate.bench.orders import SHAPES, shape_title, stream_order
from acclimate.bench.prequential import compare
from acclimate.bench.results import points, score_all, write_csv
from acclimate.bench.scoring import expected_calibration_error, squared_errors
from acclimate.checks.synthetic import shifted_stream
from acclimate.errors import InputError
from acclimate.stream import write_stream

STREAM = shifted_stream(samples=20, classes=3, dim=4)
(SCORE,) = score_all("a", STREAM, compare(STREAM, []))
SCORES = st.builds(
    partial(replace, SCORE),
    dataset=st.sampled_from(["a", "b"]),
    order=st.sampled_from(["seed:1", "long-tail:0", "first-200:3"]),
    method=st.sampled_from(["tda", "dota"]),
    passes=st.integers(1, 2),
    metrics=st.fixed_dictionaries({"acc1": st.floats(0, 1)}),
    gain=st.floats(-1, 1),
    ece=st.floats(0, 1),
    brier=st.floats(0, 2),
    cost=st.fixed_dictionaries({"us_per_sample": st.floats(0, 100), "state_bytes": st.integers(0, 10**9)}),
)


@pytest.fixture
def paths(tmp_path):
    """Return two streams of 300 samples: two domains and eight classes; three classes and no domains."""
    first = shifted_stream(samples=300, classes=8, dim=16, seed=1)
    write_stream(replace(first, domains=("near",) * 100 + ("far",) * 200), tmp_path / "many.safetensors")
    write_stream(shifted_stream(samples=150, classes=3, dim=16, seed=2), tmp_path / "three.safetensors")
    return [tmp_path / "many.safetensors", tmp_path / "three.safetensors"]


@given(st.lists(SCORES, min_size=1, max_size=40))
def test_the_means_of_the_shapes_count_the_same(scores):
    naive = defaultdict(lambda: defaultdict(list))
    for score in scores:
        title = score.method + (", second pass" if score.passes == 2 else "")
        naive[title][score.shape].append(score)
    board = standings(scores)
    assert {standing.title for standing in board} == set(naive)
    for standing, row in zip(board, summary_rows(board), strict=True):
        shapes = naive[standing.title]
        every = [score for each in shapes.values() for score in each]
        for column in ("gain", "ece", "brier", "us_per_sample", "acc1"):
            means = [sum(csv_row(score)[column] for score in each) / len(each) for each in shapes.values()]
            assert standing.mean(column) == pytest.approx(sum(means) / len(means))
        for shape, each in shapes.items():
            mean, lowest = standing.gains(shape)
            assert mean == pytest.approx(sum(score.gain for score in each) / len(each))
            assert lowest == min(score.gain for score in each)
        assert standing.worst.gain == min(score.gain for score in every)
        assert row[:2] == (standing.title, points(standing.mean("gain")))
        assert list(standing.shapes) == [shape for shape in SHAPES if shape in shapes]
    means = [standing.mean("gain") for standing in board]
    assert means == sorted(means, reverse=True)


@pytest.mark.parametrize("order", ["seed:1", "few-classes:2", "domain-shift:0"])
def test_the_scores_of_a_run(paths, order):
    stream = plan_board(paths).streams["many"]
    taken = stream_order(stream, order)
    labels = stream.labels[taken]
    scores = measure(paths[0], order, ("tda", "dota"), None, passes=2)
    assert [(score.method, score.passes) for score in scores] == [
        *(("zero-shot", 1), ("tda", 1), ("tda", 2), ("dota", 1), ("dota", 2))
    ]
    for score in scores:
        adapter = create(score.method, stream.head)
        logits = adapter.step(stream.features[taken])
        if score.passes == 2:
            logits = refine(adapter, stream.features[taken])
        probs = np.exp(logits - logits.max(axis=1, keepdims=True))
        probs /= probs.sum(axis=1, keepdims=True)
        right = logits.argmax(axis=1) == labels
        assert (score.stream, f"{score.shape}:{score.seed}", score.samples) == ("many", order, len(taken))
        assert score.accuracy == pytest.approx(right.mean())
        assert score.gain == pytest.approx(score.accuracy - scores[0].accuracy)
        assert score.ece == pytest.approx(expected_calibration_error(probs.max(axis=1), right), abs=1e-5)
        assert score.brier == pytest.approx(squared_errors(probs, labels).mean(), abs=1e-5)
        assert score.cost["state_bytes"] == sum(values.nbytes for values in adapter.dump().values())
    assert scores[0].gain == scores[0].cost["state_bytes"] == 0
    assert all(isfinite(score.cost["us_per_sample"]) for score in scores)


def test_impossible_runs_are_left_out_and_listed(paths):
    plan = plan_board(paths, orders=2)
    taken = {(task.keywords["path"].stem, task.keywords["order"].partition(":")[0]) for task in plan.tasks}
    assert taken == {
        *(("many", shape) for shape in DEFAULT_SHAPES),
        *(("three", shape) for shape in ("seed", "class-sequential", "correlated", "long-tail")),
    }
    assert len(plan.tasks) == 2 * len(taken)
    on_views = [name for name, method in list_methods().items() if method.needs == {"views"}]
    assert {"mta", "zero"} <= set(on_views)
    few_shot = [name for name, method in list_methods().items() if method.kind == "few-shot"]
    unfit = dict.fromkeys(on_views, "needs views in every stream")
    unfit |= dict.fromkeys(few_shot, "fitted to labelled samples")
    unfit |= dict.fromkeys(("difftpt", "tpt"), "needs text and views")
    others = [name for name in list_methods() if name not in ("zero-shot", *unfit)]
    assert {task.keywords["methods"] for task in plan.tasks} == {tuple(others)}
    assert plan.notes == (
        *(f"The method {name} ({why})." for name, why in sorted(unfit.items())),
        "Few classes: three (fewer than 4 classes).",
        "Half classes: three (fewer than 4 classes).",
        "Domain shift: three (fewer than two domains).",
        "First 200: three (no more than 200 samples).",
    )
    with pytest.raises(InputError, match=r"unknown shape 'long-tails'; did you mean 'long-tail'"):
        plan_board(paths, shapes=["long-tails"])
    with pytest.raises(InputError, match=r"no stream can take these shapes.* Domain shift: three"):
        plan_board(paths[1:], shapes=["domain-shift"])
    with pytest.raises(InputError, match=r"no method can run\. The method zero"):
        plan_board(paths, ["zero"])


def test_methods_on_views_run_where_all_streams_have_views(tmp_path, paths):
    stream = shifted_stream(samples=60, classes=4, dim=8)
    views = tmp_path / "views.safetensors"
    write_stream(replace(stream, features=np.repeat(stream.features[:, None], 3, axis=1)), views)
    assert {"mta", "zero"} <= set(plan_board([views]).tasks[0].keywords["methods"])
    assert not {"mta", "zero"} & set(plan_board([views, *paths]).tasks[0].keywords["methods"])
    scores = measure(views, "seed:0", ("zero",), None, passes=2)
    assert [score.passes for score in scores] == [1, 1]  # nothing is learnt, so there is nothing to refine


def test_a_limit_takes_samples_of_the_whole_stream(paths):
    stream = plan_board(paths, limit=60).streams["many"]
    assert len(stream) == len(stream.labels) == len(stream.domains) == 60
    assert set(stream.domains) == {"near", "far"}
    assert {score.samples for score in measure(paths[0], "seed:0", ("prior",), 60, 1)} == {60}


def test_processes_change_nothing_but_the_times(paths, tmp_path):
    plan = plan_board(paths, ["tda", "dota"], ("seed", "long-tail"), orders=2, passes=2)
    lines = []
    for jobs in (1, 2):
        write_csv(list(map(csv_row, plan.run(jobs))), tmp_path / "scores.csv")
        with (tmp_path / "scores.csv").open() as file:
            lines.append([{**row, "us_per_sample": ""} for row in csv.DictReader(file)])
    assert lines[0] == lines[1]
    assert len(lines[0]) == len(plan.tasks) * 5


def test_texts():
    boards = [Standing("tda", (replace(SCORE, cost={"state_bytes": size}),)) for size in (0, 999, 1600, 5_015_104)]
    assert [standing.size for standing in boards] == ["0 B", "999 B", "1.6 kB", "5.0 MB"]
    assert [shape_title(shape) for shape in ("seed", "long-tail")] == ["shuffled", "long tail"]
