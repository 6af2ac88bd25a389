"""The paper's fifteen datasets in CoOp's directory layout, `dataset:KEY[#SPLIT[:N]]`.

The facts about each dataset are data: `data/datasets.json` (folders, counts, settings) and `data/class_names.json`
(names in label order, with their sources). A part of a dataset is a dataset of its own, outside the suites. A dataset
whose classes are in another order than the benchmark's is refused, and one that is not complete is warned of.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np

from acclimate.arrays import HostArray
from acclimate.errors import InputError, nearest, reason, same_words
from acclimate.sources.coop_splits import read_split
from acclimate.sources.folder import is_image, natural_key
from acclimate.sources.source import Sample, draw_shots, file_sample

WNID = re.compile(r"n\d{8}")
SPLITS = ("train", "val", "test")
SPLIT_FILES = "CoOp's DATASETS.md"
FOLDERS = ("wnids", "numbers")  # layouts with a folder per class
DRAW_SEED = 1


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

    @property
    def labels(self) -> tuple[str, ...]:
        """The class names as labels, which differ: the second of a pair of ImageNet's is "missile (2)"."""
        seen: Counter[str] = Counter()
        labels = []
        for name in self.class_names:
            seen[name] += 1
            labels.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
        return tuple(labels)

    def views_of(self, views: int | str) -> int:
        """Return the number of views per image, that of the paper for "paper"."""
        return self.views if views == "paper" else int(views)

    @property
    def class_folders(self) -> tuple[str, ...]:
        """Names of the image folders in label order, for "wnids" and "numbers"; these are not sorted as strings."""
        return self.wnids if self.layout == "wnids" else tuple(map(str, range(self.classes)))


@dataclass(frozen=True)
class Listing:
    """The images of a split of a dataset in a fixed order, not read yet.

    Attributes:
        dataset: the dataset.
        split: "test", "train" or "val".
        paths: n images.
        targets: (n,) class indices.
        folder: the folder of the dataset.
        images: the folder of all images.
        warnings: sentences on what is missing, so that figures are not those of the benchmark.
    """

    dataset: Dataset
    split: str
    paths: list[Path]
    targets: HostArray
    folder: Path
    images: Path
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def samples(self) -> list[Sample]:
        """The images with the names of their classes."""
        labels = self.dataset.labels
        return [file_sample(path, labels[target]) for path, target in zip(self.paths, self.targets, strict=True)]


def read_data(name: str) -> Any:
    """Return the content of a JSON file in this package's data folder."""
    return json.loads((files("acclimate.sources") / "data" / name).read_text(encoding="utf-8"))


def _read_datasets() -> dict[str, Dataset]:
    classes = read_data("class_names.json")
    imagenet = classes["imagenet"]
    name_of = dict(zip(imagenet["wnids"], imagenet["names"], strict=True))
    datasets = {}
    described = read_data("datasets.json")
    for key, about in described.items():
        whole = about.get("part_of", key)
        known = classes.get(whole, imagenet)
        wnids = tuple(known.get("wnids", ()))
        names = known["names"] if "names" in known else (name_of[wnid] for wnid in wnids)
        datasets[key] = Dataset(
            key, tuple(names), wnids, folder_names=known.get("folders", {}), **(described[whole] | about)
        )
    return datasets


DATASETS: Mapping[str, Dataset] = _read_datasets()


def dataset_named(name: str) -> Dataset | None:
    """Return the dataset with a name: its key, its folder in CoOp's layout or its title in the paper; else None.

    Capitals, hyphens and underscores make no difference: oxford_pets is the folder of pets.
    """

    def letters(name: str) -> str:
        return re.sub(r"[-_ ]", "", name.lower())

    return next(
        (
            each
            for each in DATASETS.values()
            if not each.part_of and letters(name) in map(letters, (each.key, each.folder, each.title))
        ),
        None,
    )


def open_samples(spec: str) -> list[Sample]:
    """List the images of `KEY[#SPLIT[:N]]` below the folder that the environment variable ACCLIMATE_DATA names."""
    root = os.environ.get("ACCLIMATE_DATA")
    if not root:
        raise InputError(f"dataset:{spec}: set ACCLIMATE_DATA to the folder of the datasets, or pass --data to embed.")
    return open_dataset(spec, Path(root)).samples


