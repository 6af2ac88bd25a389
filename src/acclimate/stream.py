"""Feature files: image features with class vectors, and labels where they are known.

A `.safetensors` or `.npz` file holds the tensors `features` (n, d), `class_vectors` (K, d), and optionally `labels`
(n,) and `order` (n,); `logit_scale`, `logit_bias` and `class_names` (a JSON list) are metadata in the first and arrays
in the second. A `.pt` file holds a dict with the same names. A bare array (`.npy`, or a tensor in a `.pt`) is features
alone, and the rest is passed beside it.
"""

import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from acclimate.arrays import HostArray, as_floats, is_array_api_obj, to_host, unit_rows
from acclimate.errors import InputError, MissingExtraError
from acclimate.files import to_bytes, write_atomically

TENSORS = ("features", "class_vectors", "labels", "order")
ArrayOrFile = HostArray | str | os.PathLike[str]


@dataclass(frozen=True)
class FeatureStream:
    """A stream of image features and the classes to sort them into.

    Attributes:
        features: (n, d) unit rows, float32 at least.
        class_vectors: (K, d) unit rows, float32 at least.
        logit_scale: the model's own.
        class_names: K names.
        labels: (n,) true classes, for scoring only; None when unknown.
        order: (n,) the order in which to take the samples; None for the order of the file.
        logit_bias: the model's own; 0 for models without one.
        metadata: whatever else the file says, as strings.
    """

    features: HostArray
    class_vectors: HostArray
    logit_scale: float
    class_names: tuple[str, ...]
    labels: HostArray | None = None
    order: HostArray | None = None
    logit_bias: float = 0.0
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.features)


def read_stream(
    path: str | os.PathLike[str],
    *,
    labels: ArrayOrFile | None = None,
    class_vectors: ArrayOrFile | None = None,
    class_names: Sequence[str] | None = None,
    logit_scale: float | None = None,
) -> FeatureStream:
    """Read a feature file (.safetensors, .npz, .npy, .pt).

    Args:
        path: the file.
        labels: (n,) true classes, or a .npy or .pt file of them; replaces the file's own.
        class_vectors: (K, d), or a .npy or .pt file of them; replaces the file's own.
        class_names: K names; replaces the file's own.
        logit_scale: the model's scale; replaces the file's own.

    Raises:
        InputError: the file is missing, truncated, foreign, or its parts do not fit together.
    """
    path = Path(path)
    content = _read(path)
    given = {
        "labels": None if labels is None else _array(labels),
        "class_vectors": None if class_vectors is None else _array(class_vectors),
        "class_names": class_names,
        "logit_scale": logit_scale,
    }
    content.update({name: value for name, value in given.items() if value is not None})
    return _assemble(path, content)


def write_stream(stream: FeatureStream, path: str | os.PathLike[str]) -> None:
    """Write a stream as .safetensors, atomically."""
    tensors = {name: values for name in TENSORS if (values := getattr(stream, name)) is not None}
    metadata = {
        **stream.metadata,
        "class_names": json.dumps(list(stream.class_names)),
        "logit_scale": repr(float(stream.logit_scale)),
        "logit_bias": repr(float(stream.logit_bias)),
    }
    try:
        write_atomically(path, to_bytes(tensors, metadata))
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}.") from error


def _read(path: Path) -> dict[str, Any]:
    """Everything a file says, by name."""
    readers = {".safetensors": _read_safetensors, ".npz": _read_npz, ".npy": _read_npy, ".pt": _read_pt}
    if path.suffix not in readers:
        raise InputError(f"{path}: cannot tell what it holds; feature files end in {', '.join(readers)}.")
    if not path.is_file():
        raise InputError(f"no feature file at {path}.")
    try:
        return readers[path.suffix](path)
    except (SafetensorError, OSError, EOFError, ValueError, RuntimeError, KeyError, zipfile.BadZipFile) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be read: it is truncated, damaged or of another kind ({error}).") from error


