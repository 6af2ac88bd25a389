"""The paper's fifteen datasets in CoOp's directory layout, and the lists of their test images.

The facts about each dataset are data: `data/datasets.json` (folders, counts, settings) and `data/class_names.json`
(names in label order, with their sources). A part of a dataset is a dataset of its own, outside the suites.
`check_dataset` finds out whether a dataset on disk is complete, in the right class order, and readable.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.resources import files
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np

from acclimate.arrays import HostArray
from acclimate.bench import Advance
from acclimate.errors import ImageError, InputError, reason, same_words
from acclimate.images.opening import open_image
from acclimate.reading.walk import default_workers, read_ahead
from acclimate.sources.coop_splits import read_split
from acclimate.sources.folder import is_image, natural_key

WNID = re.compile(r"n\d{8}")
SPLITS = "CoOp's DATASETS.md"


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
        return replace(self, paths=[self.paths[i] for i in positions], labels=self.labels[positions], domains=None)


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
        known = classes.get(whole, imagenet)
        wnids = tuple(known.get("wnids", ()))
        names = known["names"] if "names" in known else (name_of[wnid] for wnid in wnids)
        datasets[key] = Dataset(
            key, tuple(names), wnids, folder_names=known.get("folders", {}), **(described[whole] | about)
        )
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

    return next(
        (
            each
            for each in DATASETS.values()
            if not each.part_of and letters(name) in map(letters, (each.key, each.folder, each.title))
        ),
        None,
    )


def find_datasets(suites: list[str], keys: list[str]) -> list[Dataset]:
    """Return the datasets of the suites and those named individually, without duplicates."""
    for kind, known, names in (("suite", SUITES, suites), ("dataset", DATASETS, keys)):
        for name in names:
            if name not in known:
                raise InputError(f"unknown {kind} {name!r}; choose from {', '.join(known)}.")
    return [DATASETS[key] for key in dict.fromkeys([*(key for suite in suites for key in SUITES[suite]), *keys])]


def present_datasets(datasets: list[Dataset], root: Path) -> list[Dataset]:
    """Return the datasets whose folders exist; InputError if there are none."""
    found = [dataset for dataset in datasets if (root / dataset.folder).is_dir()]
    if not found:
        raise InputError(
            f"{root} contains none of {', '.join(dataset.folder for dataset in datasets)}; "
            f"`acclimate data check {root}` shows how to get them."
        )
    return found


def incomplete_datasets(datasets: Iterable[Dataset], root: Path) -> Iterator[str]:
    """Yield a sentence on each dataset with another number of test images than the benchmark's."""
    for dataset in datasets:
        with suppress(InputError):  # a missing or damaged dataset is reported where it is read
            found = len(list_images(dataset, root))
            if found not in dataset.counts:
                yield (
                    f"warning: {dataset.key} has {found:,} test images instead of {dataset.test:,}, so its figures "
                    f"are not those of the benchmark; see `acclimate data check {root}`."
                )


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
    if not images.is_dir():
        raise InputError(f"{dataset.title}: no folder {images}; get {dataset.get}. Run `acclimate data check {root}`.")
    problems: tuple[str, ...] = ()
    if dataset.layout == "split":
        entries = read_split(root / dataset.folder / dataset.split)
        problems = tuple(_wrong_classes(dataset, dict.fromkeys((number, name) for _, number, name in entries)))
        rows = [(images / file, number) for file, number, _ in entries]
    elif dataset.layout == "variants":
        rows = _read_variants(dataset, images, root / dataset.folder / dataset.split)
    else:
        folders = enumerate(images / name for name in dataset.class_folders)
        rows = [(path, label) for label, folder in folders if folder.is_dir() for path in folder_images(folder)]
    if dataset.without:
        rows = [(path, label) for path, label in rows if dataset.without not in path.name]
    if not rows:
        raise InputError(f"{dataset.title}: no images in {images}. Run `acclimate data check {root}`.")
    paths = [path for path, _ in rows]
    domains = tuple(path.name.rpartition("_")[0] for path in paths) if dataset.domains else None
    return Listing(dataset, paths, np.array([label for _, label in rows]), images, domains, problems)


def folder_images(folder: Path) -> list[Path]:
    """Return the images of one folder without hidden files, in natural order."""
    return sorted(
        (path for path in folder.iterdir() if is_image(path.name) and not path.name.startswith(".")),
        key=lambda path: natural_key(path.name),
    )


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


