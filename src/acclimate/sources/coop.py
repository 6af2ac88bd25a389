"""CoOp's split files: `split_zhou_*.json`, beside or above the images they list."""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from acclimate.errors import InputError
from acclimate.sources.base import Sample, read_file
from acclimate.sources.folder import natural_key

# Where the datasets of the CoOp layout keep their images, below the folder of the split file.
IMAGE_FOLDERS = ("images", "jpg", "2750", "101_ObjectCategories", "UCF-101-midframes", "SUN397")
PROBES = 10  # a missing first file alone does not hide the folder


def open_coop(spec: str) -> list[Sample]:
    """The images of one split.

    Args:
        spec: `ROOT/split_zhou_X.json`, and `#train`, `#val` or `#test` (the default).
    """
    path, split = Path(spec), "test"
    if not path.is_file() and "#" in spec:
        file, _, split = spec.rpartition("#")
        path = Path(file)
    if not path.is_file():
        raise InputError(f"no split file at {path}; write coop:ROOT/split_zhou_NAME.json#test.")
    rows = read_split(path, split)
    base = _image_folder(path, [row[0] for row in rows[:PROBES]])
    samples = []
    for file, _, label in rows:
        name = (base / file).as_posix()
        samples.append(Sample(name, partial(read_file, name), label))
    return samples


def read_split(path: Path, split: str = "test") -> list[tuple[str, int, str]]:
    """The rows of one split of a split file: path below the image folder, number and name of the class."""
    try:
        content: Any = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as JSON ({error}).") from error
    if not isinstance(content, dict) or not all(isinstance(rows, list) for rows in content.values()):
        raise InputError(f"{path} is not a CoOp split file; it must map train, val and test to lists.")
    if split not in content:
        raise InputError(f"{path} has no split {split!r}; it has {', '.join(content) or 'none'}.")
    rows = content[split]
    if not rows:
        raise InputError(f"no images in {path}: its split {split!r} is empty.")
    for at, row in enumerate(rows):
        if not (isinstance(row, list) and [type(value) for value in row] == [str, int, str]):
            raise InputError(f"{path}: entry {at} of {split!r} must be [path, number, class name], got {row!r:.80}.")
    return [(file, number, name) for file, number, name in rows]


def _image_folder(path: Path, files: Sequence[str]) -> Path:
    for folder in _candidates(path.parent):
        if any((folder / file).is_file() for file in files):
            return folder
    raise InputError(
        f"the images of {path} are not there: {files[0]} lies neither in {path.parent} nor in a folder of it; "
        "unpack the dataset beside the split file."
    )


def _candidates(root: Path) -> Iterator[Path]:
    yield root
    yield from (root / name for name in IMAGE_FOLDERS)
    yield from sorted((entry for entry in root.iterdir() if entry.is_dir()), key=lambda entry: natural_key(entry.name))
