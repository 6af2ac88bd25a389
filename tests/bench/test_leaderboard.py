from dataclasses import replace
from functools import partial
from itertools import product
from math import isfinite

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate import create, list_methods
from acclimate.bench.board import COLUMNS, METRICS, Board, how_answered
from acclimate.bench.leaderboard import (
    DEFAULT_SHAPES,
    add_to_board,
    measure,
    open_board,
    plan_board,
    summary_rows,
    write_board,
)
from acclimate.bench.measurements import name_files
from acclimate.bench.orders import stream_order
from acclimate.bench.prequential import Variant, compare
from acclimate.bench.results import points, score_all
from acclimate.bench.scoring import expected_calibration_error, squared_errors
from acclimate.checks.synthetic import shifted_stream
from acclimate.errors import InputError
from acclimate.methods import Adapter, find_method
from acclimate.methods.registry import own_methods
from acclimate.stream import write_stream

VARIANTS = (Variant("tda"), Variant("dota"))
SHAPES = ("shuffled", "long-tail", "first-200")
ORDERS = 2


@pytest.fixture
def paths(tmp_path):
    """Return two streams of 300 samples: two domains and eight classes; three classes and no domains."""
    first = shifted_stream(samples=300, classes=8, dim=16, seed=1)
    write_stream(replace(first, domains=("near",) * 100 + ("far",) * 200), tmp_path / "many.safetensors")
    write_stream(shifted_stream(samples=150, classes=3, dim=16, seed=2), tmp_path / "three.safetensors")
    return [tmp_path / "many.safetensors", tmp_path / "three.safetensors"]


def names(plan):
    """Return the methods of a plan."""
    return [each.method for each in plan.tasks[0].keywords["variants"]]


def collections():
    """Return the names of the methods that answer sets."""
    return [name for name, method in list_methods().items() if method.kind == "collection"]


def begin(paths, plan):
    """Return an empty board for a plan, and the runs that it lacks."""
    board = open_board(paths, plan)
    return board, add_to_board(board, plan)


def make_board(gains, unseen=()):
    """Return a board of made-up gains {(method, stream, shape): [one per order]} over zero-shot, which has 50 %."""
    streams = list(dict.fromkeys(stream for _, stream, _ in gains))
    marks = {name: {"sha256": "", "samples": 100, "classes": 2, "unseen": name in unseen} for name in streams}
    board = Board({"streams": marks, "orders": len(next(iter(gains.values())))})
    for (method, stream, shape), each in gains.items():
        board.methods[method] = {"settings": {}, "online": "online", "set": None, "published": ""}
        for title, values in ((method, each), ("zero-shot", [0.0] * len(each))):
            for seed, gain in enumerate(values):
                row = {**dict.fromkeys(COLUMNS, 1.0), "stream": stream, "shape": shape, "seed": seed, "method": title}
                board.rows[stream, shape, seed, title] = row | {"acc1": 0.5 + gain}
    return board


@st.composite
def boards(draw):
    """Return gains, and the board that they make; not all streams take all shapes."""
    cells = [("a/x", "shuffled"), *draw(st.sets(st.sampled_from(list(product(("a/x", "b/x", "y"), SHAPES)))))]
    order = sorted(dict.fromkeys(cells))
    level = st.integers(-4, 4).map(lambda number: number / 16)  # levels are often equal, so that cells are shared
    runs = st.lists(level, min_size=ORDERS, max_size=ORDERS)
    gains = {(method, *cell): draw(runs) for method in ("tda", "dota") for cell in order}
    return gains, make_board(gains)


def naive_mean(gains, method, streams):
    """Return the mean over the shapes of the mean over their runs."""
    by_shape = {}
    for (name, stream, shape), each in gains.items():
        if name == method and stream in streams:
            by_shape.setdefault(shape, []).extend(each)
    means = [sum(each) / len(each) for each in by_shape.values()]
    return sum(means) / len(means) if means else None


