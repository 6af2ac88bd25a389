"""Suites on miniatures with a tiny model: every dataset, views, orders, and runs that go on where they stopped."""

import shutil
from dataclasses import asdict

import numpy as np
import pytest

from acclimate import TDA
from acclimate.bench.datasets import DATASETS, SUITES, find_datasets, read_dataset
from acclimate.bench.prequential import Variant
from acclimate.bench.recipes import with_authors_settings
from acclimate.bench.results import read_results
from acclimate.bench.store import FeatureStore
from acclimate.bench.suite import result_name, run_suite
from acclimate.errors import InputError, ModelError, RunError
from miniatures import draw_dataset, few


@pytest.fixture(autouse=True)
def _texts(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "texts"))


@pytest.fixture(scope="module")
def model(tiny_onnx):
    return f"onnx:{tiny_onnx}"


@pytest.fixture
def run(tmp_path, model):
    """Run datasets, drawing those that are not there yet, and give the results by dataset and method."""

    def run(keys, out="results", methods=("zero-shot", "tda"), model=model, **options):
        datasets = find_datasets([], keys)
        for dataset in datasets:
            if not (tmp_path / "data" / dataset.folder).exists():
                draw_dataset(tmp_path / "data", dataset, few(classes=4, per_class=6))
        store = FeatureStore(tmp_path / "data", model, tmp_path / "store")
        results = run_suite(store, datasets, methods, tmp_path / out, **options)
        return {(result.dataset, result.method): asdict(result) for result in results}

    return run


def without_cost(results):
    return {key: {name: value for name, value in result.items() if name != "cost"} for key, result in results.items()}


def test_every_dataset_of_both_suites(run, model, tmp_path):
    results = run([*SUITES["ood"], *SUITES["cross-domain"]], views=1, prompts="single")
    suites = [*SUITES["ood"], *SUITES["cross-domain"]]
    assert set(results) == {(key, method) for key in suites for method in ("zero-shot", "tda")}
    for (key, method), result in results.items():
        assert (result["n"], result["classes"]) == (24, DATASETS[key].classes)
        assert (result["model"], result["settings"], result["prompts"]) == (model, "paper", "single")
        assert (result["views"], result["order"], result["n_skipped"]) == (1, "shuffled:1", 0)
        assert result["baseline"]["acc1"] == results[key, "zero-shot"]["metrics"]["acc1"]
        assert result["cost"]["encode_s"] > 0
        assert method == "tda" or result["gain"] == 0
    assert len(read_results(tmp_path / "results")) == 30


def test_sixty_four_views(run):
    results = run(["imagenet-a", "pets"], prompts="single")
    assert (results["imagenet-a", "tda"]["views"], results["pets", "tda"]["views"]) == (64, 1)
    results = run(["imagenet-a"], prompts="single", methods=("zero", "mta", "dota", "prior"))
    assert {method: result["views"] for (_, method), result in results.items()} == dict.fromkeys(
        ("zero", "mta", "dota", "prior"), 64
    )


def test_a_method_that_needs_views_is_refused_before_anything_is_encoded(run, tmp_path):
    with pytest.raises(InputError, match="the method 'mta' needs several views per image"):
        run(["imagenet-a", "pets"], methods=("mta",))
    assert not (tmp_path / "store").exists()


def test_methods_run_on_what_the_views_say(run, tmp_path):
    """The suite's answers are those of the adapter on the stored views in the same order."""
    result = run(["imagenet-a"], prompts="single")["imagenet-a", "tda"]
    store = FeatureStore(tmp_path / "data", result["model"], tmp_path / "store")
    listing = read_dataset(DATASETS["imagenet-a"], store.root)
    stream = store.stream(listing, Variant("tda", prompts="single"))
    order = np.random.default_rng(1).permutation(24)
    adapter = TDA(stream.head)
    answers = adapter.step(stream.features[order]).argmax(axis=1)
    assert result["metrics"]["acc1"] == pytest.approx(np.mean(answers == stream.labels[order]))


def test_finished_results_are_not_run_again(run, tmp_path):
    whole = run(["eurosat", "dtd"])
    paths = sorted((tmp_path / "results").iterdir())
    kept = {path: path.read_bytes() for path in paths if not ("dtd" in path.name and "_tda_" in path.name)}
    (gone,) = set(paths) - set(kept)
    gone.unlink()
    shutil.rmtree(tmp_path / "data" / "eurosat")  # whoever ran it again would miss it
    (tmp_path / "data" / "eurosat").mkdir()
    resumed = run(["eurosat", "dtd"])
    assert sorted((tmp_path / "results").iterdir()) == paths
    assert {path: path.read_bytes() for path in kept} == kept
    assert without_cost(resumed) == without_cost(whole)


def test_an_interrupted_suite_goes_on(run, tmp_path):
    whole = run(["dtd", "eurosat"], "whole")
    image = next((tmp_path / "data/eurosat/2750").rglob("*.jpg"))
    content = image.read_bytes()
    image.unlink()
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(RunError, match=f"{image.name} cannot be read"):
        run(["dtd", "eurosat"])
    assert len(list((tmp_path / "results").iterdir())) == 2
    image.write_bytes(content)
    assert without_cost(run(["dtd", "eurosat"])) == without_cost(whole)


