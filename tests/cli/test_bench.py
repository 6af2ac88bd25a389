"""`acclimate bench`, as a user runs it."""

import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from acclimate.bench.datasets import DATASETS
from acclimate.bench.prequential import Variant
from acclimate.bench.store import FeatureStore
from acclimate.cli import app
from acclimate.cli.arguments import COMPARED
from acclimate.encoders import load_encoder
from acclimate.methods import create, save_state
from miniatures import draw_dataset, few
from waiting import wait_until


@pytest.fixture
def bench(here, tiny_onnx, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(here / "texts"))

    def run(*arguments, exit_code=0):
        common = ["--data", "data", "--model", f"onnx:{tiny_onnx}", "--prompts", "single"]
        result = CliRunner().invoke(app, ["bench", *common, *map(str, arguments)])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == exit_code, result.output
        return result

    return run


def test_a_suite_from_images_to_json(bench, here):
    for key in ("dtd", "eurosat"):
        draw_dataset(here / "data", DATASETS[key], few())
    result = bench("--suite", "cross-domain")
    assert "skipped, not in data: aircraft, caltech101, cars," in result.stderr
    assert "6 results in results; try `acclimate tables results`" in result.stderr
    lines = [line.split() for line in result.stdout.splitlines()]
    assert [line[:5] for line in lines[1:]] == [
        [key, name, "12", "of", count] for key, count in (("dtd", "1,692"), ("eurosat", "8,100")) for name in COMPARED
    ]
    warnings = [line for line in result.stderr.splitlines() if line.startswith("warning: ")]
    assert warnings[:2] == warnings[2:]  # printed before the work and after it
    assert "warning: eurosat has 12 test images instead of 8,100, so its figures are not those of" in warnings[1]
    written = {path.name: json.loads(path.read_text()) for path in (here / "results").iterdir()}
    accuracy = {(each["dataset"], each["method"]): each["metrics"]["acc1"] for each in written.values()}
    assert {(line[0], line[1]): line[5] for line in lines[1:]} == {
        key: f"{100 * value:.2f}" for key, value in accuracy.items()
    }
    before = {path: path.stat().st_mtime_ns for path in (here / "results").iterdir()}
    bench("--suite", "cross-domain")
    assert {path: path.stat().st_mtime_ns for path in (here / "results").iterdir()} == before
    bench("--suite", "cross-domain", "--no-skip-existing")
    assert {path: path.stat().st_mtime_ns for path in (here / "results").iterdir()} != before


def test_from_images_to_the_papers_table(bench, here):
    draw_dataset(here / "data", DATASETS["imagenet-a"], few())
    bench("--suite", "ood")
    result = CliRunner().invoke(app, ["tables", "results", "--format", "markdown"])
    assert result.exit_code == 0, result.output
    measured = json.loads(next((here / "results").glob("*_tda_*")).read_text())["metrics"]["acc1"]
    row, gain, calibration = [line for line in result.stdout.splitlines() if line.startswith("| tda |")]
    assert f"| {100 * measured:.2f} / 60.11" in row
    assert gain.count("|") == row.count("|")
    assert calibration.count("|") == 3  # the calibration error, which the paper does not report
    assert " of 7,500 images." in result.stdout
    rows = [line for line in result.stdout.splitlines() if line.startswith(("| tda |", "| accord |", "| zero-shot |"))]
    (letter,) = re.findall(r"\((\w)\) \d+ of 7,500 images", result.stdout)
    assert len(rows) == 8  # three tables, the gains without zero-shot
    for row in rows:
        assert all(letter in marks for marks in re.findall("<sup>(.*?)</sup>", row)), row
        assert "<sup>" in row


@pytest.fixture
def fit(here, tiny_clip, monkeypatch):
    """Fit a few-shot method to random features of EuroSAT's classes, and write it to fitted.safetensors."""
    monkeypatch.setenv("ACCLIMATE_CACHE", str(here / "texts"))
    encoder = load_encoder(f"local:{tiny_clip}", "cpu")

    def fit(method, **settings):
        store = FeatureStore(here, "tiny", here)
        store.encoder = encoder
        head = store.head(DATASETS["eurosat"], Variant("tda", prompts="single"))
        text = encoder if method == "coop" else None
        adapter = create(method, head, text=text, **settings)
        adapter.fit(np.random.default_rng(0).normal(size=(20, head.dim)), np.arange(20) % 10)
        notes = {"model": "tiny", "fingerprint": encoder.fingerprint, "shots": 2, "seed": 1, "source": "noise"}
        save_state(adapter, here / "fitted.safetensors", {"fitted": notes})
        return adapter

    return fit


