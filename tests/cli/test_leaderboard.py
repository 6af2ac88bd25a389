"""`acclimate leaderboard` end to end."""

import csv
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from acclimate.checks.synthetic import shifted_stream
from acclimate.stream import write_stream
from waiting import wait_until

pytest.importorskip("matplotlib")


@pytest.fixture
def streams(here):
    """Return the names of two feature files, one of them with domains."""
    first = shifted_stream(samples=250, classes=6, dim=16, seed=1)
    write_stream(replace(first, domains=("near",) * 80 + ("far",) * 170), here / "one.safetensors")
    write_stream(shifted_stream(samples=120, classes=5, dim=16, seed=2), here / "two.safetensors")
    return ["one.safetensors", "two.safetensors"]


def test_a_table_a_picture_and_every_run(invoke, streams, here):
    result = invoke("leaderboard", *streams, "--orders", 2, "--passes", 2, "--jobs", 1, "--out", "board")
    with (here / "board" / "leaderboard.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["shape"] for row in rows if row["stream"] == "two"} == {
        *("seed", "class-sequential", "correlated", "few-classes", "half-classes", "long-tail")
    }
    tda = [row for row in rows if (row["method"], row["passes"]) == ("tda", "1")]
    assert len(tda) == 2 * (8 + 6)
    shapes = {row["shape"] for row in tda}
    means = {shape: np.mean([float(row["gain"]) for row in tda if row["shape"] == shape]) for shape in shapes}
    gain = f"{100 * np.mean(list(means.values())):+.2f}"
    page = (here / "board" / "leaderboard.md").read_text()
    assert f"| tda | {gain} | " in page
    lowest = {shape: min(float(row["gain"]) for row in tda if row["shape"] == shape) for shape in shapes}
    assert f"| {100 * means['long-tail']:+.2f} / {100 * lowest['long-tail']:+.2f} |" in page
    assert "| tda, second pass | " in page
    assert "\nacclimate leaderboard *.safetensors --orders 2 --passes 2 --out board\n" in page
    assert "- Domain shift: two (fewer than two domains)." in page
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["tda", gain] in [line[:2] for line in lines]
    assert "left out: The method zero (needs views in every stream)." in result.stderr
    with Image.open(here / "board" / "leaderboard.png") as picture:
        assert picture.width > picture.height > 200


def test_without_matplotlib_the_picture_is_left_out(invoke, streams, here, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    options = ["--orders", 1, "--shape", "seed", "--method", "prior", "--limit", 50, "--jobs", 1, "--out", "board"]
    assert "the pictures are left out; plots need matplotlib: " in invoke("leaderboard", streams[0], *options).stderr
    assert sorted(path.name for path in (here / "board").iterdir()) == ["leaderboard.csv", "leaderboard.md"]
    assert ".png" not in (here / "board" / "leaderboard.md").read_text()


def test_the_page_names_the_command(invoke, streams, here):
    options = ["--orders", 1, "--shape", "seed", "--shape", "long-tail", "--method", "prior", "--limit", 50]
    invoke("leaderboard", streams[0], *options, "--jobs", 1)
    page = (here / "results" / "leaderboard.md").read_text()
    assert (
        "acclimate leaderboard one.safetensors --orders 1 --shape seed --shape long-tail --method prior --limit 50 "
        "--out results\n"
    ) in page
    assert "| one | 50 | 6 |" in page
    assert "## Left out" not in page


def test_bad_input_is_refused_before_the_work(invoke, streams, here):
    write_stream(replace(shifted_stream(samples=20, classes=3, dim=16), labels=None), here / "bare.safetensors")
    error = invoke("leaderboard", *streams, "bare.safetensors", exit_code=2).stderr
    assert error.startswith("error: bare has no labels")
    error = invoke("leaderboard", *streams, "--method", "tba", exit_code=2).stderr
    assert error.startswith("error: unknown method 'tba'; did you mean 'tda'")
    assert not (here / "results").exists()


@pytest.mark.slow
def test_processes_end_when_the_command_is_killed(streams, here):
    command = [sys.executable, "-m", "acclimate", "leaderboard", streams[0], "--orders", "500", "--jobs", "2"]
    with subprocess.Popen([*command, "--method", "tda"], cwd=here, stderr=subprocess.DEVNULL) as running:
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        if not children.parent.is_dir():
            pytest.skip("needs /proc")
        wait_until(lambda: len(children.read_text().split()) >= 3)  # two that measure, and the resource tracker
        started = [Path("/proc", pid) for pid in children.read_text().split()]
        running.kill()
    wait_until(lambda: not any(process.is_dir() for process in started))