@given(boards())
def test_means_cells_and_worst_runs(made):
    gains, board = made
    table = board.standings("online")
    streams = list(board.protocol["streams"])
    cells = list(dict.fromkeys((stream, shape) for _, stream, shape in gains))
    won = dict.fromkeys(table.titles, 0.0)
    for cell in cells:
        means = {"zero-shot": 0.0} | {name: np.mean(gains[(name, *cell)]) for name in ("tda", "dota")}
        best = [name for name, mean in means.items() if mean == max(means.values())]
        for name in best:
            won[name] += 1 / len(best) / len(cells)
    assert sorted(table.titles) == ["dota", "tda", "zero-shot"]
    assert list(table.mean()) == sorted(table.mean(), reverse=True)
    parts = {name: {name} for name in streams}
    if {"a/x", "b/x"} <= set(streams):
        parts["all x"] = {"a/x", "b/x"}
    rest = {title: set(streams) - part for title, part in parts.items() if set(streams) - part}
    assert set(table.without) == set(rest)
    for i, name in enumerate(table.titles):
        assert table.won[i] == pytest.approx(won[name])
        if name == "zero-shot":
            assert table.mean()[i] == 0
            continue
        assert table.mean()[i] == pytest.approx(naive_mean(gains, name, streams))
        assert table.lowest(i)[0] == min(min(each) for (method, *_), each in gains.items() if method == name)
        for title, kept in rest.items():
            assert table.without[title][i] == pytest.approx(naive_mean(gains, name, kept))
        for stream in streams:
            assert table.on([stream])[i] == pytest.approx(naive_mean(gains, name, [stream]))


@given(boards(), st.randoms(use_true_random=False))
def test_a_weight_is_a_number_of_repetitions(made, random):
    gains, board = made
    table = board.standings("online")
    weights = table.taken * [
        [[random.randint(0, 3) for _ in range(ORDERS)] for _ in table.shapes] for _ in table.streams
    ]
    repeated = {}
    for (method, stream, shape), each in gains.items():
        counts = weights[table.streams.index(stream), table.shapes.index(shape)]
        repeated[method, stream, shape] = [gain for gain, n in zip(each, counts, strict=True) for _ in range(int(n))]
    repeated = {key: each for key, each in repeated.items() if each}
    if repeated:
        for i, name in enumerate(table.titles):
            if name != "zero-shot":
                assert table.mean("gain", weights)[i] == pytest.approx(naive_mean(repeated, name, table.streams))


@given(boards())
def test_intervals_hold_the_means_of_the_streams(made):
    table = made[1].standings("online")
    gains, differences = table.intervals
    runs = table.values["gain"]
    for i in range(len(table.titles)):
        lowest = np.nanmin(np.nanmin(runs[i], axis=(0, 2)))
        assert lowest - 1e-9 <= gains[i, 0] <= gains[i, 1] <= np.nanmax(runs[i]) + 1e-9
    assert not differences[0].any()


def test_intervals_are_paired_and_draw_data_sets():
    shapes = ("shuffled", "long-tail")
    alike = {
        (method, stream, shape): [0.1 * number + 0.02 * (method == "dota")]
        for method in ("tda", "dota")
        for number, stream in enumerate("abcd")
        for shape in shapes
    }
    gains, differences = make_board(alike).standings("online").intervals
    assert gains[1, 1] - gains[1, 0] > 0.1  # streams differ
    assert differences[1] == pytest.approx([-0.02, -0.02])  # one method is better than the other by as much everywhere
    opposed = {("tda", "a/x", "shuffled"): [0.1], ("tda", "b/x", "shuffled"): [-0.1], ("tda", "y", "shuffled"): [0.0]}
    assert make_board(opposed).standings("online").intervals[0] == pytest.approx(np.zeros((2, 2)))
    apart = {("tda", "x", "shuffled"): [0.1], ("tda", "z", "shuffled"): [-0.1], ("tda", "y", "shuffled"): [0.0]}
    table = make_board(apart).standings("online")
    low, high = table.intervals[0][table.titles.index("tda")]
    assert low < -0.05 < 0.05 < high


def test_the_main_table():
    gains = {("tda", "a", "shuffled"): [0.3, 0.1], ("tda", "b", "shuffled"): [0.0, -0.04]}
    board = make_board(gains, unseen=["b"])
    headings, first, second = summary_rows(board, board.standings("online"))
    cells = dict(zip(headings, first, strict=True))
    assert cells["mean gain"] == "+9.00"
    assert cells["unseen streams"] == "-2.00"
    assert cells["least without one"] == "-2.00 (a)"
    assert cells["cells won"] == "50 %"
    assert cells["worst run"] == "-4.00 (b, shuffled:1)"
    assert (second[0], second[1]) == ("zero-shot", "each by itself")
    board = make_board(gains)
    assert "unseen streams" not in summary_rows(board, board.standings("online"))[0]


