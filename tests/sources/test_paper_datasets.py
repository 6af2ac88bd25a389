"""The fifteen datasets: what is known of them, and how they are read from disk."""

import json
from pathlib import Path

import numpy as np
import pytest

from acclimate.bench.recipes import RECIPES
from acclimate.errors import InputError
from acclimate.prompts import template_sets
from acclimate.sources import open_source
from acclimate.sources.datasets import DATASETS, dataset_named, open_dataset
from miniatures import draw_dataset, draw_training_images, few

SUITES = {name: RECIPES[name].datasets for name in ("ood", "cross-domain")}
COUNTS = {
    "imagenet": (1000, 50000),
    "imagenet-a": (200, 7500),
    "imagenet-a-authors": (200, 6862),
    "imagenet-v2": (1000, 10000),
    "imagenet-r": (200, 30000),
    "imagenet-sketch": (1000, 50000),
    "aircraft": (100, 3333),
    "caltech101": (100, 2465),
    "cars": (196, 8041),
    "dtd": (47, 1692),
    "eurosat": (10, 8100),
    "flowers102": (102, 2463),
    "food101": (101, 30300),
    "pets": (37, 3669),
    "sun397": (397, 19850),
    "ucf101": (101, 3783),
}
SEVEN = {"imagenet", "imagenet-a", "imagenet-a-authors", "imagenet-v2", "caltech101", "cars", "sun397"}
EIGHTY = {"imagenet-r", "imagenet-sketch"}
ONE = {
    "aircraft": "a photo of a {}, a type of aircraft.",
    "dtd": "{} texture.",
    "eurosat": "a centered satellite photo of {}.",
    "flowers102": "a photo of a {}, a type of flower.",
    "food101": "a photo of {}, a type of food.",
    "pets": "a photo of a {}, a type of pet.",
    "ucf101": "a photo of a person doing {}.",
}
every_dataset = pytest.mark.parametrize("dataset", DATASETS.values(), ids=DATASETS)


def test_counts():
    assert {key: (dataset.classes, dataset.test) for key, dataset in DATASETS.items()} == COUNTS
    assert [len(SUITES["ood"]), len(SUITES["cross-domain"])] == [5, 10]


@every_dataset
def test_class_names_are_as_many_and_differ(dataset):
    names = dataset.class_names
    assert len(names) == dataset.classes
    twice = {name for name in names if names.count(name) > 1}
    assert twice == ({"missile", "sunglasses"} if dataset.classes == 1000 else set())


def test_the_order_of_imagenet_and_its_subsets():
    imagenet = DATASETS["imagenet"]
    assert list(imagenet.wnids) == sorted(imagenet.wnids)
    names = dict(zip(imagenet.wnids, imagenet.class_names, strict=True))
    assert (names["n01440764"], names["n02012849"], names["n03126707"]) == ("tench", "crane bird", "construction crane")
    for key in ("imagenet-a", "imagenet-r"):
        subset = DATASETS[key]
        assert list(subset.wnids) == [wnid for wnid in imagenet.wnids if wnid in subset.wnids]
        assert len(set(subset.wnids)) == 200
        assert subset.class_names == tuple(names[wnid] for wnid in subset.wnids)
    assert (DATASETS["imagenet-a"].class_names[0], DATASETS["imagenet-r"].class_names[0]) == ("stingray", "goldfish")
    assert len(set(DATASETS["imagenet-a"].wnids) & set(DATASETS["imagenet-r"].wnids)) < 200


def test_class_names_are_said_in_the_order_of_the_labels():
    assert DATASETS["food101"].class_names[16:18] == ("cheese_plate", "cheesecake")
    assert DATASETS["caltech101"].class_names[:4] == ("face", "leopard", "motorbike", "accordion")
    assert DATASETS["ucf101"].class_names[34:36] == ("Hammering", "Hammer_Throw")
    assert DATASETS["sun397"].class_names[8] == "outdoor apartment_building"


def test_names_are_those_of_the_streams(shared):
    """The streams were made from the real split files."""
    from acclimate.errors import as_words
    from acclimate.stream import read_stream

    if not (shared / "streams").is_dir():
        pytest.skip("the streams are not beside the project")
    for key, stem in {
        "caltech101": "caltech101",
        "eurosat": "eurosat",
        "pets": "oxford_pets",
        "ucf101": "ucf101",
    }.items():
        stream = read_stream(shared / "streams" / f"{stem}.safetensors")
        assert tuple(map(as_words, DATASETS[key].class_names)) == tuple(map(as_words, stream.head.class_names))
        assert DATASETS[key].test == len(stream)


