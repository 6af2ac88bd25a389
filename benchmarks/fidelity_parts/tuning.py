"""TPT and DiffTPT: prompts tuned to the views of each image."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch

from acclimate import Head, build_head
from acclimate.arrays import HostArray
from fidelity_parts.authors import Clones, single_precision
from fidelity_parts.models import CLASSES, DIM, Pair
from fidelity_parts.rows import Row, answer, logits_row

CONTEXT = "a photo of a"
LEARNING_RATE = 5e-3
LARGEST_SHARE = {"ViT": 0.3, "ResNet": 0.03}  # of another image in a view
RUN = "`tpt_classification.test_time_adapt_eval`"


def rows(clones: Clones, pair: Pair) -> Iterator[Row]:
    """Compare tuned answers."""
    vit = pair.name == "ViT"
    yield _row(clones, pair, "tpt", "TPT", 12 if vit else 3, 64, tta_steps=1, selection_p=0.1)
    if vit:
        settings = {"tta_steps": 4, "selection_cosine": 0.8, "selection_selfentro": 0.3, "aug_mode": "difftpt"}
        yield _row(clones, pair, "difftpt", "DiffTPT", 4, 128, **settings)


def _row(clones: Clones, pair: Pair, method: str, name: str, images: int, views: int, **settings: Any) -> Row:
    head = build_head(pair.encoder, CLASSES, f"{CONTEXT} {{}}.", cache=False)
    shown = _views(pair, head, images, views)
    theirs = _run(clones, method, pair, shown, **settings)
    encoded = np.stack([pair.encoder.encode_images(each) for each in shown])
    ours = answer(method, head, encoded, encoder=pair.encoder)
    base = answer("zero-shot", head, encoded[:, 0])
    what = f"{RUN}, {images} undecided images in {views} views, AdamW, steps: {settings['tta_steps']}"
    return logits_row(f"{name}, {pair.name}", what, theirs, ours, base)


def _views(pair: Pair, head: Head, images: int, views: int) -> torch.Tensor:
    """Return views (n, V, 3, size, size): mixtures of an image with others, the image itself first.

    The images are those of many that the model is least sure of. Where it is sure, entropies are so near to 0 that
    rounding decides which views are chosen, and gradients so small that it decides the signs that AdamW steps by.
    """
    drawn = pair.pixels(10 * images, seed=4)
    entropy = head.observe(pair.encoder.encode_images(drawn)).entropy
    originals = drawn[np.argsort(-entropy)[:images].copy()]
    others = pair.pixels(views, seed=5)
    shares = torch.linspace(0, LARGEST_SHARE[pair.name], views)[:, None, None, None]
    return torch.stack([(1 - shares) * each + shares * others for each in originals])


def _run(clones: Clones, method: str, pair: Pair, views: torch.Tensor, **settings: Any) -> HostArray:
    """Return the logits (n, K) of the authors' evaluation."""
    with clones.importing(method) as module:
        evaluation = module("tpt_classification")
        custom = module("clip.custom_clip")
        build = module("clip.model").build_model
    kept: list[HostArray] = []
    scores = (torch.zeros(1), torch.zeros(1))
    record = lambda logits, *_, **__: kept.append(logits.float().numpy()[0].copy()) or scores  # noqa: E731
    args = {"gpu": 0, "cocoop": False, "tpt": True, "print_freq": 10**6, "lr": LEARNING_RATE}
    with single_precision(), mock.patch.object(evaluation, "accuracy", record):
        model, optimizer = _model(custom, build, pair)
        loader = [([view[None] for view in each], torch.zeros(1, dtype=torch.int64)) for each in views]
        state = deepcopy(optimizer.state_dict())
        scaler = torch.cuda.amp.GradScaler(init_scale=1000)
        given = SimpleNamespace(**args, **settings)
        evaluation.test_time_adapt_eval(loader, model, None, optimizer, state, scaler, given)
    return np.stack(kept)


def _model(custom: ModuleType, build: Callable[..., Any], pair: Pair) -> tuple[Any, Any]:
    """Return the authors' model with their words, and its optimiser, as their `main_worker` makes them.

    Their loader reads OpenAI's archives and no state dict; what it calls with the weights of an archive is called here.
    """
    load = lambda *_, **__: (build(torch.load(pair.weights)), DIM, None)  # noqa: E731
    with mock.patch.object(custom, "load", load):
        words = CONTEXT.replace(" ", "_")
        model = custom.ClipTestTimeTuning("cpu", list(CLASSES), None, n_ctx=4, ctx_init=words)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("prompt_learner" in name)
    return model, torch.optim.AdamW(model.prompt_learner.parameters(), LEARNING_RATE)