@pytest.mark.parametrize("order", ["shuffled:1", "few-classes:2", "domain-shift:0"])
def test_the_scores_of_a_run(paths, order):
    stream = plan_board(paths).streams["many"]
    taken = stream_order(stream, order)
    labels = stream.targets[taken]
    scores = measure("many", paths[0], order, VARIANTS, None, passes=2)
    assert [(score.method, score.passes) for score in scores] == [
        *(("zero-shot", 1), ("tda", 1), ("tda", 2), ("dota", 1), ("dota", 2))
    ]
    for score in scores:
        adapter = create(score.method, stream.head)
        logits = adapter.step(stream.features[taken])
        if score.passes == 2:
            logits = adapter.second_pass(stream.features[taken])
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
    taken = {(task.keywords["name"], task.keywords["order"].partition(":")[0]) for task in plan.tasks}
    assert taken == {
        *(("many", shape) for shape in DEFAULT_SHAPES),
        *(("three", shape) for shape in ("shuffled", "class-sequential", "correlated", "long-tail")),
    }
    assert len(plan.tasks) == 2 * len(taken)
    on_views = [name for name, method in list_methods().items() if method.needs == {"views"}]
    assert {"mta", "zero"} <= set(on_views)
    few_shot = [name for name, method in list_methods().items() if method.kind == "few-shot"]
    unfit = dict.fromkeys(on_views, "needs views in every stream")
    unfit |= dict.fromkeys(few_shot, "fitted to labelled samples")
    unfit |= dict.fromkeys(("difftpt", "tpt"), "needs the text tower of a model: --model")
    unfit |= dict.fromkeys(collections(), "answers a stream as a whole; --passes 2")
    others = [name for name in list_methods() if name not in ("zero-shot", *unfit)]
    assert [[each.method for each in task.keywords["variants"]] for task in plan.tasks] == [others] * len(plan.tasks)
    assert plan.notes == (
        *(f"The method {name} ({why})." for name, why in sorted(unfit.items())),
        "Few-classes: three (fewer than 4 classes).",
        "Half-classes: three (fewer than 4 classes).",
        "Domain-shift: three (fewer than two domains).",
        "First-200: three (no more than 200 samples).",
    )
    with pytest.raises(InputError, match=r"unknown shape 'long-tails'; did you mean 'long-tail'"):
        plan_board(paths, shapes=["long-tails"])
    with pytest.raises(InputError, match=r"no stream can take these shapes.* Domain-shift: three"):
        plan_board(paths[1:], shapes=["domain-shift"])
    with pytest.raises(InputError, match=r"no method can run\. The method zero"):
        plan_board(paths, [Variant("zero")])
    assert set(collections()) <= set(names(plan_board(paths, passes=2)))


def test_methods_on_views_run_where_all_streams_have_views(tmp_path, paths):
    stream = shifted_stream(samples=60, classes=4, dim=8)
    views = tmp_path / "views.safetensors"
    write_stream(replace(stream, features=np.repeat(stream.features[:, None], 3, axis=1)), views)
    assert {"mta", "zero"} <= set(names(plan_board([views])))
    assert not {"mta", "zero"} & set(names(plan_board([views, *paths])))
    scores = measure("views", views, "shuffled:0", [Variant("zero")], None, passes=2)
    assert [score.passes for score in scores] == [1, 1]  # nothing is learnt, so there is nothing to refine


def test_a_limit_takes_samples_of_the_whole_stream(paths):
    stream = plan_board(paths, limit=60).streams["many"]
    assert len(stream) == len(stream.targets) == len(stream.domains) == 60
    assert set(stream.domains) == {"near", "far"}
    assert {score.samples for score in measure("many", paths[0], "shuffled:0", [Variant("prior")], 60, 1)} == {60}


def test_processes_change_nothing_but_the_times(paths, tmp_path):
    plan = plan_board(paths, VARIANTS, ("shuffled", "long-tail"), orders=2, passes=2)
    lines = []
    for jobs in (1, 2):
        board, _ = begin(paths, plan)
        plan.run(jobs, keep=board.add)
        board.save(tmp_path)
        assert Board.read(tmp_path) == board
        lines.append([{**row, "us": "", "set_us": ""} for row in board.rows.values()])
    assert lines[0] == lines[1]
    assert len(lines[0]) == len(plan.tasks) * 3


