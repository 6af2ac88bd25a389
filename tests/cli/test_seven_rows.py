"""All seven methods of the paper's tables on miniatures with a tiny CLIP: from the first image to the last page."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from acclimate import evaluate, read_stream
from acclimate.bench.recipes import RECIPES
from acclimate.cli import app
from acclimate.encoders import load_encoder
from acclimate.methods import load_fitted
from acclimate.prompts import build_head, prompts_for, template_sets
from acclimate.sources.datasets import DATASETS
from miniatures import draw_dataset, draw_generated_images, draw_training_images, few
from tiny_models import save_tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.untraced]
pytest.importorskip("transformers", reason="the tiny model is made with transformers")
MODEL = ("--model", "local:clip")
SETTINGS = ("--shots", "1", "--set", "coop.epochs=1", "--set", "cocoop.epochs=1")
METHODS = ["zero-shot", "coop", "cocoop", "tip-adapter", "tpt", "difftpt", "tda"]
IMAGES = "ImageNet's training images, 1 per class"
OOD = RECIPES["ood"].datasets
DIFFUSION = ("--views", "128", "--encode", "views_kind=diffusion", "--encode", "generated=generated")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with the miniatures, training images of all 1,000 classes, generated images and a tiny model."""
    folder = tmp_path_factory.mktemp("seven")
    datasets = [DATASETS[key] for key in (*OOD, "dtd")]
    for dataset in datasets:
        draw_dataset(folder / "data", dataset, few(2, 2))
    draw_training_images(folder / "data", few(1000, 1) | few(20, 2))  # one shot of each class; some are held out
    draw_generated_images(folder / "data", folder / "generated", datasets)
    save_tiny_model("clip", folder / "clip", width=16, layers=1, patch=16, text_width=8, text_layers=1)
    return folder


@pytest.fixture(scope="module")
def command(folder):
    """Run a command there."""
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ACCLIMATE_CACHE", str(folder / "texts"))
    sets = {name: templates[:3] for name, templates in template_sets().items()}  # 80 of 1,000 classes take long
    monkeypatch.setattr("acclimate.prompts.templates.template_sets", lambda: sets)

    def run(*arguments):
        result = CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result

    yield run
    monkeypatch.undo()


@pytest.fixture(scope="module")
def runs(command):
    """Encode every dataset with every kind of views that a row has."""
    made = []

    def embed(spec, name, *options):
        command("embed", f"dataset:{spec}", "--data", "data", *MODEL, "--template", "single", *options, "--out", name)
        made.append(name)

    for key in (*OOD, "dtd"):
        embed(key, f"{key}.run")
        embed(key, f"{key}-crop.run", "--views", "64", "--encode", "views_kind=crop")
        embed(key, f"{key}-diffusion.run", *DIFFUSION)
        if DATASETS[key].views > 1 or key == "dtd":
            embed(key, f"{key}-augmix.run", "--views", "64", "--encode", "views_kind=augmix")
    embed("imagenet#train:5", "train.run", "--views", "16", "--encode", "views_kind=crop")
    return made


@pytest.fixture(scope="module")
def reproduced(command, runs, folder):
    """Reproduce everything, and return what the command said, the page, and the results by dataset."""
    said = command("reproduce", *runs, *MODEL, *SETTINGS, "--out", "out").stderr
    written = {path.stem: json.loads(path.read_text()) for path in (folder / "out" / "runs").iterdir()}
    return said, (folder / "out" / "README.md").read_text(), written


def test_one_command_fills_all_seven_rows_of_table_1(reproduced):
    said, page, runs = reproduced
    assert "is not measured" not in said
    table = page.split("### ")[1]
    rows = {line.split("|")[1].strip(): line.split("|")[2:-1] for line in table.splitlines() if " / " in line}
    assert [name.partition(",")[0] for name in rows] == [*METHODS, "tda"]  # TDA with both settings
    assert all(float(cell.split("/")[0]) >= 0 for cells in rows.values() for cell in cells)
    assert all(len(cells) == 7 for cells in rows.values())
    assert set(runs) == {*OOD, "dtd"}
    for key in OOD:
        found = [each for each in runs[key] if each["settings"] != "custom"]
        assert {each["method"] for each in found} == set(METHODS)
        for result in found:
            protocol = RECIPES["ood"].row(result["method"])
            views = DATASETS[key].views_of(protocol.views)
            assert (result["prompts"], result["views"]) == (protocol.prompts, views)
            assert result["views_kind"] == (protocol.views_kind if views > 1 else "")
            assert result["trained"].startswith(IMAGES if protocol.shots else "")
            assert bool(result["trained"]) == bool(protocol.shots)


