"""The paper's figures, and why a measured one need not agree with them."""

import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

from acclimate.bench.datasets import DATASETS, Dataset
from acclimate.bench.results import OF_FILE

BACKBONES = {"ViT-B/16": r"vit-b-16\b|vit-base-patch16\b", "RN50": r"rn50\b"}


@cache
def reported() -> dict[str, Any]:
    """Every figure of the paper that a recipe reproduces; `data/reported.json`."""
    content = (files("acclimate.bench") / "data" / "reported.json").read_text(encoding="utf-8")
    return dict(json.loads(content))


def backbone(model: str) -> str | None:
    """Which of the paper's two models a name means: OpenAI's CLIP with a ViT-B/16 or a ResNet-50; None for others."""
    name = model.lower()
    matching = (paper for paper, pattern in BACKBONES.items() if re.search(pattern, name))
    return next(matching, None) if "openai" in name else None


def paper_dataset(result: dict[str, Any]) -> Dataset | None:
    """Which of the paper's datasets a result is of; None for others, and for feature files, whatever their names."""
    return None if result["prompts"] == OF_FILE else DATASETS.get(result["dataset"])


def reasons(result: dict[str, Any], model: str) -> tuple[str, ...]:
    """Why a result need not be what the paper reports for one of its models, beyond precision and order.

    Args:
        result: as `results.read_results` gives it.
        model: the paper's model, such as "RN50".
    """
    why = []
    if backbone(result["model"]) != model:
        why.append(f"the model is not the paper's (OpenAI's CLIP {model}).")
    dataset = paper_dataset(result)
    if dataset is None:
        return (*why, "these are not the paper's datasets and prompts.")
    if result["n"] not in dataset.counts or result["classes"] != dataset.classes:
        why.append("the images are not as many, or not of as many classes, as in the paper.")
    if result["prompts"] != "dataset":
        why.append(f"the prompts are not the paper's: {result['prompts']}.")
    elif result["method"] == "zero-shot":
        why.append("the paper's CLIP row has an ensemble of 80 prompts; here zero-shot has the same prompts as TDA.")
    if result["method"] == "tda" and result["settings"] == "paper" and dataset.authors != (2.0, 5.0):
        why.append(
            "one (alpha, beta) for all datasets, as the paper says; the authors' published runs have one for each."
        )
    if result["views"] != dataset.views:
        why.append(f"{result['views']} view(s) an image; the paper has {dataset.views}.")
    return tuple(why)