@dataclass(frozen=True)
class Finding:
    """A problem with a dataset."""

    kind: Literal["missing", "split", "class order", "count", "image"]  # "missing": the dataset has no folder
    message: str  # what is wrong, where, and what to do


def check_dataset(
    dataset: Dataset, root: Path, decode: bool = True, progress: Advance = lambda images: None
) -> list[Finding]:
    """Return all problems with a dataset below `root`, none if it is the benchmark's; `decode` reads every image."""
    folder = root / dataset.folder
    images = dataset.image_folder(root)
    if not folder.is_dir():
        split = f", and {dataset.split} from {SPLITS}" if dataset.layout == "split" else ""
        return [Finding("missing", f"no folder {folder}; get {dataset.get}{split}.")]
    if dataset.split and not (folder / dataset.split).is_file():
        source = f"get it from {SPLITS}" if dataset.layout == "split" else "it comes with the images"
        return [Finding("split", f"{folder / dataset.split} is missing; {source}.")]
    if not images.is_dir():
        return [Finding("count", f"no folder {images}; get {dataset.get}.")]
    findings: list[Finding] = []
    if dataset.layout == "variants":
        findings += _variants_file(dataset, folder / "variants.txt")
    elif dataset.wnids:
        findings += [*_class_file(dataset, folder / "classnames.txt"), *_folder_names(dataset, images)]
    try:
        listing = list_images(dataset, root)
    except InputError as error:
        again = f" Get it again from {SPLITS}." if dataset.layout == "split" else ""
        return findings or [Finding("split" if dataset.split else "count", f"{error}{again}")]
    findings += [
        Finding("class order", f"{dataset.split}: {problem}; get it again from {SPLITS}.")
        for problem in listing.problems
    ]
    findings += [*(_wnids_of_files if dataset.wnids else _names_in_paths)(listing), *_counts(listing)]
    if decode:
        findings += _unreadable([path for path in listing.paths if path.is_file()], progress)
    return findings


def _names_in_paths(listing: Listing) -> Iterator[Finding]:
    dataset = listing.dataset
    label_of = {same_words(name): label for label, name in enumerate(dataset.class_names)}
    label_of |= {same_words(folder): label_of[same_words(name)] for folder, name in dataset.folder_names.items()}
    wrong: Counter[tuple[str, int]] = Counter()
    for path, number in zip(listing.paths, listing.labels.tolist(), strict=True):
        *folders, file = path.relative_to(listing.folder).parts
        # The two last folders (shop/bakery of SUN397), the last folder, the file name up to its number.
        parts = (" ".join(reversed(folders[-2:])), *folders[-1:], file.rpartition("_")[0])
        name = next((name for name in map(same_words, parts) if name in label_of), None)
        if name is not None and label_of[name] != number:
            wrong[name, number] += 1
    for (name, number), count in wrong.items():
        label = dataset.class_names[number] if 0 <= number < dataset.classes else number
        yield Finding("class order", f"{dataset.split}: {count} images of {name!r} are labelled {label!r}.")


def _wnids_of_files(listing: Listing) -> Iterator[Finding]:
    wnid_of: dict[str, str] = {}
    wrong: dict[str, str] = {}
    for path, label in zip(listing.paths, listing.labels.tolist(), strict=True):
        wnid_of[path.parent.name] = listing.dataset.wnids[label]
        if (named := WNID.match(path.name)) and named[0] != listing.dataset.wnids[label]:
            wrong.setdefault(path.parent.name, named[0])
    if wrong:
        pairs = _some([f"{folder} holds {other}" for folder, other in sorted(wrong.items())])
        by_string = dict(zip(sorted(wnid_of), sorted(wnid_of.values()), strict=True))
        as_strings = all(folder.isdecimal() and by_string[folder] == other for folder, other in wrong.items())
        why = " The numbers were sorted as strings." if as_strings else ""
        yield Finding("class order", f"{listing.folder}: files of other classes: {pairs}.{why}")


