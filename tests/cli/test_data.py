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
