from dataclasses import dataclass, replace

import numpy as np
import pytest

import acclimate
from acclimate import TDA, Adapter, Step, TipAdapter, create, evaluate, write_stream
from acclimate.bench.evaluation import MAX_VARIANTS, as_variants, sweep
from acclimate.bench.orders import stream_order
from acclimate.checks.synthetic import shifted_stream
from acclimate.errors import InputError, MissingExtraError


@pytest.fixture
def other():
    return shifted_stream(samples=150, classes=5, dim=16, seed=2)


def test_a_row_per_stream_method_and_order(stream, other):
    evaluation = evaluate({"one": stream, "two": other}, ["tda", "prior"], orders=["shuffled:0", "shuffled:4"])
    keys = [(row.stream, row.method, row.order) for row in evaluation.rows]
    assert keys == [
        (name, method, order)
        for name in ("one", "two")
        for method in ("zero-shot", "tda", "prior")
        for order in ("shuffled:0", "shuffled:4")
    ]
    for name, each in (("one", stream), ("two", other)):
        for order in ("shuffled:0", "shuffled:4"):
            taken = stream_order(each, order)
            logits = create("tda", each.head).step(each.features[taken])
            (row,) = [row for row in evaluation.rows if (row.stream, row.method, row.order) == (name, "tda", order)]
            assert row.accuracy == pytest.approx(np.mean(logits.argmax(axis=1) == each.targets[taken]))
            assert row.gain == pytest.approx(row.helpful - row.harmful)
            assert row.samples == len(each)


def test_differences_of_all_pairs(stream):
    evaluation = evaluate(stream, ["tda", "prior"], orders=3)
    pairs = [(each.method, each.other) for each in evaluation.differences]
    assert pairs == [("tda", "zero-shot"), ("prior", "zero-shot"), ("prior", "tda")]
    means = {
        name: np.mean([row.accuracy for row in evaluation.rows if row.method == name]) for name in ("tda", "prior")
    }
    one = evaluation.difference("stream", "tda", "prior")
    assert one.difference == pytest.approx(means["tda"] - means["prior"])
    back = evaluation.difference("stream", "prior", "tda")
    assert (back.difference, back.low, back.high) == (-one.difference, -one.high, -one.low)
    with pytest.raises(InputError, match="no such pair on 'stream': 'tda', 'dota'"):
        evaluation.difference("stream", "tda", "dota")


def test_scores_of_classes(stream):
    evaluation = evaluate(stream, "tda", orders=2)
    orders = [stream_order(stream, f"shuffled:{seed}") for seed in (0, 1)]
    runs = [create("tda", stream.head).step(stream.features[order]) for order in orders]
    answered = np.concatenate([logits.argmax(axis=1) for logits in runs])
    labels = np.concatenate([stream.targets[order] for order in orders])
    rows = [row for row in evaluation.per_class if row.method == "tda"]
    for index, row in enumerate(rows):
        assert row.class_name == stream.head.class_names[index]
        assert row.samples == np.sum(stream.targets == index)
        assert row.recall == pytest.approx(np.mean(answered[labels == index] == index))
        assert row.precision == pytest.approx(np.mean(labels[answered == index] == index))
    base = [row for row in evaluation.per_class if row.method == "zero-shot"]
    assert [row.gain for row in rows] == pytest.approx([a.recall - b.recall for a, b in zip(rows, base, strict=True)])


def test_a_class_without_samples_has_no_recall(stream):
    kept = stream.targets != 3
    part = replace(stream, features=stream.features[kept], targets=stream.targets[kept], order=None, domains=None)
    row = next(row for row in evaluate(part, "tda").per_class if row.class_name == stream.head.class_names[3])
    assert row.samples == 0
    assert np.isnan(row.recall)


def test_pandas(stream):
    pandas = pytest.importorskip("pandas")
    evaluation = evaluate(stream, ["tda"], orders=2)
    table = evaluation.to_pandas()
    assert isinstance(table, pandas.DataFrame)
    assert table.groupby("method")["accuracy"].mean()["tda"] == pytest.approx(
        np.mean([row.accuracy for row in evaluation.rows if row.method == "tda"])
    )
    assert len(evaluation.to_pandas("per_class")) == 2 * 8
    assert list(evaluate(stream, []).to_pandas("differences").columns) == list(evaluation.differences[0]._fields)
    with pytest.raises(InputError, match="no table 'row'; did you mean 'rows'"):
        evaluation.to_pandas("row")


