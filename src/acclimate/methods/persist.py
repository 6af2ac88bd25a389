"""Save, load and merge adapters."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from acclimate.arrays import HostArray, move, to_host
from acclimate.errors import InputError, StateError
from acclimate.files import read_description, read_snapshot, snapshot_bytes, write_snapshot
from acclimate.methods.base import Adapter, find


def save(adapter: Adapter, path: str | os.PathLike[str], notes: Mapping[str, Any] | None = None) -> None:
    """Write everything an adapter is to a snapshot; a crash leaves the old file or the new one.

    Args:
        adapter: what to save.
        path: the file to create or replace.
        notes: anything JSON can hold, to be kept with it; see `read_notes`.
    """
    write_snapshot(path, _tensors(adapter), {**_describe(adapter), "notes": dict(notes or {})})


def to_bytes(adapter: Adapter) -> bytes:
    """The content of the file that `save` would write."""
    return snapshot_bytes(_tensors(adapter), {**_describe(adapter), "notes": {}})


def load(path: str | os.PathLike[str], like: Adapter | None = None) -> Adapter:
    """Read an adapter from a snapshot; it goes on exactly where the saved one stood.

    Args:
        path: a file that `save` wrote.
        like: an adapter that the snapshot must fit: same method, settings, classes, class vectors and scale. The loaded
            one lives where it lives; without it, on NumPy. Its class need not be registered.

    Raises:
        StateError: the file is no snapshot, is damaged, or does not fit `like`; the message says which part differs.
    """
    tensors, description = read_snapshot(path)
    try:
        name = description["method"]
        method = type(like) if like is not None and like.name == name else find(name)
        vectors = tensors.pop("class_vectors")
        adapter = method(vectors, **description["arguments"], **description["config"])
        adapter.seen, adapter.frozen = dict(description["seen"]), description["frozen"]
        if type(adapter.frozen) is not bool or any(type(n) is not int or n < 0 for n in adapter.seen.values()):
            raise TypeError("seen and frozen must be counts and a switch")
    except InputError as error:
        raise StateError(f"{path} was written with something this acclimate does not have: {error}") from error
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise StateError(f"{path} is not a complete state ({error!r}); it was damaged or edited.") from error
    adapter.class_vectors = vectors if like is None else move(vectors, like.class_vectors)
    if like is not None and (differences := compare(adapter, like)):
        raise StateError(f"{path} does not fit: {'; '.join(differences)}. Use a state of the same kind, or start anew.")
    adapter.reindex(np.arange(len(vectors)))  # the caches follow the class vectors to where they live
    adapter.restore(tensors)
    return adapter


def read_notes(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The notes that were saved with an adapter."""
    return dict(read_description(path).get("notes", {}))


def cached_entries(adapter: Adapter) -> dict[str, list[tuple[int, float, int]]]:
    """Each cache's entries as (class, entropy, id), sorted; empty for methods without caches."""
    tensors = adapter.dump()
    kinds = sorted(name.removesuffix(".ids") for name in tensors if name.endswith(".ids"))
    columns = ("classes", "entropies", "ids")
    return {
        kind: sorted(zip(*(tensors[f"{kind}.{column}"].tolist() for column in columns), strict=True)) for kind in kinds
    }


def merge(adapters: Iterable[Adapter]) -> Adapter:
    """Combine what several adapters of one kind learnt into a new one; the order of adapters never matters.

    Merging the shards of a stream (stepped with `ids`, the samples' positions) gives the cache of the whole stream.
    """
    adapters = list(adapters)
    if not adapters:
        raise InputError("nothing to merge; give at least one adapter.")
    first = adapters[0]
    for other in adapters[1:]:
        if differences := compare(other, first):
            raise InputError(f"these adapters cannot be merged: {'; '.join(differences)}.")
    merged = duplicate(first)
    merged.absorb(adapters[1:])
    merged.seen = _largest_counts(adapters)
    merged.frozen = all(adapter.frozen for adapter in adapters)
    return merged


def duplicate(adapter: Adapter) -> Adapter:
    """An adapter that knows the same and goes its own way."""
    copy = type(adapter)(adapter.class_vectors, **_arguments(adapter), **asdict(adapter.config))
    copy.class_vectors = adapter.class_vectors  # scaling them again would change their last digits
    copy.restore(adapter.dump())
    copy.seen, copy.frozen = dict(adapter.seen), adapter.frozen
    return copy


def compare(one: Adapter, other: Adapter) -> list[str]:
    """Say what keeps two adapters' states from being used for one another; empty when nothing does."""
    if one.name != other.name:
        return [f"method {one.name!r} against {other.name!r}"]
    differences = []
    theirs = asdict(other.config)
    for key, value in asdict(one.config).items():
        if value != theirs[key]:
            differences.append(f"{key} {value!r} against {theirs[key]!r}")
    if one.class_names != other.class_names:
        differences.append(_class_difference(one.class_names, other.class_names))
    if one.dim != other.dim:
        differences.append(f"dim {one.dim} against {other.dim}")
    if (one.logit_scale, one.logit_bias) != (other.logit_scale, other.logit_bias):
        scales = [f"{adapter.logit_scale:g} (bias {adapter.logit_bias:g})" for adapter in (one, other)]
        differences.append(f"logit scale {scales[0]} against {scales[1]}")
    if not differences and not np.allclose(to_host(one.class_vectors), to_host(other.class_vectors), atol=1e-4):
        differences.append("the class vectors differ (another model or other prompts)")
    return differences


def _describe(adapter: Adapter) -> dict[str, Any]:
    return {
        "method": adapter.name,
        "config": asdict(adapter.config),
        "arguments": _arguments(adapter),
        "dim": adapter.dim,
        "samples_seen": adapter.samples_seen,
        "seen": adapter.seen,
        "frozen": adapter.frozen,
    }


def _arguments(adapter: Adapter) -> dict[str, Any]:
    """What the constructor takes beside class vectors and settings."""
    return {
        "class_names": list(adapter.class_names),
        "logit_scale": adapter.logit_scale,
        "logit_bias": adapter.logit_bias,
        "origin": adapter.origin,
    }


def _tensors(adapter: Adapter) -> dict[str, HostArray]:
    return {"class_vectors": to_host(adapter.class_vectors), **adapter.dump()}


def _largest_counts(adapters: Sequence[Adapter]) -> dict[str, int]:
    origins = sorted({origin for adapter in adapters for origin in adapter.seen})
    return {origin: max(adapter.seen.get(origin, 0) for adapter in adapters) for origin in origins}


def _class_difference(one: Sequence[str], other: Sequence[str]) -> str:
    if len(one) != len(other):
        return f"{len(one)} classes against {len(other)}"
    at = next(i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
    return f"class {at} is {one[at]!r} against {other[at]!r}"
