"""The interface of an image source, and how a source is opened by its name."""

import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path, PurePath
from typing import TextIO

import numpy as np

from acclimate.errors import InputError

# prefix -> the module whose `open_samples` lists such a source, imported when it is needed
PREFIXES = {"coop": "coop", "wds": "webdataset", "hfds": "hf_datasets"}


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


def open_source(spec: str | os.PathLike[str], stdin: TextIO | None = None) -> Sequence[Sample]:
    """List the images of a source without reading them.

    Args:
        spec: an image, a folder, a glob pattern, a list (.txt, .csv, .jsonl), `-` for paths on standard input,
            `coop:SPLIT.json[#test]`, `wds:SHARDS`, or `hfds:NAME[?split=test&image=image&label=label]`.
        stdin: the stream that `-` reads; standard input by default.

    Raises:
        InputError: the source does not exist, is damaged, or contains no images.
        MissingExtraError: the source needs a package that is not installed.
    """
    spec = os.fspath(spec)
    if not spec:
        raise InputError("the image source is empty; pass a folder, an image, a pattern, a list of paths, or '-'.")
    if spec == "-":
        from acclimate.sources.table import open_lines

        return open_lines(sys.stdin if stdin is None else stdin)
    prefix = re.match(r"([A-Za-z][\w+.-]+):", spec)  # at least two letters: a single one is a Windows drive
    if prefix and prefix[1] in PREFIXES:
        module = import_module(f"acclimate.sources.{PREFIXES[prefix[1]]}")
        samples: Sequence[Sample] = module.open_samples(spec[prefix.end() :])
        return samples
    return _open_local(spec, prefix[1] if prefix else None)


def parse_order(order: str) -> tuple[str, int | None]:
    """Split the name of an order into its shape and its seed: "seed:1" into ("seed", 1), "path" into ("path", None)."""
    match = re.fullmatch(r"(.*):([0-9]+)", order)
    return (match[1], int(match[2])) if match else (order, None)


def order_samples(samples: Sequence[Sample], order: str) -> Sequence[Sample]:
    """Return the samples in the order "path" (as listed) or "seed:N" (shuffled, always the same for the same N)."""
    if order == "path":
        return samples
    shape, seed = parse_order(order)
    if shape != "seed" or seed is None:
        raise InputError(f"unknown order {order!r}; choose 'path' (as listed) or 'seed:N' with a whole number N.")
    permutation = np.random.default_rng(seed).permutation(len(samples))
    return [samples[position] for position in permutation.tolist()]


def file_sample(path: str | PurePath, label: str | None = None) -> Sample:
    """The sample of an image file, named by its path."""
    name = PurePath(path).as_posix()
    return Sample(name, partial(read_file, name), label)


def read_file(path: str, offset: int = 0, size: int | None = None) -> bytes:
    """Return the bytes of a file, or `size` of them. A function, so that samples can be pickled."""
    with open(path, "rb") as file:
        if offset:
            file.seek(offset)
        content = file.read(size)
    if size is not None and len(content) != size:
        raise OSError(f"{path} ends before byte {offset + size}; it is truncated.")
    return content


def _open_local(spec: str, prefix: str | None) -> Sequence[Sample]:
    from acclimate.sources import folder, table

    path = Path(spec)
    if path.is_dir():
        return folder.open_folder(spec)
    if path.is_file():
        if path.suffix.lower() in table.READERS:
            return table.open_table(spec)
        if folder.is_image(path.name):
            return [file_sample(path)]
        raise InputError(
            f"{spec} has neither the suffix of an image nor that of a list ({', '.join(table.READERS)}); "
            "rename it, or put its path into a list, where any suffix is accepted."
        )
    if prefix is not None:
        known = ", ".join(f"{name}:" for name in PREFIXES)
        raise InputError(f"unknown prefix {prefix}: in {spec}, and there is no such file; the prefixes are {known}.")
    if folder.is_pattern(spec):
        return folder.open_glob(spec)
    raise InputError(f"no file or folder at {spec}; check the path.")
