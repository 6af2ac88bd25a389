"""Save, load, compare and merge the states of adapters."""

import copy
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from acclimate.arrays import to_host
from acclimate.errors import InputError, StateError
from acclimate.evidence import Head
from acclimate.files import EXPORTS, parse_snapshot, read_snapshot, snapshot_bytes, write_atomically, writing
from acclimate.methods.base import Adapter
from acclimate.methods.registry import find_method
from acclimate.methods.settings import check_settings

VECTORS = "class_vectors"
AnyAdapter = TypeVar("AnyAdapter", bound=Adapter)
# what the description of a state holds
FIELDS = {"method": str, "settings": dict, "head": dict, "origin": str, "seen": dict, "frozen": bool, "notes": dict}


def save_state(adapter: Adapter, path: str | os.PathLike[str], notes: Mapping[str, Any] | None = None) -> None:
    """Write everything an adapter is to a file; a crash leaves the old file or the new one.

    Args:
        adapter: what to save.
        path: the file to create or replace.
        notes: anything JSON can hold, to be kept with it; see `load_with_notes`.

    Examples:
        >>> import tempfile
        >>> import numpy as np
        >>> from acclimate import TDA, Head, load_state, save_state
        >>> adapter = TDA(Head(np.eye(3), logit_scale=10.0))
        >>> _ = adapter.step(np.eye(3))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_state(adapter, f"{folder}/site.safetensors")
        ...     load_state(f"{folder}/site.safetensors").samples_seen
        3
    """
    with writing(path, StateError, "What was there before is untouched."):
        write_atomically(path, state_to_bytes(adapter, notes))


def state_to_bytes(adapter: Adapter, notes: Mapping[str, Any] | None = None) -> bytes:
    """The content of the file that `save_state` would write.

    Examples:
        >>> import numpy as np
        >>> from acclimate import TDA, Head, state_from_bytes, state_to_bytes
        >>> state_from_bytes(state_to_bytes(TDA(Head(np.eye(3), logit_scale=10.0)))).name
        'tda'
    """
    head = adapter.head
    description = {
        "method": adapter.name,
        "settings": adapter.settings,
        "head": {"class_names": head.class_names, "logit_scale": head.logit_scale, "logit_bias": head.logit_bias},
        "origin": adapter.origin,
        "seen": adapter.seen,
        "frozen": adapter.frozen,
        "encoder": getattr(adapter.text, "fingerprint", ""),
        "notes": dict(notes or {}),
    }
    exports = {f"{EXPORTS}{name}": values for name, values in adapter.exports().items()}
    return snapshot_bytes({VECTORS: to_host(head.class_vectors), **exports, **adapter.dump()}, description)


def load_state(path: str | os.PathLike[str], like: Adapter | None = None, text: Any = None) -> Adapter:
    """Read an adapter from a file; it continues exactly where the saved one stood.

    Args:
        path: a file that `save_state` wrote.
        like: an adapter that the state must match: same method, settings and head. The loaded one lives where it lives;
            without it, on NumPy. Its class need not be registered.
        text: the encoder, for methods that need its text tower; that of `like` if not given.

    Raises:
        StateError: the file is not a state, is damaged, or does not match `like`; the message says what differs.

    Examples:
        >>> load_state("nowhere.safetensors")
        Traceback (most recent call last):
        acclimate.errors.StateError: no state file at nowhere.safetensors.
    """
    return load_with_notes(path, like, text)[0]


def load_with_notes(
    path: str | os.PathLike[str], like: Adapter | None = None, text: Any = None
) -> tuple[Adapter, dict[str, Any]]:
    """`load_state`, and the notes that were saved with the adapter."""
    return build_adapter(*read_snapshot(path), path, like, text)


def state_from_bytes(content: bytes, like: Adapter | None = None) -> Adapter:
    """`load_state` of the content of a file.

    Examples:
        >>> state_from_bytes(b"not a state")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        acclimate.errors.StateError: the state cannot be read as a state: it is truncated, damaged or foreign (...).
    """
    return build_adapter(*parse_snapshot(content), "the state", like)[0]


