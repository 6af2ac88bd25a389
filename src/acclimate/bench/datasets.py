"""The paper's fifteen datasets in CoOp's directory layout, and the lists of their test images.

The facts about each dataset are data: `data/datasets.json` (folders, counts, settings) and `data/class_names.json`
(names in label order, with their sources). A part of a dataset is a dataset of its own, outside the suites.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np

from acclimate.arrays import HostArray
from acclimate.errors import InputError, reason, same_words
from acclimate.sources.coop_splits import read_split
from acclimate.sources.folder import is_image, natural_key


@dataclass(frozen=True)
class Dataset:
    """Facts about a dataset.

    Its labels come from a "split" file of CoOp, from folders named by WordNet ids ("wnids") or by "numbers", or from
    Aircraft's list of "variants". ImageNet has two pairs of classes with the same name.
    """

    key: str  # the name on the command line and of the template set
    class_names: tuple[str, ...]  # label order, spelt as in prompts
    wnids: tuple[str, ...]  # WordNet ids in label order; () if it is not a kind of ImageNet
    title: str  # the name in the paper's tables
    folder: str  # below the root folder of all datasets
    layout: Literal["split", "wnids", "numbers", "variants"]
    images: str  # the image folder, below `folder`
    split: str  # the file that lists the test images; "" if all images are for testing
    classes: int
    test: int  # number of test images in the paper
    views: int  # number of views per image in the paper's protocol
    authors: Mapping[str, Mapping[str, Any]]  # method -> the settings that its authors published for this dataset
    get: str  # where it comes from
    published: int | None = None  # number of images in the published archive, if it differs from `test`
    per_class: int | None = None  # number of images, if it is the same for all classes
    domains: bool = False  # file names start with a domain, as in toy_3.jpg
    folder_names: Mapping[str, str] = field(default_factory=dict)  # folder -> class, where more than spelling differs
    part_of: str = ""  # the dataset that this one is a part of, with the same facts except for those given
    without: str = ""  # images with this in their file names are left out

    @property
    def counts(self) -> tuple[int, ...]:
        """Valid numbers of test images."""
        return (self.test,) if self.published is None else (self.test, self.published)

    def image_folder(self, root: Path) -> Path:
        """Return the folder of the images."""
        return root / self.folder / self.images

    def views_of(self, views: int | str) -> int:
        """Return the number of views per image, that of the paper for "paper"."""
        return self.views if views == "paper" else int(views)

    @property
    def class_folders(self) -> tuple[str, ...]:
        """Names of the image folders in label order, for "wnids" and "numbers"; these are not sorted as strings."""
        return self.wnids if self.layout == "wnids" else tuple(map(str, range(self.classes)))


@dataclass(frozen=True)
class Listing:
    """The test images of a dataset in a fixed order, not read yet."""

    dataset: Dataset
    paths: list[Path]
    labels: HostArray  # (n,) class indices
    folder: Path  # contains all paths
    domains: tuple[str, ...] | None = None  # n names; None for a dataset without domains
    problems: tuple[str, ...] = ()  # wrong class numbers and names in the split file

    def __len__(self) -> int:
        return len(self.paths)

    def part(self, positions: HostArray) -> "Listing":
        """Return the images at positions (m,), in this order, without their domains."""
        paths = [self.paths[position] for position in positions]
        return replace(self, paths=paths, labels=self.labels[positions], domains=None)


def read_data(name: str) -> Any:
    """Return the content of a JSON file in this package's data folder."""
    return json.loads((files("acclimate.bench") / "data" / name).read_text(encoding="utf-8"))


def _read_datasets() -> dict[str, Dataset]:
    classes = read_data("class_names.json")
    imagenet = classes["imagenet"]
    name_of = dict(zip(imagenet["wnids"], imagenet["names"], strict=True))
    datasets = {}
    described = read_data("datasets.json")
    for key, about in described.items():
        whole = about.get("part_of", key)
        facts = {**described[whole], **about}
        known = classes.get(whole, imagenet)
        wnids = tuple(known.get("wnids", ()))
        names = tuple(known["names"]) if "names" in known else tuple(name_of[wnid] for wnid in wnids)
        datasets[key] = Dataset(key, names, wnids, **facts, folder_names=known.get("folders", {}))
    return datasets


DATASETS: Mapping[str, Dataset] = _read_datasets()
SUITES: Mapping[str, tuple[str, ...]] = {
    "ood": tuple(key for key, each in DATASETS.items() if each.wnids and not each.part_of),
    "cross-domain": tuple(key for key, each in DATASETS.items() if not each.wnids),
}


