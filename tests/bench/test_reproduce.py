import json
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from acclimate.bench.datasets import DATASETS
from acclimate.bench.plots import FORMATS as PICTURES
from acclimate.bench.reproduce import RECIPES
from acclimate.bench.reproduce.ablation import Ablation
from acclimate.bench.reproduce.overview import every_table
from acclimate.bench.reproduce.recipe import Variant, groups
from acclimate.bench.reproduce.report import write_report
from acclimate.bench.reproduce.run import run_on_streams
from acclimate.bench.results import OF_FILE, read_results
from acclimate.checks.synthetic import shifted_stream
from acclimate.errors import InputError
from acclimate.methods import TDA, TDAConfig
from acclimate.stream import write_stream


def silent(total, verb, things):
    return nullcontext(lambda done: None)


ABLATIONS = [name for name, recipe in RECIPES.items() if isinstance(recipe, Ablation)]


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """All ablations on two small streams: folder, streams and results."""
    folder = tmp_path_factory.mktemp("swept")
    streams = {}
    for seed, name in enumerate(("a", "b")):
        stream = shifted_stream(samples=300, classes=8, dim=32, seed=seed)
        streams[name] = replace(stream, metadata={"encoder": "one for both"})
        write_stream(streams[name], folder / f"{name}.safetensors")
    recipes = [RECIPES[name] for name in ABLATIONS]
    records = run_on_streams(recipes, sorted(folder.glob("*.safetensors")), ["stored"], folder, silent)
    return folder, streams, records


def accuracy(stream, **settings):
    adapter = TDA(stream.class_vectors, logit_scale=stream.logit_scale, **settings)
    return 100 * np.mean(adapter.step(stream.features).argmax(axis=1) == stream.labels)


def test_the_recipes_are_the_papers():
    assert list(RECIPES) == [
        "ood",
        "efficiency",
        "cross-domain",
        "caches",
        "capacity",
        "entropy-range",
        "mask-threshold",
        "alpha-beta",
    ]
    for recipe in RECIPES.values():
        for dataset in recipe.datasets:
            assert recipe.variants(dataset)  # every setting is one that TDA has


@pytest.mark.parametrize("name", ABLATIONS)
def test_the_papers_own_settings_are_in_every_sweep(name):
    # With a cache switched off, its own settings do not matter.
    for sweep in RECIPES[name].sweeps:
        defaults = TDAConfig()
        kinds = [replace(defaults, positive=p, negative=n) for p, n in ((True, True), (False, True), (True, False))]
        configs = [TDAConfig(**variant.config) for variant in sweep.rows.values()]
        nearest = [replace(config, negative_keep="lowest") for config in configs]
        assert any(kind in nearest for kind in kinds)


def test_a_table_shows_what_a_run_alone_measures(swept):
    _, streams, records = swept
    (group,) = groups(records)
    (table,) = RECIPES["caches"].tables(group)
    assert table.columns == ("a", "b", "average")
    expected = {
        "zero-shot": {"positive": False, "negative": False},
        "positive": {"negative": False},
        "negative": {"positive": False},
        "both": {},
    }
    for (label, cells), (name, settings) in zip(table.rows, expected.items(), strict=True):
        assert label == name
        measured = [accuracy(stream, **settings) for stream in streams.values()]
        assert [cell.measured for cell in cells] == pytest.approx([*measured, np.mean(measured)], abs=1e-3)
        assert [cell.reported for cell in cells[:-1]] == [None, None]
        assert cells[-1].reported is not None
        assert "these are not the paper's datasets and prompts." in cells[-1].why


def test_settings_that_recipes_share_are_run_once(swept):
    folder, _, records = swept
    assert len(read_results(folder / "a.json")) == len(records) / 2
    configs = [json.dumps(record["config"]) for record in records if record["dataset"] == "a"]
    assert len(set(configs)) == len(configs)


def test_label_accuracy_is_that_of_the_cache(swept):
    _, streams, records = swept
    (group,) = groups(records)
    table = RECIPES["capacity"].tables(group)[2]
    stream = streams["a"]
    adapter = TDA(stream.class_vectors, logit_scale=stream.logit_scale, positive_capacity=6)
    adapter.step(stream.features)
    state = adapter.dump()
    right = np.mean(stream.labels[state["positive.ids"]] == state["positive.classes"])
    cells = dict(table.rows)["6"]
    assert cells[0].measured == pytest.approx(100 * right, abs=1e-3)
    assert cells[-1].reported == 86.6


