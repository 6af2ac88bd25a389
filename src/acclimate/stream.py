"""Feature streams: image features with a head, and true classes where they are known; read from runs and files.

A run (see `acclimate.run`) is read slice by slice. A `.safetensors` or `.npz` file holds the tensors `features` (n, d)
or (n, V, d), `class_vectors` (K, d), and optionally `labels` (n,), `order` (n,) and the `kinds` (M, d) of broad
classes; `logit_scale`, `logit_bias` and JSON lists (`class_names`, `kind_counts`, `domains`, `files`) are metadata in
the first and arrays in the second. A `.pt` file holds a dict with the same names. A bare array (`.npy`, or a tensor in
a `.pt`) is features alone, and the rest is passed with it.
"""

import io
import json
import os
import pickle
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from acclimate.arrays import HostArray, check_integers, is_array_api_obj, to_host
from acclimate.errors import AcclimateError, InputError, missing, same_words
from acclimate.evidence import Head
from acclimate.files import read_snapshot, to_bytes, write_atomically, writing
from acclimate.run import HEAD, Run, StoredFeatures, is_run

TENSORS = ("features", "class_vectors", "kinds", "labels", "order")
LISTS = ("class_names", "kind_counts", "domains", "files")  # JSON lists in the metadata
TEXTS = ("encoder", "prompts", "views_kind")
WRITTEN = (".safetensors", ".npz")
BLOCK = 1024  # samples that are read at once
ArrayOrFile = HostArray | str | os.PathLike[str]


@dataclass(frozen=True, repr=False)
class FeatureStream:
    """A stream of image features, and the head that classifies them.

    Attributes:
        features: (n, d), or (n, V, d) for V views per sample; of any length. Unit rows when read from a file; those of
            a run are `StoredFeatures`, which read what they are indexed with.
        head: class vectors, names, logit scale and bias.
        targets: (n,) true classes, for scoring only, -1 for samples whose class is unknown; None when all are.
        order: (n,) the order in which to take the samples; None for the order of the file.
        domains: n names of the domain of each sample; None when unknown.
        files: n names of the images; None when unknown.
        encoder: the model that made the features.
        prompts: the source of the class vectors: templates, or a description; in a .safetensors file that has no
            `prompts`, what its metadata say of `class_vectors`.
        views_kind: "augmix", "crop", "large-crop" or "diffusion"; "" when unknown or of one view.
        skipped: images that could not be read and are missing here.
        encode_s: seconds that encoding took; None when unknown.
        notes: whatever else the file says.

    Examples:
        >>> import numpy as np
        >>> from acclimate import TDA, FeatureStream, Head
        >>> stream = FeatureStream(np.eye(3), Head(np.eye(3), logit_scale=10.0), targets=np.arange(3))
        >>> logits = TDA(stream.head).step(stream.features)
        >>> float(np.mean(logits.argmax(axis=1) == stream.targets))
        1.0
    """

    features: HostArray
    head: Head
    targets: HostArray | None = None
    order: HostArray | None = None
    domains: tuple[str, ...] | None = None
    files: tuple[str, ...] | None = None
    encoder: str = ""
    prompts: str = ""
    views_kind: str = ""
    skipped: int = 0
    encode_s: float | None = None
    notes: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.features)

    def __repr__(self) -> str:
        parts = [f"features {self.features.shape}", f"{len(self.head)} classes"]
        known = {"targets": self.targets, "order": self.order, "domains": self.domains, "files": self.files}
        parts += [f"{len(values)} {name}" for name, values in known.items() if values is not None]
        parts += [f"{name}={text!r}" for name in TEXTS if (text := getattr(self, name))]
        return f"FeatureStream({', '.join(parts)})"

    @property
    def views(self) -> int:
        """Views per sample."""
        return int(self.features.shape[1]) if self.features.ndim == 3 else 1