def build_adapter(
    tensors: dict[str, Any], description: dict[str, Any], what: object, like: Adapter | None = None, text: Any = None
) -> tuple[Adapter, dict[str, Any]]:
    """An adapter from what a state file says. The description is checked first, then the method's own code runs."""
    head = read_head(tensors, description, what)
    name, settings, seen = description["method"], description["settings"], description["seen"]
    if not all(type(count) is int and count >= 0 for count in seen.values()):
        raise StateError(f"{what} is not a complete state: 'seen' must hold counts; it was damaged or edited.")
    try:
        method = type(like) if like is not None and like.name == name else find_method(name)
        check_settings(method, settings)
    except InputError as error:
        raise StateError(f"{what} was written with something this acclimate does not have: {error}") from error
    if like is not None:
        head = head.to(like.head.class_vectors)
    text = (text or (like and like.text)) if "text" in method.needs else None
    made_with, given = description.get("encoder", ""), getattr(text, "fingerprint", "")  # older states have none
    if made_with and given and made_with != given:
        raise StateError(f"{what} was made with another model, and {name!r} needs that one; load it, or start anew.")
    adapter = method(head, origin=description["origin"], text=text, **settings)
    if like is not None and (differences := compare_states(adapter, like)):
        raise StateError(
            f"{what} does not match: {'; '.join(differences)}. Use a state of the same kind, or start a new one."
        )
    adapter.restore({name: values for name, values in tensors.items() if not name.startswith(EXPORTS)})
    adapter.seen, adapter.frozen = seen, description["frozen"]
    return adapter, description["notes"]


def read_head(tensors: dict[str, Any], description: dict[str, Any], what: object) -> Head:
    """The head of a state, taken out of its tensors; a description that is not complete is refused."""
    for key, kind in FIELDS.items():
        if not isinstance(description.get(key), kind):
            raise StateError(f"{what} is not a complete state: {key!r} is missing or wrong; it was damaged or edited.")
    try:
        return Head(tensors.pop(VECTORS), **description["head"])
    except (InputError, KeyError, TypeError, ValueError) as error:
        raise StateError(f"{what} holds a head that cannot be used ({error}); it was damaged or edited.") from error


def merge_states(adapters: Iterable[Adapter]) -> Adapter:
    """Combine what several adapters of one kind learnt into a new one; the order of adapters never matters.

    Merging the shards of a stream (stepped with `ids`, the samples' positions) gives the state of the whole stream.

    Raises:
        InputError: they differ in method, settings or head, the method cannot merge, or states that add up share an
            origin, so that samples would count twice.

    Examples:
        >>> import numpy as np
        >>> from acclimate import TDA, Head, merge_states
        >>> head = Head(np.eye(3), logit_scale=10.0)
        >>> shards = [TDA(head, origin="camera 1"), TDA(head, origin="camera 2")]
        >>> for shard in shards:
        ...     _ = shard.step(np.eye(3))
        >>> merge_states(shards).samples_seen
        6
    """
    adapters = list(adapters)
    if not adapters:
        raise InputError("nothing to merge; give at least one adapter.")
    first = adapters[0]
    for other in adapters[1:]:
        if differences := compare_states(other, first):
            raise InputError(f"these adapters cannot be merged: {'; '.join(differences)}.")
    if first.merges is None:
        why = "what it learns depends on the order of the samples"
        if first.kind == "few-shot":
            why = "fit one adapter to all labelled samples instead"
        raise InputError(f"states of {first.name!r} cannot be merged: {why}.")
    origins = Counter(origin for adapter in adapters for origin, count in adapter.seen.items() if count)
    if first.merges == "sum" and (shared := [origin for origin, count in origins.items() if count > 1]):
        raise InputError(
            f"states of {first.name!r} add up, and {origins[shared[0]]} of these hold samples of the origin "
            f"{shared[0]!r}, which would count twice; merge each origin once, and give every stream its own `origin`."
        )
    merged = duplicate(first)
    dumps = {name: [adapter.parts[name].dump() for adapter in adapters] for name in merged.parts}
    for name, part in merged.parts.items():
        part.restore(part.merged(dumps[name]))
    merged.settle()
    merged.seen = {origin: max(adapter.seen.get(origin, 0) for adapter in adapters) for origin in sorted(origins)}
    merged.frozen = all(adapter.frozen for adapter in adapters)
    return merged


def duplicate(adapter: AnyAdapter) -> AnyAdapter:
    """An adapter that knows the same and goes its own way."""
    return copy.deepcopy(adapter, {id(each): each for each in (adapter.head, adapter.text)})


def compare_states(one: Adapter, other: Adapter) -> list[str]:
    """What keeps two adapters' states from being used for one another, in words; empty when nothing does."""
    if one.name != other.name:
        return [f"method {one.name!r} against {other.name!r}"]
    pairs = [(key, value, other.settings[key]) for key, value in one.settings.items()]
    differences = [f"{key} {ours!r} against {theirs!r}" for key, ours, theirs in pairs if ours != theirs]
    return differences + one.head.differences(other.head)