def open_dataset(spec: str, root: Path) -> Listing:
    """List the images of a dataset, and check that they are those of the benchmark.

    Args:
        spec: `KEY[#SPLIT[:N]]`: the name of a dataset, then a split, test by default, and the most images per class
            that are drawn of it, such as `imagenet#train:20`.
        root: the folder of all datasets.

    Raises:
        InputError: the dataset is missing, or its classes are not those of the benchmark.
    """
    name, _, rest = spec.partition("#")
    split, _, most = rest.partition(":")
    dataset = DATASETS.get(name) or dataset_named(name)
    if dataset is None:
        raise InputError(f"unknown dataset {name!r}; {nearest(name, DATASETS)}")
    if split not in ("", *SPLITS) or (most and not (most.isdecimal() and int(most))):
        raise InputError(
            f"dataset:{spec}: after # comes {' or '.join(SPLITS)}, then a number of images as in #train:20."
        )
    listing = list_images(dataset, root, split or "test")
    if errors := list(_wrong_classes(listing)):
        again = f" Get {dataset.split} again from {SPLIT_FILES}." if dataset.layout == "split" else ""
        raise InputError(f"{dataset.title}: the classes are not those of the benchmark. {' '.join(errors)}{again}")
    listing = replace(listing, warnings=(*_unknown_folders(listing), *_missing_images(listing)))
    if not most:
        return listing
    drawn, _ = draw_shots(listing.targets, dataset.labels, int(most), DRAW_SEED, allow_fewer=True)
    return replace(listing, paths=[listing.paths[i] for i in drawn], targets=listing.targets[drawn])


def list_images(dataset: Dataset, root: Path, split: str = "test") -> Listing:
    """List the images of a split of a dataset, whether or not its classes are those of the benchmark."""
    folder = root / dataset.folder
    if not folder.is_dir():
        files = f", and {dataset.split} from {SPLIT_FILES}" if dataset.layout == "split" else ""
        raise InputError(f"{dataset.title}: no folder {folder}; get {dataset.get}{files}.")
    if dataset.layout in FOLDERS and split != "test" and dataset.key != "imagenet":
        raise InputError(f"{dataset.title} has test images only; leave out #{split}.")
    images = folder / ("images/train" if split == "train" and dataset.layout in FOLDERS else dataset.images)
    listed = folder / dataset.split.replace("test", split)
    if not listed.exists():
        source = f"get it from {SPLIT_FILES}" if dataset.layout == "split" else "it comes with the images"
        raise InputError(f"{dataset.title}: {listed} is missing; {source}.")
    if not images.is_dir():
        raise InputError(f"{dataset.title}: no folder {images}; get {dataset.get}.")
    if dataset.layout == "split":
        rows = [(images / file, number) for file, number, _ in read_split(listed, split)]
    elif dataset.layout == "variants":
        rows = _read_variants(dataset, images, listed)
    else:
        folders = enumerate(images / name for name in dataset.class_folders)
        rows = [(path, label) for label, folder in folders if folder.is_dir() for path in folder_images(folder)]
    if dataset.without:
        rows = [(path, label) for path, label in rows if dataset.without not in path.name]
    found = Listing(dataset, split, [path for path, _ in rows], np.array([label for _, label in rows]), folder, images)
    if not rows:
        why = " ".join([*_wrong_folders(found), *_unknown_folders(found)]) or f"get {dataset.get}."
        raise InputError(f"{dataset.title}: no images in {images}; {why}")
    return found


def folder_images(folder: Path) -> list[Path]:
    """Return the images of one folder without hidden files, in natural order."""
    return sorted(
        (path for path in folder.iterdir() if is_image(path.name) and not path.name.startswith(".")),
        key=lambda path: natural_key(path.name),
    )


def _wrong_classes(listing: Listing) -> Iterator[str]:
    """Yield what shows that the classes are not those of the benchmark, or in another order."""
    dataset = listing.dataset
    if dataset.layout == "split":
        yield from _wrong_numbers(dataset, read_split(listing.folder / dataset.split, listing.split))
    if dataset.wnids:
        yield from _wrong_folders(listing)
        yield from _wrong_files(listing)
    else:
        yield from _wrong_names(listing)


def _wrong_numbers(dataset: Dataset, rows: Sequence[tuple[str, int, str]]) -> Iterator[str]:
    """Yield the wrong class numbers and names of a split file; a name that is spelt differently is not wrong."""
    names = list(map(same_words, dataset.class_names))
    for number, name in dict.fromkeys((number, name) for _, number, name in rows):
        if not 0 <= number < len(names):
            yield f"{name!r} has the number {number}, but there are {len(names)} classes."
        elif same_words(name) in names and names[number] != same_words(name):
            yield f"{name!r} has the number {number}, which belongs to {dataset.class_names[number]!r}."


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


