"""The fifteen datasets: what is known of them, and how they are read from disk."""

import json
from pathlib import Path

import numpy as np
import pytest

from acclimate.bench.datasets import (
    DATASETS,
    SUITES,
    find_datasets,
    incomplete_datasets,
    present_datasets,
    read_dataset,
)
from acclimate.errors import InputError
from acclimate.prompts import template_sets
from miniatures import draw_dataset, few, whole

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
    listing = read_dataset(dataset, tmp_path)
    assert np.bincount(listing.labels, minlength=dataset.classes).tolist() == [2, 1, 11, *[0] * (last - 3), 3]
    assert all(path.is_file() for path in listing.paths)
    again = read_dataset(dataset, tmp_path)
    assert (listing.paths, listing.labels.tolist()) == (again.paths, again.labels.tolist())


def test_the_authors_loader_drops_files_by_their_names(tmp_path):
    """Files of ImageNet-A are named after what a classifier took them for."""
    whole = DATASETS["imagenet-a"]
    part = DATASETS["imagenet-a-authors"]
    folder = draw_dataset(tmp_path, whole, few()) / "imagenet-a" / whole.wnids[1]
    images = sorted(folder.iterdir())
    images[0].rename(folder / "0.000116_jellyfish _ jellyfish_0.86.jpg")
    images[1].rename(folder / "0.000117_Shih-Tzu_0.5.jpg")  # capitals count
    assert read_dataset(whole, tmp_path).labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    listing = read_dataset(part, tmp_path)
    assert listing.labels.tolist() == [0] * 4 + [1] * 3 + [2] * 4
    assert not any("sh" in path.name for path in listing.paths)
    assert (part.class_names, part.folder, part.views, part.authors) == (
        *(whole.class_names, whole.folder, whole.views, whole.authors),
    )
    assert part.key not in SUITES["ood"]


def test_v2_folders_are_numbers(tmp_path):
    dataset = DATASETS["imagenet-v2"]
    draw_dataset(tmp_path, dataset, few(classes=12, per_class=1))
    listing = read_dataset(dataset, tmp_path)
    assert [(path.parent.name, label) for path, label in zip(listing.paths, listing.labels, strict=True)] == [
        (str(label), label) for label in range(12)
    ]


def test_files_that_are_no_images_are_left_alone(tmp_path):
    dataset = DATASETS["imagenet-r"]
    folder = draw_dataset(tmp_path, dataset, few())
    for name in ("README.txt", "n01443537/.hidden.jpg", "n01443537/notes.txt"):
        (folder / "imagenet-r" / name).write_text("")
    (folder / "imagenet-r" / "n99999999").mkdir()
    assert len(read_dataset(dataset, tmp_path)) == 12


def test_unreadable_datasets_are_reported(tmp_path):
    eurosat = DATASETS["eurosat"]
    aircraft = DATASETS["aircraft"]
    with pytest.raises(InputError, match=r"EuroSAT: no folder .*2750; get EuroSAT\.zip .* Run `acclimate data check"):
        read_dataset(eurosat, tmp_path)
    split = draw_dataset(tmp_path, eurosat, few()) / eurosat.split
    rows = json.loads(split.read_text())["test"]
    for number, said in ((8, "'Forest' has the number 8, which belongs to 'River'"), (10, "there are 10 classes")):
        other = [[file, number if name == "Forest" else label, name] for file, label, name in rows]
        split.write_text(json.dumps({"test": other}))
        with pytest.raises(InputError, match=said):
            read_dataset(eurosat, tmp_path)
    lines = draw_dataset(tmp_path, aircraft, few()) / aircraft.split
    for text in ("0000001 Airship\n", "0000001\n"):
        lines.write_text(text)
        with pytest.raises(InputError, match="an image number and one of the 100 variants"):
            read_dataset(aircraft, tmp_path)
    lines.unlink()
    with pytest.raises(InputError, match="No such file"):
        read_dataset(aircraft, tmp_path)
    DATASETS["imagenet-a"].image_folder(tmp_path).mkdir(parents=True)
    with pytest.raises(InputError, match="ImageNet-A: no images in"):
        read_dataset(DATASETS["imagenet-a"], tmp_path)


def test_datasets_are_found_by_suite_and_by_name():
    assert [dataset.key for dataset in find_datasets(["ood"], ["dtd", "imagenet"])] == [*SUITES["ood"], "dtd"]
    with pytest.raises(InputError, match="unknown suite 'odd'; choose from ood, cross-domain"):
        find_datasets(["odd"], [])
    with pytest.raises(InputError, match="unknown dataset 'mnist'; choose from imagenet,"):
        find_datasets([], ["mnist"])


def test_datasets_that_are_present(tmp_path):
    with pytest.raises(InputError, match=r"contains none of dtd, eurosat; `acclimate data check .* shows how"):
        present_datasets(find_datasets([], ["dtd", "eurosat"]), tmp_path)
    (tmp_path / "eurosat").mkdir()
    assert present_datasets(find_datasets([], ["dtd", "eurosat"]), tmp_path) == [DATASETS["eurosat"]]


def test_the_guide_has_the_same_table():
    guide = (Path(__file__).parents[2] / "docs" / "datasets.md").read_text()
    for suite, keys in SUITES.items():
        for each in (DATASETS[key] for key in keys):
            where = ", ".join(filter(None, (each.images, each.split)))
            row = (suite, each.key, each.folder, where, str(each.classes), str(each.test), str(each.views))
            assert f"| {' | '.join(row)} |" in guide


def test_datasets_that_are_not_complete_are_named(tmp_path):
    draw_dataset(tmp_path, DATASETS["dtd"], whole(DATASETS["dtd"]))
    draw_dataset(tmp_path, DATASETS["eurosat"], few(classes=3, per_class=4))
    chosen = find_datasets([], ["dtd", "eurosat", "pets"])  # one is complete, one is not, one is missing
    (said,) = incomplete_datasets(chosen, tmp_path)
    assert said.startswith("warning: eurosat has 12 test images instead of 8,100, ")
