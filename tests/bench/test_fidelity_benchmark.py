"""`benchmarks/fidelity.py` without the authors' code, and what its table calls equal."""

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("yaml")
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # last: some modules there and here have the same name

import fidelity
from fidelity_parts.authors import REPOSITORIES
from fidelity_parts.rows import logits_row, values_row

BASE = np.eye(4)


def test_without_the_clones_it_says_how_to_get_them(monkeypatch, tmp_path):
    for each in REPOSITORIES[:2]:
        file = tmp_path / each.name / each.file
        file.parent.mkdir()
        file.touch()
    given = ["--tda", str(tmp_path / "TDA"), "--tpt", str(tmp_path / "TPT"), "--coop", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["fidelity.py", *given])
    with pytest.raises(SystemExit) as stopped:
        fidelity.main()
    said = str(stopped.value)
    assert "--coop, --difftpt, --tip-adapter, --dassl named no clone of it" in said
    assert "git clone https://github.com/KaiyangZhou/CoOp authors/CoOp" in said
    assert said.count("git clone") == len(REPOSITORIES) - 2
    assert said.endswith("--dassl authors/Dassl.pytorch")


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        (3 * BASE, "equal"),
        (3 * BASE + 0.009, "equal"),  # rounding: half a percent of the effect, which is 2
        (3 * BASE + 0.011, "**differs**"),
        (np.roll(3 * BASE, 1, axis=1), "**differs**"),
    ],
)
def test_equal_are_the_same_answers_from_nearly_the_same_logits(ours, verdict):
    row = logits_row("TDA", "its function", 3 * BASE, ours, BASE)
    assert f"| {verdict} |" in row.line()
    assert row.agrees == (verdict == "equal")


def test_one_answer_that_differs_is_enough():
    ours = 3 * BASE
    ours[0] = [2.999, 3.0, 0.0, 0.0]
    theirs = ours.copy()
    theirs[0] = [3.0, 2.999, 0.0, 0.0]
    row = logits_row("TDA", "its function", theirs, ours, BASE)
    assert row.equal == 3
    assert not row.agrees


def test_numbers_are_compared_with_the_largest_of_them():
    values = np.array([[1000.0], [1.0]])
    assert values_row("Features", "of images", values, values + 0.9).agrees
    assert not values_row("Features", "of images", values, values + np.array([[0.0], [1.1]])).agrees
