"""The paper's fifteen datasets as they lie on disks (CoOp's layout), and how to list their test images.

What is known of each is data: `data/datasets.json` (folders, counts, settings) and `data/class_names.json` (names in
the order of the labels, with their sources).
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
from acclimate.errors import InputError
from acclimate.prompts import spoken
from acclimate.sources.coop import read_split
from acclimate.sources.folder import is_image, natural_key


@dataclass(frozen=True)
class Dataset:
    """What is known of a dataset.

    Attributes:
        key: its name on the command line, and that of its set of templates.
        title: its name in the paper's tables.
        folder: below the root of all datasets.
        layout: how labels are told: a "split" file of CoOp's, folders named by WordNet ids ("wnids") or by "numbers",
            or Aircraft's list of "variants".
        images: where the images lie, below `folder`.
        split: the file that lists the test images; "" where all images are for testing.
        classes: how many there are.
        test: how many test images there are in the paper.
        views: views an image in the paper's protocol.
        authors: the authors' own (alpha, beta) of the positive cache for this dataset.
        get: where it comes from.
        published: how many the published archive holds, where that is another number.
        per_class: images of every class, where all have as many.
        domains: whether a file's name tells its domain, as toy_3.jpg does.
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
    authors: tuple[float, float]
    get: str
    published: int | None = None
    per_class: int | None = None
    domains: bool = False

    @property
    def counts(self) -> tuple[int, ...]:
        """Numbers of test images that are right."""
        return (self.test,) if self.published is None else (self.test, self.published)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names in the order of the labels, as prompts say them. ImageNet has two pairs of one name."""
        own = _class_names().get(self.key, {})
        if "names" in own:
            return tuple(own["names"])
        imagenet = _class_names()["imagenet"]
        by_wnid = dict(zip(imagenet["wnids"], imagenet["names"], strict=True))
        return tuple(by_wnid[wnid] for wnid in self.wnids)

    @property
    def wnids(self) -> tuple[str, ...]:
        """WordNet ids in the order of the labels; those of ImageNet unless it is a subset."""
        about = _class_names()
        return tuple(about.get(self.key, about["imagenet"])["wnids"])

    @property
    def folder_names(self) -> Mapping[str, str]:
        """Folder -> class name, where the two differ by more than their spelling."""
        return dict(_class_names().get(self.key, {}).get("folders", {}))

    def image_folder(self, root: Path) -> Path:
        """Where the images lie."""
        return root / self.folder / self.images


@dataclass(frozen=True)
class Listing:
    """The test images of a dataset, in a fixed order; none is read yet.

    Attributes:
        paths: n files.
        labels: (n,) classes.
        class_names: in the order of the labels, as prompts say them.
        folder: that all paths lie below.
        domains: n domains; None for a dataset without.
    """

    paths: list[Path]
    labels: HostArray
    class_names: tuple[str, ...]
    folder: Path
    domains: list[str] | None = None

    @property
    def metadata(self) -> dict[str, str]:
        """What a stream of these images says of their domains."""
        return {} if self.domains is None else {"domains": json.dumps(self.domains)}

    def __len__(self) -> int:
        return len(self.paths)


@cache
def _class_names() -> dict[str, Any]:
    return dict(_data("class_names.json"))


def _data(name: str) -> Any:
    return json.loads((files("acclimate.bench") / "data" / name).read_text(encoding="utf-8"))


DATASETS: Mapping[str, Dataset] = {
    key: Dataset(key=key, **{**about, "authors": tuple(about["authors"])})
    for key, about in _data("datasets.json").items()
}
SUITES: Mapping[str, tuple[str, ...]] = {
    "ood": tuple(key for key in DATASETS if key.startswith("imagenet")),
    "cross-domain": tuple(key for key in DATASETS if not key.startswith("imagenet")),
}


def find_datasets(suites: list[str], keys: list[str]) -> list[Dataset]:
    """The datasets of suites and those named one by one, each once."""
    chosen: list[str] = []
    for suite in suites:
        if suite not in SUITES:
            raise InputError(f"unknown suite {suite!r}; there are {', '.join(SUITES)}.")
        chosen += SUITES[suite]
    for key in keys:
        if key not in DATASETS:
            raise InputError(f"unknown dataset {key!r}; there are {', '.join(DATASETS)}.")
        chosen.append(key)
    return [DATASETS[key] for key in dict.fromkeys(chosen)]


def read_dataset(dataset: Dataset, root: Path) -> Listing:
    """List a dataset's test images.

    Raises:
        InputError: it is not there, or its labels are not those of the benchmark.
    """
    images = dataset.image_folder(root)
    if not images.is_dir():
        raise InputError(f"{dataset.title}: no folder {images}; get {dataset.get}. Try `acclimate data check {root}`.")
    readers: dict[str, Callable[[Dataset, Path], list[tuple[Path, int]]]] = {
        "split": _read_split,
        "wnids": _read_wnids,
        "numbers": _read_numbers,
        "variants": _read_variants,
    }
    rows = readers[dataset.layout](dataset, root)
    if not rows:
        raise InputError(f"{dataset.title}: no images in {images}. Try `acclimate data check {root}`.")
    paths = [path for path, _ in rows]
    domains = [path.name.rpartition("_")[0] for path in paths] if dataset.domains else None
    return Listing(paths, np.array([label for _, label in rows]), dataset.class_names, images, domains)


def folder_images(folder: Path) -> list[Path]:
    """The images of one folder, hidden files left out, in natural order."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if is_image(entry.name) and not entry.name.startswith(".")]
    return [folder / name for name in sorted(names, key=natural_key)]


