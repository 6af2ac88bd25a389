import ast
import re
import shlex
import shutil
from importlib import import_module
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

import acclimate
from acclimate.checks.synthetic import shifted_stream
from acclimate.cli import app
from acclimate.stream import write_stream

ROOT = Path(__file__).parents[1]


def test_every_public_name_is_there():
    for name in acclimate.__all__:
        assert getattr(acclimate, name) is not None
    assert set(dir(acclimate)) == {*acclimate.__all__, "__version__"}
    with pytest.raises(AttributeError, match="no attribute 'TAD'"):
        acclimate.TAD  # noqa: B018


def test_type_checkers_see_the_same_names():
    stub = ast.parse((ROOT / "src/acclimate/__init__.pyi").read_text(encoding="utf-8"))
    imported = {
        (node.module, name.name) for node in stub.body if isinstance(node, ast.ImportFrom) for name in node.names
    }
    assert sorted(name for _, name in imported) == acclimate.__all__
    for module, name in imported:
        assert getattr(import_module(module), name) is getattr(acclimate, name)


@pytest.fixture
def desk(tiny_onnx, tiny_clip, photos, tmp_path, monkeypatch):
    """A folder with what the documents speak of: a model, photos, labels, a feature file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / ".cache"))
    monkeypatch.setattr("acclimate.methods.registry._REGISTRY", acclimate.list_methods())
    shutil.copytree(tiny_onnx, "clip")
    shutil.copytree(tiny_clip, "my-clip")
    shutil.copytree(photos, "photos")
    Path("labels.txt").write_text("red\ngreen\nblue\n")
    for name in ("photo.jpg", "other.jpg"):
        Image.open(next(photos.rglob("*.png"))).save(name)
    write_stream(shifted_stream(), "pacs.safetensors")


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize("document", ["README.md", "docs/classify.md", "docs/engine.md", "docs/few_shot.md"])
def test_the_python_in_the_documents_runs(document):
    """Blocks of one document run in order, in one namespace."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    scope: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, document, "exec"), scope)


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize("title", ["From a folder of labelled images", "Learned prompts"])
def test_the_commands_about_labelled_images_run(title):
    """With a tiny model in place of the bundled one."""
    guide = (ROOT / "docs" / "few_shot.md").read_text(encoding="utf-8")
    section = guide.partition(f"## {title}\n")[2].partition("\n## ")[0]
    commands = re.findall(r"^acclimate (.*?)(?: +#.*)?$", section, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        model = [] if command.startswith("state") or "--model" in command else ["--model", "onnx:clip"]
        result = CliRunner().invoke(app, [*shlex.split(command), *model])
        assert result.exit_code == 0, (command, result.output)


@pytest.mark.usefixtures("desk")
def test_the_commands_in_the_readme_run():
    commands = re.findall(
        r"^acclimate (.*?)(?: +#.*)?$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    offline = [command for command in commands if "hf:" not in command and not command.startswith("serve")]
    assert len(offline) == len(commands) - 2 == 7
    for command in offline:
        result = CliRunner().invoke(app, shlex.split(command))
        assert result.exit_code == 0, (command, result.output)
