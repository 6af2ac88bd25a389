"""Save, load and compare the states of adapters."""

import copy
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from acclimate.arrays import Array, device, namespace, to_host
from acclimate.errors import LONGEST_TEXT, InputError, StateError
from acclimate.evidence import Head
from acclimate.files import EXPORTS, parse_snapshot, read_snapshot, snapshot_bytes, write_atomically, writing
from acclimate.methods.adapter import CORRECTIONS, Adapter
from acclimate.methods.registry import find_method
from acclimate.methods.settings import check_settings, require
from acclimate.methods.state import LARGEST_ID, State

VECTORS = "class_vectors"
AnyAdapter = TypeVar("AnyAdapter", bound=Adapter)
# what the description of a state holds
FIELDS = {"method": str, "settings": dict, "head": dict, "origin": str, "seen": dict, "frozen": bool, "notes": dict}
ENCODER = "encoder"  # fingerprint of the model, for methods that need its text tower; older states have none
MOST_ORIGINS = 10_000  # streams that a state was merged of
MOST_SEEN = LARGEST_ID // 4 * 3  # samples of a state that is loaded: what it becomes can be written and loaded
REHEARSED = 8  # samples that a copy of a loaded adapter answers and learns


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
        ENCODER: getattr(adapter.text, "fingerprint", ""),
        "notes": dict(notes or {}),
    }
    check_description(description, "the state")  # what cannot be read again must not be written
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
    tensors: Mapping[str, Any],
    description: Mapping[str, Any],
    what: object,
    like: Adapter | None = None,
    text: Any = None,
) -> tuple[Adapter, dict[str, Any]]:
    """An adapter from what a state file says.

    The description is checked first, then sizes, and only then is an adapter made. What it takes over is exactly what
    it would write again.
    """
    head = read_head(tensors, description, what)
    arrays = {key: values for key, values in tensors.items() if key != VECTORS}
    name = description["method"]
    seen = description["seen"]
    if sum(seen.values()) > MOST_SEEN:
        raise StateError(f"{what} leaves no room for more samples; use another.")
    try:
        method = type(like) if like is not None and like.name == name else find_method(name)
        settings = method.default_settings() | check_settings(method, description["settings"])
    except InputError as error:
        raise StateError(f"{what} was written with something this acclimate does not have: {error}") from error
    if like is not None and (differences := _differences(name, settings, head, like)):
        raise StateError(
            f"{what} does not match: {'; '.join(differences)}. Use a state of the same kind, or start a new one."
        )
    needs_text = "text" in method.needs
    text = (text or (like and like.text)) if needs_text else None
    if needs_text and text is None:
        require(method, views=True, labels=True)
    made_with = description.get(ENCODER, "")
    given = getattr(text, "fingerprint", "")
    if made_with and given and made_with != given:
        raise StateError(f"{what} was made with another model, and {name!r} needs that one; load it, or start anew.")
    with np.errstate(all="ignore"), _naming(what):  # what becomes of numbers that are too large is checked
        try:
            if not needs_text:  # what a part of this size allocates must be in the file
                small = method(Head(np.eye(2), logit_scale=1.0), **settings)
                for key, dump in small.by_part(_without_exports(arrays)).items():
                    small.parts[key].check_sizes(dump, len(head), head.dim)
            adapter = method(head, origin=description["origin"], text=text, **settings)
        except InputError as error:
            raise StateError(f"{what} has settings that cannot be used: {error}") from error
        try:
            _take_over(adapter, arrays, seen)
            if like is not None:
                _rehearse(adapter)
        except (InputError, ArithmeticError, LookupError, ValueError) as error:
            raise StateError(f"{what} holds values that no stream can lead to ({error}); use another copy.") from error
    adapter.frozen = description["frozen"]
    if like is not None and _elsewhere(head.class_vectors, like.head.class_vectors):
        adapter.to(like.head.class_vectors)
    return adapter, description["notes"]


def read_head(tensors: Mapping[str, Any], description: Mapping[str, Any], what: object) -> Head:
    """The head of a state; a description that is not complete is refused."""
    check_description(description, what)
    return Head.from_file(tensors.get(VECTORS), description["head"], what)


