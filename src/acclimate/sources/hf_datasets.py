"""Hugging Face `datasets`: by name, from local files, or as saved with `save_to_disk`."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from acclimate.errors import InputError, MissingExtraError
from acclimate.sources.base import Sample, read_file

LOADING = ("name", "data_dir", "data_files", "revision")  # passed on to load_dataset unchanged
OPTIONS = ("split", "image", "label", *LOADING)


def open_hf_dataset(spec: str) -> Sequence[Sample]:
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
        raise MissingExtraError(f"hfds:{name} needs datasets: pip install 'acclimate[datasets]'.") from None
    with _loading(datasets, spec):
        content, split = _load(datasets, name, options)
    rows, split = _choose_split(name, content, split, options.get("split"))
    image, label = _columns(datasets, name, rows.features, options)
    with _loading(datasets, spec):
        rows = rows.with_format(None)
        labels = _labels(datasets, rows, label)
        rows = rows.select_columns([image]).cast_column(image, datasets.Image(decode=False))
    if not labels:
        raise InputError(f"no images in hfds:{spec}: the split has no rows.")
    title = f"{name}[{split}]" if split else name
    return [Sample(f"{title}#{row}", partial(_read_row, rows, row), text) for row, text in enumerate(labels)]


@contextmanager
def _loading(datasets: Any, spec: str) -> Iterator[None]:
    """Report what `datasets` raises as an InputError."""
    try:
        yield
    except (OSError, ValueError, TypeError, LookupError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise InputError(f"hfds:{spec} cannot be loaded: {error}") from error


def _load(datasets: Any, name: str, options: Mapping[str, str]) -> tuple[Any, str | None]:
    """Load a dict of splits and None, or one split and its name."""
    if any(Path(name, file).is_file() for file in ("state.json", "dataset_dict.json")):
        content = datasets.load_from_disk(name)
        return content, None if isinstance(content, dict) else str(content.split or "")
    arguments = {option: options[option] for option in LOADING if option in options}
    config, split = arguments.pop("name", None), options.get("split")
    return datasets.load_dataset(name, config, split=split, **arguments), split


def _choose_split(name: str, content: Any, split: str | None, wanted: str | None) -> tuple[Any, str]:
    if split is not None:
        if wanted not in (None, split):
            raise InputError(f"{name} has only one split{split and f', {split!r}'}; omit ?split=.")
        return content, split
    if wanted is None:
        wanted = next(iter(content)) if len(content) == 1 else "test"
    if wanted not in content:
        raise InputError(f"{name} has no split {wanted!r}; choose one with ?split= from {', '.join(content)}.")
    return content[wanted], wanted


def _columns(
    datasets: Any, name: str, features: Mapping[str, Any], options: Mapping[str, str]
) -> tuple[str, str | None]:
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


def _labels(datasets: Any, rows: Any, column: str | None) -> list[str | None]:
    if column is None:
        return [None] * len(rows)
    feature, values = rows.features[column], rows.select_columns([column])[:][column]
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