def read_stream(
    path: str | os.PathLike[str],
    *,
    targets: ArrayOrFile | None = None,
    class_vectors: ArrayOrFile | None = None,
    class_names: Sequence[str] | None = None,
    logit_scale: float | None = None,
) -> FeatureStream:
    """Read a run, or a feature file (.safetensors, .npz, .npy, .pt).

    A run has the class vectors of its last answer. Its images have the true classes that their source told; those
    whose class is not among the labels have -1, and images that could not be read are left out.

    Args:
        path: the run or file.
        targets: (n,) true classes, -1 where unknown, or a .npy or .pt file of them; replaces those of the file.
        class_vectors: (K, d), or a .npy or .pt file of them; replaces those of the file.
        class_names: K names; replaces those of the file.
        logit_scale: the model's scale; replaces that of the file.

    Raises:
        InputError: the file is missing, truncated, foreign, or its parts do not match.
        RunError: the run is damaged.

    Examples:
        >>> import tempfile
        >>> import numpy as np
        >>> from acclimate import FeatureStream, Head, read_stream, write_stream
        >>> stream = FeatureStream(np.eye(3, dtype=np.float32), Head(np.eye(3), logit_scale=10.0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_stream(stream, f"{folder}/photos.safetensors")
        ...     len(read_stream(f"{folder}/photos.safetensors"))
        3
    """
    path = Path(path)
    content = _read_run(path) if is_run(path) else _read(path)
    if class_vectors is not None:
        content.pop("kinds", None)
    given = {
        "labels": None if targets is None else _array(targets),
        "class_vectors": None if class_vectors is None else _array(class_vectors),
        "class_names": class_names,
        "logit_scale": logit_scale,
    }
    return _assemble(path, content | {name: value for name, value in given.items() if value is not None})


def check_stream_path(path: str | os.PathLike[str]) -> None:
    """Refuse a name that says nothing of how to write a stream, or too little."""
    suffix = Path(path).suffix
    if suffix not in WRITTEN:
        why = "a .npy file holds features alone" if suffix == ".npy" else f"feature files end in {' or '.join(WRITTEN)}"
        raise InputError(f"cannot write {path}: {why}; choose a name that ends in {' or '.join(WRITTEN)}.")


def write_stream(stream: FeatureStream, path: str | os.PathLike[str]) -> None:
    """Write a stream as .safetensors or .npz, atomically; `read_stream` reads it back, and has an example.

    Examples:
        >>> write_stream(FeatureStream(np.eye(3), Head(np.eye(3), logit_scale=10.0)), "features.npy")
        Traceback (most recent call last):
        acclimate.errors.InputError: cannot write features.npy: a .npy file holds features alone; choose a name that \
ends in .safetensors or .npz.
    """
    check_stream_path(path)
    tensors, about_head = stream.head.to_file()
    arrays = {"features": np.asarray(stream.features), **tensors}
    known = {"labels": stream.targets, "order": stream.order}
    arrays |= {name: values for name, values in known.items() if values is not None}
    given = about_head | {"domains": stream.domains, "files": stream.files}
    lists = {name: list(given[name]) for name in LISTS if given.get(name) is not None}
    numbers = {"logit_scale": stream.head.logit_scale, "logit_bias": stream.head.logit_bias, "skipped": stream.skipped}
    numbers |= {} if stream.encode_s is None else {"encode_s": stream.encode_s}
    texts = {**stream.notes, **{name: text for name in TEXTS if (text := getattr(stream, name))}}
    if Path(path).suffix == ".npz":
        arrays |= {name: np.array(value) for name, value in {**lists, **numbers, **texts}.items()}
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:  # `np.savez` does the same, but not for notes of any name
            for name, values in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, np.asanyarray(values), allow_pickle=False)
        content = buffer.getvalue()
    else:
        listed = {name: json.dumps(values) for name, values in lists.items()}
        content = to_bytes(arrays, {**texts, **listed, **{name: repr(number) for name, number in numbers.items()}})
    with writing(path, InputError):
        write_atomically(path, content)


def original_views(stream: FeatureStream) -> FeatureStream:
    """Return a stream with the first of several views alone: the image itself. Its time of encoding is unknown."""
    if stream.views == 1:
        return stream
    starts = range(0, len(stream), BLOCK)
    first = [np.array(stream.features[start : start + BLOCK][:, 0]) for start in starts]
    return replace(stream, features=np.concatenate(first), views_kind="", encode_s=None)


def _read_run(path: Path) -> dict[str, Any]:
    run = Run.open(path)
    if not (run.path / HEAD).is_file():
        raise InputError(
            f"{path} has no class vectors; answer it with `acclimate classify {path} --labels ...`, and read that run."
        )
    tensors, about = read_snapshot(run.path / HEAD)
    known = {same_words(name): index for index, name in enumerate(about["class_names"])}
    readable = [index for index, error in enumerate(run.errors) if error is None]
    truths = run.truths
    names = run.names
    templates = run.answer.get("templates")
    targets = np.array([known.get(same_words(truths[index] or ""), -1) for index in readable], np.int64)
    by_name = run.features.get("domains")  # True for a dataset whose file names begin with the domain
    return {
        **{name: value for name, value in run.features.items() if isinstance(value, str)},
        **tensors,
        **about,
        "features": run.stored_features,
        "labels": targets if (targets >= 0).any() else None,
        "files": [names[index] for index in readable],
        "domains": [Path(names[index]).name.rpartition("_")[0] for index in readable] if by_name else None,
        "encoder": run.features.get("model", ""),
        "prompts": ", ".join(templates) if isinstance(templates, list) else "",
        "skipped": run.images - len(readable),
        "encode_s": run.features.get("seconds"),
    }


