"""The help of every command: nothing of what was written is lost, and a terminal of 80 columns shows it."""

import re

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from acclimate.cli import app


def commands(command, path=()):
    yield path, command
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(each, (*path, name))


def shown(path, monkeypatch):
    for variable in ("COLUMNS", "TERMINAL_WIDTH"):
        monkeypatch.setenv(variable, "80")
    result = CliRunner().invoke(app, [*path, "--help"])
    assert result.exit_code == 0
    return result.stdout


@pytest.mark.parametrize(
    ("path", "command"), [pytest.param(*each, id=" ".join(each[0])) for each in commands(get_command(app))]
)
def test_nothing_is_swallowed(path, command, monkeypatch):
    def squeezed(text):
        return "".join(text.split())

    page = shown(path, monkeypatch)
    assert max(map(len, page.splitlines())) <= 80
    text = squeezed(page)
    for parameter in command.params:
        assert squeezed(getattr(parameter, "help", None) or "") in text, parameter.name
        if isinstance(default := getattr(parameter, "show_default", None), str):
            assert squeezed(f"default: ({default})") in text, parameter.name
    for name, each in getattr(command, "commands", {}).items():
        assert squeezed(name + each.get_short_help_str(1000)) in text
    assert "…" not in page


def test_the_text_has_most_of_the_width(monkeypatch):
    for path in (["embed"], ["classify"]):
        lines = [line for line in shown(path, monkeypatch).splitlines() if line.startswith(" " * 30)]
        assert sum(map(len, lines)) / len(lines) > 60


def test_commands_and_options_come_in_panels(monkeypatch):
    """A reader finds the command for a folder of images first, and the few options that it needs."""
    pages = [shown(path, monkeypatch) for path in ([], ["classify"])]
    panels = [dict(re.findall(r"^(\w.*):\n((?:  .*\n?)+)", page, re.MULTILINE)) for page in pages]
    assert [*panels[0]] == [
        "Options", "Your images", "Methods and benchmarks", "Models and installation", "Service and cluster",
    ]  # fmt: skip
    assert "classify" in panels[0]["Your images"]
    assert [*panels[1]] == ["Arguments", "Options", "Answers", "Output", "Adapting", "Reading", "Speed"]
    first = re.findall(r"^  (?:-\w, )?--([\w-]+)", panels[1]["Options"], re.MULTILINE)
    assert first == ["labels", "model", "out", "report", "none-of-these", "help"]