def sub_folders(folder: Path) -> list[str]:
    """The names of the folders in a folder, hidden ones left out, sorted."""
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def misplaced(dataset: Dataset, number: int, name: str) -> str | None:
    """What is wrong with a class's number and name in a split file; None if they are the benchmark's, or unknown."""
    names = [spoken(each).casefold() for each in dataset.class_names]
    said = spoken(name).casefold()
    if not 0 <= number < len(names):
        return f"{name!r} has the number {number}, but there are {len(names)} classes"
    if said in names and names[number] != said:
        return f"{name!r} has the number {number}, which is that of {dataset.class_names[number]!r}"
    return None


def _read_split(dataset: Dataset, root: Path) -> list[tuple[Path, int]]:
    rows = read_split(root / dataset.folder / dataset.split)
    for number, name in dict.fromkeys((number, name) for _, number, name in rows):
        if wrong := misplaced(dataset, number, name):
            raise InputError(
                f"{dataset.title}: the classes of {dataset.split} are in another order: {wrong}; "
                "use the split file of CoOp."
            )
    images = dataset.image_folder(root)
    return [(images / file, number) for file, number, _ in rows]


def _read_wnids(dataset: Dataset, root: Path) -> list[tuple[Path, int]]:
    label_of = {wnid: label for label, wnid in enumerate(dataset.wnids)}
    return _read_folders(dataset.image_folder(root), label_of)


def _read_numbers(dataset: Dataset, root: Path) -> list[tuple[Path, int]]:
    # The folders are numbers: taken as strings, 10 would come before 2 and nearly every label would be wrong.
    return _read_folders(dataset.image_folder(root), {str(label): label for label in range(dataset.classes)})


def _read_folders(images: Path, label_of: Mapping[str, int]) -> list[tuple[Path, int]]:
    found = [name for name in sub_folders(images) if name in label_of]
    return [
        (path, label_of[name])
        for name in sorted(found, key=label_of.__getitem__)
        for path in folder_images(images / name)
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
        raise InputError(f"{dataset.title}: {path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, KeyError) as error:
        raise InputError(
            f"{dataset.title}: {path} must hold lines of an image's number and one of the 100 variants ({error})."
        ) from error
