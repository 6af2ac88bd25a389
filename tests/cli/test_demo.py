import os
import sys

import pytest

from acclimate.cli.demo import as_typed


@pytest.fixture
def command(here, monkeypatch):
    """Return the command of a virtual environment, started by its path."""
    path = here / ".venv" / "bin" / "acclimate"
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    monkeypatch.setattr("sys.argv", [".venv/bin/acclimate", "demo"])
    monkeypatch.setenv("PATH", "/usr/bin")
    return path


def test_the_hints_can_be_typed_where_the_reader_stands(command, monkeypatch):
    assert as_typed() == (".venv/bin/acclimate", "")
    command.with_name("activate").touch()
    assert as_typed() == (".venv/bin/acclimate", ". .venv/bin/activate")
    monkeypatch.setenv("PATH", str(command.parent), prepend=os.pathsep)
    assert as_typed() == ("acclimate", "")
    monkeypatch.setattr("sys.argv", ["/site-packages/acclimate/__main__.py", "demo"])
    assert as_typed() == (f"{sys.executable} -m acclimate", "")