def _folder_names(dataset: Dataset, images: Path) -> Iterator[Finding]:
    folders = [path.name for path in images.iterdir() if path.is_dir() and not path.name.startswith(".")]
    last = dataset.classes - 1
    numbered = dataset.layout == "numbers"
    again = f"unpack {dataset.get} again."
    if not folders and folder_images(images):
        yield Finding("count", f"{images} holds images without class folders; sort them into folders by WordNet id.")
    elif numbered and any(WNID.fullmatch(name) for name in folders):
        yield Finding(
            "class order",
            f"{images}: the folders were renamed to WordNet ids. The published names are 0 to {last}, and a renaming "
            f"in string order (0, 1, 10, 100, ...) cannot be distinguished from a correct one; {again}",
        )
    elif numbered and str(dataset.classes) in folders and "0" not in folders:
        yield Finding("class order", f"{images}: the folder numbers start at 1, so every label is off by one; {again}")
    elif unknown := sorted(set(folders) - set(dataset.class_folders)):
        expected = f"numbers from 0 to {last}" if numbered else f"among the {dataset.classes} WordNet ids"
        yield Finding("class order", f"{images}: {_some(unknown)} are not {expected}.")


def _class_file(dataset: Dataset, path: Path) -> Iterator[Finding]:
    """Check CoOp's classnames.txt: it is not needed here, but programs that read it need the right order."""
    if not path.is_file():
        return
    lines = [line.split(" ", 1) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    listed = [wnid for wnid, *_ in lines]
    if listed != (numbers := sorted(listed)):
        strings = [numbers[int(number)] for number in sorted(map(str, range(len(numbers))))]
        how = "the string order of their numbers (0, 1, 10, 100, ...)" if listed == strings else "a different order"
        yield Finding("class order", f"{path} lists the classes in {how}; copy the file of CoOp's ImageNet again.")
    name_of = dict(zip(dataset.wnids, dataset.class_names, strict=True))
    if swapped := [
        f"{wnid} is {name_of[wnid]!r}, not {name!r}"
        for wnid, name in (line for line in lines if len(line) == 2)
        if wnid in name_of and name != name_of[wnid] and name in name_of.values()  # other spellings are fine
    ]:
        yield Finding("class order", f"{path} gives classes the names of others: {_some(swapped)}.")


def _variants_file(dataset: Dataset, path: Path) -> Iterator[Finding]:
    if not path.is_file():
        yield Finding("split", f"{path} is missing; it comes with the images.")
        return
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if tuple(lines) != dataset.class_names:
        same = [line == name for line, name in zip(lines, dataset.class_names, strict=False)]
        first = 1 + same.index(False) if False in same else 1
        yield Finding("class order", f"{path} differs from the published list from line {first}; unpack it again.")


def _counts(listing: Listing) -> Iterator[Finding]:
    dataset = listing.dataset
    images_of = Counter(listing.labels.tolist())
    counts = [(name, images_of[label]) for label, name in enumerate(dataset.class_names)]
    if empty := [name for name, count in counts if not count]:
        yield Finding("count", f"{len(empty)} of {dataset.classes} classes have no images: {_some(empty)}.")
    wrong = [f"{name} {count}" for name, count in counts if count not in (0, dataset.per_class)]
    if wrong and dataset.per_class is not None:
        yield Finding("count", f"classes that do not have {dataset.per_class} images: {_some(wrong)}.")
    if len(listing) not in dataset.counts:
        name, least = min(counts, key=itemgetter(1))
        fewest = "" if empty else f" The smallest class is {name!r} with {least}."
        yield Finding(
            "count", f"{len(listing)} test images instead of {' or '.join(map(str, dataset.counts))}.{fewest}"
        )
    if missing := [path for path in listing.paths if not path.is_file()]:
        listed = _some([f"{count} in {folder}" for folder, count in Counter(path.parent for path in missing).items()])
        yield Finding("count", f"{len(missing)} test images are missing ({listed}), such as {missing[0].name}.")


def _unreadable(paths: Iterable[Path], progress: Advance) -> Iterator[Finding]:
    def check(path: Path) -> list[Finding]:
        try:
            open_image(path)
        except ImageError as error:
            return [Finding("image", f"{path} cannot be read: {error}; get it again.")]
        return []

    for found in read_ahead(check, paths, default_workers(), 4 * default_workers()):
        progress(1)
        yield from found


def _some(items: Sequence[str], limit: int = 5) -> str:
    return ", ".join(items[:limit]) + (f" and {len(items) - limit} more" if len(items) > limit else "")
