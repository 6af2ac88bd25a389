"""Whether a dataset on disk is the one of the benchmark: complete, in the right class order, and readable."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from acclimate.bench.datasets import Dataset, Listing, folder_images, read_dataset, sub_folders, wrong_class
from acclimate.errors import ImageError, InputError
from acclimate.images import open_image
from acclimate.predict import default_workers, read_ahead
from acclimate.prompts import spoken
from acclimate.sources.coop import read_split

Kind = Literal["missing", "split", "class order", "count", "image"]
WNID = re.compile(r"n\d{8}")
SPLITS = "CoOp's DATASETS.md"
LISTED = 5  # how many items of a long list are named


@dataclass(frozen=True)
class Finding:
    """A problem with a dataset.

    Attributes:
        kind: "missing" (the dataset has no folder), "split", "class order", "count" or "image".
        message: what is wrong, where, and what to do.
    """

    kind: Kind
    message: str


def check_dataset(
    dataset: Dataset, root: Path, decode: bool = True, progress: Callable[[int], None] = lambda images: None
) -> list[Finding]:
    """All problems with a dataset; an empty list if it is the one of the benchmark.

    Args:
        dataset: what it should be.
        root: the folder of all datasets.
        decode: also read every image, which takes minutes for the large datasets.
        progress: called with the number of images read since the last call.
    """
    folder, images = root / dataset.folder, dataset.image_folder(root)
    if not folder.is_dir():
        split = f", and {dataset.split} from {SPLITS}" if dataset.layout == "split" else ""
        return [Finding("missing", f"no folder {folder}; get {dataset.get}{split}.")]
    if dataset.split and not (folder / dataset.split).is_file():
        source = f"get it from {SPLITS}" if dataset.layout == "split" else "it comes with the images"
        return [Finding("split", f"{folder / dataset.split} is missing; {source}.")]
    if not images.is_dir():
        return [Finding("count", f"no folder {images}; get {dataset.get}.")]
    checks = {"split": _split_order, "wnids": _folder_order, "numbers": _folder_order, "variants": _variant_order}
    findings = list(checks[dataset.layout](dataset, root))
    try:
        listing = read_dataset(dataset, root)
    except InputError as error:
        return findings or [Finding("split" if dataset.split else "count", str(error))]
    findings += _counts(dataset, listing)
    if decode:
        findings += _unreadable([path for path in listing.paths if path.is_file()], progress)
    return findings


def _split_order(dataset: Dataset, root: Path) -> Iterator[Finding]:
    try:
        rows = read_split(root / dataset.folder / dataset.split)
    except InputError as error:
        yield Finding("split", f"{error} Get it again from {SPLITS}.")
        return
    for number, name in dict.fromkeys((number, name) for _, number, name in rows):
        if problem := wrong_class(dataset, number, name):
            yield Finding("class order", f"{dataset.split}: {problem}; get it again from {SPLITS}.")
    yield from _paths_against_labels(dataset, rows)


def _paths_against_labels(dataset: Dataset, rows: Sequence[tuple[str, int, str]]) -> Iterator[Finding]:
    """Images whose folder or file name contradicts their label."""
    label_of = {spoken(name).casefold(): label for label, name in enumerate(dataset.class_names)}
    label_of |= {spoken(folder).casefold(): label_of[name.casefold()] for folder, name in dataset.folder_names.items()}
    wrong: Counter[tuple[str, int]] = Counter()
    for file, number, _ in rows:
        name = next((name for name in _names_in(file) if name in label_of), None)
        if name is not None and label_of[name] != number:
            wrong[name, number] += 1
    for (name, number), count in wrong.items():
        label = dataset.class_names[number] if 0 <= number < dataset.classes else number
        yield Finding("class order", f"{dataset.split}: {count} images of {name!r} are labelled {label!r}.")


def _names_in(file: str) -> Iterator[str]:
    """Class names a path may contain: shop/bakery of SUN397, the last folder, the file name up to its number."""
    *folders, name = file.split("/")
    yield spoken(" ".join(reversed(folders[-2:]))).casefold()
    if folders:
        yield spoken(folders[-1]).casefold()
    yield spoken(name.rpartition("_")[0]).casefold()


def _folder_order(dataset: Dataset, root: Path) -> Iterator[Finding]:
    yield from _class_file(dataset, root)
    images, last = dataset.image_folder(root), dataset.classes - 1
    folders = sub_folders(images)
    numbered = dataset.layout == "numbers"
    wnid_of = {str(label) if numbered else wnid: wnid for label, wnid in enumerate(dataset.wnids)}
    again = f"unpack {dataset.get} again."
    if numbered and any(WNID.fullmatch(name) for name in folders):
        yield Finding(
            "class order",
            f"{images}: the folders were renamed to WordNet ids. The published names are 0 to {last}, and a renaming "
            f"in string order (0, 1, 10, 100, ...) cannot be distinguished from a correct one; {again}",
        )
        return
    if not folders and folder_images(images):
        yield Finding("count", f"{images} holds images without class folders; sort them into folders by WordNet id.")
    if numbered and str(dataset.classes) in folders and "0" not in folders:
        yield Finding("class order", f"{images}: the folder numbers start at 1, so every label is off by one; {again}")
    elif unknown := sorted(set(folders) - set(wnid_of)):
        expected = f"numbers from 0 to {last}" if numbered else f"among the {dataset.classes} WordNet ids"
        yield Finding("class order", f"{images}: {_some(unknown)} are not {expected}.")
    yield from _files_against_folders(images, {name: wnid_of[name] for name in folders if name in wnid_of})


def _files_against_folders(images: Path, wnid_of: dict[str, str]) -> Iterator[Finding]:
    """Folders with files named after a different class; ImageNet's file names start with a WordNet id."""
    wrong = {}
    for folder, wnid in wnid_of.items():
        named = {match[0] for path in folder_images(images / folder) if (match := WNID.match(path.name))}
        if named - {wnid}:
            wrong[folder] = sorted(named - {wnid})[0]
    if wrong:
        pairs = _some([f"{folder} holds {other}" for folder, other in wrong.items()])
        string_order = " The numbers were sorted as strings." if _is_string_order(wrong, wnid_of) else ""
        yield Finding("class order", f"{images}: files of other classes: {pairs}.{string_order}")