def test_a_report_is_a_page_with_pictures_and_the_same_each_time(swept, tmp_path):
    _, _, records = swept
    contents = []
    recipes = [RECIPES["caches"], RECIPES["entropy-range"]]
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        page = write_report(recipes, records, tmp_path / name, "acclimate reproduce ...", on_streams=True)
        text = page.read_text()
        assert "**These are not the paper's datasets.**" in text
        assert "```\nacclimate reproduce ...\n```" in text
        for recipe in recipes:
            assert f"]({recipe.name}.png)" in text
        contents.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert len(contents[0]) == 1 + len(recipes)
    assert contents[0] == contents[1]


@pytest.mark.parametrize("suffix", PICTURES)
def test_pictures_of_every_kind(swept, tmp_path, suffix):
    _, _, records = swept
    (group,) = groups(records)
    recipe = RECIPES["alpha-beta"]
    for name in ("one", "two"):
        recipe.draw(recipe.tables(group), tmp_path / f"{name}{suffix}")
    assert (tmp_path / f"one{suffix}").read_bytes() == (tmp_path / f"two{suffix}").read_bytes()


def test_results_of_other_models_prompts_and_orders_stand_apart(swept):
    _, _, records = swept
    others = [{**record, "model": "another"} for record in records]
    assert [group.model for group in groups([*records, *others])] == [records[0]["model"], "another"]
    assert len(groups([*records, *({**record, "prompts": "single"} for record in records)])) == 2


def test_a_report_of_two_models_has_pictures_of_both(swept, tmp_path):
    _, _, records = swept
    others = [{**record, "model": "another"} for record in records]
    page = write_report([RECIPES["caches"]], [*records, *others], tmp_path, "...", on_streams=True).read_text()
    assert "](caches.png)" in page
    assert "](caches-2.png)" in page
    assert (tmp_path / "caches-2.png").is_file()
    assert page.count("Each cell: measured / reported") == 1


def test_without_labels_there_is_nothing_to_compare(swept):
    _, _, records = swept
    unscored = [{**record, "metrics": dict.fromkeys(record["metrics"])} for record in records]
    assert groups(unscored) == []


def test_streams_that_cannot_be_used_are_refused(stream, tmp_path):
    path = tmp_path / "x.safetensors"
    write_stream(replace(stream, labels=None), path)
    with pytest.raises(InputError, match="x has no labels"):
        run_on_streams([RECIPES["caches"]], [path], ["stored"], tmp_path, silent)
    with pytest.raises(InputError, match="two feature files have one name"):
        run_on_streams([RECIPES["caches"]], [path, path], ["stored"], tmp_path, silent)
    with pytest.raises(InputError, match="ood compares the paper's datasets and needs --data"):
        run_on_streams([RECIPES["ood"]], [path], ["stored"], tmp_path, silent)


def as_dataset(record, key, **changes):
    """A result as if it were of one of the paper's datasets, by the paper's protocol."""
    dataset = DATASETS[key]
    own = {"dataset": key, "n": dataset.test, "classes": dataset.classes, "views": dataset.views, "prompts": "dataset"}
    reducer = {"reducer": "confident-mean" if dataset.views > 1 else None}
    return {**record, "model": "open_clip:ViT-B-16/openai", **own, **reducer, **changes}


@pytest.fixture
def default(swept):
    return next(record for record in swept[2] if record["config"] == Variant().config)


