import json
from dataclasses import replace

import numpy as np
import pytest

from acclimate import TDA
from acclimate.bench.comparison import group_results, reasons, recipe_tables, write_report
from acclimate.bench.plots import FIGURES
from acclimate.bench.plots import FORMATS as PICTURES
from acclimate.bench.prequential import Variant
from acclimate.bench.recipes import RECIPES, row_of, usual_row
from acclimate.bench.reproduction import Reproduction
from acclimate.checks.synthetic import shifted_stream
from acclimate.errors import InputError
from acclimate.methods import find_method
from acclimate.sources.datasets import DATASETS
from acclimate.stream import write_stream

ABLATIONS = [name for name, recipe in RECIPES.items() if recipe.kind == "settings"]


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Return all ablations on two small streams: folder, streams and results."""
    folder = tmp_path_factory.mktemp("swept")
    streams = {}
    for seed, name in enumerate(("a", "b")):
        stream = shifted_stream(samples=300, classes=8, dim=32, seed=seed)
        streams[name] = replace(stream, encoder="one for both")
        write_stream(streams[name], folder / f"{name}.safetensors")
    recipes = [RECIPES[name] for name in ABLATIONS]
    plan = Reproduction(sorted(folder.glob("*.safetensors")), folder)
    plan.plan(recipes)
    return folder, streams, plan.run()


def accuracy(stream, **settings):
    adapter = TDA(stream.head, **settings)
    return 100 * np.mean(adapter.step(stream.features).argmax(axis=1) == stream.targets)


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
        "early",
    ]
    for recipe in RECIPES.values():
        assert recipe.figure in FIGURES


@pytest.mark.parametrize("name", ["ood", "cross-domain", "efficiency"])
def test_every_row_of_the_paper_has_a_protocol(name):
    recipe = RECIPES[name]
    reported = [recipe.reported] if name == "efficiency" else recipe.reported.values()
    assert all(list(figures) == list(recipe.rows) for figures in reported)
    for protocol in recipe.rows.values():
        method = find_method(protocol.method)
        for key in recipe.datasets:
            assert all(
                variant.config.keys() == method.default_settings().keys()
                for variant in recipe.variants(protocol, DATASETS[key])
            )
            assert (DATASETS[key].views_of(protocol.views) > 1) >= ("views" in method.needs)
        assert bool(protocol.shots) == (method.kind == "few-shot")
        assert row_of(protocol.method, DATASETS[recipe.datasets[0]]).prompts == protocol.prompts


def test_methods_without_a_row_are_measured_as_tda_with_what_they_need():
    tda = usual_row("tda")
    mta = usual_row("mta")
    assert (tda.prompts, tda.views, tda.views_kind, tda.trained) == ("dataset", "paper", "augmix", "")
    assert (mta.prompts, mta.views, mta.views_kind) == ("dataset", 64, "crop")
    assert usual_row("tip-adapter-f").trained == (
        "ImageNet's training images, 16 per class (settings searched on its validation images)"
    )
    assert usual_row("of another version").views == "paper"


def test_the_figures_are_the_papers(shared):
    if not (shared / "reference").is_dir():
        pytest.skip("the paper's figures are not on this machine")
    paper = json.loads((shared / "reference" / "paper.json").read_text())
    assert RECIPES["ood"].reported == paper["ood"]["rows"]
    assert RECIPES["cross-domain"].reported == paper["cross_domain"]["rows"]
    assert RECIPES["cross-domain"].printed_averages == {
        model: {name: {"Average": figure} for name, figure in rows.items()}
        for model, rows in paper["cross_domain"]["average_as_printed"].items()
    }
    assert RECIPES["efficiency"].reported == paper["efficiency_imagenet_rn50_rtx6000"]
    ablations = paper["ablations_imagenet_rn50"]
    averages = ablations["cross_domain_average"]
    expected = {"positive": averages["positive_only"], "negative": averages["negative_only"], "both": averages["both"]}
    zero_shot = {"zero-shot": RECIPES["ood"].reported["RN50"]["CLIP"][0]}
    tda = RECIPES["ood"].reported["RN50"]["TDA"][0]
    negative_alone = ablations["negative_only_entropy_range_min"]["0.2-0.5"]
    assert RECIPES["caches"].sweeps[0].reported == {
        "average": {"zero-shot": paper["cross_domain"]["average_as_printed"]["RN50"]["CLIP"], **expected},
        "imagenet": {**zero_shot, "negative": negative_alone, "both": ablations["both"]},
    }
    on_imagenet = {
        "capacity": [
            {**zero_shot, "3": tda},
            {**zero_shot, "2": tda},
            ablations["positive_cache_label_accuracy"],
            {"6": 0.4},  # 4 of 1,000 classes
        ],
        "entropy-range": [
            {**zero_shot, **ablations["negative_only_entropy_range_min"]},
            {**zero_shot, **ablations["negative_only_entropy_range_max"]},
        ],
        "mask-threshold": [{**zero_shot, "0.03": negative_alone}, {**zero_shot, "0.03": tda}],
        "alpha-beta": [{**zero_shot, **ablations[name]} for name in ("alpha", "beta")],
        "early": [{**zero_shot, "0": tda, "500": round(tda + 0.1, 2)}, {"0": -0.06}],
    }
    for name, figures in on_imagenet.items():
        assert [sweep.reported for sweep in RECIPES[name].sweeps] == [{"imagenet": each} for each in figures]


@pytest.mark.parametrize("suite", ["ood", "cross-domain"])
def test_the_columns_of_a_suite_are_its_datasets(suite):
    kinds = [key for key, each in DATASETS.items() if bool(each.wnids) == (suite == "ood") and not each.part_of]
    assert list(RECIPES[suite].datasets) == kinds
    for rows in RECIPES[suite].reported.values():
        assert all(len(figures) == len(kinds) for figures in rows.values())


@pytest.mark.parametrize("name", ABLATIONS)
def test_the_papers_own_settings_are_in_every_sweep(name):
    # With a cache switched off, its own settings do not matter.
    defaults = TDA.default_settings()
    switches = ({}, {"positive": False}, {"negative": False})
    for sweep in RECIPES[name].sweeps:
        configs = [{**variant.config, "negative_keep": "lowest"} for variant in sweep.rows.values()]
        assert any({**defaults, **switch} in configs for switch in switches)


def test_a_table_shows_what_a_run_alone_measures(swept):
    _, streams, results = swept
    (group,) = group_results(results)
    (table,) = recipe_tables(RECIPES["caches"], group)
    assert table.columns == ("a", "b", "average", "imagenet")
    expected = {
        "zero-shot": {"positive": False, "negative": False},
        "positive": {"negative": False},
        "negative": {"positive": False},
        "both": {},
    }
    for (label, cells), (name, settings) in zip(table.rows, expected.items(), strict=True):
        assert label == name
        measured = [accuracy(stream, **settings) for stream in streams.values()]
        assert [cell.measured for cell in cells[:3]] == pytest.approx([*measured, np.mean(measured)], abs=1e-3)
        assert [cell.reported for cell in cells[:2]] == [None, None]
        assert cells[2].reported is not None
        assert "the datasets and prompts are not the paper's." in cells[2].why
        assert cells[3].measured is None  # the paper's figures for ImageNet stand in a column of their own
    assert [cells[3].reported for _, cells in table.rows] == [59.81, None, 60.83, 61.35]


def test_settings_that_recipes_share_are_run_once(swept):
    folder, _, results = swept
    written = [each for name in "ab" for each in json.loads((folder / "runs" / f"{name}.json").read_text())]
    assert [each["config"] for each in written] == [each.config for each in results]
    configs = [json.dumps(result.config) for result in results if result.dataset == "a"]
    assert len(set(configs)) == len(configs)


def test_label_accuracy_is_that_of_the_cache(swept):
    _, streams, results = swept
    (group,) = group_results(results)
    table = recipe_tables(RECIPES["capacity"], group)[2]
    stream = streams["a"]
    adapter = TDA(stream.head, positive_capacity=6)
    adapter.step(stream.features)
    right = np.mean([stream.targets[entry.id] == entry.class_index for entry in adapter.entries()["positive"]])
    cells = dict(table.rows)["6"]
    assert cells[0].measured == pytest.approx(100 * right, abs=1e-3)
    assert cells[-1].reported == 86.6


def test_classes_that_cannot_fill_their_queue(swept):
    _, streams, results = swept
    (group,) = group_results(results)
    table = recipe_tables(RECIPES["capacity"], group)[3]
    stream = streams["a"]
    adapter = TDA(stream.head, positive_capacity=16)
    adapter.step(stream.features)
    held = np.bincount([entry.class_index for entry in adapter.entries()["positive"]], minlength=8)
    assert dict(table.rows)["16"][0].measured == pytest.approx(100 * np.mean(held < 16))
    assert dict(table.rows)["6"][-1].reported == 0.4


def test_the_start_of_the_stream(swept):
    _, streams, results = swept
    (group,) = group_results(results)
    accuracies, early = recipe_tables(RECIPES["early"], group)
    rows = dict(accuracies.rows)
    stream = streams["a"]
    assert list(rows) == ["zero-shot", "0", "25", "100", "500"]
    assert rows["100"][0].measured == pytest.approx(accuracy(stream, bypass=100), abs=1e-3)
    assert rows["500"][0].measured == rows["zero-shot"][0].measured  # the stream is shorter
    rows = dict(early.rows)
    first = {"positive": False, "negative": False}, {}
    start = replace(stream, features=stream.features[:3], targets=stream.targets[:3])
    zero_shot, tda = (accuracy(start, **settings) for settings in first)
    assert rows["0"][0].measured == pytest.approx(tda - zero_shot, abs=1e-3)
    assert [cell.measured for cell in rows["25"]] == [0, 0, 0, None]
    assert rows["0"][-1].reported == -0.06


def test_a_report_is_a_page_with_pictures_and_the_same_each_time(swept, tmp_path):
    _, _, results = swept
    contents = []
    recipes = [RECIPES["caches"], RECIPES["entropy-range"]]
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        write_report(recipes, results, tmp_path / name, "acclimate reproduce ...")
        text = (tmp_path / name / "README.md").read_text()
        assert "**These are not the paper's datasets.**" in text
        assert "```\nacclimate reproduce ...\n```" in text
        for recipe in recipes:
            assert f"]({recipe.name}.png)" in text
        contents.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert len(contents[0]) == 2 + len(recipes)
    assert contents[0] == contents[1]


@pytest.mark.parametrize("suffix", PICTURES)
def test_pictures_of_every_kind(swept, tmp_path, suffix):
    _, _, results = swept
    (group,) = group_results(results)
    recipe = RECIPES["alpha-beta"]
    for name in ("one", "two"):
        FIGURES[recipe.figure](recipe_tables(recipe, group), tmp_path / f"{name}{suffix}")
    assert (tmp_path / f"one{suffix}").read_bytes() == (tmp_path / f"two{suffix}").read_bytes()


def test_results_of_other_models_prompts_and_orders_stand_apart(swept):
    _, _, results = swept
    others = [replace(result, model="another") for result in results]
    assert [group.results[0].model for group in group_results([*results, *others])] == [results[0].model, "another"]
    assert len(group_results([*results, *(replace(result, prompts="single") for result in results)])) == 2


def test_a_report_of_two_models_has_pictures_of_both(swept, tmp_path):
    _, _, results = swept
    others = [replace(result, model="another") for result in results]
    write_report([RECIPES["caches"]], [*results, *others], tmp_path, "...")
    page = (tmp_path / "README.md").read_text()
    assert "](caches.png)" in page
    assert "](caches-2.png)" in page
    assert (tmp_path / "caches-2.png").is_file()
    assert page.count("Each cell: measured / reported") == 1


def test_without_labels_there_is_nothing_to_compare(swept):
    _, _, results = swept
    unscored = [replace(result, metrics=dict.fromkeys(result.metrics)) for result in results]
    assert group_results(unscored) == []


def test_streams_that_cannot_be_used_are_refused(stream, tmp_path):
    path = tmp_path / "x.safetensors"
    write_stream(replace(stream, targets=None), path)
    with pytest.raises(InputError, match="x has no labels"):
        Reproduction([path], tmp_path)
    with pytest.raises(InputError, match="two feature files have the same name"):
        Reproduction([path, path], tmp_path)


def as_dataset(result, key, **changes):
    """Return a result as if it were of one of the paper's datasets, by the paper's protocol."""
    dataset = DATASETS[key]
    own = {"dataset": key, "n": dataset.test, "classes": dataset.classes, "views": dataset.views, "prompts": "dataset"}
    return replace(result, **{"model": "open_clip:ViT-B-16/openai", "file": "", **own, **changes})


@pytest.fixture
def default(swept):
    return next(result for result in swept[2] if result.config == Variant("tda").config)


def test_a_suites_table_has_the_papers_rows_and_ours(default):
    suite = RECIPES["ood"]
    results = [as_dataset(default, key) for key in suite.datasets]
    results += [as_dataset(default, key, settings="authors-per-dataset") for key in suite.datasets[:2]]
    results += [as_dataset(default, key, method="mine", settings="paper") for key in suite.datasets]
    (group,) = group_results(results)
    table, gains = recipe_tables(suite, group)
    labels = [label for label, _ in table.rows]
    assert labels == [
        *("zero-shot", "CoOp", "CoCoOp", "Tip-Adapter", "TPT", "DiffTPT", "tda", "tda, authors-per-dataset", "mine")
    ]
    rows = dict(table.rows)
    assert table.columns[-2:] == ("Average", "OOD average")
    assert [cell.reported for cell in rows["tda"]] == [69.51, 60.11, 64.67, 80.24, 50.54, 65.01, 63.89]
    assert rows["tda"][5].measured == pytest.approx(100 * default.metrics["acc1"])
    assert rows["tda"][0].why == ()  # ImageNet has the same settings in both
    assert rows["tda"][2].why[0].startswith("the same settings (alpha, beta) for all datasets")
    assert rows["zero-shot"][0].measured == pytest.approx(100 * default.baseline["acc1"])
    assert rows["zero-shot"][0].why == ("prompts: dataset; in the paper: openai-80.",)
    assert [label for label, _ in gains.rows] == ["tda", "tda, authors-per-dataset", "mine"]
    assert gains.rows[0][1][0].measured == pytest.approx(100 * default.gain)
    assert gains.rows[0][1][0].reported == pytest.approx(69.51 - 68.34)
    assert gains.rows[0][1][0].why == (
        "the paper's gain is over its CLIP row, which has prompts and views of its own.",
    )
    assert {cell.reported for cell in dict(gains.rows)["mine"]} == {None}
    assert "tda: prompts dataset; views per image 1 or 64 augmix." in table.notes
    assert rows["tda, authors-per-dataset"][5].measured is None  # not all five were run
    assert rows["CoOp"][0].measured is None
    assert {cell.reported for cell in rows["mine"]} == {None}


def test_the_printed_average_of_the_cross_domain_table(default):
    suite = RECIPES["cross-domain"]
    (group,) = group_results([as_dataset(default, key) for key in suite.datasets])
    table, _ = recipe_tables(suite, group)
    assert dict(table.rows)["tda"][-1].reported == 67.53


@pytest.mark.parametrize(
    ("suite", "averages"),
    [
        (
            "ood",
            [
                (62.28, ("printed in the paper; its cells give 62.576.",)),
                (60.52, ("printed in the paper; its cells give 60.645.",)),
            ],
        ),
        ("cross-domain", [(65.47, ("printed in the paper; its cells give 64.919.",))]),
    ],
)
def test_printed_averages_that_the_cells_do_not_give(default, suite, averages):
    recipe = RECIPES[suite]
    (group,) = group_results([as_dataset(default, key) for key in recipe.datasets])
    table, _ = recipe_tables(recipe, group)
    rows = dict(table.rows)
    assert [(cell.reported, cell.why) for cell in rows["DiffTPT"][len(recipe.datasets) :]] == averages
    half = {"TPT": "printed in the paper; its cells give 60.805."} if suite == "ood" else {}  # rounded up
    for name in ("CoOp", "CoCoOp", "TPT"):
        assert {why for cell in rows[name] for why in cell.why} == ({half[name]} if name in half else set())


def test_a_part_of_a_dataset_is_a_column_of_its_own(default):
    recipe = RECIPES["ood"]
    results = [as_dataset(default, key) for key in ("imagenet", "imagenet-a", "imagenet-a-authors", "dtd")]
    table, _ = recipe_tables(recipe, group_results(results)[0])
    assert table.columns == ("ImageNet", "ImageNet-A", "ImageNet-A (6,862)", "Average of 2 of 5")
    assert dict(table.rows)["CoOp"][-1].reported == pytest.approx((71.51 + 49.71) / 2)
    tda = dict(table.rows)["tda"]
    zero_shot = dict(table.rows)["zero-shot"]
    assert [cell.reported for cell in tda[1:3]] == [60.11, 60.11]
    assert "6,862 of the 7,500 images" in tda[1].why[0]
    assert tda[2].why == ()
    assert [cell.reported for cell in zero_shot[1:3]] == [49.89, None]  # the CLIP row is on all images


def as_row(result, suite, name, key, **changes):
    """Return a result as if it were of a row of the paper, by its protocol."""
    row = RECIPES[suite].rows[name]
    dataset = DATASETS[key]
    settings = find_method(row.method).default_settings() | dict(row.config)
    own = {"method": row.method, "prompts": row.prompts, "views": dataset.views_of(row.views), "settings": "paper"}
    kind = row.views_kind if dataset.views_of(row.views) > 1 else ""
    return as_dataset(result, key, **own, views_kind=kind, trained=row.trained, config=settings, **changes)


@pytest.mark.parametrize("suite", ["ood", "cross-domain"])
def test_rows_that_follow_their_protocols_stand_in_one_table_without_reasons(default, suite):
    recipe = RECIPES[suite]
    results = [as_row(default, suite, name, key) for name in recipe.rows for key in recipe.datasets]
    (group,) = group_results(results)
    assert group.context == "Model: open_clip:ViT-B-16/openai. Order: stored."
    table, gains = recipe_tables(recipe, group)
    assert [label for label, _ in table.rows] == [row.method for row in recipe.rows.values()]
    assert [label for label, _ in gains.rows] == [row.method for row in recipe.rows.values()][1:]
    assert all(cell.measured is not None for _, cells in table.rows for cell in cells)
    found = {reason for _, cells in table.rows for cell in cells for reason in cell.why}
    known = ["the same settings (alpha, beta)", "the authors' loader", "printed in the paper"]
    known += (remark for row in recipe.rows.values() for remark in row.remarks)
    assert all(reason.startswith(tuple(known)) for reason in found)
    assert len(table.notes) == len(table.rows)


def test_a_row_that_deviates_from_its_protocol_has_a_reason(default):
    suite = RECIPES["ood"]
    tpt = as_row(default, "ood", "TPT", "imagenet-a")
    results = [replace(tpt, views_kind="augmix"), as_row(default, "ood", "CLIP", "imagenet-a")]
    results.append(as_dataset(default, "imagenet-a", method="mta", views_kind="augmix"))
    (group,) = group_results(results)
    table, gains = recipe_tables(suite, group)
    assert dict(table.rows)["tpt"][0].why == ("views: 64 augmix; in the paper: 64 crop.",)
    assert reasons(results[-1], "ViT-B/16") == ("views: 64 augmix; in the paper: 64 crop.",)
    assert gains.title.endswith("gain over zero-shot with the same prompts, points")
    assert "are compared with zero-shot on one view" in gains.notes[0]


def test_given_settings_are_in_the_name_of_a_row_and_a_reason(default):
    coop = as_row(default, "ood", "CoOp", "imagenet-a")
    coop = replace(coop, settings="given", config={**coop.config, "epochs": 1})
    (group,) = group_results([coop])
    cells = dict(recipe_tables(RECIPES["ood"], group)[0].rows)["coop, epochs 1"]
    assert cells[0].why == (*RECIPES["ood"].row("coop").remarks, "the settings are not the paper's: epochs 1.")


def test_times_are_extrapolated_to_all_images_and_compared_with_zero_shot(default):
    recipe = RECIPES["efficiency"]
    results = []
    for name, encode, ms in (("CLIP", 11.5, 0.5), ("TPT", 500.0, 100.0), ("TDA", 11.5, 6.5), ("DiffTPT", None, 9.0)):
        cost = {**default.cost, "encode_ms_per_image": encode, "ms_per_image": ms}
        results.append(
            as_row(default, "ood", name, "imagenet", **{"model": "open_clip:RN50/openai", "cost": cost, "n": 1000})
        )
    (group,) = group_results(results)
    (table,) = recipe_tables(recipe, group)
    rows = dict(table.rows)
    assert list(rows) == ["zero-shot", "tpt", "difftpt", "tda"]
    assert [cell.measured for cell in rows["tda"]] == pytest.approx([15.0, 1.5, 100 * default.metrics["acc1"], 0, 18])
    assert [cell.reported for cell in rows["tpt"]] == pytest.approx([770, 770 / 12, 60.74, 0.93, None])
    assert [cell.reported for cell in rows["difftpt"]][:2] == [2085, 2085 / 12]
    assert [cell.measured is None for cell in rows["difftpt"]] == [True, True, False, False, True]
    assert table.notes[-1] == "difftpt: no time, as no run of these views has its seconds of encoding."
    assert rows["tpt"][0].why == (
        "1,000 of 50,000 images.",
        "the paper's machine has one RTX 6000.",
        "the paper's times are for batch size 1.",
    )
    assert rows["tpt"][2].why == ("1,000 of 50,000 images.",)


def test_one_dataset_needs_no_average(swept):
    _, _, results = swept
    (group,) = group_results([as_dataset(result, "imagenet") for result in results if result.dataset == "a"])
    alpha, _ = recipe_tables(RECIPES["alpha-beta"], group)
    assert alpha.columns == ("imagenet",)
    assert dict(alpha.rows)["2.0"][0].reported == 61.35
    assert all("the paper's figure is for" not in reason for _, (cell,) in alpha.rows for reason in cell.why)
    (caches,) = recipe_tables(RECIPES["caches"], group)
    assert [cell.reported for _, (cell,) in caches.rows] == [59.81, None, 60.83, 61.35]  # Figure 3
    (group,) = group_results([as_dataset(result, "dtd") for result in results if result.dataset == "a"])
    (caches,) = recipe_tables(RECIPES["caches"], group)
    assert caches.columns == ("dtd", "imagenet")  # the latter with the paper's figures alone
    assert [cells[0].reported for _, cells in caches.rows] == [None] * 4


def test_the_average_of_the_caches_leaves_out_imagenet(swept):
    results = [result for result in swept[2] if result.dataset == "a"]
    model = "open_clip:RN50/openai"
    keys = RECIPES["caches"].datasets
    (group,) = group_results([as_dataset(result, key, model=model) for key in keys for result in results])
    (table,) = recipe_tables(RECIPES["caches"], group)
    assert table.columns == (*keys, "average")
    assert keys[0] == "imagenet"
    both = dict(table.rows)["both"]
    assert (both[0].reported, both[1].reported, both[-1].reported) == (61.35, None, 61.03)
    assert not any("the paper's figure is for" in reason for cell in both for reason in cell.why)
    (group,) = group_results([as_dataset(result, key, model=model) for key in keys[:2] for result in results])
    (table,) = recipe_tables(RECIPES["caches"], group)
    assert table.columns == keys[:2]  # one dataset besides ImageNet has no average
    (group,) = group_results([as_dataset(result, key, model=model) for key in keys[:4] for result in results])
    (table,) = recipe_tables(RECIPES["caches"], group)
    assert table.columns == (*keys[:4], "average of 3 of 10")
    assert "the paper's figure is for Aircraft, Caltech101" in dict(table.rows)["both"][-1].why[-1]


def test_the_settings_of_an_ablation_are_the_papers(swept):
    results = [as_dataset(result, "imagenet") for result in swept[2] if result.dataset == "a"]
    (group,) = group_results([replace(result, model="open_clip:RN50/openai") for result in results])
    alpha, _ = recipe_tables(RECIPES["alpha-beta"], group)
    assert {reason for label, (cell,) in alpha.rows if label != "zero-shot" for reason in cell.why} == set()
