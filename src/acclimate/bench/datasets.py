"""The paper's fifteen datasets in CoOp's directory layout, and how to list their test images.

The facts about each dataset are data: `data/datasets.json` (folders, counts, settings) and `data/class_names.json`
(names in label order, with their sources).
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np

from acclimate.arrays import HostArray
from acclimate.errors import InputError, reason
from acclimate.prompts import spoken
from acclimate.sources.coop import read_split
from acclimate.sources.folder import is_image, natural_key


@dataclass(frozen=True)
class Dataset:
    """Facts about a dataset.

    Attributes:
        key: its name on the command line, and the name of its template set.
        title: its name in the paper's tables.
        folder: below the root folder of all datasets.
        layout: where the labels come from: a "split" file of CoOp, folders named by WordNet ids ("wnids") or by
            "numbers", or Aircraft's list of "variants".
        images: the image folder, below `folder`.
        split: the file that lists the test images; "" if all images are for testing.
        classes: number of classes.
        test: number of test images in the paper.
        views: views per image in the paper's protocol.
        authors: method -> the settings that the method's authors published for this dataset.
        get: where it comes from.
        published: number of images in the published archive, if it differs from `test`.
        per_class: number of images per class, if it is the same for all classes.
        domains: whether file names start with a domain, as in toy_3.jpg.
    """

    key: str
    title: str
    folder: str
    layout: Literal["split", "wnids", "numbers", "variants"]
    images: str
    split: str
    classes: int
    test: int
    views: int
    authors: Mapping[str, Mapping[str, Any]]
    get: str
    published: int | None = None
    per_class: int | None = None
    domains: bool = False

    @property
    def counts(self) -> tuple[int, ...]:
        """Valid numbers of test images."""
        return (self.test,) if self.published is None else (self.test, self.published)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names in label order, as used in prompts. ImageNet has two pairs of classes with the same name."""
        entry = _class_names().get(self.key, {})
        if "names" in entry:
            return tuple(entry["names"])
        imagenet = _class_names()["imagenet"]
        by_wnid = dict(zip(imagenet["wnids"], imagenet["names"], strict=True))
        return tuple(by_wnid[wnid] for wnid in self.wnids)

    @property
    def wnids(self) -> tuple[str, ...]:
        """WordNet ids in label order; those of ImageNet unless the dataset is a subset."""
        entries = _class_names()
        return tuple(entries.get(self.key, entries["imagenet"])["wnids"])

    @property
    def folder_names(self) -> Mapping[str, str]:
        """Folder -> class name, where they differ by more than spelling."""
        return dict(_class_names().get(self.key, {}).get("folders", {}))

    def image_folder(self, root: Path) -> Path:
        """The folder of the images."""
        return root / self.folder / self.images


@dataclass(frozen=True)
class Listing:
    """The test images of a dataset in a fixed order, not read yet.

    Attributes:
        paths: n files.
        labels: (n,) class indices.
        folder: the common parent folder of all paths.
        domains: n domain names; None for a dataset without domains.
    """

    paths: list[Path]
    labels: HostArray
    folder: Path
    domains: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.paths)


@cache
def _class_names() -> dict[str, Any]:
    return dict(read_data("class_names.json"))


def read_data(name: str) -> Any:
    """The content of a JSON file in this package's data folder."""
    return json.loads((files("acclimate.bench") / "data" / name).read_text(encoding="utf-8"))


DATASETS: Mapping[str, Dataset] = {key: Dataset(key, **facts) for key, facts in read_data("datasets.json").items()}
SUITES: Mapping[str, tuple[str, ...]] = {
    "ood": tuple(key for key in DATASETS if key.startswith("imagenet")),
    "cross-domain": tuple(key for key in DATASETS if not key.startswith("imagenet")),
}


def find_datasets(suites: list[str], keys: list[str]) -> list[Dataset]:
    """The datasets of the suites and those named individually, without duplicates."""
    for kind, known, names in (("suite", SUITES, suites), ("dataset", DATASETS, keys)):
        for name in names:
            if name not in known:
                raise InputError(f"unknown {kind} {name!r}; choose from {', '.join(known)}.")
    chosen = [key for suite in suites for key in SUITES[suite]] + keys
    return [DATASETS[key] for key in dict.fromkeys(chosen)]


