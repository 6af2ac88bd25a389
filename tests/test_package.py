import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import acclimate
from acclimate.bench.synthetic import shifted_stream
from acclimate.cli import app
from acclimate.sources.features import write_stream

ROOT = Path(__file__).parents[1]


def test_every_public_name_is_there():
    for name in acclimate.__all__:
        assert getattr(acclimate, name) is not None
    assert set(acclimate.__all__) <= set(dir(acclimate))
    with pytest.raises(AttributeError, match="no attribute 'TAD'"):
        acclimate.TAD  # noqa: B018


@pytest.mark.parametrize("document", ["README.md", "docs/engine.md"])
def test_the_python_in_the_documents_runs(document, tmp_path, monkeypatch):
    """Blocks of one document run in order, in one namespace."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("acclimate.adapters.base._REGISTRY", acclimate.methods())
    write_stream(shifted_stream(), "pacs.safetensors")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    scope: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, document, "exec"), scope)


def test_the_commands_in_the_readme_run(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    commands = re.findall(
        r"^acclimate (.*?)(?: +#.*)?$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(commands) == 5
    for command in commands:
        result = CliRunner().invoke(app, command.split())
        assert result.exit_code == 0, (command, result.output)
