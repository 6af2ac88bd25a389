"""What an adapter is: the protocol every method fills in, and the registry that finds a method by name.

A method is one file: a frozen dataclass of settings and a subclass of `Adapter` that implements `respond`, and, where
it keeps state, `clear`, `dump`, `restore`, `reindex` and `absorb`. `acclimate.checks.check_adapter` says whether it
keeps the library's laws.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from math import isfinite
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from acclimate.arrays import Array, HostArray, as_floats, index, is_array_api_obj, move, namespace, unit_rows
from acclimate.errors import InputError
from acclimate.evidence import Evidence, observe_unit, observe_unit_views

# Logits computed at once, where that makes 256 to 1024 samples: enough to fill the matrix products and to hide the cost
# of each call on a GPU, few enough to stay in the CPU's cache and to bound memory at 20,000 classes.
BLOCK_LOGITS = 2**20


@dataclass(frozen=True)
class NoSettings:
    """Settings of a method that has none."""


class Change(NamedTuple):
    """What the last batch did to a cache.

    Attributes:
        admitted: places in the batch of the samples that entered, also of those that a later one pushed out again.
        dropped: ids of the entries that were pushed out.
    """

    admitted: list[int]
    dropped: list[int]


class Adapter(ABC):
    """A classifier over fixed class vectors that may learn from the samples it is shown.

    The adapter lives where its class vectors live (namespace, device; float32 at least). Features from elsewhere are
    brought there, and answers go back to the caller's namespace, device and dtype.

    Args:
        class_vectors: (K, d) text features of the classes; scaled to unit rows here.
        logit_scale: the model's own, for instance 100 for OpenAI's CLIP.
        logit_bias: the model's own; 0 for models without one.
        class_names: K distinct names; "0", "1", ... when not given.
        origin: name of the stream this adapter sees. When adapters are merged, the counts of samples of different
            origins add up.
        **settings: fields of the method's `Config`.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    Config: ClassVar[type[Any]] = NoSettings
    mergeable: ClassVar[bool] = False

    def __init__(
        self,
        class_vectors: Array,
        *,
        logit_scale: float,
        logit_bias: float = 0.0,
        class_names: Sequence[str] | None = None,
        origin: str = "",
        **settings: Any,
    ) -> None:
        self.class_vectors = _class_vectors(class_vectors)
        self.logit_scale, self.logit_bias = float(logit_scale), float(logit_bias)
        if not (isfinite(self.logit_scale) and self.logit_scale > 0 and isfinite(self.logit_bias)):
            raise InputError(
                f"logit_scale must be a positive number and logit_bias a number, got {logit_scale} and {logit_bias}; "
                "take both from the model (OpenAI's CLIP: 100 and 0)."
            )
        count = self.class_vectors.shape[0]
        self.class_names = _class_names([str(i) for i in range(count)] if class_names is None else class_names, count)
        self.config = configure(type(self), settings)
        self.origin = origin
        self.seen: dict[
            str, int
        ] = {}  # origin -> samples learnt from; merged by maximum, so merging twice is merging once
        self.frozen = False
        self.changes: dict[str, Change] = {}  # cache -> what the last batch did to it, for methods with caches

    @property
    def dim(self) -> int:
        """Length of a feature."""
        return int(self.class_vectors.shape[1])

    @property
    def samples_seen(self) -> int:
        """Number of samples learnt from."""
        return sum(self.seen.values())

    def step(self, features: Array, ids: Sequence[int] | HostArray | None = None) -> Array:
        """Classify samples in order, learning from each; any way to cut a stream into steps gives the same answers.

        Args:
            features: (n, d), or (n, V, d) for V views a sample; any length, scaled to unit rows here.
            ids: (n,) distinct integers that name the samples for good, for instance their positions in a stream that
                is adapted in shards; the running count when not given.

        Returns:
            (n, K) adapted logits in the caller's namespace, device and dtype.
        """
        floats = as_floats(features, "features")
        self._check_shape(floats)
        if ids is not None:
            ids = np.asarray(ids)
            if ids.dtype.kind not in "iu" or ids.shape != floats.shape[:1]:
                raise InputError(
                    f"ids must be one integer a sample: {len(floats)} samples, {ids.dtype} ids {ids.shape}."
                )
        unit = unit_rows(move(floats, self.class_vectors), "features")
        look, views = (observe_unit, 1) if unit.ndim == 2 else (observe_unit_views, unit.shape[1])
        size = max(1, min(1024, max(256, BLOCK_LOGITS // len(self.class_names))) // views)
        answers = []
        for start in range(0, unit.shape[0], size):
            block = slice(start, start + size)
            evidence = look(unit[block], self.class_vectors, self.logit_scale, self.logit_bias)
            answers.append(self.adapt(evidence, None if ids is None else ids[block]))
        logits = answers[0] if len(answers) == 1 else namespace(unit).concat(answers)
        return move(logits, features if is_array_api_obj(features) else floats)

    def adapt(self, evidence: Evidence, ids: Sequence[int] | HostArray | None = None) -> Array:
        """Adapted logits (B, K) for evidence that was already taken, for instance by `observe_views`."""
        count = evidence.logits.shape[0]
        first = self.samples_seen
        host_ids = np.arange(first, first + count) if ids is None else np.asarray(ids, dtype=np.int64)
        logits = self.respond(evidence, host_ids, learn=not self.frozen)
        if not self.frozen:
            self.seen[self.origin] = self.seen.get(self.origin, 0) + count
        return logits

    def freeze(self) -> None:
        """Answer from what was learnt so far, and learn nothing more."""
        self.frozen = True

    def unfreeze(self) -> None:
        """Learn again."""
        self.frozen = False

    def reset(self) -> None:
        """Forget everything learnt; the adapter is as new."""
        self.clear()
        self.seen = {}
        self.frozen = False

    def add_classes(self, class_vectors: Array, class_names: Sequence[str]) -> None:
        """Append classes; what was learnt of the others stays.

        Args:
            class_vectors: (N, d) text features of the new classes.
            class_names: N names that the adapter does not have yet.
        """
        new = move(_class_vectors(class_vectors), self.class_vectors)
        if new.shape[1] != self.dim:
            raise InputError(f"the new class vectors have dim {new.shape[1]}, the adapter {self.dim}.")
        names = _class_names([*self.class_names, *class_names], len(self.class_names) + new.shape[0])
        position = np.arange(len(self.class_names))
        self.class_vectors = namespace(new).concat([self.class_vectors, new])
        self.class_names = names
        self.reindex(position)

    def remove_classes(self, class_names: Iterable[str]) -> None:
        """Remove classes and what was learnt of them; the others keep their entries."""
        gone = set(class_names)
        unknown = sorted(gone.difference(self.class_names))
        if unknown:
            raise InputError(f"no class named {unknown[0]!r} to remove; {_nearest(unknown[0], self.class_names)}")
        kept = np.array([name not in gone for name in self.class_names])
        if not kept.any():
            raise InputError("removing every class would leave nothing to choose from; keep at least one.")
        position = np.where(kept, np.cumsum(kept) - 1, -1)
        self.class_vectors = self.class_vectors[index(np.flatnonzero(kept), self.class_vectors)]
        self.class_names = tuple(name for name in self.class_names if name not in gone)
        self.reindex(position)

    @abstractmethod
    def respond(self, evidence: Evidence, ids: HostArray, learn: bool) -> Array:
        """Answer evidence for B samples as if they came one by one: (B, K) logits.

        State may change only if `learn`, and only once nothing can fail any more.
        """

    def clear(self) -> None:  # noqa: B027 (a method without state has nothing to do in these hooks)
        """Forget what was learnt."""

    def dump(self) -> dict[str, HostArray]:
        """What was learnt, as named host arrays; the same learning gives the same arrays."""
        return {}

    def restore(self, tensors: Mapping[str, HostArray]) -> None:  # noqa: B027
        """Take over what `dump` gave."""

    def reindex(self, position: HostArray) -> None:  # noqa: B027
        """Follow a change of classes: `position` (old K,) holds each old class's new index, -1 where removed."""

    def absorb(self, others: Sequence["Adapter"]) -> None:
        """Merge what others learnt into this adapter (methods with `mergeable = True`)."""
        raise InputError(f"states of {self.name!r} cannot be merged: what it learns depends on the order of samples.")

    def __repr__(self) -> str:
        settings = ", ".join(f"{key}={value!r}" for key, value in asdict(self.config).items())
        state = f"classes={len(self.class_names)}, dim={self.dim}, samples_seen={self.samples_seen}"
        return f"{type(self).__name__}({state}{', frozen' if self.frozen else ''}{', ' + settings if settings else ''})"

    def _check_shape(self, features: Array) -> None:
        shape = tuple(features.shape)
        if len(shape) not in (2, 3):
            hint = " Put one sample in a batch of one: features[None]." if len(shape) == 1 else ""
            raise InputError(f"features must be (samples, dim) or (samples, views, dim), got shape {shape}.{hint}")
        if shape[-1] != self.dim:
            hint = " Were they given transposed?" if shape[0] == self.dim else " Were they made by another model?"
            raise InputError(f"features have dim {shape[-1]}, the class vectors {self.dim}.{hint}")
        if 0 in shape:
            raise InputError(f"no samples: features have shape {shape}.")


AnyAdapter = TypeVar("AnyAdapter", bound=type[Adapter])
_REGISTRY: dict[str, type[Adapter]] = {}


def register(method: AnyAdapter) -> AnyAdapter:
    """Class decorator: make a method known by its name to `create`, `load` and the command line."""
    _REGISTRY[method.name] = method
    return method


def list_methods() -> dict[str, type[Adapter]]:
    """Every known method by name."""
    return dict(sorted(_REGISTRY.items()))


def find(name: str) -> type[Adapter]:
    """The method of that name."""
    if name not in _REGISTRY:
        raise InputError(f"unknown method {name!r}; {_nearest(name, list_methods())}")
    return _REGISTRY[name]


def create(name: str, class_vectors: Array, **arguments: Any) -> Adapter:
    """Make an adapter by its method's name; arguments as for `Adapter` and the method's settings."""
    return find(name)(class_vectors, **arguments)


def configure(method: type[Adapter], settings: Mapping[str, Any]) -> Any:
    """Build a method's settings; an unknown name or a value of the wrong type is an error."""
    defaults = {field.name: field.default for field in fields(method.Config)}
    for key, value in settings.items():
        if key not in defaults:
            raise InputError(f"{method.name!r} has no setting {key!r}; {_nearest(key, defaults)}")
        kind = type(defaults[key])
        fits = type(value) is kind or (kind is float and type(value) is int)
        if not fits or (kind is float and not isfinite(value)):
            raise InputError(f"{key} must be of the kind of its default, {defaults[key]!r}, got {value!r}.")
    return method.Config(**settings)


def _nearest(word: str, known: Iterable[str]) -> str:
    known = list(known)
    near = get_close_matches(word, known, n=3)
    if near:
        return "did you mean " + " or ".join(repr(name) for name in near) + "?"
    return f"there are: {', '.join(known[:20]) or 'none'}."


def _class_vectors(class_vectors: Array) -> Array:
    vectors = as_floats(class_vectors, "class vectors")
    if vectors.ndim != 2 or 0 in vectors.shape:
        raise InputError(f"class vectors must be (classes, dim) with at least one class, got {tuple(vectors.shape)}.")
    return unit_rows(vectors, "class vectors")


def _class_names(names: Sequence[str], count: int) -> tuple[str, ...]:
    names = tuple(names)
    if len(names) != count:
        raise InputError(f"{len(names)} class names for {count} class vectors; give one name a vector.")
    twice = {name for name in names if names.count(name) > 1} if len(set(names)) < count else ()
    if twice:
        raise InputError(f"class names must differ; {sorted(twice)[0]!r} comes more than once.")
    return names
