"""TDA and zero-shot CLIP, with one view and with many; and TDA's facts on its datasets."""

from collections.abc import Iterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
import yaml

from acclimate import Head, build_head
from acclimate.arrays import HostArray
from acclimate.prompts import template_sets
from acclimate.sources.datasets import DATASETS
from acclimate.views.augment import ModelInput, draw_plan, make_views
from fidelity_parts.authors import Clones, single_precision
from fidelity_parts.models import CLASSES, TEMPLATES, Pair, images
from fidelity_parts.rows import Row, answer, exact_row, logits_row

# TDA's names of the fifteen datasets -> acclimate's
NAMES = {"imagenet_a": "imagenet-a", "imagenet_r": "imagenet-r", "imagenet_s": "imagenet-sketch"}
NAMES |= {"imagenet_v": "imagenet-v2", "fgvc": "aircraft", "oxford_flowers": "flowers102", "oxford_pets": "pets"}
NAMES |= {"stanford_cars": "cars"}
MODULES = {"imagenet_s": "imagenet_sketch", "imagenet_v": "imagenetv2"}  # where TDA's templates of a dataset are
CONFIGS = ("imagenet", "imagenet_s", "eurosat", "food101", "caltech101")
CACHES = {"both caches": (True, True), "positive alone": (True, False), "negative alone": (False, True)}
IMAGES = {"ViT": 400, "ResNet": 120}
MANY_VIEWS = 20
VIEWS = 64
RANDOM = ((100, 3000, 1, False), (1000, 1000, 1, False), (10, 3000, 1, True), (50, 300, VIEWS, True))
RUN = "`tda_runner.run_test_tda`"


def rows(clones: Clones, pair: Pair) -> Iterator[Row]:
    """Compare streams of images."""
    with clones.importing("tda") as module:
        runner = module("tda_runner")
        clip = module("clip")
    model = pair.load(clip)
    weights = _class_vectors(runner, model)
    head = build_head(pair.encoder, CLASSES, TEMPLATES, cache=False)
    shown = pair.pixels(IMAGES[pair.name], seed=2)
    features = pair.encoder.encode_images(shown)
    count = f"{len(shown)} images"
    zero_shot = answer("zero-shot", head, features)
    config = config_of(clones, "imagenet")
    encoded = _encoded(model, shown)
    theirs = run(runner, config, encoded[:, None], weights, (False, False))
    yield logits_row(f"CLIP, {pair.name}", f"{RUN} without caches, {count}", theirs, zero_shot, np.zeros_like(theirs))
    for name in CONFIGS if pair.name == "ViT" else CONFIGS[:1]:
        config = config_of(clones, name)
        for caches, enabled in CACHES.items():
            theirs = run(runner, config, encoded[:, None], weights, enabled)
            ours = answer("tda", head, features, **settings_of(config, enabled))
            what = f"{RUN}, `{name}.yaml`, {caches}, {count}"
            yield logits_row(f"TDA, {pair.name}", what, theirs, ours, zero_shot)
    config = config_of(clones, "imagenet_v")
    drawn = images([(320, 260)] * MANY_VIEWS, seed=3)
    views = torch.stack([_views(image, number, pair) for number, image in enumerate(drawn)])
    encoded = _encoded(model, views.flatten(0, 1)).unflatten(0, views.shape[:2])
    theirs = run(runner, config, encoded, weights, (True, True))
    features = np.stack([pair.encoder.encode_images(each) for each in views])
    ours = answer("tda", head, features, **settings_of(config, (True, True)))
    what = f"{RUN}, `imagenet_v.yaml`, {len(views)} images in {VIEWS} views"
    yield logits_row(f"TDA, {VIEWS} views, {pair.name}", what, theirs, ours, answer("zero-shot", head, features))


def random_rows(clones: Clones) -> Iterator[Row]:
    """Compare streams of random features, long and with duplicates, which make ties."""
    with clones.importing("tda") as module:
        runner = module("tda_runner")
    config = config_of(clones, "imagenet")
    for classes, samples, views, twice in RANDOM:
        vectors, features = _random_features(classes, samples, views, twice)
        weights = torch.from_numpy(vectors.T.copy())
        theirs = run(runner, config, torch.from_numpy(features), weights, (True, True))
        head = Head(vectors, logit_scale=100.0)
        unit = features[:, 0] if views == 1 else features
        ours = answer("tda", head, unit, **settings_of(config, (True, True)))
        of = " half of them duplicates," if twice else ""
        kind = "features" if views == 1 else f"samples of {views} features"
        what = f"{RUN}, `imagenet.yaml`, {samples:,} random {kind},{of} {classes:,} classes"
        yield logits_row("TDA, random features", what, theirs, ours, answer("zero-shot", head, unit))


