"""All seven methods of the paper's tables, measured by one command on miniatures with a tiny CLIP."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from acclimate.bench.datasets import DATASETS, SUITES, read_dataset
from acclimate.bench.prequential import Variant, compare
from acclimate.bench.recipes import RECIPES
from acclimate.bench.store import FeatureStore
from acclimate.cli import app
from acclimate.encoders import load_encoder
from acclimate.methods import load_fitted
from acclimate.prompts import template_sets
from miniatures import draw_dataset, draw_generated_images, draw_training_images, few
from tiny_models import save_tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.untraced]
pytest.importorskip("transformers", reason="the tiny model is made with transformers")
OPTIONS = "--data data --model local:clip --generated generated --shots 1 --set coop.epochs=1 --set cocoop.epochs=1"
METHODS = ["zero-shot", "coop", "cocoop", "tip-adapter", "tpt", "difftpt", "tda"]
IMAGES = "ImageNet's training images, 1 per class"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with the miniatures, training images of all 1,000 classes, generated images and a tiny model."""
    folder = tmp_path_factory.mktemp("seven")
    datasets = [DATASETS[key] for key in (*SUITES["ood"], "dtd", "eurosat")]
    for dataset in datasets:
        draw_dataset(folder / "data", dataset, few(2, 2))
    draw_training_images(folder / "data", few(1000, 1) | few(20, 2))  # one shot of each class; some are held out
    draw_generated_images(folder / "data", folder / "generated", datasets)
    save_tiny_model("clip", folder / "clip", width=16, layers=1, patch=16, text_width=8, text_layers=1)
    return folder


@pytest.fixture(scope="module")
def reproduce(folder):
    """Run recipes there, and give the page and the results by dataset."""
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ACCLIMATE_CACHE", str(folder / "texts"))
    sets = {name: templates[:3] for name, templates in template_sets().items()}  # 80 of 1,000 classes take long
    monkeypatch.setattr("acclimate.prompts.templates.template_sets", lambda: sets)

    def reproduce(*recipes, out):
        arguments = ["reproduce", *recipes, *OPTIONS.split(), "--limit", "2", "--out", out]
        result = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        assert "is not measured" not in result.stderr
        runs = {path.stem: json.loads(path.read_text()) for path in (folder / out / "runs").iterdir()}
        return (folder / out / "README.md").read_text(), runs

    yield reproduce
    monkeypatch.undo()


@pytest.fixture(scope="module")
def ood(reproduce):
    return reproduce("ood", out="ood")


def test_one_command_fills_all_seven_rows_of_table_1(ood):
    page, runs = ood
    table = page.split("### ")[1]
    rows = {line.split("|")[1].strip(): line.split("|")[2:-1] for line in table.splitlines() if " / " in line}
    assert [name.partition(",")[0] for name in rows] == [*METHODS, "tda"]  # TDA with both settings
    assert all(float(cell.split("/")[0]) >= 0 for cells in rows.values() for cell in cells)
    assert all(len(cells) == 7 for cells in rows.values())
    assert set(runs) == set(SUITES["ood"])
    for key, results in runs.items():
        assert {each["method"] for each in results} == set(METHODS)
        for result in results:
            protocol = RECIPES["ood"].row(result["method"])
            views = DATASETS[key].views_of(protocol.views)
            assert (result["prompts"], result["views"]) == (protocol.prompts, views)
            assert result["views_kind"] == (protocol.views_kind if views > 1 else "")
            assert result["trained"].startswith(IMAGES if protocol.shots else "")
            assert bool(result["trained"]) == bool(protocol.shots)
            assert result["baseline"]["acc1"] >= 0


def test_tip_adapter_never_searches_its_settings_on_test_images(ood):
    page, runs = ood
    trained = {key: each["trained"] for key in runs for each in runs[key] if each["method"] == "tip-adapter"}
    assert trained.pop("imagenet") == f"{IMAGES} (settings searched on other training images, up to 4 per class)"
    assert set(trained.values()) == {f"{IMAGES} (settings searched on its validation images)"}
    paper = "in the paper: ImageNet's training images, 16 per class (settings searched on its validation images)."
    assert f"up to 4 per class); {paper}" in page


@pytest.mark.parametrize("key", ["imagenet", "imagenet-a", "imagenet-v2"])
def test_fitted_files_are_kept_and_give_the_measured_scores(ood, folder, key):
    """On -A the cache of 1,000 classes is restricted to the 200 by their WordNet ids."""
    encoder = load_encoder(f"local:{folder / 'clip'}")
    dataset = DATASETS[key]
    store = FeatureStore(folder / "data", "local:clip", folder / "features")
    store.encoder = encoder
    listing = read_dataset(dataset, store.root)
    stream = store.stream(listing, Variant("tip-adapter", prompts="openai-7", views=1))
    measured = next(each for each in ood[1][key] if each["method"] == "tip-adapter")
    found = []
    for path in sorted((folder / "features" / "fitted").glob("tip-adapter-*")):
        adapter, about = load_fitted(path, encoder, "local:clip")
        assert about == {
            "model": "local:clip",
            "fingerprint": encoder.fingerprint,
            "templates": "openai-7",
            "shots": 1,
            "seed": 1,
            "source": "ImageNet's training images",
        }
        assert len(adapter.head) == 1000
        index_of = {wnid: i for i, wnid in enumerate(DATASETS["imagenet"].wnids)}
        kept = [index_of[wnid] for wnid in dataset.wnids]
        logits = adapter.step(stream.features[np.random.default_rng(1).permutation(len(stream))])[:, kept]
        assert logits.shape == (4, dataset.classes)
        adapter.remove_classes(set(adapter.head.class_names) - {adapter.head.class_names[i] for i in kept})
        variant = Variant("tip-adapter", adapter.settings, fitted=adapter)
        outcome = compare(replace(stream, head=adapter.head), [variant], ["shuffled:1"])[1]
        run = outcome.runs["shuffled:1"]
        np.testing.assert_array_equal(run.predictions, logits.argmax(axis=1))
        found.append((adapter.settings, pytest.approx(run.scores()["ece"], abs=1e-4)))
    assert (measured["config"], measured["ece"]) in found


def test_tables_2_and_3_reuse_what_was_fitted(reproduce, ood, folder):
    fitted = {path: path.stat().st_mtime_ns for path in (folder / "features" / "fitted").iterdir()}
    assert {path.name.rpartition("-")[0] for path in fitted} == {"coop", "cocoop", "tip-adapter"}
    page, runs = reproduce("cross-domain", "efficiency", out="others")
    assert {path: path.stat().st_mtime_ns for path in (folder / "features" / "fitted").iterdir()} == fitted
    assert set(runs) == {"dtd", "eurosat", "imagenet-times"}
    for key in ("dtd", "eurosat"):
        assert {each["method"] for each in runs[key]} == set(METHODS) - {"tip-adapter"}
        assert {each["views_kind"] for each in runs[key] if each["method"] == "tpt"} == {"augmix"}
    times = {(each["method"], each["batch_size"]): each["cost"] for each in runs["imagenet-times"]}
    assert set(times) == {(method, size) for method in ("zero-shot", "tpt", "difftpt", "tda") for size in (1, 64)}
    for cost in times.values():
        assert cost["ms_per_image"] > 0
        assert cost["peak_memory_mb"] > 0
    assert "batch size 1, as in the paper" in page
    assert "batches of 64, counting views" in page
