"""Findings of `data check` on whole datasets (links to a few drawn images) with planted mistakes."""

import json
from collections import Counter

import pytest

from acclimate.bench.datasets import DATASETS, check_dataset
from miniatures import draw_dataset, few, whole

V2 = DATASETS["imagenet-v2"]


def kinds(findings):
    return [finding.kind for finding in findings]


def replace(path, content):
    path.unlink()  # a link: what it links to must stay
    path.write_bytes(content)


@pytest.mark.parametrize("key", ["dtd", "aircraft", "caltech101", "pets", "flowers102", "imagenet-a", "imagenet-v2"])
def test_a_right_dataset_has_nothing_wrong(tmp_path, key):
    draw_dataset(tmp_path, DATASETS[key], whole(DATASETS[key]))
    assert check_dataset(DATASETS[key], tmp_path, decode=key == "dtd") == []


@pytest.mark.parametrize("dataset", DATASETS.values(), ids=DATASETS)
def test_a_miniature_lacks_images_and_nothing_else(tmp_path, dataset):
    draw_dataset(tmp_path, dataset, few())
    read = []
    findings = check_dataset(dataset, tmp_path, progress=read.append)
    assert set(kinds(findings)) == {"count"}
    assert f"12 test images instead of {dataset.test}" in findings[-1].message
    assert sum(read) == 12


def test_a_missing_dataset_says_how_to_get_it(tmp_path):
    (finding,) = check_dataset(DATASETS["cars"], tmp_path)
    assert finding.kind == "missing"
    assert "cars_test.tgz" in finding.message


@pytest.mark.parametrize(("key", "source"), [("dtd", "CoOp's DATASETS.md"), ("aircraft", "comes with the images")])
def test_a_missing_split_file(tmp_path, key, source):
    dataset = DATASETS[key]
    (draw_dataset(tmp_path, dataset, few()) / dataset.split).unlink()
    (finding,) = check_dataset(dataset, tmp_path)
    assert finding.kind == "split"
    assert f"{dataset.split} is missing" in finding.message
    assert source in finding.message


def test_a_missing_image_folder_and_a_damaged_split_file(tmp_path):
    folder = draw_dataset(tmp_path, DATASETS["ucf101"], few())
    (folder / "split_zhou_UCF101.json").write_text("{")
    (finding,) = check_dataset(DATASETS["ucf101"], tmp_path)
    assert finding.kind == "split"
    assert "cannot be read as JSON" in finding.message
    (folder / "UCF-101-midframes").rename(folder / "frames")
    assert "no folder" in check_dataset(DATASETS["ucf101"], tmp_path)[0].message


@pytest.mark.parametrize("key", ["caltech101", "dtd", "eurosat", "food101", "sun397", "ucf101", "pets"])
@pytest.mark.parametrize("what", ["names", "numbers", "both"])
def test_two_classes_swapped_in_a_split_file(tmp_path, key, what):
    """Swapped against each other, or both against the images: then the paths tell."""
    dataset = DATASETS[key]
    first, second = (0, 8) if key == "sun397" else (0, 1)
    split = draw_dataset(tmp_path, dataset, {first: 2, second: 3}) / dataset.split
    other = {first: second, second: first}
    rows = [
        [
            file,
            label if what == "names" else other[label],
            name if what == "numbers" else dataset.class_names[other[label]],
        ]
        for file, label, name in json.loads(split.read_text())["test"]
    ]
    split.write_text(json.dumps({"test": rows}))
    order = [finding.message for finding in check_dataset(dataset, tmp_path) if finding.kind == "class order"]
    assert len(order) == (4 if what == "numbers" else 2)
    if what == "names":
        expected = (
            f"{dataset.class_names[second]!r} has the number {first}, which belongs to {dataset.class_names[first]!r}"
        )
        assert expected in order[0]
    else:
        assert "2 images of" in order[-2]


def test_a_number_that_no_class_has(tmp_path):
    split = draw_dataset(tmp_path, DATASETS["dtd"], few(1)) / DATASETS["dtd"].split
    split.write_text(json.dumps({"test": [["banded/banded_0001.jpg", 47, "banded"]]}))
    order = [finding.message for finding in check_dataset(DATASETS["dtd"], tmp_path)]
    assert "'banded' has the number 47, but there are 47 classes" in order[0]
    assert "1 images of 'banded' are labelled 47" in order[1]


def test_names_spelt_otherwise_are_no_mistake(tmp_path):
    split = draw_dataset(tmp_path, DATASETS["eurosat"], few()) / DATASETS["eurosat"].split
    split.write_text(split.read_text().replace("Annual Crop Land", "AnnualCrop"))
    assert set(kinds(check_dataset(DATASETS["eurosat"], tmp_path))) == {"count"}


def test_short_folders(tmp_path):
    a = DATASETS["imagenet-a"]
    folder = draw_dataset(tmp_path, a, whole(a)) / "imagenet-a"
    for path in list((folder / a.wnids[7]).iterdir())[:30]:
        path.unlink()
    (finding,) = check_dataset(a, tmp_path, decode=False)
    assert finding.message == f"7470 test images instead of 7500. The smallest class is {a.class_names[7]!r} with 8."
    v2 = draw_dataset(tmp_path, V2, whole(V2)) / V2.images
    next((v2 / "10").iterdir()).unlink()
    assert check_dataset(V2, tmp_path, decode=False)[0].message == "classes that do not have 10 images: brambling 9."
    pets = draw_dataset(tmp_path, DATASETS["pets"], whole(DATASETS["pets"])) / "images"
    (pets / "Abyssinian_3.jpg").unlink()
    (finding,) = check_dataset(DATASETS["pets"], tmp_path, decode=False)
    assert finding.message == f"1 test images are missing (1 in {pets}), such as Abyssinian_3.jpg."


