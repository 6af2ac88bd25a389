"""Hugging Face `datasets`: by name, from local files, or as saved with `save_to_disk`."""

from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from acclimate.errors import InputError, missing
from acclimate.sources.source import Sample, read_file

LOADING = ("name", "data_dir", "data_files", "revision")  # passed on to load_dataset unchanged
OPTIONS = ("split", "image", "label", *LOADING)


def open_samples(spec: str) -> Sequence[Sample]:
    """List the images of one split, named `NAME[split]#row`.

    The split defaults to "test", or to the only one there is. The columns default to those named "image" and "label",
    or else to the first column of images and the only column of class labels. A dataset given by name is downloaded
    if it is not in the cache.

    Args:
        spec: `NAME`, or `NAME?split=test&image=image&label=label`; `name`, `data_dir`, `data_files` and `revision`
            are passed on to `load_dataset`.
    """
    name, _, query = spec.partition("?")
    try:
        options = dict(parse_qsl(query, strict_parsing=True)) if query else {}
    except ValueError:
        raise InputError(f"hfds:{spec}: write options as ?split=test&image=image.") from None
    if unknown := [option for option in options if option not in OPTIONS]:
        raise InputError(f"hfds:{spec}: unknown option {unknown[0]!r}; choose from {', '.join(OPTIONS)}.")
    if not name or (name.startswith((".", "/", "~")) and not Path(name).exists()):
        raise InputError(f"no dataset at hfds:{spec}; write hfds:NAME or hfds:FOLDER.")
    try:
        datasets = import_module("datasets")
    except ImportError:
        raise missing(f"hfds:{name} needs datasets", "datasets") from None
    try:
        rows, split = _load(datasets, name, options)
        image, label = _columns(datasets, name, rows.features, options)
        rows = rows.with_format(None)
        labels = [None] * len(rows) if label is None else _labels(datasets, rows, label)
        rows = rows.select_columns([image]).cast_column(image, datasets.Image(decode=False))
    except InputError:
        raise
    except (OSError, ValueError, TypeError, LookupError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise InputError(f"hfds:{spec} cannot be loaded: {error}") from error
    if not labels:
        raise InputError(f"no images in hfds:{spec}: the split has no rows.")
    title = f"{name}[{split}]" if split else name
    return [Sample(f"{title}#{row}", partial(_read_row, rows, row), text) for row, text in enumerate(labels)]


def _load(datasets: Any, name: str, options: Mapping[str, str]) -> tuple[Any, str]:
    wanted = options.get("split")
    if any(Path(name, file).is_file() for file in ("state.json", "dataset_dict.json")):
        content = datasets.load_from_disk(name)
        if not isinstance(content, dict):
            split = str(content.split or "")
            if wanted not in (None, split):
                raise InputError(f"{name} has only one split{split and f', {split!r}'}; omit ?split=.")
            return content, split
    else:
        arguments = {option: options[option] for option in LOADING if option in options}
        content = datasets.load_dataset(name, split=wanted, **arguments)
        if wanted is not None:
            return content, wanted
    wanted = wanted or (next(iter(content)) if len(content) == 1 else "test")
    if wanted not in content:
        raise InputError(f"{name} has no split {wanted!r}; choose one with ?split= from {', '.join(content)}.")
    return content[wanted], wanted


def _columns(datasets: Any, name: str, features: Any, options: Mapping[str, str]) -> tuple[str, str | None]:
    """Return the names of the columns of images and, if there is one, of labels."""
    for option in ("image", "label"):
        if option in options and options[option] not in features:
            raise InputError(f"{name} has no column {options[option]!r}; it has {', '.join(features)}.")
    images = [column for column, feature in features.items() if isinstance(feature, datasets.Image)]
    classes = [column for column, feature in features.items() if isinstance(feature, datasets.ClassLabel)]
    image = options.get("image") or ("image" if "image" in features else next(iter(images), None))
    if image is None:
        raise InputError(f"{name} has no image column among {', '.join(features)}; name one with ?image=COLUMN.")
    if image not in images and getattr(features[image], "dtype", None) not in ("string", "binary"):
        raise InputError(f"{name}: the column {image!r} does not contain images; name another with ?image=COLUMN.")
    only = classes[0] if len(classes) == 1 else None
    return image, options.get("label") or ("label" if "label" in features else only)


def _labels(datasets: Any, rows: Any, column: str) -> list[str | None]:
    feature = rows.features[column]
    values = rows.select_columns([column])[:][column]
    if isinstance(feature, datasets.ClassLabel):  # -1 means that the label is not published
        return [None if value is None or value < 0 else feature.names[value] for value in values]
    return [None if value is None else str(value) for value in values]


def _read_row(rows: Any, row: int) -> bytes:
    (column,) = rows.column_names
    value = rows[row][column] or {}
    if value.get("bytes") is not None:
        return bytes(value["bytes"])
    if not value.get("path"):
        raise OSError(f"row {row} of the dataset has no image.")
    return read_file(value["path"])