def dataset_named(name: str) -> Dataset | None:
    """Return the dataset with a name: its key, its folder in CoOp's layout or its title in the paper; else None.

    Capitals, hyphens and underscores make no difference: oxford_pets is the folder of pets.
    """

    def letters(name: str) -> str:
        return re.sub(r"[-_ ]", "", name.lower())

    whole = (each for each in DATASETS.values() if not each.part_of)
    return next((each for each in whole if letters(name) in map(letters, (each.key, each.folder, each.title))), None)


def find_datasets(suites: list[str], keys: list[str]) -> list[Dataset]:
    """Return the datasets of the suites and those named individually, without duplicates."""
    for kind, known, names in (("suite", SUITES, suites), ("dataset", DATASETS, keys)):
        for name in names:
            if name not in known:
                raise InputError(f"unknown {kind} {name!r}; choose from {', '.join(known)}.")
    chosen = [key for suite in suites for key in SUITES[suite]] + keys
    return [DATASETS[key] for key in dict.fromkeys(chosen)]


def present_datasets(datasets: list[Dataset], root: Path) -> list[Dataset]:
    """Return the datasets whose folders exist; InputError if there are none."""
    found = [dataset for dataset in datasets if (root / dataset.folder).is_dir()]
    if not found:
        expected = ", ".join(dataset.folder for dataset in datasets)
        raise InputError(f"{root} contains none of {expected}; `acclimate data check {root}` shows how to get them.")
    return found


def read_dataset(dataset: Dataset, root: Path) -> Listing:
    """List a dataset's test images; InputError if it is missing or its labels are not those of the benchmark."""
    listing = list_images(dataset, root)
    for problem in listing.problems:
        raise InputError(
            f"{dataset.title}: the classes in {dataset.split} are in a different order: {problem}; "
            "use CoOp's split file."
        )
    return listing


def list_images(dataset: Dataset, root: Path) -> Listing:
    """List a dataset's test images, even if the classes in its split file are not those of the benchmark."""
    images = dataset.image_folder(root)
    split = root / dataset.folder / dataset.split
    if not images.is_dir():
        raise InputError(f"{dataset.title}: no folder {images}; get {dataset.get}. Run `acclimate data check {root}`.")
    problems: tuple[str, ...] = ()
    if dataset.layout == "split":
        entries = read_split(split)
        problems = tuple(_wrong_classes(dataset, dict.fromkeys((number, name) for _, number, name in entries)))
        rows = [(images / file, number) for file, number, _ in entries]
    elif dataset.layout == "variants":
        rows = _read_variants(dataset, images, split)
    else:
        present = set(sub_folders(images))
        labelled = enumerate(dataset.class_folders)
        rows = [(path, label) for label, name in labelled if name in present for path in folder_images(images / name)]
    if dataset.without:
        rows = [(path, label) for path, label in rows if dataset.without not in path.name]
    if not rows:
        raise InputError(f"{dataset.title}: no images in {images}. Run `acclimate data check {root}`.")
    paths = [path for path, _ in rows]
    domains = tuple(path.name.rpartition("_")[0] for path in paths) if dataset.domains else None
    return Listing(dataset, paths, np.array([label for _, label in rows]), images, domains, problems)


def folder_images(folder: Path) -> list[Path]:
    """Return the images of one folder without hidden files, in natural order."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if is_image(entry.name) and not entry.name.startswith(".")]
    return [folder / name for name in sorted(names, key=natural_key)]


def sub_folders(folder: Path) -> list[str]:
    """Return the names of the folders in a folder without hidden ones, sorted."""
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _wrong_classes(dataset: Dataset, classes: Iterable[tuple[int, str]]) -> Iterator[str]:
    """Yield the wrong class numbers and names; a name that is spelt differently is not wrong."""
    names = list(map(same_words, dataset.class_names))
    for number, name in classes:
        if not 0 <= number < len(names):
            yield f"{name!r} has the number {number}, but there are {len(names)} classes"
        elif same_words(name) in names and names[number] != same_words(name):
            yield f"{name!r} has the number {number}, which belongs to {dataset.class_names[number]!r}"


def _read_variants(dataset: Dataset, images: Path, split: Path) -> list[tuple[Path, int]]:
    label_of = {name: label for label, name in enumerate(dataset.class_names)}
    try:
        rows = [line.split(" ", 1) for line in split.read_text(encoding="utf-8").splitlines() if line.strip()]
        return [(images / f"{number}.jpg", label_of[name.strip()]) for number, name in rows]
    except OSError as error:
        raise InputError(f"{dataset.title}: cannot read {split}: {reason(error)}.") from error
    except (ValueError, KeyError) as error:
        raise InputError(
            f"{dataset.title}: each line of {split} must hold an image number and one of the 100 variants ({error})."
        ) from error