def _read(path: Path) -> dict[str, Any]:
    readers = {".safetensors": _read_safetensors, ".npz": _read_numpy, ".npy": _read_numpy, ".pt": _read_pt}
    if path.suffix not in readers:
        raise InputError(f"{path}: cannot tell what it holds; feature files end in {', '.join(readers)}.")
    if not path.is_file():
        raise InputError(f"no run or feature file at {path}.")
    try:
        return readers[path.suffix](path)
    except AcclimateError:
        raise
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{path} holds more than tensors and will not be unpickled; save a dict of tensors."
        ) from error
    except (SafetensorError, OSError, EOFError, ValueError, RuntimeError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} cannot be read: it is truncated, damaged or of another kind ({error}).") from error


def _read_safetensors(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata() or {}
        content: dict[str, Any] = {name: text for name, text in metadata.items() if name not in TENSORS}
        content.setdefault("prompts", metadata.get("class_vectors", ""))
        content.update({name: json.loads(content[name]) for name in LISTS if name in content})
        content.update({name: file.get_tensor(name) for name in TENSORS if name in file.keys()})  # noqa: SIM118
    return content


def _read_numpy(path: Path) -> dict[str, Any]:
    content = np.load(path, allow_pickle=False)
    if path.suffix == ".npy":
        return {"features": content}
    with content:
        arrays = {name: content[name] for name in content.files}
    plain = {name for name, values in arrays.items() if values.ndim == 0 or values.dtype.kind == "U"}
    return {name: values.tolist() if name in plain else values for name, values in arrays.items()}


def _read_pt(path: Path) -> dict[str, Any]:
    try:
        import torch
    except ImportError:
        raise missing(f"{path} needs PyTorch to be read", "torch", "or save it as .npz") from None
    content = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(content, dict):
        return {"features": to_host(content)}
    return {name: to_host(value) if is_array_api_obj(value) else value for name, value in content.items()}


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
            raise InputError(f"{path} holds no {name}; add it to the file, or pass {name}{known} with it.")
    used = {*TENSORS, *LISTS, *TEXTS, "logit_scale", "logit_bias", "encode_s", "skipped"}
    try:
        head = Head(
            np.asarray(content["class_vectors"]),
            _number(content, "logit_scale", None),
            _number(content, "logit_bias", 0.0),
            () if content.get("class_names") is None else tuple(map(str, content["class_names"])),
            content.get("kinds"),
            tuple(content.get("kind_counts", ())),
        )
        features = content["features"]
        if not isinstance(features, StoredFeatures):
            features = head.unit_features(np.asarray(features))
        elif not len(features) or features.shape[-1] != head.dim:
            raise InputError(f"features have shape {features.shape}, and the class vectors have dim {head.dim}.")
        count = len(features)
        targets = content.get("labels")
        if targets is not None:
            targets = check_integers(np.asarray(targets), count, len(head) - 1, "labels", smallest=-1)
        order = None if content.get("order") is None else check_integers(content["order"], count, count - 1, "order")
        if order is not None and len(np.unique(order)) != count:
            raise InputError(f"order must hold every position from 0 to {count - 1} once.")
        return FeatureStream(
            features=features,
            head=head,
            targets=targets,
            order=order,
            domains=_names(content, "domains", count),
            files=_names(content, "files", count),
            encoder=str(content.get("encoder", "")),
            prompts=str(content.get("prompts", "")),
            views_kind=str(content.get("views_kind", "")),
            skipped=int(_number(content, "skipped", 0)),
            encode_s=_number(content, "encode_s", None),
            notes={name: value for name, value in content.items() if name not in used and isinstance(value, str)},
        )
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _number(content: Mapping[str, Any], name: str, default: float | None) -> Any:
    value = content.get(name, default)
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be a number, got {value!r}.") from None


def _names(content: Mapping[str, Any], name: str, count: int) -> tuple[str, ...] | None:
    if content.get(name) is None:
        return None
    names = tuple(map(str, content[name]))
    if len(names) != count:
        raise InputError(f"{name} must name every sample: {len(names)} names for {count} samples.")
    return names
