"""Image sources: samples, the place where their files are, and how a source is opened by its name."""

import os
import re
import sys
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path, PurePath
from typing import Any, BinaryIO, Literal, NoReturn, TextIO, TypeVar

import numpy as np
from array_api_compat import is_array_api_obj
from PIL import Image

from acclimate.arrays import HostArray
from acclimate.errors import ImageError, InputError, reason, same_words
from acclimate.files import open_regular, read_regular
from acclimate.images.opening import MAX_BYTES, URL, open_image
from acclimate.sources.rows import image_of, images_in

# prefix -> the module whose `open_samples` lists such a source, imported when it is needed
PREFIXES = {"coop": "coop_splits", "dataset": "datasets", "wds": "webdataset", "hfds": "hf_datasets"}
MAX_FPS = 1000  # frames are named after their time in milliseconds
MOST_HELD_OUT = 4  # samples per class held out for validation, as in CoOp's benchmark
Kind = Literal["file", "folder", "other"]
Item = TypeVar("Item")
Result = TypeVar("Result")
Spec = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Sample:
    """One image of a source, not yet read.

    Attributes:
        name: identifies the image in results.
        read: returns the encoded image; may raise OSError.
        label: the true class, if the source provides it.
    """

    name: str
    read: Callable[[], bytes]
    label: str | None = None


class Samples(list[Sample]):
    """The images of a source, and the kinds of files beside them.

    Attributes:
        skipped: how many files were left out of each kind, such as ".cr2" or ".mp4 (needs PyAV: pip ...)".
    """

    def __init__(self, samples: Iterable[Sample] = (), skipped: Iterable[str] = ()) -> None:
        super().__init__(samples)
        self.skipped: Counter[str] = Counter(skipped)

    @property
    def left_out(self) -> str:
        """The skipped files in words: "3 .cr2 and 1 .mp4 (needs PyAV: pip ...)"; "" if there are none."""
        *kinds, last = [f"{count} {kind}" for kind, count in self.skipped.most_common()] or [""]
        return f"{', '.join(kinds)} and {last}" if kinds else last