def test_without_pandas(stream, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(MissingExtraError, match="pip install pandas"):
        evaluate(stream, "tda").to_pandas()


def test_as_text_and_in_a_notebook(stream):
    evaluation = evaluate({"a<b": stream}, ["tda"], orders=2)
    found = evaluation.difference("a<b", "tda", "zero-shot")
    line = f"| {100 * found.difference:+.2f} | {100 * found.low:+.2f} to {100 * found.high:+.2f} |"
    assert line in str(evaluation).splitlines()[-1]
    assert repr(evaluation) == str(evaluation)
    assert "<td>a&lt;b</td><td>tda</td>" in evaluation._repr_html_()


def test_streams_and_orders_as_people_pass_them(stream, other, tmp_path):
    path = tmp_path / "photos.safetensors"
    write_stream(stream, path)
    assert {row.stream for row in evaluate([path, other], "tda").rows} == {"photos", "stream 2"}
    assert {row.stream for row in evaluate(str(path), "tda").rows} == {"photos"}
    assert [row.order for row in evaluate(other, [], orders="correlated:3").rows] == ["correlated:3"]
    assert {row.method for row in evaluate(other, "tda", passes=2).rows} == {"zero-shot", "tda", "tda, second pass"}


@pytest.mark.usefixtures("own_registry")
def test_methods_as_people_pass_them(stream):
    @dataclass(eq=False, repr=False, kw_only=True)
    class Own(Adapter):
        name = "own"
        summary = "zero-shot"
        weights: tuple[float, ...] = (1.0, 2.0)

        def respond(self, evidence, ids, learn):
            return Step(sum(self.weights) * evidence.logits)

    fitted = TipAdapter(stream.head)
    fitted.fit(stream.features[:200], stream.targets[:200])
    adapter = TDA(stream.head, positive_alpha=3.0)
    adapter.step(stream.features)
    methods = ["zero-shot", TDA, adapter, ("prior", {}), (Own, {"weights": [(1.0,), (3.0, 4.0)]}), fitted]
    evaluation = evaluate(stream, methods)
    assert [row.method for row in evaluation.rows] == [
        *("zero-shot", "tda", "tda positive_alpha=3.0", "prior"),
        *("own weights=(1.0,)", "own weights=(3.0, 4.0)", "tip-adapter"),
    ]
    fresh = create("tda", stream.head, positive_alpha=3.0).step(stream.features).argmax(axis=1)
    assert evaluation.rows[2].accuracy == pytest.approx(np.mean(fresh == stream.targets))
    same = fitted.step(stream.features).argmax(axis=1)
    assert evaluation.rows[-1].accuracy == pytest.approx(np.mean(same == stream.targets))
    assert acclimate.list_methods()["own"] is Own


def test_a_sweep_is_the_product_of_its_lists():
    variants = sweep("tda", {"positive_alpha": [1, 2], "negative": False, "positive_beta": np.array([3.0, 5.0])})
    assert [variant.title for variant in variants] == [
        f"tda positive_alpha={alpha} negative=False positive_beta={beta}" for alpha in (1, 2) for beta in (3.0, 5.0)
    ]
    assert variants[0].settings == {"positive_alpha": 1, "negative": False, "positive_beta": 3.0}
    assert [variant.title for variant in as_variants(["tda", "tda"])] == ["tda"]


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        (["tad"], "unknown method 'tad'"),
        ([("tda", {"alpa": 1})], "'tda' has no setting 'alpa'"),
        ([("tda", {"positive_alpha": []})], "has 0 combinations"),
        ([("tda", {"positive_alpha": list(range(20)), "positive_beta": list(range(20))})], "400 combinations"),
        ([("tda", {"positive_alpha": list(range(1, 200))}), ("dota", {"refresh": list(range(1, 100))})], "298 methods"),
        (["mta"], "needs several views"),
        (["tip-adapter"], "fitted to labelled samples first"),
        ([3], "a method is a name, a class, an adapter"),
    ],
)
def test_methods_that_cannot_be_run(stream, methods, message):
    assert MAX_VARIANTS == 256
    with pytest.raises(InputError, match=message):
        evaluate(stream, methods)


def test_two_fitted_adapters_have_one_name(stream):
    adapters = []
    for shots in (100, 200):
        adapters.append(TipAdapter(stream.head))
        adapters[-1].fit(stream.features[:shots], stream.targets[:shots])
    with pytest.raises(InputError, match="two methods would be called 'tip-adapter'"):
        evaluate(stream, adapters)


def test_streams_that_cannot_be_scored(stream, tmp_path):
    with pytest.raises(InputError, match="photos has no labels"):
        evaluate({"photos": replace(stream, targets=None)}, "tda")
    with pytest.raises(InputError, match="no streams"):
        evaluate([], "tda")
    with pytest.raises(InputError, match="orders must be at least 1"):
        evaluate(stream, "tda", orders=0)
    with pytest.raises(InputError, match="unknown order 'random'"):
        evaluate(stream, "tda", orders=["shuffled:1", "random"])
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_stream(stream, tmp_path / folder / "s.safetensors")
    with pytest.raises(InputError, match="have the same name; pass a dict"):
        evaluate([tmp_path / "a" / "s.safetensors", tmp_path / "b" / "s.safetensors"], "tda")