def test_images_that_cannot_be_read(tmp_path):
    dataset = DATASETS["flowers102"]
    jpg = draw_dataset(tmp_path, dataset, whole(dataset)) / "jpg"
    content = (jpg / "image_00007.jpg").read_bytes()
    replace(jpg / "image_00007.jpg", content[: len(content) // 2])
    replace(jpg / "image_00009.jpg", b"")
    findings = check_dataset(dataset, tmp_path)
    assert kinds(findings) == ["image", "image"]
    assert "image_00007.jpg cannot be read: " in findings[0].message
    assert "image_00009.jpg cannot be read: the file is empty" in findings[1].message


def renamed(folder, name_of):
    for path in list(folder.iterdir()):
        path.rename(folder / f"new-{name_of(path.name)}")
    for path in list(folder.iterdir()):
        path.rename(folder / path.name[4:])


def test_v2_in_a_wrong_order(tmp_path):
    def findings():
        return [
            finding.message for finding in check_dataset(V2, tmp_path, decode=False) if finding.kind == "class order"
        ]

    images = draw_dataset(tmp_path, V2, whole(V2)) / V2.images
    classes = tmp_path / V2.folder / "classnames.txt"
    by_string = sorted(map(str, range(1000)))

    lines = classes.read_text().splitlines()
    classes.write_text("\n".join(lines[int(number)] for number in by_string))
    assert "in the string order of their numbers (0, 1, 10, 100, ...)" in findings()[0]
    classes.write_text("\n".join([lines[1], lines[0], *lines[2:]]))
    assert "in a different order" in findings()[0]
    classes.write_text("\n".join([lines[0].replace("tench", "goldfish"), *lines[1:]]))
    assert "n01440764 is 'tench', not 'goldfish'" in findings()[0]
    classes.unlink()
    assert findings() == []

    renamed(images, lambda name: str(int(name) + 1))
    assert "the folder numbers start at 1, so every label is off by one" in findings()[0]
    renamed(images, lambda name: f"{int(name) - 1:04d}")
    assert "0000, 0001, 0002, 0003, 0004 and 995 more are not numbers from 0 to 999" in findings()[0]
    renamed(images, lambda name: V2.wnids[by_string.index(str(int(name)))])
    assert "the folders were renamed to WordNet ids" in findings()[0]


def test_v2_files_that_name_their_class_show_the_string_order(tmp_path):
    images = draw_dataset(tmp_path, V2, few(classes=30, per_class=2)) / V2.images
    for number, folder in enumerate(sorted(map(str, range(30)))):
        for i, path in enumerate(list((images / folder).iterdir())):
            path.rename(path.with_name(f"{V2.wnids[number]}_{i}.jpeg"))
    (order,) = [each for each in check_dataset(V2, tmp_path, decode=False) if each.kind == "class order"]
    assert f"10 holds {V2.wnids[2]}" in order.message
    assert order.message.endswith("The numbers were sorted as strings.")


def test_folders_of_wordnet_ids(tmp_path):
    dataset = DATASETS["imagenet"]
    val = draw_dataset(tmp_path, dataset, few()) / "images/val"
    (val / dataset.wnids[0]).rename(val / "n00000000")
    path = next((val / dataset.wnids[1]).iterdir())
    path.rename(path.with_name(f"{dataset.wnids[2]}_17.JPEG"))
    messages = {finding.kind: finding.message for finding in reversed(check_dataset(dataset, tmp_path))}
    assert "n00000000 are not among the 1000 WordNet ids" in messages["class order"]
    assert "998 of 1000 classes have no images: tench, tiger shark" in messages["count"]
    assert any("n01443537 holds n01484850" in finding.message for finding in check_dataset(dataset, tmp_path))


def test_images_that_lie_flat(tmp_path):
    folder = draw_dataset(tmp_path, DATASETS["imagenet"], few(1)) / "images/val"
    for path in list((folder / "n01440764").iterdir()):
        path.rename(folder / path.name)
    (folder / "n01440764").rmdir()
    findings = check_dataset(DATASETS["imagenet"], tmp_path)
    assert Counter(kinds(findings)) == {"count": 1}
    assert "images without class folders; sort them into folders by WordNet id" in findings[0].message


def test_variants_in_another_order(tmp_path):
    variants = draw_dataset(tmp_path, DATASETS["aircraft"], whole(DATASETS["aircraft"])) / "variants.txt"
    lines = variants.read_text().splitlines()
    variants.write_text("\n".join([lines[0], lines[2], lines[1], *lines[3:]]))
    (finding,) = check_dataset(DATASETS["aircraft"], tmp_path, decode=False)
    assert "differs from the published list from line 2" in finding.message
    variants.unlink()
    assert "variants.txt is missing" in check_dataset(DATASETS["aircraft"], tmp_path, decode=False)[0].message
