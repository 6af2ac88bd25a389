"""What a result has in common with the paper's experiments, and why its figures may differ."""

import re

from acclimate.bench.datasets import DATASETS, Dataset
from acclimate.bench.results import OF_FILE, Result

BACKBONES = {"ViT-B/16": r"vit-b-16\b|vit-base-patch16\b", "RN50": r"rn50\b"}


def backbone(model: str) -> str | None:
    """Which of the paper's two models (OpenAI's CLIP with ViT-B/16 or ResNet-50) a name refers to; None for others."""
    name = model.lower()
    matching = (paper for paper, pattern in BACKBONES.items() if re.search(pattern, name))
    return next(matching, None) if "openai" in name else None


def paper_dataset(result: Result) -> Dataset | None:
    """The paper's dataset that a result was measured on; None for others and for feature files of any name."""
    return None if result.prompts == OF_FILE else DATASETS.get(result.dataset)


def reasons(result: Result, model: str) -> tuple[str, ...]:
    """Why a result may differ from the paper's figure, apart from precision and order.

    Args:
        result: what was measured.
        model: the model of the paper's figure, such as "RN50".
    """
    why = []
    if backbone(result.model) != model:
        why.append(f"the model is not the paper's (OpenAI's CLIP {model}).")
    dataset = paper_dataset(result)
    if dataset is None:
        return (*why, "the datasets and prompts are not the paper's.")
    if result.n not in dataset.counts or result.classes != dataset.classes:
        why.append("the number of images or classes is not the paper's.")
    if result.prompts != "dataset":
        why.append(f"the prompts are not the paper's: {result.prompts}.")
    elif result.method == "zero-shot":
        why.append("the paper's CLIP row uses an ensemble of 80 prompts; here zero-shot uses the same prompts as TDA.")
    authors = dataset.authors.get(result.method, {})
    if result.settings == "paper" and any(result.config[name] != value for name, value in authors.items()):
        why.append(
            "the same settings (alpha, beta) for all datasets, as the paper states; the authors' published runs use "
            "different ones per dataset."
        )
    if result.views != dataset.views:
        why.append(f"{result.views} view(s) per image; the paper uses {dataset.views}.")
    return tuple(why)