def test_a_suites_table_has_the_papers_rows_and_ours(default):
    suite = RECIPES["ood"]
    records = [as_dataset(default, key) for key in suite.datasets]
    records += [as_dataset(default, key, settings="authors-per-dataset") for key in suite.datasets[:2]]
    records += [as_dataset(default, key, method="mine", settings="paper") for key in suite.datasets]
    (group,) = groups(records)
    (table,) = suite.tables(group)
    labels = [label for label, _ in table.rows]
    assert labels == [
        *("zero-shot", "CoOp", "CoCoOp", "Tip-Adapter", "TPT", "DiffTPT", "tda", "tda, authors-per-dataset", "mine")
    ]
    rows = dict(table.rows)
    assert table.columns[-2:] == ("Average", "OOD average")
    assert [cell.reported for cell in rows["tda"]] == pytest.approx([69.51, 60.11, 64.67, 80.24, 50.54, 65.014, 63.89])
    assert rows["tda"][5].measured == pytest.approx(100 * default["metrics"]["acc1"])
    assert rows["tda"][0].why == ()  # ImageNet has the same settings in both
    assert rows["tda"][2].why[0].startswith("one (alpha, beta) for all datasets")
    assert rows["zero-shot"][0].measured == pytest.approx(100 * default["baseline"]["acc1"])
    assert rows["zero-shot"][0].why[0].startswith("the paper's CLIP row")
    assert rows["tda, authors-per-dataset"][5].measured is None  # not all five were run
    assert rows["CoOp"][0].measured is None
    assert {cell.reported for cell in rows["mine"]} == {None}


def test_the_printed_average_of_the_cross_domain_table(default):
    suite = RECIPES["cross-domain"]
    (group,) = groups([as_dataset(default, key) for key in suite.datasets])
    (table,) = suite.tables(group)
    assert dict(table.rows)["tda"][-1].reported == 67.53


def test_other_views_stand_apart(default):
    records = [as_dataset(default, "imagenet-a"), as_dataset(default, "imagenet-a", views=1, reducer=None)]
    records.append(as_dataset(default, "imagenet-a", reducer="vote"))
    assert [group.views for group in groups(records)] == ["", "1", "64, vote"]
    assert "Views: 64, vote." in groups(records)[2].context


def test_minutes_are_those_of_encoding_and_adapting(default):
    cost = {**default["cost"], "encode_s": 600.0, "wall_s": 60.0, "baseline_s": 30.0}
    (group,) = groups([as_dataset(default, "imagenet", cost=cost, model="open_clip:RN50/openai")])
    (table,) = RECIPES["efficiency"].tables(group)
    rows = dict(table.rows)
    assert (rows["tda"][0].measured, rows["tda"][0].reported) == (11.0, 16)
    assert rows["zero-shot"][0].measured == 10.5
    assert rows["tda"][2].reported == pytest.approx(61.35 - 59.81)
    assert rows["TPT"][0].measured is None
    assert "one RTX 6000" in rows["tda"][0].why[-1]
    (group,) = groups([as_dataset(default, "imagenet")])
    assert RECIPES["efficiency"].tables(group) == []  # nobody knows how long the encoding took


def test_one_dataset_needs_no_average(swept):
    _, _, records = swept
    (group,) = groups([as_dataset(record, "imagenet") for record in records if record["dataset"] == "a"])
    alpha, _ = RECIPES["alpha-beta"].tables(group)
    assert alpha.columns == ("imagenet",)
    assert dict(alpha.rows)["2.0"][0].reported == 61.35
    assert all("the paper's figure is for" not in reason for _, (cell,) in alpha.rows for reason in cell.why)
    (caches,) = RECIPES["caches"].tables(group)
    assert "the paper's figure is for Aircraft, Caltech101" in dict(caches.rows)["both"][0].why[-1]


def test_the_overview_leaves_out_nothing_and_repeats_nothing(swept, default):
    _, _, records = swept
    (group,) = groups(records)
    *ablations, others = every_table(group)
    assert {table.name for table in ablations} == set(ABLATIONS)
    assert [label for label, _ in others.rows] == ["zero-shot", "tda"]
    own = {**default, "settings": "custom", "config": {**default["config"], "positive_alpha": 1.5}}
    (group,) = groups([own])
    (table,) = every_table(group)
    assert [label for label, _ in table.rows] == ["zero-shot", "tda, positive_alpha 1.5"]
    (group,) = groups([as_dataset(default, "dtd")])
    assert [table.name for table in every_table(group)] == ["cross-domain"]


def test_zero_shot_alone_is_a_row_of_its_own(swept):
    zero_shot = swept[2][0]
    assert (zero_shot["method"], zero_shot["prompts"]) == ("zero-shot", OF_FILE)
    (group,) = groups([zero_shot])
    assert [label for table in every_table(group) for label, _ in table.rows] == ["zero-shot"]