def test_a_wrong_dataset_shows_before_the_first_is_encoded(run, tmp_path):
    split = draw_dataset(tmp_path / "data", DATASETS["eurosat"], few()) / "split_zhou_EuroSAT.json"
    split.unlink()
    with pytest.raises(InputError, match=r"split_zhou_EuroSAT\.json cannot be read"):
        run(["dtd", "eurosat"])
    assert not (tmp_path / "store").exists()


def test_so_does_an_order_that_a_dataset_does_not_have(run, tmp_path):
    with pytest.raises(InputError, match="unknown order 'random'"):
        run(["dtd"], orders=("random",))
    with pytest.raises(InputError, match="an order by domain needs at least two domains"):
        run(["dtd"], orders=("domains:1",))
    assert not (tmp_path / "store").exists()


def test_settings_prompts_and_orders_by_name(run, tmp_path):
    paper = run(["caltech101"])["caltech101", "tda"]
    authors = run(["caltech101"], settings="authors-per-dataset")["caltech101", "tda"]
    assert (paper["config"]["positive_alpha"], paper["config"]["positive_beta"]) == (2.0, 5.0)
    assert (authors["config"]["positive_alpha"], authors["config"]["positive_beta"]) == (5.0, 5.0)
    assert (paper["settings"], authors["settings"]) == ("paper", "authors-per-dataset")
    assert len(list((tmp_path / "results").iterdir())) == 3  # zero-shot has no settings and was not run again
    orders = ("shuffled:0", "shuffled:1", "shuffled:2")
    many = run(["caltech101"], orders=orders, prompts="openai-80")["caltech101", "tda"]
    assert (many["order"], len(many["orders"]["acc1"]), many["prompts"]) == ("many", 3, "openai-80")
    shaped = run(["caltech101"], orders=("class-sequential:1",), methods=("tda",))["caltech101", "tda"]
    assert shaped["order"] == "class-sequential:1"
    names = {path.name for path in (tmp_path / "results").iterdir()}
    assert len(names) == 6
    assert any("_authors-per-dataset_dataset-prompts_1-view_seed-1.json" in name for name in names)
    assert any("_paper_openai-80-prompts_1-view_seed-x3.json" in name for name in names)


def test_names_of_results_tell_setups_apart():
    a = DATASETS["imagenet-a"]
    dtd = DATASETS["dtd"]

    def name(dataset, model="open_clip:ViT-B-16/openai", kind="augmix", orders=("shuffled:1",), authors=False, **how):
        variant = Variant("tda", settings_name="paper", views_kind=kind, **how)
        return result_name(model, dataset, with_authors_settings(variant, dataset) if authors else variant, orders)

    usual = "imagenet-a_open_clip-ViT-B-16-openai_tda_paper_dataset-prompts_64-views_seed-1.json"
    assert name(a) == name(a, kind="augmix") == usual
    assert name(a, kind="crop") == usual.replace("64-views", "64-crop-views")
    assert name(dtd, kind="crop") == name(dtd)  # one view has no kind
    options = ({"prompts": "single"}, {"views": 8}, {"orders": ("rows",)}, {"model": "m"}, {"kind": "crop", "views": 8})
    names = {name(dataset, **each) for dataset in (a, dtd) for each in options}
    assert len(names | {name(dtd, authors=True), usual}) == 12


def test_settings_per_dataset_belong_to_a_method():
    dtd = DATASETS["dtd"]
    settings = {"positive_alpha": 2.0, "positive_beta": 3.0}
    assert with_authors_settings(Variant("tda"), dtd) == Variant("tda", settings, "authors-per-dataset")
    zero_shot = Variant("zero-shot")
    assert with_authors_settings(zero_shot, dtd) is zero_shot


def test_shapes_by_domain_on_renditions(run, tmp_path):
    dataset = DATASETS["imagenet-r"]
    folder = draw_dataset(tmp_path / "data", dataset, few(classes=2, per_class=4)) / "imagenet-r"
    for wnid in dataset.wnids[:2]:
        for i in (2, 3):
            (folder / wnid / f"art_{i}.jpg").rename(folder / wnid / f"toy_{i}.jpg")
    shaped = run(["imagenet-r"], orders=("domain-shift:0",), views=1, prompts="single")["imagenet-r", "tda"]
    assert shaped["order"] == "domain-shift:0"


def test_invalid_suites_are_refused(run, tmp_path):
    with pytest.raises(InputError, match="unknown prompts 'none'; choose from dataset, single, openai-80,"):
        run(["dtd"], prompts="none")
    with pytest.raises(InputError, match="unknown method 'tad'; did you mean 'tda'"):
        run(["dtd"], methods=("tad",))
    with pytest.raises(ModelError, match="unknown model 'toaster'"):
        run(["dtd"], model="toaster")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot write .*file"):
        run(["dtd"], "file")
