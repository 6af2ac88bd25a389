"""Feature files that stand for datasets of the paper."""

from dataclasses import replace

import numpy as np
import pytest

from acclimate.bench.comparison import group_results, recipe_tables
from acclimate.bench.recipes import RECIPES
from acclimate.bench.reproduction import Reproduction
from acclimate.bench.results import OF_FILE
from acclimate.checks.synthetic import shifted_stream
from acclimate.errors import InputError
from acclimate.stream import read_stream, write_stream

SUITE = RECIPES["cross-domain"]


@pytest.fixture
def write(tmp_path):
    """Write a small feature file with the classes of a dataset, and return its path."""

    def write(name, classes, **changes):
        stream = shifted_stream(samples=150, classes=classes, dim=32, seed=classes)
        known = {"encoder": "OpenAI CLIP ViT-B/16", "prompts": "words of our own"}
        write_stream(replace(stream, **{**known, **changes}), tmp_path / f"{name}.safetensors")
        return tmp_path / f"{name}.safetensors"

    return write


def planned(recipes, paths, folder, *methods, **settings):
    plan = Reproduction(paths, folder)
    plan.plan(recipes, methods, settings)
    return plan


def run(recipes, paths, folder, *methods, **settings):
    return planned(recipes, paths, folder, *methods, **settings).run()


@pytest.mark.parametrize(
    ("name", "classes", "changes", "why"),
    [
        ("holidays", 10, {}, "no dataset of the paper has this name"),
        ("eurosat", 9, {}, "9 classes, and EuroSAT has 10"),
        ("eurosat", 10, {"encoder": ""}, "the encoder is not recorded, and not OpenAI CLIP ViT-B/16 or RN50"),
        ("eurosat", 10, {"encoder": "OpenAI CLIP ViT-B/16, centred"}, "the encoder is OpenAI CLIP ViT-B/16, centred,"),
        ("eurosat", 10, {"prompts": ""}, "the prompts of its class vectors are not recorded"),
    ],
)
def test_files_that_stand_for_no_dataset(write, tmp_path, name, classes, changes, why):
    path = write(name, classes, **changes)
    with pytest.raises(InputError) as error:
        planned([SUITE], [path], tmp_path)
    assert f"no file stands for a dataset of cross-domain ({name}: {why}" in str(error.value)
    plan = planned([RECIPES["caches"]], [path], tmp_path)  # an ablation runs on any file
    assert plan.other_files[name].startswith(why)
    assert {(each.dataset, each.prompts) for each in plan.run()} == {(name, OF_FILE)}


def test_a_dataset_of_another_suite(write, tmp_path):
    with pytest.raises(InputError, match=r"no file stands for a dataset of ood \(eurosat: not in this table\)"):
        planned([RECIPES["ood"]], [write("eurosat", 10)], tmp_path)


def test_two_files_of_one_dataset_are_refused(write, tmp_path):
    with pytest.raises(InputError, match="two of the files are pets with the same views; leave out one of them"):
        Reproduction([write("pets", 37), write("oxford_pets", 37)], tmp_path)


def test_the_rows_of_a_suite_from_feature_files(write, tmp_path):
    paths = [write("oxford_pets", 37, prompts="other words (of a repository)"), write("eurosat", 10)]
    results = run([SUITE, RECIPES["caches"]], paths, tmp_path)
    assert {(each.dataset, each.file, each.prompts) for each in results} == {
        ("eurosat", "eurosat", "words of our own"),
        ("pets", "oxford_pets", "other words"),
    }
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"eurosat.json", "pets.json"}
    (group,) = group_results(results)  # though the prompts differ
    assert group.context == "Model: OpenAI CLIP ViT-B/16. Order: stored."
    table, gains = recipe_tables(SUITE, group)
    assert table.columns == ("EuroSAT", "Pets", "Average of 2 of 10")
    rows = dict(table.rows)
    assert list(rows) == ["zero-shot", "CoOp", "CoCoOp", "TPT", "DiffTPT", "tda", "tda, authors-per-dataset"]
    assert [cell.reported for cell in rows["zero-shot"]] == pytest.approx([50.42, 86.92, (50.42 + 86.92) / 2])
    assert [cell.measured for cell in rows["CoOp"]] == [None, None, None]
    eurosat, pets, average = rows["tda, authors-per-dataset"]
    assert eurosat.why == ("150 of 8,100 images.", "prompts: words of our own; in the paper: dataset.")
    assert pets.why == ("150 of 3,669 images.", "prompts: other words; in the paper: dataset.")
    assert set(average.why) == {*eurosat.why, *pets.why}
    assert rows["tda"][0].why[-1].startswith("the same settings (alpha, beta) for all datasets")
    assert [label for label, _ in gains.rows] == ["tda", "tda, authors-per-dataset"]
    assert [cell.reported for cell in gains.rows[0][1][:2]] == pytest.approx([58.0 - 50.42, 88.63 - 86.92])
    assert gains.rows[0][1][0].measured == pytest.approx(rows["tda"][0].measured - rows["zero-shot"][0].measured)
    by_settings = {each.settings: each for each in results if each.dataset == "pets" and each.method == "tda"}
    assert by_settings["authors-per-dataset"].config["positive_beta"] == 7.0
    (caches,) = recipe_tables(RECIPES["caches"], group)
    assert caches.columns == ("eurosat", "pets", "average of 2 of 10", "imagenet")


def test_rows_that_features_cannot_give(write, tmp_path):
    plan = planned([SUITE], [write("eurosat", 10)], tmp_path)
    assert plan.lacking("cross-domain") == [
        f"{name} is not measured on eurosat; it needs the text tower of a model: --model."
        for name in ("CoOp", "CoCoOp", "TPT", "DiffTPT")
    ]


def test_methods_by_name_and_their_settings(write, tmp_path):
    path = write("eurosat", 10)
    results = run([SUITE], [path], tmp_path, "dota", "tda", tda={"positive_alpha": 1.5})
    assert [(each.method, each.settings) for each in results] == [
        ("zero-shot", "paper"),
        ("dota", "paper"),
        ("tda", "given"),
    ]
    (group,) = group_results(results)
    rows = dict(recipe_tables(SUITE, group)[0].rows)
    assert rows["tda, positive_alpha 1.5"][0].why[-1] == "the settings are not the paper's: positive_alpha 1.5."
    assert rows["dota"][0].reported is None
    with pytest.raises(InputError, match="mta in cross-domain needs a run with views: `acclimate embed dataset:euro"):
        planned([SUITE], [path], tmp_path, "mta")
    with pytest.raises(InputError, match="tpt in cross-domain needs the text tower of a model"):
        planned([SUITE], [path], tmp_path, "tpt")


def test_methods_that_need_views_run_on_files_with_views(write, tmp_path):
    path = write("eurosat", 10)
    single = read_stream(path)
    features = np.repeat(single.features[:, None], 3, axis=1)
    write_stream(replace(single, features=features, views_kind="crop"), path)
    results = run([SUITE], [path], tmp_path, "mta")
    assert [(each.method, each.views) for each in results] == [("zero-shot", 1), ("mta", 3)]
    one_view = (single.head.observe(single.features).logits.argmax(axis=1) == single.targets).mean()
    assert [each.baseline["acc1"] for each in results] == pytest.approx([one_view, one_view])


def test_files_that_no_recipe_uses_are_not_run(write, tmp_path):
    results = run([SUITE], [write("eurosat", 10), write("holidays", 5)], tmp_path)
    assert {each.dataset for each in results} == {"eurosat"}