def test_a_fitted_file_runs_beside_zero_shot(bench, fit, here, tiny_clip):
    for key in ("dtd", "eurosat"):
        draw_dataset(here / "data", DATASETS[key], few())
    adapter = fit("tip-adapter", alpha=3.0)
    command = ("--model", f"local:{tiny_clip}", "--fitted", "fitted.safetensors", "--dataset", "eurosat")
    bench(*command)
    results = {path.name: json.loads(path.read_text()) for path in (here / "results").iterdir()}
    assert {each["method"] for each in results.values()} == {"zero-shot", "tip-adapter"}
    (name,) = (name for name in results if "tip-adapter" in name)
    assert "_tip-adapter_fitted-as-fitted_single-prompts_1-view_" in name
    assert results[name]["config"] == adapter.settings
    assert results[name]["trained"] == "2 shots per class of noise, drawn with seed 1, encoded with tiny"
    assert results[name]["learnt"]["shots"]["label_accuracy"] is None
    before = {path.name for path in here.rglob("*")}
    assert (
        "was fitted to 10 classes and cannot answer for others"
        in bench(*command, "--dataset", "dtd", exit_code=2).stderr
    )
    assert "was not fitted for these features" in bench(*command, "--prompts", "openai-7", exit_code=2).stderr
    assert {path.name for path in here.rglob("*")} - before <= {path.name for path in (here / "texts").iterdir()}
    assert "needs to be fitted" in bench("--dataset", "eurosat", "--method", "tip-adapter", exit_code=2).stderr


def test_learned_prompts_answer_for_any_dataset(bench, fit, here, tiny_clip):
    draw_dataset(here / "data", DATASETS["dtd"], few())
    fit("coop", epochs=1, context_tokens=2)
    model = ("--model", f"local:{tiny_clip}", "--dataset", "dtd")
    bench(*model, "--fitted", "fitted.safetensors", "--method", "zero-shot")
    bench(
        *model,
        "--prompts",
        "learned:fitted.safetensors",
        "--method",
        "zero-shot",
        "--method",
        "tda",
        "--out",
        "learned",
    )
    (path,) = (here / "learned").glob("*_tda_*")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"n": 1}))
    again = (*model, "--prompts", "learned:fitted.safetensors", "--method", "tda", "--out", "learned")
    bench(*again)
    assert json.loads(path.read_text())["n"] == 1  # not run again
    os.utime("fitted.safetensors", (path.stat().st_mtime + 1,) * 2)
    bench(*again)
    assert json.loads(path.read_text())["n"] == 12
    results = [json.loads(path.read_text()) for path in (here / "results").iterdir()]
    learned = [json.loads(path.read_text()) for path in (here / "learned").iterdir()]
    (coop,) = (each for each in results if each["method"] == "coop")
    (zero_shot,) = (each for each in learned if each["method"] == "zero-shot")
    assert zero_shot["prompts"] == "learned:fitted.safetensors"
    assert zero_shot["brier"] == pytest.approx(coop["brier"], abs=1e-5)
    assert "no state file at nowhere" in bench(*model, "--prompts", "learned:nowhere", exit_code=2).stderr


def test_methods_that_tune_prompts_need_a_text_tower(bench, here):
    draw_dataset(here / "data", DATASETS["dtd"], few())
    said = bench("--dataset", "dtd", "--method", "tpt", "--views", "64", exit_code=2).stderr
    assert "the method 'tpt' needs a text tower that takes embeddings" in said
    assert not (here / "features").exists()


def test_views_settings_and_orders(bench, here):
    draw_dataset(here / "data", DATASETS["imagenet-a"], few(classes=2, per_class=3))
    options = ["--settings", "authors-per-dataset", "--views", "64", "--views-kind", "crop", "--orders", "3"]
    bench("--dataset", "imagenet-a", "--method", "tda", *options, "--store", "kept", "--out", "measured")
    (path,) = (here / "measured").iterdir()
    result = json.loads(path.read_text())
    assert (result["views"], result["settings"]) == (64, "authors-per-dataset")
    assert result["orders"]["names"] == ["shuffled:0", "shuffled:1", "shuffled:2"]
    (kept,) = (here / "kept").iterdir()
    assert json.loads((kept / "manifest.json").read_text())["views"][0] == "crop"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to run; name a --suite"),
        (["--suite", "odd"], "unknown suite 'odd'"),
        (["--dataset", "mnist"], "unknown dataset 'mnist'"),
        (["--dataset", "dtd"], "data contains none of dtd"),
        (["--dataset", "dtd", "--method", "tad"], "unknown method 'tad'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(bench, here, arguments, message):
    result = bench(*arguments, exit_code=2)
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert list(here.iterdir()) == []


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="sends a signal")
def test_ctrl_c_and_the_same_command_again(here, tiny_onnx):
    """Stopped while it encodes views; what it had done is kept, and the results are those of a run in one go."""
    draw_dataset(here / "data", DATASETS["imagenet-a"], few(classes=10, per_class=12))
    command = [sys.executable, "-m", "acclimate", "bench", "--data", "data", "--model", f"onnx:{tiny_onnx}"]
    command += ["--dataset", "imagenet-a", "--prompts", "single", "--workers", "1"]
    env = os.environ | {"ACCLIMATE_CACHE": str(here / "texts")}
    process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: list((here / "features").glob("*/manifest.json")) or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    warning, stopped = said.splitlines()
    assert warning.startswith("warning: imagenet-a has 120 test images instead of 7,500")
    assert stopped == "stopped; run the same command again to continue."
    done = json.loads(next((here / "features").glob("*/manifest.json")).read_text())["done"]
    assert 0 < done < 120
    subprocess.run(command, env=env, check=True, capture_output=True)
    subprocess.run([*command, "--store", "s", "--out", "r"], env=env, check=True, capture_output=True)
    for path in (here / "results").iterdir():
        resumed, whole = (json.loads((here / folder / path.name).read_text()) for folder in ("results", "r"))
        assert resumed.pop("cost") != whole.pop("cost")
        assert resumed == whole