def test_every_recipe_has_its_tables_and_its_figure(reproduced, folder):
    _, page, runs = reproduced
    for recipe in RECIPES.values():
        assert f"## {recipe.title}" in page
        assert (folder / "out" / f"{recipe.name}.png").is_file()
        for sweep in recipe.sweeps:
            assert f"### {sweep.title}" in page
    assert {each["method"] for each in runs["dtd"]} == set(METHODS) - {"tip-adapter"}
    assert {each["views_kind"] for each in runs["dtd"] if each["method"] == "tpt"} == {"augmix"}
    times = page.split("### Efficiency")[1].split("###")[0]
    for method in ("zero-shot", "tpt", "difftpt", "tda"):
        (line,) = [line.split("|") for line in times.splitlines() if line.startswith(f"| {method} |")]
        assert all(float(line[column].split("/")[0]) > 0 for column in (2, 3))


def test_methods_that_answer_from_views_are_compared_with_zero_shot_on_one_view(reproduced, folder):
    _, _, runs = reproduced
    stream = read_stream(folder / "imagenet-a-crop.run")
    first = stream.head.observe(stream.features[:][:, 0]).logits.argmax(axis=1)  # the prompts are those of the run
    (tpt,) = [each for each in runs["imagenet-a"] if each["method"] == "tpt"]
    assert tpt["baseline"]["acc1"] == pytest.approx((first == stream.targets).mean(), abs=1e-6)


def test_tip_adapter_never_searches_its_settings_on_test_images(reproduced):
    _, page, runs = reproduced
    trained = {key: each["trained"] for key in OOD for each in runs[key] if each["method"] == "tip-adapter"}
    held_out = "(settings searched on other training images, up to 4 per class) (versions: 16 crop)"
    assert trained.pop("imagenet") == f"{IMAGES} {held_out}"
    assert set(trained.values()) == {f"{IMAGES} (settings searched on its validation images) (versions: 16 crop)"}
    paper = "in the paper: ImageNet's training images, 16 per class (settings searched on its validation images)."
    assert f"{held_out}; {paper}" in page


@pytest.mark.parametrize("key", ["imagenet", "imagenet-a"])
def test_fitted_files_give_the_measured_scores(reproduced, folder, key):
    """On -A the cache of 1,000 classes is restricted to the 200 by their WordNet ids."""
    encoder = load_encoder(f"local:{folder / 'clip'}")
    dataset = DATASETS[key]
    measured = next(each for each in reproduced[2][key] if each["method"] == "tip-adapter")
    stream = read_stream(folder / f"{key}.run")
    names = zip(DATASETS["imagenet"].wnids, DATASETS["imagenet"].labels, strict=True)
    gone = [label for wnid, label in names if wnid not in dataset.wnids]
    found = []
    for path in sorted((folder / "out" / "fitted").glob("tip-adapter-*")):
        adapter, about = load_fitted(path, encoder, "local:clip")
        assert (about["shots"], about["templates"], about["source"]) == (1, "openai-7", "ImageNet's training images")
        adapter.remove_classes(gone)
        answers = adapter.step(stream.features[np.arange(len(stream))]).argmax(axis=1)
        found.append((adapter.settings, pytest.approx((answers == stream.targets).mean(), abs=1e-6)))
    assert (measured["config"], measured["metrics"]["acc1"]) in found


def test_what_was_fitted_is_read_the_next_time(reproduced, command, folder):
    def fitted():
        return {path: path.stat().st_mtime_ns for path in (folder / "out" / "fitted").iterdir()}

    before = fitted()
    assert {path.name.rpartition("-")[0] for path in before} == {"coop", "cocoop", "tip-adapter"}
    files = ("dtd.run", "train.run", *MODEL, *SETTINGS[:4], "--recipe", "cross-domain", "--method", "coop")
    command("reproduce", *files, "--out", "out")
    assert fitted() == before


def test_a_method_with_a_text_tower_in_run_and_on_the_leaderboard(runs, command, folder):
    """Given the model, TPT answers in every command as it does alone."""
    out = ("--method", "tpt", *MODEL, "--out")
    command("run", "dtd-crop.run", *out, "tpt.json")
    (found,) = [json.loads((folder / "tpt.json").read_text())]
    command("leaderboard", "dtd-crop.run", "--orders", "1", "--shape", "shuffled", "--jobs", "1", *out, "board")
    lines = (folder / "board" / "leaderboard.csv").read_text().splitlines()
    assert any(",tpt," in line for line in lines)
    encoder = load_encoder(f"local:{folder / 'clip'}")
    dtd = DATASETS["dtd"]
    made = dict(zip(dtd.labels, prompts_for(dtd.class_names, "single"), strict=True))
    assert build_head(encoder, dtd.labels, made, expand=False).class_names == dtd.labels
    zero_shot = evaluate(str(folder / "dtd-crop.run"), "zero-shot").rows[0]
    assert found["baseline"]["acc1"] == pytest.approx(zero_shot.accuracy, abs=1e-6)
