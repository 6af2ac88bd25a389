"""What an adapter has learnt, as declared parts: each kind of state knows how to dump, restore, reindex and merge."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from acclimate.arrays import Array, HostArray, device, namespace, to_host
from acclimate.errors import StateError
from acclimate.evidence import Head

MergeRule = Literal["union", "sum"]
Dump = dict[str, HostArray]
CLASSES, DIM = "classes", "dim"  # axes of sums: as long as there are classes, as long as a feature


class Entry(NamedTuple):
    """A sample that an adapter keeps: its class, its zero-shot entropy in nats, and its id."""

    class_index: int
    entropy: float
    id: int


class State(ABC):
    """One part of what an adapter has learnt. A kind of state fills in `clear`, `dump`, `restore` and two rules.

    Args:
        head: the classifier that the adapter works on; the state lives where it lives.

    Attributes:
        rule: "union" (commutative, associative, idempotent, exact to the bit) or "sum" (commutative and associative up
            to rounding; every sample may count once only).
        capacity: the most samples per class that it keeps as entries; 0 for a kind of state that keeps none.
    """

    rule: ClassVar[MergeRule]
    capacity: int = 0

    def __init__(self, head: Head) -> None:
        self.head = head
        self.clear()

    @abstractmethod
    def clear(self) -> None:
        """Forget everything."""

    @abstractmethod
    def dump(self) -> Dump:
        """Everything as named host arrays; the same learning gives the same arrays."""

    @abstractmethod
    def restore(self, arrays: Mapping[str, HostArray]) -> None:
        """Take over what `dump` gave; arrays that break a rule raise StateError, and nothing changes."""

    @abstractmethod
    def reindexed(self, arrays: Dump, position: HostArray, classes: int) -> Dump:
        """A dump for another list of classes; `position` (old K,) is the new index of each, -1 where it was removed."""

    @abstractmethod
    def merged(self, dumps: Sequence[Dump]) -> Dump:
        """One dump of several; their order never matters."""

    def move(self, head: Head, position: HostArray | None = None) -> None:
        """Follow the head to another device, or with `position` (see `reindexed`) to other classes."""
        arrays = self.dump()
        if position is not None:
            arrays = self.reindexed(arrays, position, len(head))
        self.head = head
        self.restore(arrays)

    def settle(self) -> None:  # noqa: B027 (most kinds of state have nothing that waits)
        """Let everything that was added count from now on."""

    def entries(self) -> list[Entry]:
        """The samples it keeps, sorted by class and entropy."""
        return []

    @staticmethod
    def require(condition: object, rule: str) -> None:
        """Refuse arrays that break a rule."""
        if not condition:
            raise StateError(f"the state breaks a rule: {rule}; it was damaged or edited. Use another copy.")


class Sums(State):
    """Running sums by name, which merge by addition.

    What is added waits until `settle`, so that a method can use the same sums for a whole block of the stream. Sums are
    kept in float64: a sum over a million samples needs more digits than its terms.

    Args:
        head: see `State`.
        **axes: name of each sum and its axes: CLASSES, DIM or a number.

    Examples:
        >>> import numpy as np
        >>> from acclimate import Head
        >>> sums = Sums(Head(np.eye(2), logit_scale=1.0), counts=(CLASSES,))
        >>> sums.add(counts=np.array([0.25, 0.75]))
        >>> sums["counts"]
        array([0., 0.])
        >>> sums.settle()
        >>> sums["counts"]
        array([0.25, 0.75])
    """

    rule = "sum"

    def __init__(self, head: Head, **axes: tuple[str | int, ...]) -> None:
        self.axes = axes
        self._settled: dict[str, Array] = {}
        self._waiting: dict[str, Array] = {}
        super().__init__(head)

    def __getitem__(self, name: str) -> Array:
        """A sum as it was settled last."""
        return self._settled[name]

    def total(self, name: str) -> HostArray:
        """A sum with what was not settled yet, on the host."""
        return to_host(self._settled[name] + self._waiting[name])

    def add(self, **terms: Array) -> None:
        """Add terms to the sums of these names; they count after the next `settle`."""
        for name, term in terms.items():
            self._waiting[name] = self._waiting[name] + term

    def settle(self) -> None:
        """Let everything that was added count from now on."""
        self._settled = {name: values + self._waiting[name] for name, values in self._settled.items()}
        self._waiting = self._zeros()

    def clear(self) -> None:
        """Set every sum to zero."""
        self._settled, self._waiting = self._zeros(), self._zeros()

    def dump(self) -> Dump:
        """Every sum, and under "waiting.NAME" what was not settled yet."""
        settled = {name: to_host(values).copy() for name, values in self._settled.items()}
        return settled | {f"waiting.{name}": to_host(values).copy() for name, values in self._waiting.items()}

    def restore(self, arrays: Mapping[str, HostArray]) -> None:
        """Take over dumped sums."""
        names = {*self.axes, *(f"waiting.{name}" for name in self.axes)}
        self.require(set(arrays) == names, f"it must hold the sums {', '.join(sorted(names))}")
        for name, values in arrays.items():
            shape = self._shape(name.removeprefix("waiting."))
            self.require(values.dtype == np.float64 and values.shape == shape, f"{name} must be float64 {shape}")
            self.require(np.isfinite(values).all(), f"{name} must be finite")
        xp, where = namespace(self.head.class_vectors), device(self.head.class_vectors)
        here = {name: xp.asarray(values, device=where, copy=True) for name, values in arrays.items()}
        self._settled = {name: here[name] for name in self.axes}
        self._waiting = {name: here[f"waiting.{name}"] for name in self.axes}

    def reindexed(self, arrays: Dump, position: HostArray, classes: int) -> Dump:
        """Keep the rows of the classes that remain; new classes have zeros."""
        moved = dict(arrays)
        for name, values in arrays.items():
            if self.axes[name.removeprefix("waiting.")][0] == CLASSES:
                moved[name] = np.zeros((classes, *values.shape[1:]))
                moved[name][position[position >= 0]] = values[position >= 0]
        return moved

    def merged(self, dumps: Sequence[Dump]) -> Dump:
        """Add the sums up."""
        return {name: np.sum([dump[name] for dump in dumps], axis=0) for name in dumps[0]}

    def _zeros(self) -> dict[str, Array]:
        like = self.head.class_vectors
        xp = namespace(like)
        return {name: xp.zeros(self._shape(name), dtype=xp.float64, device=device(like)) for name in self.axes}

    def _shape(self, name: str) -> tuple[int, ...]:
        sizes: dict[str | int, int] = {CLASSES: len(self.head), DIM: self.head.dim}
        return tuple(sizes.get(axis, axis) for axis in self.axes[name])  # type: ignore[arg-type]
