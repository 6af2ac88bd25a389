"""The documents agree with the code."""

import csv
import doctest
import re
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from statistics import mean

import pytest

import acclimate
from acclimate.methods import gates as reject

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PACKAGE = Path(acclimate.__file__).parent
WITH_EXAMPLES = sorted(path for path in PACKAGE.rglob("*.py") if ">>> " in path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_the_examples_in_docstrings_run(path, tmp_path, monkeypatch):
    """In an empty folder, without the user's cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if str(error.name).startswith("acclimate"):
            raise
        pytest.skip(f"{name} needs {error.name}")
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.attempted
    assert not result.failed


def test_the_table_of_methods_is_up_to_date():
    lines = ["| method | class | what it does | kind | merge | needs |", "| --- | --- | --- | --- | --- | --- |"]
    for name, method in acclimate.list_methods().items():
        merge = method.merges or "none"
        needs = ", ".join(sorted(method.needs)) or "none"
        lines.append(f"| `{name}` | `{method.__name__}` | {method.summary} | {method.kind} | {merge} | {needs} |")
    table = "\n".join(lines)
    text = (DOCS / "methods.md").read_text(encoding="utf-8")
    assert f"<!-- methods -->\n{table}\n<!-- /methods -->" in text, f"docs/methods.md must contain:\n{table}"


def test_every_public_name_has_an_example():
    public = {name: getattr(acclimate, name) for name in acclimate.__all__}
    assert not [name for name, value in public.items() if callable(value) and ">>>" not in (value.__doc__ or "")]


def test_every_public_name_is_in_the_reference():
    pages = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.md"))
    documented = set(re.findall(r"^::: acclimate\.(\w+)$", pages, re.MULTILINE))
    assert documented >= set(acclimate.__all__), sorted(set(acclimate.__all__) - documented)


def test_the_table_for_choosing_a_method_is_that_of_the_leaderboard():
    board = DOCS / "results" / "leaderboard.md"
    if not board.is_file():
        pytest.skip("there is no leaderboard")
    shapes = board.read_text(encoding="utf-8").partition("## Shapes\n")[2]
    table = re.search(r"^\|.*?(?=\n\n|\Z)", shapes, re.MULTILINE | re.DOTALL)[0].strip()
    text = (DOCS / "choosing.md").read_text(encoding="utf-8")
    assert f"<!-- shapes -->\n{table}\n<!-- /shapes -->" in text, f"docs/choosing.md must contain:\n{table}"


def test_the_constants_of_none_of_these_are_those_of_the_code():
    constants = f"{reject.LABELS}, {reject.OFFSET} and {reject.GAP}"
    formula = f"sigmoid(ln K - {reject.OFFSET} - {reject.GAP} gap)"
    assert f"the library has {constants}." in (DOCS / "results/none_of_these.md").read_text("utf-8")
    assert reject.LABELS == 1.0  # the formula leaves it out
    assert f"`none = {formula}`" in (DOCS / "unknown.md").read_text("utf-8")
    assert f"`{formula}`" in str(reject.Rejector.__doc__)


# the lines of README's table: a leaderboard, and the stream, or "" for the mean of all
BRINGS = {
    "196 kinds of cars": ("results", "stanford_cars"),
    "101 dishes, most photos damaged": ("results", "food101_corrupted"),
    "200 kinds of birds, most photos damaged": ("results", "cub200_corrupted"),
    "47 textures, of which 10 occur, most photos damaged": ("results", "textures_corrupted"),
    "CLIP ViT-B/16 on six datasets that `accord` was tuned on": ("results/whole", ""),
}


def mean_accuracy(board, stream, method, column):
    """Return the mean accuracy over streams of the mean over shapes of the mean over runs, in percent."""
    runs = defaultdict(lambda: defaultdict(list))
    with (DOCS / board / "leaderboard.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["method"] == method and stream in ("", row["stream"]):
                runs[row["stream"]][row["shape"]].append(float(row[column]))
    return 100 * mean(mean(map(mean, shapes.values())) for shapes in runs.values())


def test_the_table_of_the_readme_is_that_of_the_leaderboards():
    cells = [("zero-shot", "acc1"), ("tda", "acc1"), ("accord", "acc1"), ("accord", "set_acc1")]
    lines = [
        " | ".join([f"| {name}", *(f"{mean_accuracy(*row, *cell):.1f}" for cell in cells)]) + " |"
        for name, row in BRINGS.items()
    ]
    table = "\n".join(lines)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f" ---: |\n{table}\n<!-- /brings -->" in text, f"README.md must contain:\n{table}"


def test_the_readme_is_read_in_a_minute():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 80
    assert max(map(len, lines)) <= 120


def test_the_way_of_one_image_is_that_of_the_code():
    """Every place that CONTRIBUTING names is there, and defines what is named beside it."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    defined = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    steps = re.findall(r"^\| \d+\. [^|]+ \| ([^|]+) \| (.+) \|$", text, re.MULTILINE)
    assert len(steps) == 11
    for places, happens in steps:
        assert all((PACKAGE / place).exists() for place in re.findall(r"`([^`]+)`", places)), places
        for name in re.findall(r"`(?:\w+\.)*(\w+)`s?", happens):
            assert re.search(rf"(def|class) {name}\b", defined), name


def test_the_gains_of_the_default_method_are_those_of_the_leaderboard():
    board = (DOCS / "results" / "leaderboard.md").read_text(encoding="utf-8")
    lines = []
    for title, when in (("Online", "as they came"), ("Collections", "at the end")):
        rows = re.findall(r"^\| .* \|$", board.split(f"## {title}\n")[1].split("\n## ")[0], re.MULTILINE)
        heads = [cell.strip() for cell in rows[0].split("|")[1:-1]]
        methods = [row.split(" | ") for row in rows[2:]]
        place = next(place for place, row in enumerate(methods, 1) if row[0] == "| accord")
        shown = [methods[place - 1][heads.index(head)] for head in ("mean gain", "95 % interval", "unseen streams")]
        lines.append(" | ".join([f"| accord, {when}", f"{place} of {len(methods)}", *shown]) + " |")
    table = "\n".join(lines)
    text = (DOCS / "speed.md").read_text(encoding="utf-8")
    assert f" ---: |\n{table}\n<!-- /gains -->" in text, f"docs/speed.md must contain:\n{table}"


def test_the_pages_of_results_are_dated_and_their_tables_small():
    results = DOCS / "results"
    for page in results.rglob("*.md"):
        last = page.read_text(encoding="utf-8").splitlines()[-1]
        assert re.fullmatch(r"Written on \d{4}-\d\d-\d\d by acclimate \d+\.\d+\.\d+\S*\.", last), page
    assert not [path for path in results.rglob("*.csv") if path.stat().st_size > 500_000]
