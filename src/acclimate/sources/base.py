"""The interface of an image source, and how a source is opened by its name."""

import hashlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path, PurePath
from typing import TextIO, cast

import numpy as np

from acclimate.errors import InputError

# prefix -> (module, function). A module is imported when a source needs it.
PREFIXES = {
    "coop": ("acclimate.sources.coop", "open_coop"),
    "wds": ("acclimate.sources.webdataset", "open_webdataset"),
    "hfds": ("acclimate.sources.hf_datasets", "open_hf_dataset"),
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One image of a source, not yet read.

    Attributes:
        name: identifies the image in results.
        read: returns the encoded image; may raise OSError.
        label: the true class, if the source provides it.

    Examples:
        >>> from acclimate.sources import Sample
        >>> Sample("cat.jpg", lambda: b"...", label="cat").label
        'cat'
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

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> from acclimate.sources import open_source
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("img10.png", "img2.png"):
        ...         Image.new("RGB", (8, 8)).save(Path(folder, name))
        ...     [Path(sample.name).name for sample in open_source(folder)]
        ['img2.png', 'img10.png']
    """
    spec = os.fspath(spec)
    if not spec:
        raise InputError("the image source is empty; pass a folder, an image, a pattern, a list of paths, or '-'.")
    if spec == "-":
        from acclimate.sources.table import open_lines

        return open_lines(sys.stdin if stdin is None else stdin)
    prefix = re.match(r"([A-Za-z][\w+.-]+):", spec)  # at least two letters: a single one is a Windows drive
    if prefix and prefix[1] in PREFIXES:
        module, function = PREFIXES[prefix[1]]
        opener = cast(Callable[[str], Sequence[Sample]], getattr(import_module(module), function))
        return opener(spec[prefix.end() :])
    return _open_local(spec, prefix[1] if prefix else None)


def parse_order(order: str) -> tuple[str, int | None]:
    """Split the name of an order into its shape and its seed.

    Examples:
        >>> parse_order("seed:1"), parse_order("path")
        (('seed', 1), ('path', None))
    """
    match = re.fullmatch(r"(.*):([0-9]+)", order)
    return (match[1], int(match[2])) if match else (order, None)


def order_samples(samples: Sequence[Sample], order: str) -> Sequence[Sample]:
    """Return the samples in the order "path" (as listed) or "seed:N" (shuffled, always the same for the same N).

    Examples:
        >>> from acclimate.sources import Sample, order_samples
        >>> samples = [Sample(name, bytes) for name in ("a.png", "b.png", "c.png")]
        >>> [sample.name for sample in order_samples(samples, "seed:0")]
        ['c.png', 'a.png', 'b.png']
    """
    if order == "path":
        return samples
    shape, seed = parse_order(order)
    if shape != "seed" or seed is None:
        raise InputError(f"unknown order {order!r}; choose 'path' (as listed) or 'seed:N' with a whole number N.")
    permutation = np.random.default_rng(seed).permutation(len(samples))
    return [samples[position] for position in permutation.tolist()]


def source_fingerprint(samples: Sequence[Sample]) -> str:
    """SHA-256 of the names in their order, so that a resumed run can reject a different list of images.

    Examples:
        >>> from acclimate.sources import Sample, source_fingerprint
        >>> source_fingerprint([Sample("a.png", bytes)])[:8]
        'c4ca9824'
    """
    digest = hashlib.sha256()
    for sample in samples:
        name = sample.name.encode("utf-8", "surrogatepass")
        digest.update(b"%d:%b" % (len(name), name))
    return digest.hexdigest()


def file_sample(path: str | PurePath, label: str | None = None) -> Sample:
    """The sample of an image file, named by its path."""
    name = PurePath(path).as_posix()
    return Sample(name, partial(read_file, name), label)


def read_file(path: str) -> bytes:
    """Return the bytes of a file. A function, so that samples can be pickled."""
    with open(path, "rb") as file:
        return file.read()


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
