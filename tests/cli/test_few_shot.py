"""`acclimate few-shot` end to end."""

import csv
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from acclimate.checks.synthetic import shifted_stream
from acclimate.stream import write_stream

pytest.importorskip("matplotlib")


@pytest.fixture
def streams(here):
    """Return the names of two feature files, of which one has too few samples for 8 shots."""
    write_stream(shifted_stream(samples=250, classes=6, dim=16, seed=1), here / "one.safetensors")
    write_stream(shifted_stream(samples=50, classes=5, dim=16, seed=2), here / "two.safetensors")
    return ["one.safetensors", "two.safetensors"]


def test_a_table_a_picture_and_every_run(invoke, streams, here):
    given = ["--shots", 2, "--shots", 8, "--set", "tip-adapter-f.epochs=2", "--seeds", 2, "--out", "out"]
    result = invoke("few-shot", *streams, *given, "--jobs", 1)
    with (here / "out" / "few-shot.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["method"] for row in rows} == {"zero-shot", "tda", "accord", "tip-adapter", "tip-adapter-f"}
    assert {row["shots"] for row in rows if row["stream"] == "two"} == {"0", "2", "8"}
    page = (here / "out" / "few-shot.md").read_text()
    assert f"\nacclimate few-shot *.safetensors {' '.join(map(str, given))}\n" in page
    ours = [row for row in rows if (row["method"], row["shots"], row["stream"]) == ("tip-adapter", "8", "one")]
    accuracies = 100 * np.array([float(row["acc1"]) for row in ours])
    cell = f"{accuracies.mean():.2f} ± {accuracies.std(ddof=1):.2f}"
    (line,) = (line for line in page.splitlines() if line.startswith("| tip-adapter | 8 |"))
    mean = line.split(" | ")[2]
    assert line.split(" | ")[3] == cell
    alpha, beta = (np.mean([float(row[name]) for row in ours]) for name in ("alpha", "beta"))
    assert f" | {alpha:.2f} / {beta:.2f} |\n| tip-adapter | two | " in page
    assert "- two at 8 shots: 5 of 5 classes give fewer" in page
    assert "note: two at 8 shots" in result.stderr
    assert ["tip-adapter", "8", *mean.split()] in [line.split()[:5] for line in result.stdout.splitlines()]
    with Image.open(here / "out" / "few-shot.png") as picture:
        assert picture.width > picture.height > 200


def test_without_validation_there_is_nothing_to_choose(invoke, streams, here):
    invoke("few-shot", *streams, "--shots", 1, "--method", "tip-adapter", "--seeds", 1, "--held-out", 0, "--jobs", 1)
    page = (here / "results" / "few-shot.md").read_text()
    assert "--method tip-adapter --seeds 1 --held-out 0 --out results\n" in page
    assert "Chosen alpha" not in page
    assert "±" not in page


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shots", 99], "no class has 99 samples in its half of a stream; choose at most "),
        (["--shots", 1, "--method", "tip-adaptor"], "unknown method 'tip-adaptor'; did you mean 'tip-adapter'"),
        (["--shots", 1, "--method", "tda"], "none of these methods learns from labelled samples"),
        (["--shots", 1, "--set", "gamma=1"], "'zero-shot' has no setting 'gamma'"),
        (["--shots", 1, "bare.safetensors"], "bare has no labels"),
    ],
)
def test_bad_input_is_refused_before_the_work(invoke, streams, here, options, message):
    write_stream(replace(shifted_stream(samples=20, classes=3, dim=16), labels=None), here / "bare.safetensors")
    assert invoke("few-shot", *streams, *options, exit_code=2).stderr.startswith(f"error: {message}")
    assert not (here / "results").exists()