def _is_string_order(wrong: dict[str, str], wnid_of: dict[str, str]) -> bool:
    by_string = dict(zip(sorted(wnid_of), sorted(wnid_of.values()), strict=True))
    return all(folder.isdecimal() and by_string[folder] == other for folder, other in wrong.items())


def _class_file(dataset: Dataset, root: Path) -> Iterator[Finding]:
    """CoOp's classnames.txt. It is not needed here, but programs that read it need the right order."""
    path = root / dataset.folder / "classnames.txt"
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


def _variant_order(dataset: Dataset, root: Path) -> Iterator[Finding]:
    path = root / dataset.folder / "variants.txt"
    if not path.is_file():
        yield Finding("split", f"{path} is missing; it comes with the images.")
        return
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if tuple(lines) != dataset.class_names:
        pairs = enumerate(zip(lines, dataset.class_names, strict=False), 1)
        first = next((number for number, (line, name) in pairs if line != name), 1)
        yield Finding("class order", f"{path} differs from the published list from line {first}; unpack it again.")


def _counts(dataset: Dataset, listing: Listing) -> Iterator[Finding]:
    counts = Counter(listing.labels.tolist())
    empty = [name for label, name in enumerate(dataset.class_names) if not counts[label]]
    if empty:
        yield Finding("count", f"{len(empty)} of {dataset.classes} classes have no images: {_some(empty)}.")
    if dataset.per_class is not None:
        wrong = {label: count for label, count in sorted(counts.items()) if count != dataset.per_class}
        if wrong:
            listed = _some([f"{dataset.class_names[label]} {count}" for label, count in wrong.items()])
            yield Finding("count", f"classes that do not have {dataset.per_class} images: {listed}.")
    if len(listing) not in dataset.counts:
        label, least = min(counts.items(), key=lambda pair: pair[1])
        fewest = "" if empty else f" The smallest class is {dataset.class_names[label]!r} with {least}."
        expected = " or ".join(map(str, dataset.counts))
        yield Finding("count", f"{len(listing)} test images instead of {expected}.{fewest}")
    missing = [path for path in listing.paths if not path.is_file()]
    if missing:
        folders = Counter(path.parent for path in missing)
        listed = _some([f"{count} in {folder}" for folder, count in folders.items()])
        yield Finding("count", f"{len(missing)} test images are missing ({listed}), such as {missing[0].name}.")


def _unreadable(paths: Iterable[Path], progress: Callable[[int], None]) -> Iterator[Finding]:
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
