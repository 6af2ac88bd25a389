"""`acclimate run` on views and with every kind of method; the rest is in test_cli.py."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

from acclimate import create, evaluate, read_stream
from acclimate.bench.orders import stream_order
from acclimate.checks.synthetic import shifted_stream
from acclimate.stream import write_stream


@pytest.mark.parametrize("method", ["zero", "mta"])
def test_a_method_that_needs_views_is_refused_without(invoke, stream_file, method):
    error = invoke("run", stream_file, "--method", method, exit_code=2).stderr
    assert error.startswith(f"error: the method '{method}' needs several views per image")


def test_two_passes(invoke, stream_file, tmp_path):
    options = ["--method", "zero-shot", "--method", "tda", "--passes", "2"]
    output = invoke("run", stream_file, *options, "--out", "out.json", "--out", "curve.svg").stdout.partition("\n\n")[0]
    names = [line[:30].split(None, 1)[1] for line in output.splitlines()[1:]]
    assert [name.split("  ")[0] for name in names] == ["zero-shot", "tda", "tda, second pass"]
    results = json.loads((tmp_path / "out.json").read_text())
    assert [(each["method"], each["passes"]) for each in results] == [("zero-shot", 1), ("tda", 1), ("tda", 2)]
    stream = read_stream(stream_file)
    adapter = create("tda", stream.head)
    adapter.step(stream.features)
    again = adapter.second_pass(stream.features).argmax(axis=1)
    assert results[2]["metrics"]["acc1"] == pytest.approx(np.mean(again == stream.targets), abs=1e-6)
    assert "second pass" in (tmp_path / "curve.svg").read_text()
    assert "--passes" in invoke("run", stream_file, "--passes", "3", exit_code=2).stderr


def test_orders_that_take_a_part_of_the_samples(invoke, stream_file, tmp_path):
    invoke("run", stream_file, "--order", "few-classes:0", "--orders", "5", "--out", "out.json", "--passes", "2")
    stream = read_stream(stream_file)
    sizes = [len(stream_order(stream, f"few-classes:{seed}")) for seed in range(5)]
    assert len(set(sizes)) > 1
    for result in json.loads((tmp_path / "out.json").read_text()):
        assert result["n"] == round(np.mean(sizes)) < 400
        assert result["early"]["n"] == 1
        assert result["cost"]["samples_per_s"] == pytest.approx(sum(sizes) / result["cost"]["wall_s"], rel=1e-2)


def test_curves_of_runs_of_different_lengths(invoke, tmp_path):
    """Few classes of a small stream can be fewer samples than a curve has parts."""
    write_stream(shifted_stream(samples=60, classes=8, dim=16), tmp_path / "small.safetensors")
    options = ["--method", "tda", "--order", "few-classes:0", "--orders", "8"]
    invoke("run", "small.safetensors", *options, "--out", "out.json")
    result = json.loads((tmp_path / "out.json").read_text())
    assert 0 < len(result["over_time"]["acc1"]) < 20
    assert len(result["over_time"]["acc1"]) == len(result["over_time"]["baseline"])


def test_a_sweep_has_a_row_per_value(invoke, stream_file, tmp_path):
    options = ["--set", "tda.positive_alpha=0,2", "--set", "tda.negative-keep=lowest,highest", "--method", "tda"]
    output = invoke("run", stream_file, *options, "--orders", 3, "--out", "out.json").stdout
    results = json.loads((tmp_path / "out.json").read_text())
    pairs = [(alpha, keep) for alpha in (0, 2) for keep in ("lowest", "highest")]
    names = [f"tda positive_alpha={alpha} negative_keep={keep}" for alpha, keep in pairs]
    assert [each["label"] for each in results] == names
    assert [(each["config"]["positive_alpha"], each["config"]["negative_keep"]) for each in results] == pairs
    first, second = output.split("\n\n")
    for name in names:
        assert sum(f"  {name}  " in line for line in first.splitlines()) == 1
    best = max(results, key=lambda each: each["gain"])["label"]
    others = [line for line in second.splitlines()[1:] if line]
    assert len(others) == 3
    assert all(f"  {best}  " in line for line in others)


def test_values_with_commas_of_their_own(invoke, stream_file):
    message = invoke("run", stream_file, "--method", "tda", "--set", "positive_alpha=(1, 2)", exit_code=2).stderr
    assert message == "error: positive_alpha must be a number, got (1, 2).\n"


def test_gains_have_paired_intervals(invoke, stream_file, tmp_path):
    output = invoke("run", stream_file, "--orders", 4, "--out", "out.json").stdout
    zero_shot, tda, accord = json.loads((tmp_path / "out.json").read_text())
    assert zero_shot["gain_interval"] is None
    evaluation = evaluate(stream_file, ["tda", "accord"], orders=4)
    for result in (tda, accord):
        low, high = result["gain_interval"]
        assert low <= result["gain"] <= high
        found = evaluation.difference("shifted", result["method"], "zero-shot")
        assert (low, high) == pytest.approx((found.low, found.high), abs=1e-6)
        assert f"{100 * low:+.2f} to {100 * high:+.2f}" in output
    pair = evaluation.difference("shifted", "tda", "accord")
    worse, better = ("tda", "accord") if pair.difference < 0 else ("accord", "tda")
    row = output.split("\n\n")[1].splitlines()[1].split()
    assert row[:3] == ["shifted", worse, better]
    assert float(row[3]) == pytest.approx(-100 * abs(pair.difference), abs=0.005)


def test_scores_of_each_class(invoke, stream_file, tmp_path):
    output = invoke("run", stream_file, "--method", "tda", "--per-class", "--out", "out.json").stdout
    stream = read_stream(stream_file)
    answers = create("tda", stream.head).step(stream.features).argmax(axis=1)
    (result,) = [json.loads((tmp_path / "out.json").read_text())]
    for index, name in enumerate(stream.head.class_names):
        recall = np.mean(answers[stream.targets == index] == index)
        assert result["per_class"][name]["recall"] == pytest.approx(recall, abs=1e-6)
        (line,) = [each.split() for each in output.splitlines() if f" {name} " in each]
        assert line[-1] == f"{100 * recall:.2f}"
    write_stream(replace(stream, targets=None), tmp_path / "bare.safetensors")
    assert "there are no scores to write" in invoke("run", "bare.safetensors", "--per-class", exit_code=2).stderr


def test_a_plot_over_orders_has_the_mean_and_the_spread(invoke, stream_file, tmp_path):
    pytest.importorskip("matplotlib")
    options = ["--method", "tda", "--order", "few-classes:0", "--orders", "4", "--out", "out.json"]
    invoke("run", stream_file, *options, "--out", "curve.svg")
    result = json.loads((tmp_path / "out.json").read_text())
    picture = (tmp_path / "curve.svg").read_text()
    assert "mean and sd of 4 orders" in picture
    assert f"tda  {100 * result['metrics']['acc1']:.2f} ± {100 * result['orders']['sd']:.2f} %" in picture
    many = [f"--set=positive_capacity={','.join(map(str, range(1, 9)))}", "--method", "tda"]
    invoke("run", stream_file, *many, "--out", "many.png")
    assert (tmp_path / "many.png").read_bytes().startswith(b"\x89PNG")


def test_a_plot_has_a_panel_per_file(invoke, stream_file, tmp_path):
    pytest.importorskip("matplotlib")
    write_stream(shifted_stream(samples=60, classes=8, dim=16), tmp_path / "small.safetensors")
    invoke("run", stream_file, "small.safetensors", "--method", "tda", "--out", "out.json", "--out", "both.svg")
    picture = (tmp_path / "both.svg").read_text()
    for result in json.loads((tmp_path / "out.json").read_text()):
        assert f"<!-- {result['dataset']} -->" in picture
        assert f"tda  {100 * result['metrics']['acc1']:.2f} %" in picture


def test_scores_as_csv_and_latex(invoke, stream_file, tmp_path):
    write_stream(shifted_stream(samples=60, classes=8, dim=16), tmp_path / "a_b.safetensors")
    files = [stream_file, "a_b.safetensors"]
    options = ["--method", "tda", "--orders", 2, "--out", "out.csv", "--out", "out.tex"]
    invoke("run", *files, *options)
    evaluation = evaluate([stream_file, tmp_path / "a_b.safetensors"], "tda", orders=2)
    with (tmp_path / "out.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(evaluation.rows) == 8
    for line, row in zip(lines, evaluation.rows, strict=True):
        assert (line["stream"], line["method"], line["order"]) == (row.stream, row.method, row.order)
        assert float(line["gain"]) == pytest.approx(row.gain, abs=1e-6)
    page = (tmp_path / "out.tex").read_text()
    assert page == evaluation.to_latex() + "\n"
    heading, zero_shot, tda = (line for line in page.splitlines() if "&" in line)
    assert heading == r"method & shifted & a\_b \\"
    for row in evaluation.lines()[1]:
        found = tda if row[1] == "tda" else zero_shot
        assert f"{row[3]} $\\pm$ {row[4]}" in found.replace(r"\textbf{", "").replace("}", "")
    assert r"\textbf{" in page
    (tmp_path / "other").mkdir()
    write_stream(shifted_stream(samples=60), tmp_path / "other" / "a_b.safetensors")
    same = invoke("run", "a_b.safetensors", "other/a_b.safetensors", "--out", "two.csv", exit_code=2).stderr
    assert "two files have the same name" in same
