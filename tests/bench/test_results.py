import json
from dataclasses import replace

import numpy as np
import pytest

from acclimate.bench.prequential import Variant, compare
from acclimate.bench.results import (
    latex_table,
    summarise,
    write_results,
)
from acclimate.errors import RunError


def results_of(stream, orders=("shuffled:7",), **settings):
    outcomes = compare(stream, [Variant("tda", settings)], orders)
    return [summarise("shifted", stream, outcome, outcomes[0]) for outcome in outcomes]


def test_the_json_is_a_superset_of_clip_benchmarks(stream, tmp_path):
    results = results_of(stream, positive_alpha=1.0)
    write_results(results[1:], tmp_path / "one.json")
    result = json.loads((tmp_path / "one.json").read_text())
    assert {"dataset", "model", "pretrained", "task", "metrics", "language"} <= result.keys()
    assert set(result["metrics"]) == {"acc1", "acc5", "mean_per_class_recall"}
    assert all(0 <= value <= 1 for value in result["metrics"].values())
    assert result["metrics"]["acc5"] >= result["metrics"]["acc1"]
    assert result["config"]["positive_alpha"] == 1.0
    assert (result["order"], result["seed"], result["n"], result["method"]) == ("shuffled:7", 7, 400, "tda")
    assert (result["settings"], result["views"], result["n_skipped"]) == ("custom", 1, 0)
    assert result["baseline"]["acc1"] == pytest.approx(result["metrics"]["acc1"] - result["gain"])
    assert result["helpful"] - result["harmful"] == pytest.approx(result["gain"])
    assert len(result["over_time"]["acc1"]) == len(result["over_time"]["baseline"]) == 20
    assert np.mean(result["over_time"]["acc1"]) == pytest.approx(result["metrics"]["acc1"], abs=1e-4)
    assert result["early"]["n"] == 4
    assert result["learnt"]["positive"]["entries"] == 24
    assert 0 < result["learnt"]["positive"]["label_accuracy"] <= 1
    assert result["versions"]["numpy"] == np.__version__
    assert result["precision"] == "float32"
    assert 0 <= result["ece"] <= 1
    assert 0 <= result["brier"] <= 2
    assert result["cost"]["ms_per_image"] > 0


def test_a_stream_knows_how_many_images_were_skipped(stream):
    assert results_of(replace(stream, skipped=3))[1].n_skipped == 3


def test_the_baseline_is_zero_shot_in_the_same_order(stream):
    zero_shot, tda = results_of(stream, ["shuffled:1"])
    assert zero_shot.baseline == tda.baseline
    assert zero_shot.over_time["acc1"] == tda.over_time["baseline"]
    assert zero_shot.gain == zero_shot.changed == 0
    first = np.random.default_rng(1).permutation(400)[:4]
    predictions = (stream.features[first] @ stream.head.class_vectors.T).argmax(axis=1)
    assert zero_shot.early["acc1"] == np.mean(predictions == stream.targets[first])


def test_without_labels_there_are_changes_but_no_scores(stream):
    _, result = results_of(replace(stream, targets=None), ["shuffled:0", "shuffled:1"])
    assert result.metrics == {"acc1": None, "acc5": None, "mean_per_class_recall": None}
    for name in ("gain", "ece", "brier", "baseline", "helpful", "over_time"):
        assert getattr(result, name) is None
    assert result.changed > 0
    assert result.orders == {"names": ["shuffled:0", "shuffled:1"]}


def test_methods_without_entries_say_what_they_learnt(stream):
    zero_shot, dota, prior = compare(stream, [Variant("dota"), Variant("prior")])
    learnt = summarise("shifted", stream, dota, zero_shot).learnt
    assert learnt["samples"]["mean"] == pytest.approx(400 / 8)
    assert 0 < learnt["degrees from text"]["min"] < learnt["degrees from text"]["max"] < 90
    learnt = summarise("shifted", stream, prior, zero_shot).learnt
    assert learnt["share"]["mean"] == pytest.approx(1 / 8)
    assert summarise("shifted", stream, zero_shot, zero_shot).learnt == {}


def test_several_results_are_a_list_with_a_line_each(stream, tmp_path):
    results = results_of(stream, ["shuffled:0", "shuffled:1"])
    write_results(results, tmp_path / "two.json")
    first, second = json.loads((tmp_path / "two.json").read_text())
    assert [first["method"], second["method"]] == ["zero-shot", "tda"]
    assert second["metrics"] == pytest.approx(results[1].metrics, abs=1e-6)  # written with six digits
    assert len((tmp_path / "two.json").read_text().splitlines()) == 4
    with pytest.raises(RunError, match="cannot write"):
        write_results(results, tmp_path / "nowhere" / "x.json")


def test_encoding_takes_what_the_stream_recorded_over_all_images(stream):
    recorded = results_of(replace(stream, encode_s=4.2, skipped=20))[1].cost
    assert recorded["encode_ms_per_image"] == pytest.approx(10)
    assert results_of(stream)[1].cost["encode_ms_per_image"] is None


def test_a_latex_table_has_no_sign_that_latex_would_read():
    rows = [["a_b & c%", r"50 \$ {#}"], ["x ~ y^2 <z>", "1.00 ± 0.50 <sup>a, b</sup>"], ["plain", "\N{EN DASH}"]]
    lines = latex_table(["name", "µs | 5 %"], rows).splitlines()
    assert lines[0] == r"\begin{tabular}{lr}"
    assert lines[2:5:2] == [r"name & $\mu$s \textbar{} 5 \% \\", r"a\_b \& c\% & 50 \textbackslash{}\$ \{\#\} \\"]
    assert (
        lines[5] == r"x \textasciitilde{} y\textasciicircum{}2 \textless{}z\textgreater{} & 1.00 $\pm$ 0.50$^{a, b}$ \\"
    )
    assert lines[6] == r"plain & -- \\"
    assert [line for line in lines if "&" not in line] == [
        *(r"\begin{tabular}{lr}", r"\toprule", r"\midrule", r"\bottomrule", r"\end{tabular}"),
    ]