def _wrong_names(listing: Listing) -> Iterator[str]:
    """Yield the classes whose images lie in folders, or have names, of other classes."""
    dataset = listing.dataset
    label_of = {same_words(name): label for label, name in enumerate(dataset.class_names)}
    label_of |= {same_words(folder): label_of[same_words(name)] for folder, name in dataset.folder_names.items()}
    wrong: Counter[tuple[str, int]] = Counter()
    for path, number in zip(listing.paths, listing.targets.tolist(), strict=True):
        *folders, file = path.relative_to(listing.images).parts
        # The two last folders (shop/bakery of SUN397), the last folder, the file name up to its number.
        parts = (" ".join(reversed(folders[-2:])), *folders[-1:], file.rpartition("_")[0])
        name = next((name for name in map(same_words, parts) if name in label_of), None)
        if name is not None and label_of[name] != number:
            wrong[name, number] += 1
    for (name, number), count in wrong.items():
        label = dataset.class_names[number] if 0 <= number < dataset.classes else number
        yield f"{count} images of {name!r} are labelled {label!r}."


def _wrong_files(listing: Listing) -> Iterator[str]:
    """Yield the folders that hold files named after other classes, if there are any."""
    wnid_of: dict[str, str] = {}
    wrong: dict[str, str] = {}
    for path, target in zip(listing.paths, listing.targets.tolist(), strict=True):
        wnid_of[path.parent.name] = listing.dataset.wnids[target]
        if (named := WNID.match(path.name)) and named[0] != listing.dataset.wnids[target]:
            wrong.setdefault(path.parent.name, named[0])
    if wrong:
        pairs = _some([f"{folder} holds {other}" for folder, other in sorted(wrong.items())])
        by_string = dict(zip(sorted(wnid_of), sorted(wnid_of.values()), strict=True))
        as_strings = all(folder.isdecimal() and by_string[folder] == other for folder, other in wrong.items())
        why = " The numbers were sorted as strings." if as_strings else ""
        yield f"{listing.images} has files of other classes: {pairs}.{why}"


def _wrong_folders(listing: Listing) -> Iterator[str]:
    """Yield what is wrong with the names of class folders."""
    dataset = listing.dataset
    images = listing.images
    folders = [path.name for path in images.iterdir() if path.is_dir() and not path.name.startswith(".")]
    last = dataset.classes - 1
    numbered = dataset.layout == "numbers"
    again = f"unpack {dataset.get} again."
    if not folders and folder_images(images):
        yield f"{images} holds images without class folders; sort them into folders by WordNet id."
    elif numbered and any(WNID.fullmatch(name) for name in folders):
        yield (
            f"{images}: the folders were renamed to WordNet ids. The published names are 0 to {last}, and a renaming "
            f"in string order (0, 1, 10, 100, ...) cannot be distinguished from a correct one; {again}"
        )
    elif numbered and str(dataset.classes) in folders and "0" not in folders:
        yield f"{images}: the folder numbers start at 1, so every label is off by one; {again}"


def _unknown_folders(listing: Listing) -> Iterator[str]:
    """Yield the folders of no class, whose images are left out."""
    dataset = listing.dataset
    folders = {path.name for path in listing.images.iterdir() if path.is_dir() and not path.name.startswith(".")}
    if dataset.layout in FOLDERS and (unknown := sorted(folders - set(dataset.class_folders))):
        numbered = dataset.layout == "numbers"
        expected = (
            f"numbers from 0 to {dataset.classes - 1}" if numbered else f"among the {dataset.classes} WordNet ids"
        )
        yield f"{listing.images}: {_some(unknown)} are not {expected}."


def _missing_images(listing: Listing) -> Iterator[str]:
    """Yield what is missing, with which figures are not those of the benchmark."""
    dataset = listing.dataset
    counts = np.bincount(listing.targets, minlength=dataset.classes).tolist()
    if empty := [name for name, count in zip(dataset.class_names, counts, strict=True) if not count]:
        yield f"{len(empty)} of {dataset.classes} classes have no images: {_some(empty)}."
    if listing.split == "test" and len(listing) not in dataset.counts:
        yield f"{len(listing):,} test images instead of {' or '.join(f'{count:,}' for count in dataset.counts)}."
    uneven = [
        f"{name} {count}" for name, count in zip(dataset.class_names, counts, strict=True) if count != dataset.per_class
    ]
    if listing.split == "test" and dataset.per_class and len(listing) in dataset.counts and uneven:
        yield f"classes that do not have {dataset.per_class} images: {_some(uneven)}."
    if missing := [path for path in listing.paths if not path.is_file()]:
        listed = _some([f"{count} in {folder}" for folder, count in Counter(path.parent for path in missing).items()])
        yield f"{len(missing)} images are missing ({listed}), such as {missing[0].name}."


def _some(items: Sequence[str], limit: int = 5) -> str:
    return ", ".join(items[:limit]) + (f" and {len(items) - limit} more" if len(items) > limit else "")
