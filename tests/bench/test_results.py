import json
from dataclasses import replace

import numpy as np
import pytest

from acclimate.bench.compare import compare
from acclimate.bench.machine import hardware, peak_memory_mb
from acclimate.bench.results import read_results, summarise, write_json
from acclimate.errors import InputError, RunError


def results_of(stream, orders=("seed:7",), **settings):
    outcomes = compare(stream, {"tda": settings}, orders)
    return [summarise("shifted", stream, outcome, outcomes["zero-shot"]) for outcome in outcomes.values()]


def test_the_json_is_a_superset_of_clip_benchmarks(stream, tmp_path):
    results = results_of(stream, positive_alpha=1.0)
    write_json(results[1:], tmp_path / "one.json")
    result = json.loads((tmp_path / "one.json").read_text())
    assert {"dataset", "model", "pretrained", "task", "metrics", "language"} <= result.keys()
    assert set(result["metrics"]) == {"acc1", "acc5", "mean_per_class_recall"}
    assert all(0 <= value <= 1 for value in result["metrics"].values())
    assert result["metrics"]["acc5"] >= result["metrics"]["acc1"]
    assert result["config"]["positive_alpha"] == 1.0
    assert (result["order"], result["seed"], result["n"], result["method"]) == ("seed:7", 7, 400, "tda")
    assert (result["settings"], result["views"], result["reducer"], result["n_skipped"]) == ("custom", 1, None, 0)
    assert result["baseline"]["acc1"] == pytest.approx(result["metrics"]["acc1"] - result["gain"])
    assert result["helpful"] - result["harmful"] == pytest.approx(result["gain"])
    assert len(result["over_time"]["acc1"]) == len(result["over_time"]["baseline"]) == 20
    assert np.mean(result["over_time"]["acc1"]) == pytest.approx(result["metrics"]["acc1"], abs=1e-4)
    assert result["early"]["n"] == 4
    assert result["caches"]["positive"]["entries"] == 24
    assert 0 < result["caches"]["positive"]["label_accuracy"] <= 1
    assert result["versions"]["numpy"] == np.__version__
    assert result["precision"] == "float32"
    assert 0 <= result["ece"] <= 1
    assert 0 <= result["brier"] <= 2
    assert result["cost"]["ms_per_image"] > 0
    assert result["cost"]["peak_memory_mb"] > 10


def test_a_stream_says_how_many_images_were_left_out(stream):
    without = replace(stream, metadata={"n_skipped": "3"})
    assert results_of(without)[1].as_json()["n_skipped"] == 3


def test_two_runs_give_the_same_json_but_for_their_cost(stream, tmp_path):
    texts = []
    for name in ("a.json", "b.json"):
        write_json(results_of(stream, ("seed:1", "seed:2")), tmp_path / name)
        texts.append([{**each, "cost": None} for each in json.loads((tmp_path / name).read_text())])
    assert texts[0] == texts[1]
    assert [each["method"] for each in texts[0]] == ["zero-shot", "tda"]


def test_the_baseline_is_zero_shot_in_the_same_order(stream):
    zero_shot, tda = (each.as_json() for each in results_of(stream, ["domains:1", "seed:1"][1:]))
    assert zero_shot["baseline"] == tda["baseline"]
    assert zero_shot["over_time"]["acc1"] == tda["over_time"]["baseline"]
    assert zero_shot["gain"] == zero_shot["changed"] == 0
    first = stream.labels[np.random.default_rng(1).permutation(400)[:4]]
    features = stream.features[np.random.default_rng(1).permutation(400)[:4]]
    assert zero_shot["early"]["acc1"] == np.mean((features @ stream.class_vectors.T).argmax(axis=1) == first)


def test_without_labels_there_are_no_scores_but_changes(stream):
    unlabelled = replace(stream, labels=None)
    result = results_of(unlabelled, ["seed:0", "seed:1"])[1].as_json()
    assert result["metrics"] == {"acc1": None, "acc5": None, "mean_per_class_recall": None}
    assert all(result[key] is None for key in ("gain", "ece", "brier", "baseline", "helpful", "over_time"))
    assert result["changed"] > 0


def test_results_are_read_back_from_a_folder(stream, tmp_path):
    results = results_of(stream)
    (tmp_path / "deep").mkdir()
    write_json(results, tmp_path / "deep" / "two.json")
    write_json(results[1:], tmp_path / "one.json")
    (tmp_path / "manifest.json").write_text('{"encoder": "x"}')
    assert [each["method"] for each in read_results(tmp_path)] == ["zero-shot", "tda", "tda"]
    assert len(read_results(tmp_path / "one.json")) == 1
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(InputError, match=r"broken\.json cannot be read as JSON"):
        read_results(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no results in"):
        read_results(tmp_path / "empty")
    with pytest.raises(RunError, match="cannot write"):
        write_json(results, tmp_path / "nowhere" / "x.json")


def test_a_gpu_is_named_and_measured():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    assert torch.cuda.get_device_name() in hardware("cuda")
    assert peak_memory_mb("cuda") is not None