def _read_safetensors(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="numpy") as file:
        content: dict[str, Any] = {name: text for name, text in (file.metadata() or {}).items() if name not in TENSORS}
        if "class_names" in content:
            content["class_names"] = json.loads(content["class_names"])
        content.update({name: file.get_tensor(name) for name in TENSORS if name in file.keys()})  # noqa: SIM118
    return content


def _read_npz(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as file:
        return {name: _plain(file[name]) for name in file.files}


def _read_npy(path: Path) -> dict[str, Any]:
    return {"features": np.load(path, allow_pickle=False)}


def _read_pt(path: Path) -> dict[str, Any]:
    try:
        import torch
    except ImportError:
        raise MissingExtraError(f"{path} needs PyTorch to be read: pip install torch, or save it as .npz.") from None
    import pickle

    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{path} holds more than tensors and will not be unpickled; save a dict of tensors."
        ) from error
    if not isinstance(content, dict):
        return {"features": to_host(content)}
    return {name: to_host(value) if is_array_api_obj(value) else value for name, value in content.items()}


def _plain(value: HostArray) -> Any:
    return value.tolist() if value.ndim == 0 or value.dtype.kind == "U" else value


def _array(value: ArrayOrFile) -> HostArray:
    if isinstance(value, (str, os.PathLike)):
        content = _read(Path(value))
        if "features" not in content:
            raise InputError(f"{value} must hold one bare array.")
        return np.asarray(content["features"])
    return to_host(value) if is_array_api_obj(value) else np.asarray(value)


def _assemble(path: Path, content: dict[str, Any]) -> FeatureStream:
    for name in ("features", "class_vectors", "logit_scale"):
        if content.get(name) is None:
            known = " (100 for OpenAI's CLIP)" if name == "logit_scale" else ""
            raise InputError(f"{path} holds no {name}; add it to the file, or pass {name}{known} beside it.")
    features, vectors = _unit(path, content, "features"), _unit(path, content, "class_vectors")
    if features.shape[1] != vectors.shape[1]:
        raise InputError(f"{path}: features have dim {features.shape[1]}, class vectors {vectors.shape[1]}.")
    count, classes = len(features), len(vectors)
    names = content.get("class_names")
    names = tuple(str(name) for name in (range(classes) if names is None else names))
    if len(names) != classes:
        raise InputError(f"{path}: {len(names)} class names for {classes} class vectors.")
    labels, order = _integers(path, content, "labels", count, classes), _integers(path, content, "order", count, count)
    if order is not None and len(np.unique(order)) != count:
        raise InputError(f"{path}: order must hold every position from 0 to {count - 1} once.")
    try:
        scale, bias = float(content["logit_scale"]), float(content.get("logit_bias", 0.0))
    except (TypeError, ValueError):
        raise InputError(f"{path}: logit_scale and logit_bias must be numbers.") from None
    used = {*TENSORS, "logit_scale", "logit_bias", "class_names"}
    metadata = {name: value for name, value in content.items() if name not in used and isinstance(value, str)}
    return FeatureStream(features, vectors, scale, names, labels, order, bias, metadata)


def _unit(path: Path, content: Mapping[str, Any], name: str) -> HostArray:
    values = as_floats(np.asarray(content[name]), f"{path}: {name}")
    if values.ndim != 2 or 0 in values.shape:
        raise InputError(f"{path}: {name} must be a table with rows and columns, got shape {values.shape}.")
    unit: HostArray = unit_rows(values, f"{path}: {name}")
    return unit


def _integers(path: Path, content: Mapping[str, Any], name: str, length: int, below: int) -> HostArray | None:
    if content.get(name) is None:
        return None
    values = np.asarray(content[name])
    if values.dtype.kind not in "iu" or values.shape != (length,):
        raise InputError(f"{path}: {name} must be {length} whole numbers, got {values.dtype} of shape {values.shape}.")
    if values.min() < 0 or values.max() >= below:
        raise InputError(f"{path}: {name} must lie between 0 and {below - 1}, got {values.min()} to {values.max()}.")
    return values.astype(np.int64)
