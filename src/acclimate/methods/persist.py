"""Files of the states of adapters: saving, loading and comparing them."""

import copy
import os
from collections.abc import Mapping
from typing import Any, TypeVar

from acclimate.errors import InputError, StateError
from acclimate.evidence import Head
from acclimate.files import parse_snapshot, read_snapshot, snapshot_bytes, write_atomically, writing
from acclimate.methods.adapter import Adapter, check_settings
from acclimate.methods.registry import find_method, given_to
from acclimate.methods.state import LARGEST_ID

HEAD = ("class_vectors", "kinds")  # tensors of the head; the others are those of the parts of a state
AnyAdapter = TypeVar("AnyAdapter", bound=Adapter)
# The fields of the description of a state, and their types
FIELDS = {
    "method": str,
    "settings": dict,
    "head": dict,
    "origin": str,
    "seen": dict,
    "frozen": bool,
    "encoder": str,  # its fingerprint, where a method needs the text tower
    "notes": dict,
}
MAX_ORIGINS = 10_000  # streams that a state may have been merged of


def save_state(adapter: Adapter, path: str | os.PathLike[str], notes: Mapping[str, Any] | None = None) -> None:
    """Write everything an adapter is to a file; a crash leaves the old file or the new one.

    Args:
        adapter: the adapter to save.
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
    """Return the content of the file that `save_state` would write.

    Examples:
        >>> import numpy as np
        >>> from acclimate import TDA, Head, state_from_bytes, state_to_bytes
        >>> state_from_bytes(state_to_bytes(TDA(Head(np.eye(3), logit_scale=10.0)))).name
        'tda'
    """
    with adapter.turn:
        tensors, about_head = adapter.head.to_file()
        tensors |= adapter.dump()
        seen = dict(adapter.seen)
    description = {
        "method": adapter.name,
        "settings": adapter.settings,
        "head": about_head,
        "origin": adapter.origin,
        "seen": seen,
        "frozen": adapter.frozen,
        "encoder": getattr(adapter.given.get("encoder"), "fingerprint", ""),
        "notes": dict(notes or {}),
    }
    check_description(description, "the state")  # what cannot be read again must not be written
    return snapshot_bytes(tensors, description)


def load_state(path: str | os.PathLike[str], like: Adapter | None = None, encoder: Any = None) -> Adapter:
    """Read an adapter from a file; it continues exactly where the saved one stood.

    Args:
        path: a file that `save_state` wrote.
        like: an adapter that the state must match: same method, settings and head. The loaded one lives where it lives;
            without it, on NumPy. Its class need not be registered.
        encoder: the model, for methods that need its text tower; that of `like` if not given.

    Raises:
        StateError: the file is not a state, is damaged, or does not match `like`; the message says what differs.

    Examples:
        >>> load_state("nowhere.safetensors")
        Traceback (most recent call last):
        acclimate.errors.StateError: no state file at nowhere.safetensors.
    """
    return load_with_notes(path, like, encoder)[0]


def load_with_notes(
    path: str | os.PathLike[str], like: Adapter | None = None, encoder: Any = None
) -> tuple[Adapter, dict[str, Any]]:
    """Read an adapter as `load_state` does, and the notes that were saved with it."""
    return build_adapter(*read_snapshot(path), path, like, encoder)


def state_from_bytes(content: bytes, like: Adapter | None = None) -> Adapter:
    """Read an adapter from the content of a file, as `load_state` does.

    Examples:
        >>> state_from_bytes(b"not a state")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        acclimate.errors.StateError: the state cannot be read as a state: it is truncated, damaged or foreign (...).
    """
    return build_adapter(*parse_snapshot(content), "the state", like)[0]


def build_adapter(
    tensors: Mapping[str, Any],
    description: Mapping[str, Any],
    what: object,
    like: Adapter | None = None,
    encoder: Any = None,
) -> tuple[Adapter, dict[str, Any]]:
    """Make an adapter from the tensors and the description of a state file; see `load_state` for the rest."""
    head = read_head(tensors, description, what)
    name = description["method"]
    try:
        method = type(like) if like is not None and like.name == name else find_method(name)
        settings = method.default_settings() | check_settings(method, description["settings"])
    except InputError as error:
        raise StateError(f"{what} was written with something this acclimate does not have: {error}") from error
    if like is not None:
        if differences := compare_states(name, settings, head, like):
            raise StateError(
                f"{what} does not match: {'; '.join(differences)}. Use a state of the same kind, or start a new one."
            )
        head = head.to(like.head.class_vectors)
    given = given_to(method, encoder or (like and like.given.get("encoder")))
    fingerprints = {description["encoder"], *(each.fingerprint for each in given.values())} - {""}
    if len(fingerprints) > 1:
        raise StateError(f"{what} was made with another model, and {name!r} needs that one; load it, or start anew.")
    try:
        adapter = method(head, origin=description["origin"], **given, **settings)
    except InputError as error:
        raise StateError(f"{what} has settings that cannot be used: {error}") from error
    adapter.seen = dict(description["seen"])
    try:
        adapter.restore({key: values for key, values in tensors.items() if key not in HEAD})
    except StateError as error:  # the parts of a state do not know where it comes from
        raise StateError(str(error).replace("the state", str(what), 1)) from error
    except (ArithmeticError, LookupError, ValueError) as error:
        raise StateError(f"{what} holds values that no stream can lead to ({error}); use another copy.") from error
    adapter.frozen = description["frozen"]
    return adapter, description["notes"]


def read_head(tensors: Mapping[str, Any], description: Mapping[str, Any], what: object) -> Head:
    """Return the head of a state; a description that is not complete is refused."""
    check_description(description, what)
    return Head.from_file(tensors, description["head"], what)


def check_description(description: Mapping[str, Any], what: object) -> None:
    """Refuse a description with fields that are missing, unknown or out of bounds."""
    wrong = [key for key, kind in FIELDS.items() if not isinstance(description.get(key), kind)]
    wrong += sorted(description.keys() - FIELDS.keys())
    if wrong:
        raise StateError(
            f"{what} is not a complete state: {wrong[0][:80]!r} is missing or wrong; it was damaged or edited."
        )
    seen = description["seen"]
    if len(seen) > MAX_ORIGINS:
        raise StateError(f"{what} was merged of {len(seen)} streams; {MAX_ORIGINS} is the most.")
    if not all(type(count) is int and count >= 0 for count in seen.values()) or sum(seen.values()) > LARGEST_ID:
        raise StateError(f"{what} is not a complete state: 'seen' must hold counts; it was damaged or edited.")


def duplicate(adapter: AnyAdapter) -> AnyAdapter:
    """Return an independent copy of an adapter."""
    return copy.deepcopy(adapter)


def compare_states(name: str, settings: Mapping[str, Any], head: Head, other: Adapter) -> list[str]:
    """Return what keeps a method's state and an adapter's from being used for one another, in words."""
    if name != other.name:
        return [f"method {name!r} against {other.name!r}"]
    theirs = other.settings
    differing = [key for key, value in settings.items() if value != theirs[key]]
    words = [f"{key} {settings[key]!r:.80} against {theirs[key]!r:.80}" for key in differing]
    return words + head.differences(other.head)
