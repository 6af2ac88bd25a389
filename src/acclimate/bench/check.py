"""Whether a dataset on disk is the one of the benchmark: complete, in the right class order, and readable."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Literal

from acclimate.bench import Advance
from acclimate.bench.datasets import Dataset, Listing, folder_images, list_images, sub_folders
from acclimate.errors import ImageError, InputError, same_words
from acclimate.images.opening import open_image
from acclimate.reading.walk import default_workers, read_ahead

WNID = re.compile(r"n\d{8}")
SPLITS = "CoOp's DATASETS.md"
LISTED = 5  # how many items of a long list are named


@dataclass(frozen=True)
class Finding:
    """A problem with a dataset."""

    kind: Literal["missing", "split", "class order", "count", "image"]  # "missing": the dataset has no folder
    message: str  # what is wrong, where, and what to do


def check_dataset(
    dataset: Dataset, root: Path, decode: bool = True, progress: Advance = lambda images: None
) -> list[Finding]:
    """All problems with a dataset below `root`; none if it is the one of the benchmark. `decode` reads every image."""
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
    for problem in listing.problems:
        findings.append(Finding("class order", f"{dataset.split}: {problem}; get it again from {SPLITS}."))
    findings += [*(_wnids_of_files if dataset.wnids else _names_in_paths)(listing), *_counts(listing)]
    if decode:
        findings += _unreadable([path for path in listing.paths if path.is_file()], progress)
    return findings


def _names_in_paths(listing: Listing) -> Iterator[Finding]:
    """Images whose folder or file name contradicts their label."""
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
    """Folders with files named after a different class; ImageNet's file names start with a WordNet id."""
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
    folders = sub_folders(images)
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
    """CoOp's classnames.txt. It is not needed here, but programs that read it need the right order."""
    if not path.is_file():
        return
    lines = [line.split(" ", 1) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    listed = [wnid for wnid, *_ in lines]
    numbers = sorted(listed)
    if listed != numbers:
        strings = [numbers[int(number)] for number in sorted(map(str, range(len(numbers))))]
        how = "the string order of their numbers (0, 1, 10, 100, ...)" if listed == strings else "a different order"
        yield Finding("class order", f"{path} lists the classes in {how}; copy the file of CoOp's ImageNet again.")
    name_of = dict(zip(dataset.wnids, dataset.class_names, strict=True))
    swapped = [
        f"{wnid} is {name_of[wnid]!r}, not {name!r}"
        for wnid, name in (line for line in lines if len(line) == 2)
        if wnid in name_of and name != name_of[wnid] and name in name_of.values()  # other spellings are fine
    ]
    if swapped:
        yield Finding("class order", f"{path} gives classes the names of others: {_some(swapped)}.")


def _variants_file(dataset: Dataset, path: Path) -> Iterator[Finding]:
    if not path.is_file():
        yield Finding("split", f"{path} is missing; it comes with the images.")
        return
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if tuple(lines) != dataset.class_names:
        pairs = enumerate(zip(lines, dataset.class_names, strict=False), 1)
        first = next((number for number, (line, name) in pairs if line != name), 1)
        yield Finding("class order", f"{path} differs from the published list from line {first}; unpack it again.")


def _counts(listing: Listing) -> Iterator[Finding]:
    dataset = listing.dataset
    images_of = Counter(listing.labels.tolist())
    counts = [(name, images_of[label]) for label, name in enumerate(dataset.class_names)]
    empty = [name for name, count in counts if not count]
    if empty:
        yield Finding("count", f"{len(empty)} of {dataset.classes} classes have no images: {_some(empty)}.")
    wrong = [f"{name} {count}" for name, count in counts if count not in (0, dataset.per_class)]
    if wrong and dataset.per_class is not None:
        yield Finding("count", f"classes that do not have {dataset.per_class} images: {_some(wrong)}.")
    if len(listing) not in dataset.counts:
        name, least = min(counts, key=itemgetter(1))
        fewest = "" if empty else f" The smallest class is {name!r} with {least}."
        expected = " or ".join(map(str, dataset.counts))
        yield Finding("count", f"{len(listing)} test images instead of {expected}.{fewest}")
    missing = [path for path in listing.paths if not path.is_file()]
    if missing:
        folders = Counter(path.parent for path in missing)
        listed = _some([f"{count} in {folder}" for folder, count in folders.items()])
        yield Finding("count", f"{len(missing)} test images are missing ({listed}), such as {missing[0].name}.")


def _unreadable(paths: Iterable[Path], progress: Advance) -> Iterator[Finding]:
    def problem_with(path: Path) -> tuple[Path, str | None]:
        try:
            open_image(path)
        except ImageError as error:
            return path, str(error)
        return path, None

    workers = default_workers()
    for path, problem in read_ahead(problem_with, paths, workers, 4 * workers):
        progress(1)
        if problem is not None:
            yield Finding("image", f"{path} cannot be read: {problem}; get it again.")


def _some(items: Sequence[str]) -> str:
    return ", ".join(items[:LISTED]) + (f" and {len(items) - LISTED} more" if len(items) > LISTED else "")
