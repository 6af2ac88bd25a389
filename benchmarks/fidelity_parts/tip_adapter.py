"""Tip-Adapter: its cache, its search and its answers."""

import tempfile
from collections.abc import Iterator
from unittest import mock

import numpy as np
import torch

from acclimate import build_head, create
from acclimate.arrays import HostArray
from fidelity_parts.authors import Clones, single_precision
from fidelity_parts.models import CLASSES, TEMPLATES, Pair
from fidelity_parts.rows import Row, answer, exact_row, logits_row

SHOTS = 96
QUERIES = 300
VALIDATION = 240  # twenty of each class
# Their configuration for ImageNet
CONFIG = {"load_cache": False, "load_pre_feat": False, "search_hp": True}
CONFIG |= {"search_scale": [7, 3], "search_step": [200, 20], "init_beta": 1, "init_alpha": 1.17}
SCALED = "authors: features of the versions are averaged, then scaled; here scaled, averaged and scaled"
TIES = "of equally good pairs the authors take the first, here the nearest to the settings"


def rows(clones: Clones, pair: Pair) -> Iterator[Row]:
    """Compare the answers for one and for three versions of each shot, and the search."""
    head = build_head(pair.encoder, CLASSES, TEMPLATES, cache=False)
    queries, _ = _drawn(pair, QUERIES, 9)
    validation, true_labels = _drawn(pair, VALIDATION, 10)
    query_features, validation_features = (pair.encoder.encode_images(each) for each in (queries, validation))
    base = answer("zero-shot", head, query_features)
    for versions in (1, 3):
        shots, labels = _drawn(pair, SHOTS, 8)
        others = pair.pixels(versions, seed=11)
        shown = torch.stack([(shots + 0.3 * k * others[k]) / (1 + 0.3 * k) for k in range(versions)], dim=1)
        theirs, found = _run(clones, pair, shown, labels, (validation, true_labels), queries)
        features = pair.encoder.encode_images(shown.flatten(0, 1)).reshape(*shown.shape[:2], -1)
        adapter = create("tip-adapter", head, beta=found[0], alpha=found[1])
        adapter.fit(features, labels)
        what = f"`run_tip_adapter`, {SHOTS} shots in {versions} version{'s'[: versions > 1]}; {QUERIES} other images"
        ours = adapter.step(query_features)
        yield logits_row(f"Tip-Adapter, {pair.name}", what, theirs, ours, base, SCALED if versions > 1 else "")
        if versions > 1:
            adapter.fit(features.mean(axis=1), labels)
            what = "the same, with the average of its versions as the only one of each shot"
            yield logits_row(f"Tip-Adapter, {pair.name}", what, theirs, adapter.step(query_features), base)
        if versions == 1:
            searching = create("tip-adapter", head)
            searching.fit(features, labels, validation=(validation_features, true_labels))
            chosen = searching.chosen()
            what = (
                f"`search_hp`: right answers to {VALIDATION} images with the pair that is found (beta {found[0]:.2f} "
            )
            what += f"and alpha {found[1]:.2f} by the authors, {chosen['beta']:.2f} and {chosen['alpha']:.2f} here)"
            right = [
                int(np.sum(each.step(validation_features).argmax(axis=1) == true_labels))
                for each in (adapter, searching)
            ]
            yield exact_row(f"Tip-Adapter's search, {pair.name}", what, right[:1], right[1:], TIES)


def _drawn(pair: Pair, count: int, seed: int) -> tuple[torch.Tensor, HostArray]:
    """Return images (count, 3, size, size), each with something of its class, and their labels."""
    labels = np.arange(count) % len(CLASSES)
    return 0.5 * pair.pixels(count, seed) + 0.5 * pair.pixels(len(CLASSES), seed=12)[labels], labels


def _run(
    clones: Clones,
    pair: Pair,
    shots: torch.Tensor,
    labels: HostArray,
    validation: tuple[torch.Tensor, HostArray],
    queries: torch.Tensor,
) -> tuple[HostArray, tuple[float, float]]:
    """Return the authors' logits (n, K) for the queries, and the beta and alpha that their search found."""
    with clones.importing("tip-adapter") as module:
        main = module("main")
        utils = module("utils")
        clip = module("clip")
    model = pair.load(clip)
    given: list[HostArray] = []
    found: list[tuple[float, float]] = []
    search = main.search_hp
    record = lambda logits, target: given.append(logits.numpy()) or _accuracy(logits, target)  # noqa: E731
    searched = lambda *arguments: found.append(search(*arguments)) or found[-1]  # noqa: E731
    patches = mock.patch.multiple(main, cls_acc=record, search_hp=searched)
    measure = mock.patch.object(utils, "cls_acc", _accuracy)
    with single_precision(), torch.no_grad(), patches, measure, tempfile.TemporaryDirectory() as folder:
        config = {**CONFIG, "cache_dir": folder, "shots": SHOTS // len(CLASSES), "augment_epoch": shots.shape[1]}
        cache = main.build_cache_model(config, model, _Versions(shots, torch.from_numpy(labels)))
        known = main.pre_load_features(config, "val", model, [(validation[0], torch.from_numpy(validation[1]))])
        asked = main.pre_load_features(config, "test", model, [(queries, torch.zeros(len(queries), dtype=torch.int64))])
        main.run_tip_adapter(config, *cache, *known, *asked, main.clip_classifier(CLASSES, TEMPLATES, model))
    return given[-1], found[0]


def _accuracy(logits: torch.Tensor, target: torch.Tensor) -> float:
    """Return the accuracy in percent; the authors' function needs a NumPy that turns (1,) into a number."""
    return 100 * float((logits.argmax(dim=1) == target).float().mean())


class _Versions:
    """A loader of shots, whose every pass has the next version of each."""

    def __init__(self, shots: torch.Tensor, labels: torch.Tensor) -> None:
        self.passes = iter(shots.unbind(1))
        self.labels = labels

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        yield next(self.passes), self.labels
