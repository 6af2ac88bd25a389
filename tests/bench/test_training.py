"""Shots of ImageNet's training images, and what rows lack where there are too few."""

import numpy as np
import pytest

from acclimate.bench.datasets import list_images
from acclimate.bench.prequential import Variant
from acclimate.bench.recipes import RECIPES
from acclimate.bench.store import FeatureStore
from acclimate.bench.suite import IMAGENET, TRAINING, Trainer, plan_recipes
from acclimate.errors import InputError
from miniatures import draw_dataset, draw_training_images, few


@pytest.fixture
def store(tmp_path, tiny_onnx, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "texts"))
    draw_dataset(tmp_path / "data", IMAGENET, few(2, 2))
    return FeatureStore(tmp_path / "data", f"onnx:{tiny_onnx}", tmp_path / "features")


def test_training_images_are_listed_by_wordnet_id(store):
    folder = draw_training_images(store.root, few(1000, 1) | few(3, 2))
    assert folder == TRAINING.image_folder(store.root) == store.root / "imagenet" / "images" / "train"
    listing = list_images(TRAINING, store.root)
    assert len(listing) == 1003
    assert all(
        path.parent.name == IMAGENET.wnids[label] for path, label in zip(listing.paths, listing.labels, strict=True)
    )


def test_shots_are_drawn_once_and_never_searched_on(store):
    draw_training_images(store.root, few(1000, 1) | few(3, 7))
    trainer = Trainer(store, shots=1)
    shots, rest = trainer.draw(Variant("tip-adapter"))
    assert shots.labels.tolist() == list(range(1000))
    assert np.bincount(rest.labels).tolist() == [4, 4, 4]
    assert not set(shots.paths) & set(rest.paths)
    assert trainer.draw(Variant("tip-adapter"))[0] is shots
    assert Trainer(store, shots=1).draw(Variant("tip-adapter"))[0].paths == shots.paths


def test_rows_that_have_too_few_training_images_say_so_before_anything_is_encoded(store):
    recipes = [RECIPES["ood"]]
    folder = f"ImageNet's training images in {TRAINING.image_folder(store.root)}"
    assert plan_recipes(recipes, store).lacking["ood"]["Tip-Adapter"] == folder
    draw_training_images(store.root, few(1000, 1))
    plan = plan_recipes(recipes, store)
    assert plan.lacking["ood"]["Tip-Adapter"] == (
        "more training images (class 'tench' has 1 labelled samples, 16 per class are asked for; "
        "choose at most 1 shots)"
    )
    assert {variant.method for variant in plan.runs["imagenet"].args[3]} == {"zero-shot", "tda"}
    assert "Tip-Adapter" not in plan_recipes(recipes, store, shots=1).lacking["ood"]
    with pytest.raises(InputError, match="tip-adapter in ood needs more training images"):
        plan_recipes(recipes, store, methods=["tip-adapter"])
    assert not store.folder.exists()


@pytest.mark.slow
@pytest.mark.untraced
def test_without_other_training_images_the_settings_stay_as_they_are(store):
    """The validation images of ImageNet are the test images here, so they are not searched on."""
    draw_training_images(store.root, few(1000, 1))
    _, tip = plan_recipes([RECIPES["ood"]], store, methods=["tip-adapter"], shots=1).run(store.root / "runs")
    assert (tip.dataset, tip.trained) == ("imagenet", "ImageNet's training images, 1 per class")
    assert (tip.config["alpha"], tip.config["beta"]) == (1.17, 1.0)
    (path,) = (store.folder / "fitted").iterdir()
    content = path.read_bytes()
    path.write_bytes(content[:100])  # damaged: fitted again
    _, again = plan_recipes([RECIPES["ood"]], store, methods=["tip-adapter"], shots=1).run(store.root / "runs")
    assert path.read_bytes() == content
    assert again.brier == tip.brier
