"""`acclimate leaderboard` end to end."""

import csv
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from acclimate.bench import leaderboard
from acclimate.bench.leaderboard import measure
from acclimate.checks.synthetic import shifted_stream
from acclimate.stream import write_stream
from own_methods import SHARPEN
from waiting import wait_until

pytest.importorskip("matplotlib")


def read(folder):
    """Return the rows of leaderboard.csv."""
    with (folder / "leaderboard.csv").open() as file:
        return list(csv.DictReader(file))


def run(row):
    """Return the run of a row."""
    return row["stream"], row["shape"], row["seed"]


@pytest.fixture
def streams(here):
    """Return the names of two feature files, one of them with domains."""
    first = shifted_stream(samples=250, classes=6, dim=16, seed=1)
    write_stream(replace(first, domains=("near",) * 80 + ("far",) * 170), here / "one.safetensors")
    write_stream(shifted_stream(samples=120, classes=5, dim=16, seed=2), here / "two.safetensors")
    return ["one.safetensors", "two.safetensors"]


def test_two_tables_a_picture_and_every_run(invoke, streams, here):
    options = ["--orders", 2, "--passes", 2, "--unseen", "two.*"]
    result = invoke("leaderboard", *streams, *options, "--jobs", 1, "--out", "board")
    rows = read(here / "board")
    assert {row["shape"] for row in rows if row["stream"] == "two"} == {
        *("shuffled", "class-sequential", "correlated", "few-classes", "half-classes", "long-tail")
    }
    zero_shot = {run(row): float(row["acc1"]) for row in rows if row["method"] == "zero-shot"}
    tda = [row for row in rows if row["method"] == "tda"]
    assert len(tda) == 2 * (8 + 6)
    page = (here / "board" / "leaderboard.md").read_text()
    online, collections = re.split("^## Collections$", page, flags=re.MULTILINE)
    for column, part, how in (("acc1", online, "online"), ("set_acc1", collections, "frozen and read once more")):
        gains = {}
        for row in tda:
            gains.setdefault(row["shape"], []).append(float(row[column]) - zero_shot[run(row)])
        gain = f"{100 * np.mean([np.mean(each) for each in gains.values()]):+.2f}"
        assert f"| tda | {how} | {gain} | " in part
        tail = gains["long-tail"]
        assert f"| {100 * np.mean(tail):+.2f} / {100 * min(tail):+.2f} |" in collections
        assert ["tda", *how.split(), gain] in [
            line.split()[: 2 + len(how.split())] for line in result.stdout.split("\n")
        ]
    assert "| accord | learnt anew in 2 rounds |" in collections
    assert "\nacclimate leaderboard *.safetensors --orders 2 --passes 2 --unseen 'two.*' --out board\n" in page
    assert "- Domain-shift: two (fewer than two domains)." in page
    assert "| two | 120 | 5 | " in page
    assert "left out: The method zero (needs views in every stream)." in result.stderr
    assert r"tda & online & " in (here / "board" / "leaderboard.tex").read_text()
    with Image.open(here / "board" / "leaderboard.png") as picture:
        assert picture.height > picture.width / 2 > 300


def test_a_method_of_somebody_else_joins_a_board(invoke, streams, here, own_registry):
    shapes = ["--shape", "shuffled", "--shape", "long-tail"]
    options = ["--orders", 2, *shapes, "--passes", 2, "--jobs", 1, "--out", "board"]
    invoke("leaderboard", *streams, *options, "--method", "prior", "--method", "tda")
    before = read(here / "board")
    (here / "sharpen.py").write_text(SHARPEN)
    added = [*options, "--plugin", "sharpen.py", "--method", "sharpen", "--set", "sharpen.factor=2,3", "--add"]
    table = invoke("leaderboard", *streams, *added).stdout
    assert "sharpen factor=3  each by itself" in table
    assert "tda        frozen and read once more" in table  # sharpen learns nothing, so it has no second pass
    rows = read(here / "board")
    assert [row for row in rows if row["method"] in ("zero-shot", "prior", "tda")] == before  # their times included
    assert len(rows) - len(before) == 2 * 2 * 2 * 2
    page = (here / "board" / "leaderboard.md").read_text()
    assert page.count("\nacclimate leaderboard *.safetensors") == 2
    assert "--method sharpen --set sharpen.factor=2,3 --plugin sharpen.py --passes 2 --out board --add\n" in page
    error = invoke("leaderboard", streams[0], *added, exit_code=2).stderr
    assert error.startswith("error: two is not as on the board: it has {'sha256'")
    error = invoke("leaderboard", *streams, *added, "--limit", 50, exit_code=2).stderr
    assert error.startswith("error: limit is not as on the board: it has None, and here is 50. Give the files")
    error = invoke("leaderboard", *streams, *added, "--orders", 3, exit_code=2).stderr
    assert error.startswith("error: orders is not as on the board: it has 2, and here is 3.")


def test_a_stopped_command_is_continued(invoke, streams, here, monkeypatch):
    options = [*streams, "--orders", 2, "--shape", "shuffled", "--method", "tda", "--jobs", 1]
    measured = []

    def measure_two(**task):
        measured.append(task["order"])
        if len(measured) == 3:
            raise KeyboardInterrupt
        return measure(**task)

    monkeypatch.setattr(leaderboard, "measure", measure_two)
    stopped = invoke("leaderboard", *options, exit_code=130)
    assert "stopped; the same command with --add continues from results." in stopped.stderr
    assert not (here / "results" / "leaderboard.md").exists()
    before = read(here / "results")
    assert len(before) == 2 * 2
    invoke("leaderboard", *options, "--add")
    assert len(measured) == 3 + 2
    assert read(here / "results")[: len(before)] == before
    page = (here / "results" / "leaderboard.md").read_text()
    assert page.count("\nacclimate leaderboard") == 1  # it is one command
    assert "## Collections" not in page


def test_without_matplotlib_the_picture_is_left_out(invoke, streams, here, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    options = ["--orders", 1, "--shape", "shuffled", "--method", "prior", "--limit", 50, "--jobs", 1, "--out", "board"]
    assert "the pictures are left out; plots need matplotlib: " in invoke("leaderboard", streams[0], *options).stderr
    assert sorted(path.name for path in (here / "board").iterdir()) == [
        *("leaderboard.csv", "leaderboard.json", "leaderboard.md", "leaderboard.tex"),
    ]
    assert ".png" not in (here / "board" / "leaderboard.md").read_text()


def test_bad_input_is_refused_before_the_work(invoke, streams, here):
    write_stream(replace(shifted_stream(samples=20, classes=3, dim=16), targets=None), here / "bare.safetensors")
    error = invoke("leaderboard", *streams, "bare.safetensors", exit_code=2).stderr
    assert error.startswith("error: bare has no labels")
    error = invoke("leaderboard", *streams, "--method", "tba", exit_code=2).stderr
    assert error.startswith("error: unknown method 'tba'; did you mean 'tda'")
    error = invoke("leaderboard", *streams, "--method", "tda", "--set", "dota.limit=1", exit_code=2).stderr
    assert error.startswith("error: --set dota.limit=1: 'dota' is not among the methods of this run.")
    error = invoke("leaderboard", *streams, "--add", exit_code=2).stderr
    assert error.startswith("error: no leaderboard in results to add to")
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
