"""`acclimate data check`, as a user runs it."""

import json
from random import Random

import pytest
from typer.testing import CliRunner

from acclimate.bench.datasets import DATASETS
from acclimate.cli import app
from miniatures import draw_dataset, few, whole


def check(*arguments):
    result = CliRunner().invoke(app, ["data", "check", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture
def five_mistakes(tmp_path):
    """Five datasets with a mistake each, and one without."""

    def drawn(key):
        return draw_dataset(tmp_path, DATASETS[key], whole(DATASETS[key]))

    drawn("caltech101")
    (drawn("dtd") / "split_zhou_DescribableTextures.json").unlink()
    split = drawn("pets") / "split_zhou_OxfordPets.json"
    swapped = {"abyssinian": "beagle", "beagle": "abyssinian"}
    rows = [[file, number, swapped.get(name, name)] for file, number, name in json.loads(split.read_text())["test"]]
    split.write_text(json.dumps({"test": rows}))
    short = drawn("imagenet-a") / "imagenet-a" / DATASETS["imagenet-a"].wnids[3]
    for path in list(short.iterdir())[:5]:
        path.unlink()
    corrupt = drawn("flowers102") / "jpg/image_00042.jpg"
    content = corrupt.read_bytes()
    corrupt.unlink()
    corrupt.write_bytes(content[:300])
    v2 = DATASETS["imagenet-v2"]
    images = drawn("imagenet-v2") / v2.images
    for wnid, number in zip(v2.wnids, sorted(map(str, range(1000))), strict=True):
        (images / number).rename(images / wnid)
    return tmp_path


def test_all_five_mistakes_are_named(five_mistakes):
    result = check(five_mistakes, "--json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)["datasets"]
    states = {key: about["state"] for key, about in report.items()}
    wrong = {"dtd", "pets", "imagenet-a", "flowers102", "imagenet-v2"}
    assert {key for key, state in states.items() if state == "wrong"} == wrong
    assert {key for key, state in states.items() if state == "found"} == {"caltech101"}
    first = {key: report[key]["findings"][0] for key in wrong}
    assert {key: finding["kind"] for key, finding in first.items()} == {
        "dtd": "split",
        "pets": "class order",
        "imagenet-a": "count",
        "flowers102": "image",
        "imagenet-v2": "class order",
    }
    expected = {
        "dtd": "split_zhou_DescribableTextures.json is missing",
        "pets": "'beagle' has the number 0, which belongs to 'abyssinian'",
        "imagenet-a": "7495 test images instead of 7500",
        "flowers102": "image_00042.jpg cannot be read",
        "imagenet-v2": "the folders were renamed to WordNet ids",
    }
    for key, message in expected.items():
        assert message in first[key]["message"]
    assert "error: imagenet-a, imagenet-v2, dtd, flowers102, pets: see above" in result.stderr


def test_the_table_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    draw_dataset(tmp_path, DATASETS["dtd"], whole(DATASETS["dtd"]))
    result = check(tmp_path)
    assert result.exit_code == 0
    lines = {line.split()[0]: line for line in result.stdout.splitlines()}
    assert {key for key, dataset in DATASETS.items() if not dataset.part_of} < set(lines)
    assert "imagenet-a-authors" not in lines  # a part is checked if it is named
    assert lines["dtd"].split() == ["dtd", "found", "47", "1692"]
    assert "missing" in lines["cars"]
    assert "get cars_test.tgz" in lines["cars"]


def test_nothing_there_is_a_failure(tmp_path):
    result = check(tmp_path)
    assert result.exit_code == 1
    assert f"none of the 15 datasets is in {tmp_path}" in result.stderr


def test_only_what_was_named(tmp_path):
    draw_dataset(tmp_path, DATASETS["dtd"], few())
    result = check(tmp_path, "--dataset", "dtd", "--dataset", "cars", "--no-decode")
    assert result.exit_code == 1
    assert "error: dtd, cars: see above" in result.stderr
    assert "eurosat" not in result.stdout


def test_the_part_of_imagenet_a_has_its_own_count(tmp_path):
    folder = draw_dataset(tmp_path, DATASETS["imagenet-a"], whole(DATASETS["imagenet-a"])) / "imagenet-a"
    result = check(tmp_path, "--dataset", "imagenet-a-authors", "--no-decode", "--json")
    assert result.exit_code == 1
    (finding,) = json.loads(result.stdout)["datasets"]["imagenet-a-authors"]["findings"]
    assert "test images instead of 6862" in finding["message"]
    left = int(finding["message"].split()[0])
    kept = [path for path in sorted(folder.rglob("*.jpg")) if "sh" not in path.name]
    for path in Random(0).sample(kept, left - 6862):
        path.rename(path.with_name(f"sh{path.name}"))
    assert check(tmp_path, "--dataset", "imagenet-a-authors", "--no-decode").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["nowhere"], "no folder at nowhere"), ([".", "--dataset", "mnist"], "unknown dataset 'mnist'")],
)
def test_bad_input(here, arguments, message):
    result = check(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
