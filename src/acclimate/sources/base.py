"""Image sources: one interface, chosen by the prefix of a spec."""

import hashlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TextIO, cast

from acclimate.errors import InputError

# prefix -> (module, function). Modules are imported when a spec asks for them.
PREFIXES = {
    "coop": ("acclimate.sources.coop", "open_coop"),
    "wds": ("acclimate.sources.webdataset", "open_webdataset"),
    "hfds": ("acclimate.sources.hf_datasets", "open_hf_dataset"),
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One image of a source, not yet read.

    Attributes:
        name: what results call it.
        read: gives the encoded image; may raise OSError.
        label: the true class, where the source knows it.
    """

    name: str
    read: Callable[[], bytes]
    label: str | None = None


def open_source(spec: str | os.PathLike[str], stdin: TextIO | None = None) -> Sequence[Sample]:
    """List the images of a source; none is read yet.

    Args:
        spec: an image, a folder, a glob pattern, a list (.txt, .csv, .jsonl), `-` for paths on standard input,
            `coop:SPLIT.json[#test]`, `wds:SHARDS`, or `hfds:NAME[?split=test&image=image&label=label]`.
        stdin: where `-` reads from; standard input by default.

    Raises:
        InputError: there is no such source, it is damaged, or it holds no images.
        MissingExtraError: it needs a package that is not installed.
    """
    spec = os.fspath(spec)
    if not spec:
        raise InputError("no image source given; pass a folder, an image, a pattern, a list of paths, or '-'.")
    if spec == "-":
        from acclimate.sources.table import open_lines

        return open_lines(sys.stdin if stdin is None else stdin)
    prefix = re.match(r"([A-Za-z][\w+.-]+):", spec)  # two letters at least: one is a Windows drive
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
    """Put samples into an order: "path" (as listed) or "seed:N" (a random order, the same for the same N)."""
    if order == "path":
        return samples
    shape, seed = parse_order(order)
    if shape != "seed" or seed is None:
        raise InputError(f"unknown order {order!r}; choose 'path' (as listed) or 'seed:N' with a whole number N.")
    import numpy as np

    places = np.random.default_rng(seed).permutation(len(samples))
    return [samples[place] for place in places.tolist()]


def source_fingerprint(samples: Sequence[Sample]) -> str:
    """SHA-256 over the names in their order, so that a resumed run can refuse another list."""
    digest = hashlib.sha256()
    for sample in samples:
        name = sample.name.encode("utf-8", "surrogatepass")
        digest.update(b"%d:%b" % (len(name), name))
    return digest.hexdigest()


def read_file(path: str) -> bytes:
    """The bytes of a file; what most samples' `read` is bound to."""
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
            return folder.open_image(spec)
        raise InputError(
            f"{spec} is neither an image by its suffix nor a list ({', '.join(table.READERS)}); "
            "rename it, or name it in a list, where any suffix is taken."
        )
    if prefix is not None:
        known = ", ".join(f"{name}:" for name in PREFIXES)
        raise InputError(f"unknown prefix {prefix}: in {spec}, and no such file; the prefixes are {known}.")
    if folder.is_pattern(spec):
        return folder.open_glob(spec)
    raise InputError(f"no file or folder at {spec}; check the path.")
