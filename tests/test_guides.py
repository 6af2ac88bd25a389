"""Every snippet of the README and of the guides runs as it stands, in the order of the page."""

import json
import shutil
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

import acclimate
from guides import Reader, snippets

pytestmark = pytest.mark.guides

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LANGUAGES = {"sh", "python", "text", "json", "ini", "toml"}  # the first two are run


@pytest.fixture
def reader(demo, tmp_path, monkeypatch, remembering, request):
    """Return a reader in an empty folder."""

    def give(name):
        return request.getfixturevalue({"my-clip": "tiny_clip"}[name])

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("acclimate.methods.registry._REGISTRY", acclimate.list_methods())
    reader = Reader(demo.folder, give, monkeypatch.chdir)
    yield reader
    reader.stop()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_has_a_language(page):
    """So that none escapes being run; `text` is for what is not meant to be run."""
    assert {snippet.language for snippet in snippets(page)} <= LANGUAGES
    assert page.read_text(encoding="utf-8").count("```") == 2 * len(snippets(page))


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if {each.language for each in snippets(page)} & {"sh", "python"}],
    ids=lambda page: page.stem,
)
def test_the_page_can_be_followed(page, reader):
    reader.follow(page)


def test_the_notebook_runs_and_has_its_outputs(demo, tmp_path, monkeypatch, remembering):
    pytest.importorskip("matplotlib").use("Agg")
    spec = spec_from_file_location("notebook", ROOT / "docs" / "notebook.py")
    runner = module_from_spec(spec)
    spec.loader.exec_module(runner)
    stored = json.loads((ROOT / "docs" / "tutorial.ipynb").read_text(encoding="utf-8"))
    monkeypatch.chdir(tmp_path)
    shutil.copytree(demo.folder, "acclimate-demo")

    def kinds(notebook):
        return [[each["output_type"] for each in cell.get("outputs", ())] for cell in notebook["cells"]]

    assert kinds(runner.run(stored)) == kinds(stored)
