from dataclasses import replace

import pytest

from acclimate.bench.comparison import backbone, paper_dataset, reasons
from acclimate.bench.prequential import Variant, compare
from acclimate.bench.results import OF_FILE, summarise


@pytest.fixture
def dtd(stream):
    """Return a result as the paper's protocol gives it on DTD."""
    zero_shot, tda = compare(stream, [Variant("tda", {"positive_alpha": 2.0, "positive_beta": 3.0})])
    return replace(
        summarise("dtd", stream, tda, zero_shot, "dataset"),
        model="open_clip:ViT-B-16/openai",
        settings="authors-per-dataset",
        n=1692,
        classes=47,
    )


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("open_clip:ViT-B-16/openai", "ViT-B/16"),
        ("open_clip:ViT-B-16-quickgelu/openai", "ViT-B/16"),
        ("hf:openai/clip-vit-base-patch16", "ViT-B/16"),
        ("open_clip:RN50/openai", "RN50"),
        ("OpenAI CLIP ViT-B/16", "ViT-B/16"),
        ("OpenAI CLIP RN50", "RN50"),
        ("OpenAI CLIP ViT-B/16, features centred", None),
        ("", None),
        ("open_clip:RN50x4/openai", None),
        ("open_clip:ViT-B-16/laion2b_s34b_b88k", None),
        ("hf:openai/clip-vit-base-patch32", None),
        ("onnx:clip/", None),
    ],
)
def test_which_of_the_papers_models(model, expected):
    assert backbone(model) == expected


def test_the_papers_protocol_leaves_no_reason(dtd):
    assert reasons(dtd, "ViT-B/16") == ()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": "onnx:clip/"}, "the model is not the paper's"),
        ({"n": 1880}, "1,880 images; in the paper: 1,692."),
        ({"n": 1000}, "1,000 of 1,692 images."),
        ({"classes": 46}, "46 classes; in the paper: 47."),
        ({"prompts": "openai-80"}, "prompts: openai-80; in the paper: dataset."),
        ({"method": "zero-shot"}, "prompts: dataset; in the paper: openai-80."),
        ({"settings": "paper", "config": Variant("tda").config}, "the same settings (alpha, beta) for all datasets"),
        ({"views": 64}, "views: 64 augmix; in the paper: 1."),
        ({"dataset": "mine"}, "the datasets and prompts are not the paper's"),
        ({"prompts": OF_FILE}, "the datasets and prompts are not the paper's"),
    ],
)
def test_every_difference_is_a_reason(dtd, change, reason):
    (why,) = reasons(replace(dtd, **change), "ViT-B/16")
    assert reason in why


def test_the_authors_part_of_imagenet_a_is_a_reason_for_tda_on_all_of_it(dtd):
    whole = replace(dtd, dataset="imagenet-a", n=7500, classes=200, views=64, config=Variant("tda").config)
    (why,) = reasons(whole, "ViT-B/16")
    assert why == (
        "the authors' loader dropped files with 'sh' in their names, so the paper's figure is probably on 6,862 of the "
        "7,500 images."
    )
    assert reasons(replace(whole, dataset="imagenet-a-authors", n=6862), "ViT-B/16") == ()
    assert reasons(replace(whole, method="mta"), "ViT-B/16") == ()


def test_a_feature_file_is_not_a_dataset_of_the_paper(dtd):
    assert paper_dataset(dtd).key == "dtd"
    assert paper_dataset(replace(dtd, prompts=OF_FILE)) is None
