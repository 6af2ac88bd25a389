"""Methods of one's own on the command line: --plugin, and packages."""

import json
import re
import shlex
from pathlib import Path

import pytest

from own_methods import SHARPEN, install

pytestmark = pytest.mark.usefixtures("own_registry")
DOCS = Path(__file__).parents[2] / "docs"
WITH_PLUGINS = (
    *("classify", "fit", "run", "reproduce", "leaderboard", "methods", "serve", "correct"),
    *("state inspect", "state merge", "state diff"),
)


@pytest.fixture
def plugin(here):
    path = here / "sharpen.py"
    path.write_text(SHARPEN)
    return path.name


def test_run_save_inspect_and_merge(invoke, plugin, stream_file, here):
    own = ["--plugin", plugin]
    table = invoke("run", stream_file, "--method", "sharpen", "--set", "factor=2,3", *own, "--out", "out.json").stdout
    assert "  sharpen factor=3  " in table
    assert [each["config"]["factor"] for each in json.loads((here / "out.json").read_text())] == [2, 3]
    invoke("run", stream_file, "--method", "sharpen", "--save-state", "a.safetensors", *own)
    assert "Sharpen(classes=8" in invoke("state", "inspect", "a.safetensors", *own).stdout
    invoke("state", "merge", "a.safetensors", "a.safetensors", "-o", "b.safetensors", *own)
    assert "no difference" in invoke("state", "diff", "a.safetensors", "b.safetensors", *own).stdout
    assert "sharpen     zero-shot logits times a factor" in invoke("methods", *own).stdout


def test_without_the_file_the_error_says_how(invoke, plugin, stream_file):
    error = invoke("run", stream_file, "--method", "sharpen", exit_code=2).stderr
    assert error.startswith("error: unknown method 'sharpen'")
    assert error.endswith("on the command line: --plugin FILE.py.\n")


def test_a_package_needs_no_option(invoke, stream_file, here, monkeypatch):
    monkeypatch.syspath_prepend(here)
    install(here)
    assert "  sharpen  " in invoke("run", stream_file, "--method", "sharpen").stdout


def test_a_plugin_reaches_the_processes(invoke, plugin, stream_file, here):
    pytest.importorskip("matplotlib")
    options = ["--shape", "shuffled", "--orders", 2, "--method", "sharpen", "--plugin", plugin, "--out", "board"]
    invoke("leaderboard", stream_file, *options, "--jobs", 2)
    assert "| sharpen | each by itself | +0.00 |" in (here / "board" / "leaderboard.md").read_text()
    assert "--method sharpen --plugin sharpen.py --out board" in (here / "board" / "leaderboard.md").read_text()


def test_classify(invoke, plugin, photos, tiny_onnx):
    options = ["--labels", "red, green", "--model", f"onnx:{tiny_onnx}", "--out", "out.csv", "--report", "out.html"]
    invoke("classify", photos, *options, "--method", "sharpen", "--set", "factor=3", "--plugin", plugin)


def test_the_method_of_the_guides(invoke, stream_file, here):
    """The class that docs/engine.md shows, saved as the file that the commands of the guides name."""
    pytest.importorskip("matplotlib")
    engine, research = ((DOCS / name).read_text(encoding="utf-8") for name in ("engine.md", "research.md"))
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", engine, re.DOTALL) if "class Means" in block)
    (here / "means.py").write_text(code)
    stream_file.rename(here / "pacs.safetensors")
    commands = re.findall(r"^acclimate (\w+ pacs.safetensors --plugin means.py .*)$", engine + research, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        assert "means" in invoke(*shlex.split(command)).stdout


def test_every_command_with_a_method_takes_plugins(invoke):
    for command in WITH_PLUGINS:
        assert "--plugin" in invoke(*command.split(), "--help").stdout, command