def test_other_runs_are_refused(paths, tmp_path):
    plan = plan_board(paths, VARIANTS[:1], ["shuffled"], orders=2, passes=2)
    board, plan = begin(paths, plan)
    scores = plan.tasks[0]()
    board.add(scores)
    board.add(scores)  # the same again
    one_more = replace(scores[0], metrics=scores[0].metrics | {"acc1": scores[0].accuracy + 1 / scores[0].samples})
    board.add([one_more])  # an answer that rounding decides
    with pytest.raises(InputError, match=r"zero-shot on many in the order shuffled:0 is .* % of 300 samples here, and"):
        board.add([replace(scores[0], metrics=scores[0].metrics | {"acc1": scores[0].accuracy + 0.02})])
    with pytest.raises(InputError, match=r"board has tda with the settings .*positive_alpha=2.0.* not .*=3.0"):
        board.enter(Variant("tda", {"positive_alpha": 3.0}, label="tda"))
    board.check_same(open_board(paths, plan).protocol)
    with pytest.raises(InputError, match=r"orders is not as on the board: it has 2, and here is 3\. Give"):
        board.check_same(open_board(paths, plan_board(paths, VARIANTS, ["shuffled"], orders=3, passes=2)).protocol)
    with pytest.raises(InputError, match=r"three is not as on the board: it has {'sha256'.* and here is nothing\."):
        board.check_same(open_board(paths[:1], plan_board(paths[:1], VARIANTS, ["shuffled"], 2, passes=2)).protocol)
    write_stream(replace(plan.streams["many"], encoder="another"), paths[0])
    with pytest.raises(InputError, match="many is not as on the board"):
        board.check_same(open_board(paths, plan).protocol)
    with pytest.raises(InputError, match=r"--unseen new/\* matches none"):
        open_board(paths, plan, ["new/*"])
    with pytest.raises(InputError, match=r"no leaderboard in .* to add to: leaderboard.json is missing"):
        Board.read(tmp_path)
    (tmp_path / "leaderboard.json").write_text("{}")
    (tmp_path / "leaderboard.csv").write_text("")
    with pytest.raises(InputError, match="cannot be read"):
        Board.read(tmp_path)


def test_fifteen_streams_fit_into_a_file_of_500_kb(tmp_path):
    rng = np.random.default_rng(0)
    cells = list(product([f"streams/oxford_pets_{i}" for i in range(15)], DEFAULT_SHAPES))
    methods = [f"method-{i}" for i in range(12)]
    board = make_board({(method, *cell): [0.0] * 3 for method in methods for cell in cells})
    for row in board.rows.values():
        row |= {name: round(rng.random(), 4) for name in COLUMNS if name.endswith(METRICS[:3])}
        row |= {"us": round(1000 * rng.random()), "set_us": round(1000 * rng.random()), "samples": 8100}
        row["state_kb"] = round(10000 * rng.random())
    board.save(tmp_path)
    assert len(board.rows) == 13 * 360
    assert (tmp_path / "leaderboard.csv").stat().st_size < 500_000


def test_the_words_for_how_a_method_answers():
    words = partial(how_answered, find_method("tda"))
    assert (words({}, "online"), words({}, "set")) == ("online", "frozen and read once more")
    assert words({"rounds": 2}, "set") == "learnt anew in 2 rounds"
    assert words({"rounds": 1}, "set") == "learnt anew in 1 round"
    assert words({"rounds": 0}, "set") == "frozen and read once more"
    batches = type("Batches", (Adapter,), {"answers_batches": True})
    assert how_answered(batches, {"batch": 32}, "online") == "in batches of 32"
    assert how_answered(batches, {"batch": 1}, "online") == "online"
    assert how_answered(type("Set", (Adapter,), {"kind": "collection"}), {}, "set") == "as a set"
    assert how_answered(find_method("zero-shot"), {}, "online") == "each by itself"
    own = type("Own", (Adapter,), {"second_pass_blocks": lambda self, features: features})
    assert how_answered(own, {}, "set") == "by a second pass of its own"


def test_methods_of_the_board_say_where_their_settings_are_published():
    for method in own_methods():
        if method.kind in ("online", "collection") and not method.needs:
            assert method.published, method.name


def test_files_of_one_name_are_named_with_their_folder(tmp_path):
    (tmp_path / "one").mkdir()
    files = [tmp_path / "one" / "a.npz", tmp_path / "a.npz", tmp_path / "b.npz"]
    assert name_files(files) == {"one/a": files[0], f"{tmp_path.name}/a": files[1], "b": files[2]}


def test_zero_shot_alone_is_the_baseline(tmp_path):
    stream = shifted_stream(samples=20, classes=3, dim=4)
    (score,) = score_all("a", stream, compare(stream, [], ["shuffled:0"]))
    gains = {("tda", "a", "shuffled"): [0.0]}
    board = make_board(gains)
    board.rows.clear()
    board.add([score, replace(score, method="tda", metrics=score.metrics | {"acc1": score.accuracy + 0.1})])
    table = board.standings("online")
    assert table.titles == ["tda", "zero-shot"]
    assert points(table.mean()[0]) == "+10.00"
    assert write_board(board, tmp_path)["Online"][1][:3] == ("tda", "online", "+10.00")
