"""The interface of an image source, and how a source is opened by its name."""

import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, TextIO

import numpy as np

from acclimate.errors import ImageError, InputError
from acclimate.files import open_regular, read_regular
from acclimate.images.opening import MAX_BYTES, URL, open_image

if TYPE_CHECKING:
    from acclimate.sources.places import Place

# prefix -> the module whose `open_samples` lists such a source, imported when it is needed
PREFIXES = {"coop": "coop_splits", "wds": "webdataset", "hfds": "hf_datasets"}
MAX_FPS = 1000  # frames are named after their time in milliseconds


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
    """The images of a source, and what was found beside them.

    Attributes:
        skipped: how many files were left out of each kind, such as ".cr2" or ".mp4 (needs PyAV: pip ...)".
    """

    def __init__(self, samples: Iterable[Sample] = (), skipped: Iterable[str] = ()) -> None:
        super().__init__(samples)
        self.skipped: Counter[str] = Counter(skipped)

    @property
    def left_out(self) -> str:
        """What was skipped, in words: "3 .cr2 and 1 .mp4 (needs PyAV: pip ...)"; "" if nothing was."""
        *kinds, last = [f"{count} {kind}" for kind, count in self.skipped.most_common()] or [""]
        return f"{', '.join(kinds)} and {last}" if kinds else last


Spec = str | os.PathLike[str]


def open_source(
    spec: Spec | Sequence[Spec], stdin: TextIO | None = None, fps: float = 1.0, place: "Place | None" = None
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
    from acclimate.sources.places import LOCAL

    opened = {each: _open(each, stdin, fps, place or LOCAL) for each in dict.fromkeys(specs)}
    samples = next(iter(opened.values())) if len(opened) == 1 else _join(opened)
    if not samples:
        found = (
            f"found only {samples.left_out}; images end in .jpg, .png and the like" if samples.skipped else "no files"
        )
        raise InputError(f"no images in {', '.join(opened)}: {found}.")
    return samples


def parse_order(order: str) -> tuple[str, int | None]:
    """Split the name of an order into its shape and its seed: "seed:1" into ("seed", 1), "path" into ("path", None)."""
    match = re.fullmatch(r"(.*):([0-9]+)", order)
    return (match[1], int(match[2])) if match else (order, None)


def choose_order(samples: Sequence[Sample], classes: Collection[str] | None = None) -> str:
    """The order that suits a source: "seed:0" where its images are labelled with several classes, else "path".

    Images that are sorted by class are the least favourable stream, and a folder per class lists them so. Where
    `classes` is given, only labels among them count: folders may also be named after days or places.
    """
    known = None if classes is None else set(map(_words, classes))
    found = {_words(sample.label) for sample in samples if sample.label is not None}
    return "seed:0" if len(found if known is None else found & known) > 1 else "path"


def order_samples(samples: Sequence[Sample], order: str, classes: Collection[str] | None = None) -> Sequence[Sample]:
    """Put samples in order.

    Args:
        samples: as they are listed.
        order: "path" (as listed), "seed:N" (shuffled, always the same for the same N) or "auto" (see `choose_order`).
        classes: for "auto".
    """
    order = choose_order(samples, classes) if order == "auto" else order
    if order == "path":
        return samples
    shape, seed = parse_order(order)
    if shape != "seed" or seed is None:
        raise InputError(
            f"unknown order {order!r}; choose 'path' (as listed), 'seed:N' with a whole number N, or 'auto'."
        )
    permutation = np.random.default_rng(seed).permutation(len(samples))
    return [samples[position] for position in permutation.tolist()]


def can_be_read(sample: Sample) -> bool:
    """Whether the image of a sample can be decoded now."""
    try:
        open_image(sample.read())
    except (ImageError, OSError):
        return False
    return True


def file_sample(path: str | PurePath, label: str | None = None) -> Sample:
    """The sample of an image file, named by its path."""
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


def _open(spec: str, stdin: TextIO | None, fps: float, place: "Place") -> Samples:
    if spec == "-":
        from acclimate.sources.table import open_lines

        return Samples(open_lines(sys.stdin if stdin is None else stdin, fps, place))
    prefix = re.match(r"([A-Za-z][\w+.-]+):", spec)  # at least two letters: a single one is a Windows drive
    if prefix and prefix[1] in PREFIXES:
        module = import_module(f"acclimate.sources.{PREFIXES[prefix[1]]}")
        anywhere = [place] if prefix[1] == "wds" else []  # the others are on the local disk
        return Samples(module.open_samples(spec[prefix.end() :], *anywhere))
    return _open_path(spec, prefix[1] if prefix else None, fps, place)


def _open_path(spec: str, prefix: str | None, fps: float, place: "Place") -> Samples:
    from acclimate.sources import folder, table

    kind = place.kind(spec)
    if kind == "folder":
        return folder.open_folder(spec, fps, place)
    if kind == "file":
        is_list = table.is_list(spec)
        return Samples(table.open_table(spec, fps, place)) if is_list else folder.open_file(spec, fps, place)
    if kind == "other":
        raise InputError(f"{spec} is a pipe or a device; pass a regular file or a folder.")
    if URL.match(spec):
        raise place.no_such_url(spec)
    if prefix is not None:
        known = ", ".join(f"{name}:" for name in PREFIXES)
        raise InputError(f"unknown prefix {prefix}: in {spec}, and there is no such file; the prefixes are {known}.")
    if folder.is_pattern(spec):
        return folder.open_glob(spec, fps)
    raise InputError(f"no file or folder at {spec}; check the path.")


def _join(opened: dict[str, Samples]) -> Samples:
    """The samples of several sources, each once; paths are labelled below the folder that they have in common."""
    from acclimate.sources.table import is_list

    paths = {spec for spec in opened if spec != "-" and not is_list(spec) and spec.partition(":")[0] not in PREFIXES}
    folders = [Path(sample.name).absolute().parent for spec in paths for sample in opened[spec]]
    common = Path(os.path.commonpath(folders)) if len({each.anchor for each in folders}) == 1 else None
    joined = Samples()
    seen = set[str]()
    for spec, samples in opened.items():
        new = [(sample, name) for sample in samples if (name := os.path.abspath(sample.name)) not in seen]  # noqa: PTH100
        seen.update(name for _, name in new)
        for sample, name in new:
            folder = Path(name).parent
            unlabelled = spec in paths and sample.label is None and folder != common
            joined.append(replace(sample, label=folder.name) if unlabelled else sample)
        joined.skipped.update(samples.skipped)
    return joined


def _words(label: str) -> str:
    return " ".join(label.replace("_", " ").split()).casefold()
