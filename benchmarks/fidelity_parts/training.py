"""CoOp and CoCoOp: prompts trained on labelled images."""

from ast import literal_eval
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
import yaml

from acclimate import build_head, create
from acclimate.arrays import HostArray
from fidelity_parts.authors import Clones, single_precision
from fidelity_parts.models import CLASSES, NEW_CLASSES, Pair
from fidelity_parts.rows import Row, logits_row

CONTEXT = "a photo of a"
SHOTS = 48
VERSIONS = 3
QUERIES = 24
SEED = 1
NEARLY_ZERO = 1e-30  # a learning rate at which the network stays as it begins
CONFIGS = {
    ("CoOp", "ViT"): "vit_b16_ctxv1.yaml",
    ("CoOp", "ResNet"): "rn50_ctxv1.yaml",
    ("CoCoOp", "ViT"): "vit_b16_c4_ep10_batch1_ctxv1.yaml",
}
# What the authors' train.py adds to Dassl's settings; they train in half precision.
DEFAULTS = {"N_CTX": 16, "CSC": False, "CTX_INIT": "", "CLASS_TOKEN_POSITION": "end", "PREC": "fp32"}
# acclimate's names of what CoCoOp learns -> the authors'
LEARNT = {"context": "ctx", "weight_1": "meta_net.linear1.weight", "bias_1": "meta_net.linear1.bias"}
LEARNT |= {"weight_2": "meta_net.linear2.weight", "bias_2": "meta_net.linear2.bias"}


class Shots:
    """Labelled images in several versions, and other images to be answered."""

    def __init__(self, pair: Pair) -> None:
        self.pixels = pair.pixels(SHOTS * VERSIONS, seed=6).unflatten(0, (SHOTS, VERSIONS))
        self.labels = np.arange(SHOTS) % len(CLASSES)
        self.queries = pair.pixels(QUERIES, seed=7)
        self.features = pair.encoder.encode_images(self.pixels.flatten(0, 1)).reshape(SHOTS, VERSIONS, -1)
        self.query_features = pair.encoder.encode_images(self.queries)

    def batches(self, epochs: int, size: int) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
        """Yield the batches of each epoch, in the order and versions that acclimate draws by its seed."""
        rng = np.random.default_rng(SEED)
        for _ in range(epochs):
            order = rng.permutation(SHOTS)
            chosen = [order[i : i + size] for i in range(0, SHOTS, size)]
            versions = [rng.integers(VERSIONS, size=len(each)) for each in chosen]
            yield [
                (self.pixels[each, version], torch.from_numpy(self.labels[each]))
                for each, version in zip(chosen, versions, strict=True)
            ]


class Authors:
    """A trainer of the authors: CoOp or CoCoOp with a configuration of theirs, for these models and classes."""

    def __init__(self, clones: Clones, pair: Pair, name: str, epochs: int) -> None:
        with clones.importing("coop") as module:
            self.trainers = module(f"trainers.{name.lower()}")
            clip = module("clip.clip")
            config = module("dassl.config").get_cfg_default()
        config["TRAINER"][name.upper()] = type(config)(DEFAULTS)
        path = clones.folders["coop"] / "configs/trainers" / name / CONFIGS[name, pair.name]
        _merge(config, yaml.safe_load(path.read_text()))
        _merge(config, {"OPTIM": {"MAX_EPOCH": epochs}})
        _merge(config, {"TRAINER": {name.upper(): {"PREC": "fp32"}}, "INPUT": {"SIZE": (pair.size, pair.size)}})
        self.trainer = getattr(self.trainers, name)()
        self.trainer.cfg = config
        self.trainer.dm = SimpleNamespace(dataset=SimpleNamespace(classnames=list(CLASSES)))
        weights = mock.patch.dict(clip._MODELS, {config.MODEL.BACKBONE.NAME: str(pair.weights)})
        with single_precision(), weights, mock.patch.object(clip, "_download", lambda path: path):
            self.trainer.build_model()
            self.clip = self.trainers.load_clip_to_cpu(config).float()

    def begin_with(self, learnt: Mapping[str, HostArray]) -> None:
        """Start from these values, by acclimate's names."""
        values = {LEARNT[key]: torch.tensor(value) for key, value in learnt.items()}
        self.trainer.model.prompt_learner.load_state_dict(values, strict=False)

    def train(self, epochs: Iterator[list[tuple[torch.Tensor, torch.Tensor]]]) -> None:
        """Take the authors' steps."""
        with single_precision():
            for batches in epochs:
                self.trainer.num_batches = len(batches)
                for self.trainer.batch_idx, (images, labels) in enumerate(batches):
                    self.trainer.forward_backward({"img": images, "label": labels})

    def answer(self, images: torch.Tensor, classes: Sequence[str] = CLASSES) -> HostArray:
        """Return logits (n, K) of the words that it has learnt, before the names of these classes."""
        with single_precision(), torch.no_grad():
            model = self.trainers.CustomCLIP(self.trainer.cfg, list(classes), self.clip).eval()
            learnt = dict(self.trainer.model.prompt_learner.named_parameters())
            model.prompt_learner.load_state_dict(learnt, strict=False)
            return model(images).numpy()


def rows(clones: Clones, pair: Pair) -> Iterator[Row]:
    """Compare what both sides answer after the same steps."""
    shots = Shots(pair)
    vit = pair.name == "ViT"
    yield from _rows(clones, pair, "CoOp", shots, 12 if vit else 3, 8)
    if vit:
        yield from _rows(clones, pair, "CoCoOp", shots, 3, 1)


def _rows(clones: Clones, pair: Pair, name: str, shots: Shots, epochs: int, batch: int) -> Iterator[Row]:
    head, new_head = (
        build_head(pair.encoder, classes, f"{CONTEXT} {{}}.", cache=False) for classes in (CLASSES, NEW_CLASSES)
    )
    settings = {"context": CONTEXT, "batch": batch, "seed": SEED, "encoder": pair.encoder}
    adapter = create(name.lower(), head, epochs=epochs, **settings)
    adapter.fit(shots.features, shots.labels)
    authors = Authors(clones, pair, name, epochs)
    if name == "CoCoOp":
        still = create(name.lower(), head, epochs=1, learning_rate=NEARLY_ZERO, **settings)
        still.fit(shots.features, shots.labels)
        authors.begin_with({key: still.parts["learned"][key] for key in LEARNT})
    before, new_before = (authors.answer(shots.queries, classes) for classes in (CLASSES, NEW_CLASSES))
    authors.train(shots.batches(epochs, batch))
    after, new_after = (authors.answer(shots.queries, classes) for classes in (CLASSES, NEW_CLASSES))
    system = f"{name}, {pair.name}"
    what = f"`{name}.forward_backward`, `{CONFIGS[name, pair.name]}`: {SHOTS} shots in "
    what += f"{VERSIONS} versions, {epochs} epochs of {SHOTS // batch} steps; {QUERIES} other images"
    yield logits_row(system, what, after, adapter.step(shots.query_features), before)
    adapter.relabel(new_head)
    answers = adapter.step(shots.query_features)
    what = f"the same words before the names of {len(NEW_CLASSES)} other classes, as in Table 3"
    yield logits_row(f"{system}, new classes", what, new_after, answers, new_before)


def _merge(config: Any, values: Mapping[str, Any]) -> None:
    """Take over settings; strings such as "(224, 224)" and "1e-5" are read as yacs reads them."""
    for name, value in values.items():
        if isinstance(value, dict):
            _merge(config[name], value)
            continue
        config[name] = value
        with suppress(ValueError, SyntaxError):
            config[name] = literal_eval(value)