class Place:
    """The local disk. A subclass that knows URLs as well overrides every method, and can be pickled.

    Attributes:
        urls: True if a path may be a URL.
    """

    urls = False

    def kind(self, path: str) -> Kind | None:
        """Return the kind of what is at a path; None if there is nothing."""
        # os.path, as pathlib raises an error for a name that is too long
        if os.path.isdir(path):  # noqa: PTH112
            return "folder"
        if os.path.isfile(path):  # noqa: PTH113
            return "file"
        return "other" if os.path.exists(path) else None  # noqa: PTH110

    def no_such_url(self, url: str) -> InputError:
        """Return the error for a URL where nothing is found."""
        return InputError(f"{url} is a URL, which is not downloaded; download the images, and pass their folder.")

    def join(self, folder: str, path: str) -> str:
        """Return the path of what is named in a folder, or by an absolute path."""
        return PurePath(folder, path).as_posix()

    def parent(self, path: str) -> str:
        """Return the folder that a path is in, as it is written."""
        return PurePath(path).parent.as_posix()

    def above(self, folder: str) -> str:
        """Return the folder above a folder, whatever links lead to it."""
        return Path(folder).resolve().parent.as_posix()

    def list_files(self, folder: str) -> Iterable[str]:
        """Return every visible file below a folder, relative to it, in any order.

        No folder is visited twice, so that links cannot loop.
        """

        def refuse(error: OSError) -> NoReturn:
            raise InputError(f"cannot list the folder {error.filename}: {reason(error)}.") from error

        visited = set(Path(folder).resolve().parents)
        pending = deque([folder])
        while pending:  # links come last, so that a folder is listed under its real name rather than a link's
            for each, subfolders, files in os.walk(pending.popleft(), onerror=refuse):
                real = Path(each).resolve()
                if real in visited:
                    subfolders.clear()
                    continue
                visited.add(real)
                subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
                pending += [path for name in subfolders if os.path.islink(path := f"{each}/{name}")]  # noqa: PTH114
                start = PurePath(each, "_").relative_to(folder).as_posix()[:-1]
                yield from (start + name for name in files if not name.startswith("."))

    def read(self, path: str, limit_bytes: int) -> bytes:
        """Return the content of a file; OSError, before anything is read, if it is larger than the limit."""
        return read_regular(path, limit_bytes)

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading at any position."""
        return open_regular(path)

    def reader(self, path: str, *part: int) -> Callable[[], bytes]:
        """Return a function that reads a file, or a part given by its offset and size; it can be pickled."""
        return partial(read_file, path, *part)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterable[Result]:
        """Return the results of a function, in the order of the items; several at a time where that pays."""
        return map(function, items)


LOCAL = Place()


def open_source(
    spec: Spec | Sequence[Spec], stdin: TextIO | None = None, fps: float = 1.0, place: Place = LOCAL
) -> Samples:
    """List the images of a source without reading them.

    Args:
        spec: an image, a video, a folder, a glob pattern, a list (.txt, .csv, .jsonl, .parquet), `-` for paths on
            standard input, `coop:SPLIT.json[#test]`, `wds:SHARDS`, or `hfds:NAME[?split=test&image=image&label=label]`;
            or several of these. What several of them list is listed once, and paths are labelled with the name of their
            folder where they do not all lie in one.
        stdin: the stream that `-` reads; standard input by default.
        fps: frames per second that are taken from videos.
        place: where the files are; the local disk by default.

    Raises:
        InputError: the source does not exist, is damaged, or contains no images.
        MissingExtraError: the source needs a package that is not installed.
    """
    specs = [os.fspath(each) for each in ([spec] if isinstance(spec, (str, os.PathLike)) else spec)]
    if not specs or not all(specs):
        raise InputError("the image source is empty; pass a folder, an image, a pattern, a list of paths, or '-'.")
    if not 0 < fps <= MAX_FPS:
        raise InputError(f"frames per second must be more than 0 and at most {MAX_FPS}, got {fps}.")
    opened = {each: _open(each, stdin, fps, place) for each in dict.fromkeys(specs)}
    samples = next(iter(opened.values())) if len(opened) == 1 else _join(opened)
    if not samples:
        only = f"found only {samples.left_out}; images end in .jpg, .png and the like"
        raise InputError(f"no images in {', '.join(opened)}: {only if samples.skipped else 'no files'}.")
    return samples


def is_one(images: Any) -> bool:
    """Return True if this is a single image: a path, encoded bytes, a Pillow image, an array, or something with `read`.

    So is the row of a dataset with an image.

    Examples:
        >>> is_one("photo.jpg"), is_one(["photo.jpg"]), is_one("photos/*.jpg")
        (True, False, False)
    """
    if isinstance(images, Mapping):
        return set(images) == {"bytes", "path"} or is_one(image_of(images))
    if isinstance(images, (str, os.PathLike)):
        return not _lists_images(images)
    if is_array_api_obj(images):
        return len(images.shape) < 4
    return isinstance(images, (bytes, bytearray, memoryview, Image.Image)) or hasattr(images, "read")


def each_image(images: Any) -> Iterator[Any]:
    """Yield the images one by one; those of a folder, a video, a pattern, a list file or another source in its place.

    Args:
        images: one image (see `is_one`), a source (see `open_source`), an array of images (n, ...), or any of these in
            an iterable, which is read as the images are needed; the rows, tuples or batches of a dataset or of a
            `DataLoader`, too (see `images_in`).
    """
    several = [images] if is_one(images) or isinstance(images, (str, os.PathLike, Mapping)) else images
    if not isinstance(several, Iterable):
        raise InputError(
            "pass an image (a path, encoded bytes, a Pillow image or an array) or several of them, "
            f"got {type(images).__name__}."
        )
    for image in chain.from_iterable(map(images_in, several)):
        if isinstance(image, (str, os.PathLike)) and _lists_images(image):
            yield from open_source(image)
        else:
            yield image


def parse_order(order: str) -> tuple[str, int | None]:
    """Split the name of an order: "shuffled:1" into the shape "shuffled" and the seed 1, "path" into ("path", None).

    Up to 1.0 the shape "shuffled" was called "seed", as older results and scripts still do.
    """
    shape, _, seed = order.partition(":")
    shape = "shuffled" if shape == "seed" else shape
    return (shape, int(seed)) if re.fullmatch("[0-9]+", seed) else (order, None)


def choose_order(samples: Sequence[Sample], classes: Collection[str] | None = None) -> str:
    """Return the order that suits a source: "shuffled:0" where its images have labels of several classes, else "path".

    Images that are sorted by class are the least favourable stream, and a folder per class lists them so. Where
    `classes` is given, only labels among them count: folders may also be named after days or places.
    """
    known = None if classes is None else set(map(same_words, classes))
    found = {same_words(sample.label) for sample in samples if sample.label is not None}
    return "shuffled:0" if len(found if known is None else found & known) > 1 else "path"


def order_samples(samples: Sequence[Sample], order: str, classes: Collection[str] | None = None) -> Sequence[Sample]:
    """Put samples in order.

    Args:
        samples: as they are listed.
        order: "path" (as listed), "shuffled:N" (always the same for the same N) or "auto" (see `choose_order`).
        classes: for "auto".
    """
    shape, seed = parse_order(choose_order(samples, classes) if order == "auto" else order)
    if shape == "path" and seed is None:
        return samples
    if shape != "shuffled" or seed is None:
        raise InputError(
            f"unknown order {order!r}; choose 'path' (as listed), 'shuffled:N' with a whole number N, or 'auto'."
        )
    return [samples[index] for index in np.random.default_rng(seed).permutation(len(samples)).tolist()]


def draw_shots(
    labels: HostArray,
    class_names: Sequence[str],
    shots: int,
    seed: int = 1,
    held_out: int = 0,
    allow_fewer: bool = False,
) -> tuple[HostArray, HostArray]:
    """Draw labelled samples of every class.

    Args:
        labels: (n,) class indices of the samples to draw from.
        class_names: K names, for errors.
        shots: samples per class.
        seed: the same seed draws the same samples; a draw of fewer shots is part of a draw of more.
        held_out: the most samples per class that are drawn in addition, for validation; a class may have fewer.
        allow_fewer: where some class has fewer samples, let classes give fewer shots than asked for. Where some are
            held out, a fifth of each class stays for that, at least one of two samples or more: validation without a
            class would favour the others.

    Returns:
        The positions of the shots, by class, and those of the samples that are held out.

    Raises:
        InputError: a class has too few samples; the message names the largest number that every class has.

    Examples:
        >>> import numpy as np
        >>> labels = np.array([0, 0, 0, 1, 1, 1])
        >>> shots, rest = draw_shots(labels, ["cat", "dog"], shots=2, held_out=4)
        >>> labels[shots], labels[rest]
        (array([0, 0, 1, 1]), array([0, 1]))
    """
    if shots < 1:
        raise InputError(f"a few-shot method needs at least one shot per class, got {shots}.")
    counts = np.bincount(labels, minlength=len(class_names))
    if (fewest := int(counts.min())) < (1 if allow_fewer else shots):
        name = class_names[int(counts.argmin())]
        how = f"choose at most {fewest} shots" if fewest else "add one, or remove the class"
        raise InputError(f"class {name!r} has {fewest} labelled samples, {shots} per class are asked for; {how}.")
    allow_fewer = fewest < shots
    drawn = []
    rest = []
    for label in range(len(class_names)):
        positions = np.random.default_rng([seed, label]).permutation(np.flatnonzero(labels == label))
        number = len(positions)
        kept = min(held_out, max(1, number // 5), number - 1) if allow_fewer else 0
        taken = min(shots, number - kept)
        drawn.append(positions[:taken])
        rest.append(positions[taken : taken + held_out])
    return np.concatenate(drawn), np.concatenate(rest)


def can_be_read(sample: Sample) -> bool:
    """Return True if the image of a sample can be decoded now."""
    try:
        open_image(sample.read())
    except (ImageError, OSError):
        return False
    return True


def file_sample(path: str | PurePath, label: str | None = None) -> Sample:
    """Return the sample of an image file, named by its path."""
    name = PurePath(path).as_posix()
    return Sample(name, partial(read_file, name), label)


def read_file(path: str, offset: int = 0, size: int | None = None) -> bytes:
    """Return the bytes of a file, or `size` of them. A function, so that samples can be pickled."""
    if size is None:
        return read_regular(path, MAX_BYTES)
    if not 0 <= size <= MAX_BYTES:
        raise OSError(f"{size:,} bytes, more than the {MAX_BYTES:,} allowed")
    with open_regular(path) as file:
        file.seek(offset)
        content = file.read(size)
    if len(content) != size:
        raise OSError(f"{path} ends before byte {offset + size}; it is truncated.")
    return content


def _open(spec: str, stdin: TextIO | None, fps: float, place: Place) -> Samples:
    from acclimate.sources import folder, table

    if spec == "-":
        return Samples(table.open_lines(sys.stdin if stdin is None else stdin, fps, place))
    prefix = re.match(r"([A-Za-z][\w+.-]+):", spec)  # two letters or more: a single one is a Windows drive
    if prefix and prefix[1] in PREFIXES:
        module = import_module(f"acclimate.sources.{PREFIXES[prefix[1]]}")
        anywhere = [place] if prefix[1] == "wds" else []  # the others are on the local disk
        return Samples(module.open_samples(spec[prefix.end() :], *anywhere))
    kind = place.kind(spec)
    if kind == "folder":
        return folder.open_listed(spec, place.list_files(spec), fps, place)
    if kind == "file" and table.is_list(spec):
        return Samples(table.open_table(spec, fps, place))
    if kind == "file":
        return folder.open_listed(place.parent(spec), [PurePath(spec).name], fps, place)
    if kind == "other":
        raise InputError(f"{spec} is a pipe or a device; pass a regular file or a folder.")
    if URL.match(spec):
        raise place.no_such_url(spec)
    if prefix:
        raise InputError(
            f"unknown prefix {prefix[1]}: in {spec}, and there is no such file; "
            f"the prefixes are {', '.join(f'{name}:' for name in PREFIXES)}."
        )
    if folder.is_pattern(spec):
        return folder.open_listed(*folder.match_files(spec), fps)
    raise InputError(f"no file or folder at {spec}; check the path.")


def _lists_images(name: str | os.PathLike[str]) -> bool:
    from acclimate.sources import folder, table, video

    spec = os.fspath(name)
    kind = LOCAL.kind(spec)
    if spec.partition(":")[0] in PREFIXES or kind == "folder" or table.is_list(spec) or video.is_video(spec):
        return True
    return folder.is_pattern(spec) and kind is None


def _join(opened: dict[str, Samples]) -> Samples:
    """Return the samples of several sources, each once; paths are labelled below their common folder."""
    from acclimate.sources.table import is_list

    paths = {spec for spec in opened if spec != "-" and not is_list(spec) and spec.partition(":")[0] not in PREFIXES}
    folders = [Path(sample.name).absolute().parent for spec in paths for sample in opened[spec]]
    common = Path(os.path.commonpath(folders)) if len({each.anchor for each in folders}) == 1 else None
    joined = Samples()
    listed_by = dict[str, str]()  # absolute path -> the first source that lists it
    for spec, samples in opened.items():
        joined.skipped.update(samples.skipped)
        for sample in samples:
            path = os.path.abspath(sample.name)  # noqa: PTH100
            if listed_by.setdefault(path, spec) == spec:
                folder = Path(path).parent
                unlabelled = spec in paths and sample.label is None and folder != common
                joined.append(replace(sample, label=folder.name) if unlabelled else sample)
    return joined
