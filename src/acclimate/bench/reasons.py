"""Why a measured figure may differ from the paper's: the result against the protocol of its row."""

import re

from acclimate.bench.datasets import DATASETS, Dataset
from acclimate.bench.recipes import Protocol, protocol_of
from acclimate.bench.results import OF_FILE, Result
from acclimate.methods import list_methods

BACKBONES = {"ViT-B/16": r"vit-b-16\b|vit-base-patch16\b", "RN50": r"rn50\b"}  # the paper's models, as names have them
DESCRIBED = {f"openai clip {paper.lower()}": paper for paper in BACKBONES}  # the same in words, and nothing more


def backbone(model: str) -> str | None:
    """Return which of the paper's two models (OpenAI's CLIP with ViT-B/16 or ResNet-50) a name refers to, or None.

    A name without a loader, as in open_clip:RN50/openai, is a description, which must say "OpenAI CLIP RN50" and
    nothing more: features of that model that were centred afterwards are not those of the paper.
    """
    name = model.lower()
    if ":" not in name:
        return DESCRIBED.get(name)
    matching = (paper for paper, pattern in BACKBONES.items() if re.search(pattern, name))
    return next(matching, None) if "openai" in name else None


def paper_dataset(result: Result) -> Dataset | None:
    """Return the paper's dataset that a result was measured on; None for other datasets and feature files."""
    return None if result.prompts == OF_FILE else DATASETS.get(result.dataset)


def reasons(result: Result, model: str) -> tuple[str, ...]:
    """Why a result may differ from the paper's figure for a model ("RN50"), apart from precision and order."""
    why = []
    if backbone(result.model) != model:
        why.append(f"the model is not the paper's (OpenAI's CLIP {model}).")
    dataset = paper_dataset(result)
    if dataset is None:
        return (*why, "the datasets and prompts are not the paper's.")
    if result.n not in dataset.counts:
        why.append(f"{images_text(result)}.")
    if result.classes != dataset.classes:
        why.append(f"{result.classes:,} classes; in the paper: {dataset.classes:,}.")
    why += (f"{name.lower()}: {ours}; in the paper: {theirs}." for name, (ours, theirs) in deviations(result).items())
    protocol = protocol_of(result.method, dataset)
    why += protocol.remarks
    if result.trained != protocol.trained:
        why.append(f"fitted to {result.trained}; in the paper: {protocol.trained}.")
    if result.settings == "given" and (changed := changed_settings(result, protocol)):
        why.append(f"the settings are not the paper's: {', '.join(changed)}.")
    authors = dataset.authors.get(result.method, {})
    if result.settings == "paper" and any(result.config[name] != value for name, value in authors.items()):
        why.append(
            "the same settings (alpha, beta) for all datasets, as the paper states; the authors' published runs use "
            "different ones per dataset."
        )
    why += (
        f"the authors' loader dropped files with {part.without!r} in their names, so the paper's figure is probably on "
        f"{part.test:,} of the {dataset.test:,} images."
        for part in DATASETS.values()
        if part.part_of == dataset.key and result.method in part.authors
    )
    return tuple(why)


def images_text(result: Result) -> str:
    """Return the number of images in words, such as "5,000 of 50,000 images" for a part of a dataset of the paper."""
    dataset = paper_dataset(result)
    if dataset is None or result.n in dataset.counts:
        return f"{result.n:,} images"
    if result.n < dataset.test:
        return f"{result.n:,} of {dataset.test:,} images"
    return f"{result.n:,} images; in the paper: {dataset.test:,}"


def deviations(result: Result) -> dict[str, tuple[str, str]]:
    """Prompts and views that are not those of the result's row: ours and the paper's. None for other datasets."""
    dataset = paper_dataset(result)
    if dataset is None:
        return {}
    protocol = protocol_of(result.method, dataset)
    kind = result.views_kind or protocol.views_kind  # not known of results from the time when there was one kind
    theirs = views_text(protocol.views_of(dataset), protocol.views_kind)
    pairs = {"Prompts": (result.prompts, protocol.prompts), "Views": (views_text(result.views, kind), theirs)}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def views_text(views: int, kind: str) -> str:
    """Views per image in words, such as "64 crop"."""
    return "1" if views == 1 else f"{views} {kind}"


def changed_settings(result: Result, protocol: Protocol | None = None) -> list[str]:
    """The settings of a result that are neither the method's defaults nor its protocol's, such as "epochs 1"."""
    method = list_methods().get(result.method)
    usual = {**(method.default_settings() if method else {}), **(protocol.config if protocol else {})}
    return [f"{name} {value}" for name, value in result.config.items() if value != usual.get(name)]