def test_facts_are_the_papers(shared):
    path = shared / "reference" / "paper.json"
    if not path.is_file():
        pytest.skip("the paper's numbers are not beside the project")
    paper = json.loads(path.read_text())
    by_title = {dataset.title: dataset for dataset in DATASETS.values() if not dataset.part_of}
    for title, (classes, images) in paper["datasets"].items():
        assert by_title[title].classes == classes
        assert by_title[title].test == images
    authors = paper["authors_settings_per_dataset"]["positive_alpha_beta"]
    assert {
        title: [dataset.authors["tda"][f"positive_{name}"] for name in ("alpha", "beta")]
        for title, dataset in by_title.items()
    } == authors
    for suite, table in (("ood", "ood"), ("cross-domain", "cross_domain")):
        assert [DATASETS[key].title for key in SUITES[suite]] == paper[table]["columns"]


def test_prompts_and_views_are_those_of_the_papers_protocol():
    sets = template_sets()
    assert {key for key in DATASETS if sets[key] == sets["openai-7"]} == SEVEN
    assert {key for key in DATASETS if sets[key] == sets["openai-80"]} == EIGHTY
    assert {key: sets[key][0] for key in DATASETS if len(sets[key]) == 1} == ONE
    assert (len(sets["openai-7"]), len(sets["openai-80"])) == (7, 80)
    many = {key for key, dataset in DATASETS.items() if dataset.views == 64}
    assert many == {"imagenet-a", "imagenet-a-authors", "imagenet-v2", "imagenet-r", "imagenet-sketch"}
    assert {dataset.views for dataset in DATASETS.values()} == {1, 64}


@every_dataset
def test_a_miniature_is_read_with_the_benchmarks_labels(tmp_path, dataset):
    last = dataset.classes - 1
    draw_dataset(tmp_path, dataset, {0: 2, 1: 1, 2: 11, last: 3})
    listing = open_dataset(dataset.key, tmp_path)
    assert np.bincount(listing.targets, minlength=dataset.classes).tolist() == [2, 1, 11, *[0] * (last - 3), 3]
    assert all(path.is_file() for path in listing.paths)
    again = open_dataset(dataset.key, tmp_path)
    assert (listing.paths, listing.targets.tolist()) == (again.paths, again.targets.tolist())


def test_the_authors_loader_drops_files_by_their_names(tmp_path):
    """Files of ImageNet-A are named after what a classifier took them for."""
    whole = DATASETS["imagenet-a"]
    part = DATASETS["imagenet-a-authors"]
    folder = draw_dataset(tmp_path, whole, few()) / "imagenet-a" / whole.wnids[1]
    images = sorted(folder.iterdir())
    images[0].rename(folder / "0.000116_jellyfish _ jellyfish_0.86.jpg")
    images[1].rename(folder / "0.000117_Shih-Tzu_0.5.jpg")  # capitals count
    assert open_dataset(whole.key, tmp_path).targets.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    listing = open_dataset(part.key, tmp_path)
    assert listing.targets.tolist() == [0] * 4 + [1] * 3 + [2] * 4
    assert not any("sh" in path.name for path in listing.paths)
    assert (part.class_names, part.folder, part.views, part.authors) == (
        *(whole.class_names, whole.folder, whole.views, whole.authors),
    )
    assert part.key not in SUITES["ood"]


def test_v2_folders_are_numbers(tmp_path):
    dataset = DATASETS["imagenet-v2"]
    draw_dataset(tmp_path, dataset, few(classes=12, per_class=1))
    listing = open_dataset(dataset.key, tmp_path)
    assert [(path.parent.name, label) for path, label in zip(listing.paths, listing.targets, strict=True)] == [
        (str(label), label) for label in range(12)
    ]


def test_files_that_are_no_images_are_left_alone(tmp_path):
    dataset = DATASETS["imagenet-r"]
    folder = draw_dataset(tmp_path, dataset, few())
    for name in ("README.txt", "n01443537/.hidden.jpg", "n01443537/notes.txt"):
        (folder / "imagenet-r" / name).write_text("")
    (folder / "imagenet-r" / "n99999999").mkdir()
    assert len(open_dataset(dataset.key, tmp_path)) == 12


