"""Whole datasets (links to a few drawn images) with planted mistakes: refused, or warned of."""

import json

import pytest

from acclimate.errors import InputError
from acclimate.sources.datasets import DATASETS, open_dataset
from miniatures import draw_dataset, few, whole

V2 = DATASETS["imagenet-v2"]


def refusal(key, root):
    """Return why a dataset is refused."""
    with pytest.raises(InputError) as error:
        open_dataset(key, root)
    return str(error.value)


def warnings(key, root):
    """Return what a dataset that is read lacks."""
    return list(open_dataset(key, root).warnings)


@pytest.mark.parametrize("key", ["dtd", "aircraft", "caltech101", "pets", "flowers102", "imagenet-a", "imagenet-v2"])
def test_a_right_dataset_has_nothing_wrong(tmp_path, key):
    draw_dataset(tmp_path, DATASETS[key], whole(DATASETS[key]))
    assert warnings(key, tmp_path) == []


@pytest.mark.parametrize("dataset", DATASETS.values(), ids=DATASETS)
def test_a_miniature_lacks_images_and_nothing_else(tmp_path, dataset):
    draw_dataset(tmp_path, dataset, few())
    empty, count = warnings(dataset.key, tmp_path)
    assert f"{dataset.classes - 3} of {dataset.classes} classes have no images" in empty
    assert f"12 test images instead of {dataset.test:,}" in count


def test_a_missing_dataset_says_how_to_get_it(tmp_path):
    assert "cars_test.tgz" in refusal("cars", tmp_path)


@pytest.mark.parametrize(("key", "source"), [("dtd", "CoOp's DATASETS.md"), ("aircraft", "comes with the images")])
def test_a_missing_split_file(tmp_path, key, source):
    dataset = DATASETS[key]
    (draw_dataset(tmp_path, dataset, few()) / dataset.split).unlink()
    said = refusal(key, tmp_path)
    assert f"{dataset.split} is missing" in said
    assert source in said


def test_a_missing_image_folder_and_a_damaged_split_file(tmp_path):
    folder = draw_dataset(tmp_path, DATASETS["ucf101"], few())
    (folder / "split_zhou_UCF101.json").write_text("{")
    assert "cannot be read as JSON" in refusal("ucf101", tmp_path)
    (folder / "UCF-101-midframes").rename(folder / "frames")
    assert "no folder" in refusal("ucf101", tmp_path)


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
    said = refusal(key, tmp_path)
    assert f"Get {dataset.split} again from CoOp's DATASETS.md." in said
    if what == "names":
        expected = (
            f"{dataset.class_names[second]!r} has the number {first}, which belongs to {dataset.class_names[first]!r}"
        )
        assert expected in said
    else:
        assert "2 images of" in said


def test_a_number_that_no_class_has(tmp_path):
    split = draw_dataset(tmp_path, DATASETS["dtd"], few(1)) / DATASETS["dtd"].split
    split.write_text(json.dumps({"test": [["banded/banded_0001.jpg", 47, "banded"]]}))
    said = refusal("dtd", tmp_path)
    assert "'banded' has the number 47, but there are 47 classes" in said
    assert "1 images of 'banded' are labelled 47" in said


def test_names_spelt_otherwise_are_no_mistake(tmp_path):
    split = draw_dataset(tmp_path, DATASETS["eurosat"], few()) / DATASETS["eurosat"].split
    split.write_text(split.read_text().replace("Annual Crop Land", "AnnualCrop"))
    assert len(warnings("eurosat", tmp_path)) == 2


def test_short_folders(tmp_path):
    a = DATASETS["imagenet-a"]
    folder = draw_dataset(tmp_path, a, whole(a)) / "imagenet-a"
    for path in list((folder / a.wnids[7]).iterdir())[:30]:
        path.unlink()
    assert warnings("imagenet-a", tmp_path) == ["7,470 test images instead of 7,500."]
    v2 = draw_dataset(tmp_path, V2, whole(V2)) / V2.images
    images = sorted((v2 / "10").iterdir())
    images[0].rename(v2 / "11" / "one_more.jpeg")
    assert warnings("imagenet-v2", tmp_path) == ["classes that do not have 10 images: brambling 9, goldfinch 11."]
    pets = draw_dataset(tmp_path, DATASETS["pets"], whole(DATASETS["pets"])) / "images"
    (pets / "Abyssinian_3.jpg").unlink()
    assert warnings("pets", tmp_path) == [f"1 images are missing (1 in {pets}), such as Abyssinian_3.jpg."]


def renamed(folder, name_of):
    for path in list(folder.iterdir()):
        path.rename(folder / f"new-{name_of(path.name)}")
    for path in list(folder.iterdir()):
        path.rename(folder / path.name[4:])


def test_v2_in_a_wrong_order(tmp_path):
    images = draw_dataset(tmp_path, V2, whole(V2)) / V2.images
    by_string = sorted(map(str, range(1000)))
    renamed(images, lambda name: str(int(name) + 1))
    assert "the folder numbers start at 1, so every label is off by one" in refusal("imagenet-v2", tmp_path)
    renamed(images, lambda name: f"{int(name) - 1:04d}")
    assert "0000, 0001, 0002, 0003, 0004 and 995 more are not numbers from 0 to" in refusal("imagenet-v2", tmp_path)
    renamed(images, lambda name: V2.wnids[by_string.index(str(int(name)))])
    assert "the folders were renamed to WordNet ids" in refusal("imagenet-v2", tmp_path)


def test_v2_files_that_name_their_class_show_the_string_order(tmp_path):
    images = draw_dataset(tmp_path, V2, few(classes=30, per_class=2)) / V2.images
    for number, folder in enumerate(sorted(map(str, range(30)))):
        for i, path in enumerate(list((images / folder).iterdir())):
            path.rename(path.with_name(f"{V2.wnids[number]}_{i}.jpeg"))
    said = refusal("imagenet-v2", tmp_path)
    assert f"10 holds {V2.wnids[2]}" in said
    assert said.endswith("The numbers were sorted as strings.")


def test_folders_of_wordnet_ids(tmp_path):
    dataset = DATASETS["imagenet"]
    val = draw_dataset(tmp_path, dataset, few()) / "images/val"
    assert "997 of 1000 classes have no images: tiger shark" in warnings("imagenet", tmp_path)[0]
    (val / dataset.wnids[0]).rename(val / "n00000000")
    assert "n00000000 are not among the 1000 WordNet ids" in warnings("imagenet", tmp_path)[0]
    path = next((val / dataset.wnids[1]).iterdir())
    path.rename(path.with_name(f"{dataset.wnids[2]}_17.JPEG"))
    assert "n01443537 holds n01484850" in refusal("imagenet", tmp_path)


def test_images_that_lie_flat(tmp_path):
    folder = draw_dataset(tmp_path, DATASETS["imagenet"], few(1)) / "images/val"
    for path in list((folder / "n01440764").iterdir()):
        path.rename(folder / path.name)
    (folder / "n01440764").rmdir()
    assert "images without class folders; sort them into folders by WordNet id" in refusal("imagenet", tmp_path)
