"""Progress bars."""

import re
from time import sleep

import pytest

from acclimate.cli.console import THINGS, progress_bar, stage_bars


@pytest.fixture
def terminal(monkeypatch, capsys):
    """Stderr as a terminal of 200 columns; a function that returns what was shown on it."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    return lambda: re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)


def test_the_speed_is_shown_from_the_first_call_on(terminal):
    with progress_bar(100, "encoding", "images") as advance:
        assert "left" not in terminal()
        advance(20, "3 answers changed")
    shown = terminal()
    assert re.search(r"encoding .* 20/100 images 3 answers changed 0:\d\d:\d\d [\d.e+]+/s, 0:\d\d:\d\d left", shown)


def test_images_of_an_earlier_run_do_not_count_as_speed(terminal):
    with progress_bar(2_000_000, "encoding", "images") as advance:
        sleep(0.05)
        advance(10, earlier=1_000_000)
    assert float(re.search(r"1000010/2000000 .* ([\d.e+]+)/s", terminal())[1]) <= 10 / 0.05


def test_every_stage_has_a_bar(terminal):
    with stage_bars() as show:
        for stage in (*THINGS, "fitting"):
            show(stage, 1, 2)
    shown = terminal()
    for stage, things in {**THINGS, "fitting": "steps"}.items():
        assert re.search(rf"{stage} .* 1/2 {things}", shown)


def test_nothing_is_shown_where_there_is_no_terminal(capsys):
    with progress_bar(2, "encoding", "images") as advance, stage_bars() as show:
        advance(1)
        show("fitting", 1, 2)
    assert capsys.readouterr().err == ""