def present_datasets(datasets: list[Dataset], root: Path) -> list[Dataset]:
    """The datasets whose folders exist.

    Raises:
        InputError: there is none.
    """
    found = [dataset for dataset in datasets if (root / dataset.folder).is_dir()]
    if not found:
        expected = ", ".join(dataset.folder for dataset in datasets)
        raise InputError(f"{root} contains none of {expected}; `acclimate data check {root}` shows how to get them.")
    return found


def read_dataset(dataset: Dataset, root: Path) -> Listing:
    """List a dataset's test images.

    Raises:
        InputError: the dataset is missing, or its labels are not those of the benchmark.
    """
    images = dataset.image_folder(root)
    if not images.is_dir():
        raise InputError(f"{dataset.title}: no folder {images}; get {dataset.get}. Run `acclimate data check {root}`.")
    readers: dict[str, Callable[[Dataset, Path], list[tuple[Path, int]]]] = {
        "split": _read_split,
        "wnids": _read_folders,
        "numbers": _read_folders,
        "variants": _read_variants,
    }
    rows = readers[dataset.layout](dataset, root)
    if not rows:
        raise InputError(f"{dataset.title}: no images in {images}. Run `acclimate data check {root}`.")
    paths = [path for path, _ in rows]
    domains = tuple(path.name.rpartition("_")[0] for path in paths) if dataset.domains else None
    return Listing(paths, np.array([label for _, label in rows]), images, domains)


def folder_images(folder: Path) -> list[Path]:
    """The images of one folder without hidden files, in natural order."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if is_image(entry.name) and not entry.name.startswith(".")]
    return [folder / name for name in sorted(names, key=natural_key)]


def sub_folders(folder: Path) -> list[str]:
    """The names of the folders in a folder without hidden ones, sorted."""
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def wrong_class(dataset: Dataset, number: int, name: str) -> str | None:
    """What is wrong with a class number and name in a split file; None if they are correct or the name is unknown."""
    names = [spoken(each).casefold() for each in dataset.class_names]
    given = spoken(name).casefold()
    if not 0 <= number < len(names):
        return f"{name!r} has the number {number}, but there are {len(names)} classes"
    if given in names and names[number] != given:
        return f"{name!r} has the number {number}, which belongs to {dataset.class_names[number]!r}"
    return None


def _read_split(dataset: Dataset, root: Path) -> list[tuple[Path, int]]:
    rows = read_split(root / dataset.folder / dataset.split)
    for number, name in dict.fromkeys((number, name) for _, number, name in rows):
        if problem := wrong_class(dataset, number, name):
            raise InputError(
                f"{dataset.title}: the classes in {dataset.split} are in a different order: {problem}; "
                "use CoOp's split file."
            )
    images = dataset.image_folder(root)
    return [(images / file, number) for file, number, _ in rows]


def _read_folders(dataset: Dataset, root: Path) -> list[tuple[Path, int]]:
    images = dataset.image_folder(root)
    # Numbers must not be sorted as strings: 10 would come before 2 and nearly every label would be wrong.
    names = dataset.wnids if dataset.layout == "wnids" else tuple(map(str, range(dataset.classes)))
    present = set(sub_folders(images))
    return [
        (path, label) for label, name in enumerate(names) if name in present for path in folder_images(images / name)
    ]


def _read_variants(dataset: Dataset, root: Path) -> list[tuple[Path, int]]:
    path = root / dataset.folder / dataset.split
    label_of = {name: label for label, name in enumerate(dataset.class_names)}
    images = dataset.image_folder(root)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        rows = [line.split(" ", 1) for line in lines if line.strip()]
        return [(images / f"{number}.jpg", label_of[name.strip()]) for number, name in rows]
    except OSError as error:
        raise InputError(f"{dataset.title}: cannot read {path}: {reason(error)}.") from error
    except (ValueError, KeyError) as error:
        raise InputError(
            f"{dataset.title}: each line of {path} must hold an image number and one of the 100 variants ({error})."
        ) from error
