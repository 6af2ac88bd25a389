import json

import pytest

from acclimate.bench.datasets import DATASETS, SUITES
from acclimate.bench.reported import backbone, paper_dataset, reasons, reported
from acclimate.bench.results import OF_FILE

DTD = {
    "dataset": "dtd",
    "model": "open_clip:ViT-B-16/openai",
    "method": "tda",
    "settings": "authors-per-dataset",
    "prompts": "dataset",
    "views": 1,
    "n": 1692,
    "classes": 47,
}


def test_the_figures_are_the_papers(shared):
    if not (shared / "reference").is_dir():
        pytest.skip("the paper's figures are not beside the project")
    paper = json.loads((shared / "reference" / "paper.json").read_text())
    assert reported()["ood"]["rows"] == paper["ood"]["rows"]
    assert reported()["cross-domain"]["rows"] == paper["cross_domain"]["rows"]
    assert reported()["cross-domain"]["average"] == paper["cross_domain"]["average_as_printed"]
    assert reported()["efficiency"] == paper["efficiency_imagenet_rn50_rtx6000"]
    ablations = paper["ablations_imagenet_rn50"]
    assert {f"{key}_only": value for key, value in reported()["caches"].items() if key != "both"} == {
        key: value for key, value in ablations["cross_domain_average"].items() if key != "both"
    }
    for ours, theirs in {
        "alpha": "alpha",
        "beta": "beta",
        "entropy-range lowest": "negative_only_entropy_range_min",
        "entropy-range highest": "negative_only_entropy_range_max",
        "cache label accuracy": "positive_cache_label_accuracy",
    }.items():
        assert reported()[ours] == ablations[theirs]


@pytest.mark.parametrize("suite", sorted(SUITES))
def test_columns_are_the_suites_datasets(suite):
    assert [DATASETS[key].title for key in SUITES[suite]] == reported()[suite]["columns"]
    for rows in reported()[suite]["rows"].values():
        assert all(len(figures) == len(SUITES[suite]) for figures in rows.values())


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("open_clip:ViT-B-16/openai", "ViT-B/16"),
        ("open_clip:ViT-B-16-quickgelu/openai", "ViT-B/16"),
        ("hf:openai/clip-vit-base-patch16", "ViT-B/16"),
        ("open_clip:RN50/openai", "RN50"),
        ("open_clip:RN50x4/openai", None),
        ("open_clip:ViT-B-16/laion2b_s34b_b88k", None),
        ("hf:openai/clip-vit-base-patch32", None),
        ("onnx:clip/", None),
    ],
)
def test_which_of_the_papers_models(model, expected):
    assert backbone(model) == expected


def test_the_papers_own_protocol_leaves_no_reason():
    assert reasons(DTD, "ViT-B/16") == ()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": "onnx:clip/"}, "the model is not the paper's"),
        ({"n": 1880}, "not as many"),
        ({"classes": 46}, "not of as many classes"),
        ({"prompts": "openai-80"}, "the prompts are not the paper's: openai-80."),
        ({"method": "zero-shot"}, "the paper's CLIP row has an ensemble of 80 prompts"),
        ({"settings": "paper"}, "one (alpha, beta) for all datasets"),
        ({"views": 64}, "64 view(s) an image; the paper has 1."),
        ({"dataset": "mine"}, "not the paper's datasets"),
        ({"prompts": OF_FILE}, "not the paper's datasets"),
    ],
)
def test_what_differs_is_said(change, reason):
    (why,) = reasons({**DTD, **change}, "ViT-B/16")
    assert reason in why


def test_a_feature_file_is_not_a_dataset_of_the_paper():
    assert paper_dataset(DTD).key == "dtd"
    assert paper_dataset({**DTD, "prompts": OF_FILE}) is None
