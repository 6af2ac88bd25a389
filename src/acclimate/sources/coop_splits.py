"""CoOp's split files, `split_zhou_*.json`, which list the images next to or below them."""

import json
from pathlib import Path
from typing import Any

from acclimate.errors import InputError
from acclimate.files import MAX_LIST, read_regular
from acclimate.sources.folder import natural_key
from acclimate.sources.source import Sample, file_sample

PROBES = 10  # files to look for in a folder: some of them may be missing


def open_samples(spec: str) -> list[Sample]:
    """List the images of one split.

    Args:
        spec: `ROOT/split_zhou_X.json`, optionally followed by `#train`, `#val` or `#test` (the default).
    """
    path = Path(spec)
    split = "test"
    if not path.is_file() and "#" in spec:
        file, _, split = spec.rpartition("#")
        path = Path(file)
    if not path.is_file():
        raise InputError(f"no split file at {path}; write coop:ROOT/split_zhou_NAME.json#test.")
    rows = read_split(path, split)
    root = path.parent
    subfolders = sorted((each for each in root.iterdir() if each.is_dir()), key=lambda each: natural_key(each.name))
    for folder in (root, *subfolders):
        if any((folder / file).is_file() for file, _, _ in rows[:PROBES]):
            return [file_sample(folder / file, label) for file, _, label in rows]
    raise InputError(
        f"the images of {path} are missing: {rows[0][0]} is neither in {root} nor in one of its folders; "
        "unpack the dataset next to the split file."
    )


def read_split(path: Path, split: str = "test") -> list[tuple[str, int, str]]:
    """Read one split of a split file: (path relative to the image folder, class index, class name) of each image."""
    try:
        content: Any = json.loads(read_regular(path, MAX_LIST))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as JSON ({error}).") from error
    if not isinstance(content, dict) or not all(isinstance(rows, list) for rows in content.values()):
        raise InputError(f"{path} is not a CoOp split file; it must map train, val and test to lists.")
    if split not in content:
        raise InputError(f"{path} has no split {split!r}; it has {', '.join(content) or 'none'}.")
    rows = content[split]
    if not rows:
        raise InputError(f"no images in {path}: its split {split!r} is empty.")
    for position, row in enumerate(rows):
        if not (isinstance(row, list) and [type(value) for value in row] == [str, int, str]):
            raise InputError(
                f"{path}: entry {position} of {split!r} must be [path, class index, class name], got {row!r:.80}."
            )
    return [(file, index, name) for file, index, name in rows]