def fact_rows(clones: Clones) -> Iterator[Row]:
    """Compare what both sides say of the fifteen datasets."""
    paths = sorted((clones.folders["tda"] / "configs").glob("*.yaml"))
    known = {path.stem: DATASETS[NAMES.get(path.stem, path.stem)] for path in paths}
    theirs = [settings_of(config_of(clones, name), (True, True)) for name in known]
    default = settings_of(config_of(clones, "imagenet"), (True, True))
    ours = [default | each.authors["tda"] for each in known.values()]
    yield exact_row("TDA, settings", f"its {len(theirs)} configurations", theirs, ours)
    with clones.importing("tda") as module:
        sources = {name: module(f"datasets.{MODULES.get(name, name)}") for name in known}
        names = sources["imagenet"].imagenet_classes
    templates = [getattr(each, "template", None) or each.imagenet_templates for each in sources.values()]
    sets = template_sets()
    yield exact_row(
        "TDA, templates", "of the same datasets", templates, [list(sets[each.key]) for each in known.values()]
    )
    ours = list(DATASETS["imagenet"].class_names)
    yield exact_row("TDA, class names", "ImageNet's", names, ours)


def config_of(clones: Clones, name: str) -> dict[str, Any]:
    """Return a configuration of TDA's authors."""
    return yaml.safe_load((clones.folders["tda"] / "configs" / f"{name}.yaml").read_text())


def settings_of(config: dict[str, Any], enabled: tuple[bool, bool]) -> dict[str, Any]:
    """Return acclimate's settings for those of TDA's authors."""
    positive, negative = config["positive"], config["negative"]
    return {
        "positive": enabled[0],
        "positive_capacity": positive["shot_capacity"],
        "positive_alpha": positive["alpha"],
        "positive_beta": positive["beta"],
        "negative": enabled[1],
        "negative_capacity": negative["shot_capacity"],
        "negative_alpha": negative["alpha"],
        "negative_beta": negative["beta"],
        "entropy_low": negative["entropy_threshold"]["lower"],
        "entropy_high": negative["entropy_threshold"]["upper"],
        "mask_low": negative["mask_threshold"]["lower"],
        "mask_high": negative["mask_threshold"]["upper"],
    }


def _class_vectors(runner: ModuleType, model: Any) -> torch.Tensor:
    with single_precision():
        return runner.clip_classifier(CLASSES, TEMPLATES, model)


def _encoded(model: Any, shown: torch.Tensor) -> torch.Tensor:
    with single_precision(), torch.no_grad():
        return torch.cat([model.encode_image(each) for each in shown.split(20)])


def run(
    runner: ModuleType, config: dict[str, Any], encoded: torch.Tensor, weights: torch.Tensor, enabled: Sequence[bool]
) -> HostArray:
    """Return the logits (n, K) of the authors' run on what their model made of n images in V views, (n, V, d)."""
    kept: list[Any] = []
    record = lambda logits, target: kept.append(logits.numpy()[0].copy()) or 0.0  # noqa: E731
    parts = [{**config[name], "enabled": on} for name, on in zip(("positive", "negative"), enabled, strict=True)]
    model = SimpleNamespace(encode_image=lambda features: features.clone())
    with single_precision(), mock.patch.object(runner, "cls_acc", record):
        runner.run_test_tda(*parts, [(each, torch.zeros(1, dtype=torch.int64)) for each in encoded], model, weights)
    return np.stack(kept)


def _views(image: Any, number: int, pair: Pair) -> torch.Tensor:
    """Return an image and 63 AugMix views of it as pixels (64, 3, size, size)."""
    plan = draw_plan(0, number, VIEWS - 1, image.size, (pair.size, pair.size))
    plain = torch.as_tensor(pair.encoder.prepare(image))
    return torch.cat([plain[None], torch.from_numpy(make_views(image, plan, ModelInput.of(pair.encoder.prepare)))])


def _random_features(classes: int, samples: int, views: int, twice: bool) -> tuple[HostArray, HostArray]:
    """Return unit class vectors (K, 64) and features (n, V, 64); with `twice`, half of the features come again."""
    rng = np.random.default_rng(classes)
    centres = 0.9 * rng.normal(size=64) + 0.5 * rng.normal(size=(classes, 64))
    features = centres[rng.integers(classes, size=samples)][:, None] + rng.normal(size=(samples, views, 64))
    if twice:
        features[samples // 2 :] = features[: samples - samples // 2]
    vectors, features = (rows / np.linalg.norm(rows, axis=-1, keepdims=True) for rows in (centres, features))
    return vectors.astype(np.float32), features.astype(np.float32)
