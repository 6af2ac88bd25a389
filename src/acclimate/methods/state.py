"""Declared parts of an adapter's state: each kind can be cleared, dumped, restored, reindexed and merged."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from acclimate.arrays import Array, HostArray, device, move, namespace, to_host
from acclimate.errors import StateError
from acclimate.evidence import Head
from acclimate.methods.exclusive import Turn

MergeRule = Literal["union", "sum"]
Dump = dict[str, HostArray]
Ids = Sequence[int] | HostArray  # integers that name samples
CLASSES = "classes"  # an axis as long as there are classes
DIM = "dim"  # an axis as long as a feature
LARGEST_ID = 2**53  # JSON and JavaScript hold all whole numbers up to it
PENDING = "waiting."  # prefix of the dumped terms of a sum that do not count yet


class Entry(NamedTuple):
    """A sample that an adapter keeps: its class, its zero-shot entropy in nats, and its id."""

    class_index: int
    entropy: float
    id: int


class State(ABC):
    """One part of what an adapter has learnt.

    Args:
        head: the classifier that the adapter works on; the state lives where it lives.

    Attributes:
        rule: "union" (commutative, associative, idempotent, exact to the bit), "sum" (commutative and associative up
            to rounding; every sample may count once only) or None (no rule).
        capacity: the most samples per class that it keeps as entries; 0 for a kind of state that keeps none.
        turn: lock of the adapter that it belongs to.
    """

    rule: ClassVar[MergeRule | None]
    capacity: int = 0

    def __init__(self, head: Head) -> None:
        self.head = head
        self.turn = Turn()
        self.clear()

    @abstractmethod
    def clear(self) -> None:
        """Forget everything."""

    @abstractmethod
    def dump(self) -> Dump:
        """Return everything as named host arrays; the same learning gives the same arrays."""

    @abstractmethod
    def restore(self, arrays: Mapping[str, HostArray]) -> None:
        """Take over what `dump` gave; arrays that break a rule raise StateError, and nothing changes."""

    @abstractmethod
    def reindexed(self, arrays: Dump, position: HostArray, classes: int) -> Dump:
        """Return a dump for other classes; `position` (old K,) is the new index of each, -1 where it was removed."""

    @abstractmethod
    def merged(self, dumps: Sequence[Dump], start: Dump | None = None) -> Dump:
        """Return one dump of several; their order never matters.

        With `start`, all of them continued from it, and what it holds counts once.
        """

    def move(self, head: Head, position: HostArray) -> None:
        """Follow the head to another device and to other classes; see `reindexed`."""
        arrays = self.reindexed(self.dump(), position, len(head))
        self.head = head
        self.restore(arrays)

    def flush(self) -> None:  # noqa: B027 (most kinds of state have nothing pending)
        """Let everything that was added count from now on."""

    def entries(self) -> list[Entry]:
        """Return the samples it keeps, sorted by class and entropy."""
        return []

    @property
    def next_id(self) -> int:
        """An id above those of all samples that it keeps."""
        return 0

    @staticmethod
    def require(condition: object, rule: str) -> None:
        """Raise StateError unless a rule for dumped arrays holds."""
        if not condition:
            raise StateError(
                f"the state breaks a rule: {rule}; it was damaged or edited, or another version wrote it. Use another "
                "copy."
            )

    def require_entries(self, arrays: Mapping[str, HostArray], fields: Mapping[str, tuple[str, int]]) -> None:
        """Refuse arrays that are not entries: one row each, of these kinds of number and axes, finite, known classes.

        They must hold "keys" (n, d), "classes" and "ids" (n,).
        """
        self.require(arrays.keys() == fields.keys(), f"entries must hold {', '.join(fields)}")
        for name, (kind, axes) in fields.items():
            values = arrays[name]
            self.require(
                values.dtype.kind == kind and values.ndim == axes,
                f"{name} must be {'real' if kind == 'f' else 'whole'} numbers of {axes} axes",
            )
            self.require(len(values) == len(arrays["classes"]), f"{name} must have one row per entry")
            self.require(np.isfinite(values).all(), f"{name} must be finite")
        self.require(arrays["keys"].shape[1] == self.head.dim, f"keys must have {self.head.dim} columns")
        for name, largest in (("classes", len(self.head) - 1), ("ids", LARGEST_ID)):
            self.require(np.all((arrays[name] >= 0) & (arrays[name] <= largest)), f"{name} must be from 0 to {largest}")


class Tensors(State):
    """Arrays by name that depend on the order of the samples, and so have no merge rule.

    They start at zero, as does what is learnt of a new class. A method that can merge computes them again from its
    other parts when the merged state is flushed.

    Args:
        head: see `State`.
        dtype: dtype of all arrays; the head's if not given.
        **axes: name of each array and its axes: CLASSES, DIM or a number.

    Examples:
        >>> import numpy as np
        >>> from acclimate import Head
        >>> tensors = Tensors(Head(np.eye(2), logit_scale=1.0), shift=(CLASSES, DIM))
        >>> tensors["shift"][0] += 1.0
        >>> tensors["shift"]
        array([[1., 1.],
               [0., 0.]])
    """

    rule: ClassVar[MergeRule | None] = None

    def __init__(self, head: Head, *, dtype: str | None = None, **axes: tuple[str | int, ...]) -> None:
        self.dtype = dtype
        self.axes = axes
        super().__init__(head)

    def __getitem__(self, name: str) -> Array:
        """Return an array, to read or to change in place."""
        return self._values[name]

    @property
    def names(self) -> list[str]:
        """Names of the arrays that are always there."""
        return [name for name in self.axes if not name.startswith(PENDING)]

    def clear(self) -> None:
        """Set every array to zero."""
        like = self.head.class_vectors
        xp = namespace(like)
        dtype = getattr(xp, self.dtype) if self.dtype else like.dtype
        self._values = {name: xp.zeros(self._shape(name), dtype=dtype, device=device(like)) for name in self.names}

    def dump(self) -> Dump:
        """Return every array that is there."""
        return {name: to_host(self[name]).copy() for name in self.axes if name in self._values}

    def restore(self, arrays: Mapping[str, HostArray]) -> None:
        """Take over dumped arrays."""
        self.require(
            set(self.names) <= arrays.keys() <= self.axes.keys(), f"it must hold the arrays {', '.join(self.names)}"
        )
        for name, values in arrays.items():
            shape = self._shape(name)
            fits = values.dtype.kind == "f" if self.dtype is None else values.dtype == self.dtype
            self.require(fits and values.shape == shape, f"{name} must be {self.dtype or 'real numbers'} {shape}")
            self.require(np.isfinite(values).all(), f"{name} must be finite")
        self.clear()
        like = next(iter(self._values.values()))
        self._values = {name: move(values.copy(), like) for name, values in arrays.items()}

    def reindexed(self, arrays: Dump, position: HostArray, classes: int) -> Dump:
        """Keep what belongs to the classes that remain; new classes have zeros."""
        moved = dict(arrays)
        kept = position >= 0
        for name in arrays:
            for axis, length in enumerate(self.axes[name]):
                if length == CLASSES:
                    old = np.moveaxis(moved[name], axis, 0)
                    new = np.zeros((classes, *old.shape[1:]), old.dtype)
                    new[position[kept]] = old[kept]
                    moved[name] = np.ascontiguousarray(np.moveaxis(new, 0, axis))
        return moved

    def merged(self, dumps: Sequence[Dump], start: Dump | None = None) -> Dump:
        """Return zeros: what they were is lost; see the class. One dump alone stays as it is."""
        return dumps[0] if len(dumps) == 1 else {name: np.zeros_like(values) for name, values in dumps[0].items()}

    def _shape(self, name: str) -> tuple[int, ...]:
        sizes: dict[str | int, int] = {CLASSES: len(self.head), DIM: self.head.dim}
        return tuple(sizes.get(axis, axis) for axis in self.axes[name])  # type: ignore[arg-type]


class Sums(Tensors):
    """Running sums by name, which merge by addition.

    What is added is pending until `flush`, so that a method can use the same sums for a whole block of the stream.

    Args:
        head: see `State`.
        dtype: float64 if not given, as a sum over a million samples needs more digits than its terms; None for the
            head's, to halve large sums.
        **axes: name of each sum and its axes: CLASSES, DIM or a number. Pending terms are dumped as "waiting.NAME".

    Examples:
        >>> import numpy as np
        >>> from acclimate import Head
        >>> sums = Sums(Head(np.eye(2), logit_scale=1.0), counts=(CLASSES,))
        >>> sums.add(counts=np.array([0.25, 0.75]))
        >>> sums["counts"]
        array([0., 0.])
        >>> sums.flush()
        >>> sums["counts"]
        array([0.25, 0.75])
    """

    rule = "sum"

    def __init__(self, head: Head, *, dtype: str | None = "float64", **axes: tuple[str | int, ...]) -> None:
        every: dict[str, Any] = axes | {f"{PENDING}{name}": each for name, each in axes.items()}
        super().__init__(head, dtype=dtype, **every)

    @property
    def pending(self) -> list[str]:
        """Names of the sums to which something was added that does not count yet."""
        return [name for name in self.names if f"{PENDING}{name}" in self._values]

    def total(self, name: str) -> Array:
        """Return a sum with its pending terms."""
        return self[name] + self._values.get(f"{PENDING}{name}", 0.0)

    def add(self, **terms: Array) -> None:
        """Add terms to the sums of these names; they count after the next `flush`."""
        for name, term in terms.items():
            key = f"{PENDING}{name}"
            if key in self._values:
                self._values[key] += term
            else:
                self._values[key] = namespace(term).astype(term, self[name].dtype, copy=True)

    def flush(self) -> None:
        """Let everything that was added count from now on."""
        for name in self.pending:
            self._values[name] = self[name] + self._values.pop(f"{PENDING}{name}")

    def merged(self, dumps: Sequence[Dump], start: Dump | None = None) -> Dump:
        """Add the sums up; with `start`, add to it what each has added to it since, pending or not."""
        if start is None:
            there = [name for name in self.axes if any(name in dump for dump in dumps)]
            return {name: np.sum([dump[name] for dump in dumps if name in dump], axis=0) for name in there}

        def total(dump: Dump, name: str) -> HostArray:
            return np.asarray(dump[name].astype(np.float64) + dump.get(f"{PENDING}{name}", 0.0))

        sums = {}
        for name in self.names:
            before = total(start, name)
            # Not n sums less n - 1 starts, which would cost digits.
            merged = sum((total(dump, name) - before for dump in dumps), before)
            sums[name] = merged.astype(start[name].dtype)
        return sums
