"""Fixtures of the command line's tests."""

import pytest
from typer.testing import CliRunner

from acclimate.cli import app


@pytest.fixture
def invoke(here, monkeypatch):
    """Run a command in a fresh folder with a wide terminal; its exit code is checked, and no exception is lost."""
    monkeypatch.setenv("ACCLIMATE_CACHE", str(here / ".cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERMINAL_WIDTH", "200")

    def run(*arguments, exit_code=0, stdin=None):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == exit_code, result.output
        return result

    return run