def test_a_dataset_is_a_source_like_any_other(tmp_path, monkeypatch):
    """The two classes of ImageNet with the same name have labels that differ."""
    with pytest.raises(InputError, match="set ACCLIMATE_DATA to the folder of the datasets"):
        open_source("dataset:imagenet")
    monkeypatch.setenv("ACCLIMATE_DATA", str(tmp_path))
    names = DATASETS["imagenet"].class_names
    pair = [label for label, name in enumerate(names) if name == "missile"]
    draw_dataset(tmp_path, DATASETS["imagenet"], dict.fromkeys(pair, 2))
    samples = open_source("dataset:imagenet")
    assert [sample.label for sample in samples] == ["missile"] * 2 + ["missile (2)"] * 2
    assert samples[0].read() == Path(samples[0].name).read_bytes()
    assert len(set(DATASETS["imagenet"].labels)) == 1000


def test_a_part_of_the_training_images_is_drawn_by_class(tmp_path):
    draw_dataset(tmp_path, DATASETS["imagenet"], few(2, 2))
    folder = draw_training_images(tmp_path, few(1000, 1) | few(3, 7))
    every = open_dataset("imagenet#train", tmp_path)
    assert (len(every), every.split, every.images) == (1018, "train", folder)
    drawn = open_dataset("imagenet#train:5", tmp_path)
    assert np.bincount(drawn.targets).tolist() == [5] * 3 + [1] * 997
    assert drawn.paths == open_dataset("imagenet#train:5", tmp_path).paths
    assert set(open_dataset("imagenet#train:3", tmp_path).paths) <= set(drawn.paths) <= set(every.paths)
    assert [sample.label for sample in drawn.samples[:6]] == ["tench"] * 5 + ["goldfish"]


def test_splits_of_coop(tmp_path):
    eurosat = DATASETS["eurosat"]
    split = draw_dataset(tmp_path, eurosat, few(10, 6)) / eurosat.split
    rows = json.loads(split.read_text())["test"]
    split.write_text(json.dumps({"train": rows[::2], "val": rows[1:8], "test": rows[9::2]}))
    lengths = [len(open_dataset(f"eurosat{part}", tmp_path)) for part in ("", "#test", "#train", "#val")]
    assert lengths == [26, 26, 30, 7]
    assert len(open_dataset("EuroSAT#train:2", tmp_path)) == 20


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mnist", "unknown dataset 'mnist'"),
        ("eurosat#all", "after # comes train or val or test"),
        ("eurosat#train:0", "a number of images as in #train:20"),
        ("imagenet-a#train", "ImageNet-A has test images only; leave out #train."),
        ("eurosat", r"EuroSAT: no folder .*eurosat; get EuroSAT\.zip .*, and split_zhou_EuroSAT.json from CoOp's"),
    ],
)
def test_what_there_is_not_is_refused(tmp_path, spec, message):
    draw_dataset(tmp_path, DATASETS["imagenet-a"], few())
    with pytest.raises(InputError, match=message):
        open_dataset(spec, tmp_path)


def test_unreadable_datasets_are_reported(tmp_path):
    aircraft = DATASETS["aircraft"]
    lines = draw_dataset(tmp_path, aircraft, few()) / aircraft.split
    for text in ("0000001 Airship\n", "0000001\n"):
        lines.write_text(text)
        with pytest.raises(InputError, match="an image number and one of the 100 variants"):
            open_dataset("aircraft", tmp_path)
    (tmp_path / "imagenet-adversarial" / "imagenet-a").mkdir(parents=True)
    with pytest.raises(InputError, match="ImageNet-A: no images in"):
        open_dataset("imagenet-a", tmp_path)


def test_the_guide_has_the_same_table():
    guide = (Path(__file__).parents[2] / "docs" / "datasets.md").read_text()
    for suite, keys in SUITES.items():
        for each in (DATASETS[key] for key in keys):
            where = ", ".join(filter(None, (each.images, each.split)))
            row = (suite, each.key, each.folder, where, str(each.classes), str(each.test), str(each.views))
            assert f"| {' | '.join(row)} |" in guide


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("eurosat", "eurosat"),
        ("fgvc_aircraft", "aircraft"),
        ("oxford_pets", "pets"),
        ("Stanford-Cars", "cars"),
        ("caltech-101", "caltech101"),
        ("oxford_flowers", "flowers102"),
        ("imagenet_a", "imagenet-a"),
        ("imagenet-adversarial", "imagenet-a"),
        ("imagenet-s", "imagenet-sketch"),
        ("imagenetv2", "imagenet-v2"),
    ],
)
def test_names_of_datasets(name, key):
    assert dataset_named(name).key == key


def test_other_names():
    assert dataset_named("cifar10") is None
    assert all(dataset_named(dataset.key) == dataset for dataset in DATASETS.values() if not dataset.part_of)