def check_description(description: Mapping[str, Any], what: object) -> None:
    """Refuse a description with fields that are missing, unknown or out of bounds."""
    wrong = [key for key, kind in FIELDS.items() if not isinstance(description.get(key), kind)]
    wrong += [key for key in description if key not in FIELDS and key != ENCODER]
    wrong += [] if isinstance(description.get(ENCODER, ""), str) else [ENCODER]
    if wrong:
        raise StateError(
            f"{what} is not a complete state: {wrong[0][:80]!r} is missing or wrong; it was damaged or edited."
        )
    seen = description["seen"]
    texts = [
        description["method"],
        description["origin"],
        description.get(ENCODER, ""),
        *description["settings"],
        *seen,
    ]
    if max(map(len, texts)) > LONGEST_TEXT:
        raise StateError(f"{what} is not a complete state: names must have {LONGEST_TEXT} characters at most.")
    if len(seen) > MOST_ORIGINS:
        raise StateError(f"{what} was merged of {len(seen)} streams; {MOST_ORIGINS} is the most.")
    if not all(type(count) is int and count >= 0 for count in seen.values()) or sum(seen.values()) > LARGEST_ID:
        raise StateError(f"{what} is not a complete state: 'seen' must hold counts; it was damaged or edited.")


@contextmanager
def _naming(what: object) -> Iterator[None]:
    """Let errors of the parts of a state, which do not know where it comes from, name `what` it is."""
    try:
        yield
    except StateError as error:
        raise StateError(str(error).replace("the state", str(what), 1)) from error


def _take_over(adapter: Adapter, tensors: Mapping[str, Any], seen: Mapping[str, int]) -> None:
    """Restore the state and compare it with what would be written: nothing may be lost or changed on the way."""
    before = adapter.dump() if adapter.kind == "few-shot" else {}
    adapter.restore(_without_exports(tensors), seen)
    dump = adapter.dump()
    _require_same(tensors, {f"{EXPORTS}{key}": values for key, values in adapter.exports().items()} | dump)
    if adapter.kind == "few-shot" and not adapter.samples_seen:
        told = f"{CORRECTIONS}."  # may be told to an adapter that is not fitted yet
        same = (key.startswith(told) or dump[key].tobytes() == before[key].tobytes() for key in dump)
        State.require(all(same), "'seen' must count the samples it was fitted to")


def _without_exports(tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {key: values for key, values in tensors.items() if not key.startswith(EXPORTS)}


def _require_same(arrays: Mapping[str, Any], again: Mapping[str, Any]) -> None:
    """Refuse arrays that would be written in another form than they were read."""
    for name in sorted(arrays.keys() | again.keys()):
        State.require(name in arrays and name in again, f"{name[:80]} must {'' if name in again else 'not '}be there")
        one = arrays[name]
        other = again[name]
        State.require(one.dtype == other.dtype, f"{name} must be {other.dtype}, not {one.dtype}")
        State.require(one.shape == other.shape, f"{name} must have the shape {other.shape}, not {one.shape}")
        State.require(one.tobytes() == other.tobytes(), f"{name} must be as it is written")


def _rehearse(adapter: Adapter) -> None:
    """Answer and learn some samples with a copy of an adapter: what comes later must not fail."""
    if "text" in adapter.needs or (adapter.kind == "few-shot" and not adapter.seen):
        return  # its answers follow from the text tower, or there are none yet
    copy = duplicate(adapter)
    vectors = adapter.head.class_vectors[:REHEARSED]
    samples = np.stack([vectors, vectors], axis=1) if "views" in adapter.needs else vectors
    evidence = adapter.head.observe(samples)
    answers = [copy.adapt(evidence).logits]
    copy.settle()
    answers.append(copy.adapt(evidence, learn=False).logits)
    State.require(np.isfinite(answers).all(), "answers must be finite")


def _elsewhere(one: Array, other: Array) -> bool:
    """Whether two arrays differ in library, device or dtype."""
    return namespace(one) is not namespace(other) or device(one) != device(other) or one.dtype != other.dtype


def duplicate(adapter: AnyAdapter) -> AnyAdapter:
    """An adapter that knows the same and goes its own way."""
    return copy.deepcopy(adapter, {id(each): each for each in (adapter.head, adapter.text)})


def compare_states(one: Adapter, other: Adapter) -> list[str]:
    """What keeps two adapters' states from being used for one another, in words; empty when nothing does."""
    return _differences(one.name, one.settings, one.head, other)


def _differences(name: str, settings: Mapping[str, Any], head: Head, other: Adapter) -> list[str]:
    """The same for the state of an adapter that is not made yet."""
    if name != other.name:
        return [f"method {name!r} against {other.name!r}"]
    pairs = [(key, value, other.settings[key]) for key, value in settings.items()]
    differences = [f"{key} {ours!r:.80} against {theirs!r:.80}" for key, ours, theirs in pairs if ours != theirs]
    return differences + head.differences(other.head)
