import json
from dataclasses import replace

import numpy as np
import pytest

from acclimate.bench.compare import compare
from acclimate.bench.orders import take_order
from acclimate.bench.results import summarise, write_json
from acclimate.bench.synthetic import shifted_stream
from acclimate.errors import InputError


def test_orders(stream):
    stored = replace(stream, order=np.arange(400)[::-1])
    assert np.array_equal(take_order(stream, "stored"), np.arange(400))
    assert np.array_equal(take_order(stored, "stored"), np.arange(400)[::-1])
    assert np.array_equal(take_order(stored, "rows"), np.arange(400))
    assert np.array_equal(take_order(stream, "seed:3"), take_order(stored, "seed:3"))
    assert not np.array_equal(take_order(stream, "seed:3"), take_order(stream, "seed:4"))
    assert sorted(take_order(stream, "seed:3")) == list(range(400))
    for wrong in ("seed", "seed:", "seed:x", "seed:-1", "random"):
        with pytest.raises(InputError, match="use stored, rows, or seed:N"):
            take_order(stream, wrong)


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
    assert 0 < result.changed < 1


def test_devices_agree(stream):
    pytest.importorskip("torch")
    on_numpy, on_torch = (
        compare(stream, {"tda": {}}, device=device)["tda"].runs["stored"] for device in ("numpy", "cpu")
    )
    assert np.array_equal(on_numpy.predictions, on_torch.predictions)
    for device in ("cuda:99", "toaster"):
        with pytest.raises(InputError, match=f"device '{device}' cannot be used here"):
            compare(stream, {}, device=device)


def test_the_json_is_a_superset_of_clip_benchmarks(stream, tmp_path):
    outcomes = compare(stream, {"tda": {"positive_alpha": 1.0}}, ["seed:7"])
    results = [summarise("shifted", stream, outcome, outcomes["zero-shot"]) for outcome in outcomes.values()]
    write_json(results[1:], tmp_path / "one.json")
    result = json.loads((tmp_path / "one.json").read_text())
    assert {"dataset", "model", "pretrained", "task", "metrics", "language"} <= result.keys()
    assert set(result["metrics"]) == {"acc1", "acc5", "mean_per_class_recall"}
    assert all(0 <= value <= 1 for value in result["metrics"].values())
    assert result["metrics"]["acc5"] >= result["metrics"]["acc1"]
    assert result["config"]["positive_alpha"] == 1.0
    assert (result["order"], result["seed"], result["n"], result["method"]) == ("seed:7", 7, 400, "tda")
    assert result["baseline"]["acc1"] == pytest.approx(result["metrics"]["acc1"] - result["gain"])
    assert result["versions"]["numpy"] == np.__version__
    assert result["precision"] == "float32"
    assert 0 <= result["ece"] <= 1
    write_json(results, tmp_path / "two.json")
    assert [each["method"] for each in json.loads((tmp_path / "two.json").read_text())] == ["zero-shot", "tda"]


def test_without_labels_there_are_no_scores_but_changes(stream):
    unlabelled = replace(stream, labels=None)
    outcomes = compare(unlabelled, {"tda": {}})
    result = summarise("x", unlabelled, outcomes["tda"], outcomes["zero-shot"]).as_json()
    assert result["metrics"] == {"acc1": None, "acc5": None, "mean_per_class_recall": None}
    assert result["gain"] is result["ece"] is result["baseline"] is None
    assert result["changed"] > 0


def test_tda_recovers_from_the_synthetic_shift():
    stream = shifted_stream()
    outcomes = compare(stream, {"tda": {}})
    before, after = (outcomes[name].runs["stored"].correct(stream.labels) for name in ("zero-shot", "tda"))
    assert before[:1000].mean() > before[1000:].mean() + 0.2  # the shift is visible
    assert after[1000:].mean() > before[1000:].mean() + 0.1  # and adapting helps after it
