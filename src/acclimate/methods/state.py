"""What an adapter has learnt, as declared parts: each kind of state knows how to dump, restore, reindex and merge."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from acclimate.arrays import Array, HostArray, device, move, namespace, to_host
from acclimate.errors import StateError
from acclimate.evidence import Head

MergeRule = Literal["union", "sum"]
Dump = dict[str, HostArray]
# axes of arrays: as long as there are classes, as long as a feature
CLASSES = "classes"
DIM = "dim"
Range = tuple[float, float]  # lowest and highest value
LARGEST = 1e30  # number in an array; single precision holds its products with features and weights
LARGEST_ID = 2**53  # of a sample, and number of samples: JSON and JavaScript hold all whole numbers up to it
# of sums: relative, and absolute per sample
SLACK = 1.01
ROUNDING = 1e-4
WAITING = "waiting."  # before the name of a sum: what was added to it and does not count yet


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
        rule: "union" (commutative, associative, idempotent, exact to the bit), "sum" (commutative and associative up
            to rounding; every sample may count once only) or None (no rule).
        capacity: the most samples per class that it keeps as entries; 0 for a kind of state that keeps none.
        contradicted: says which of E entries, by their keys (E, d), classes and ids (E,), the adapter's corrections
            contradict: (E,).
    """

    rule: ClassVar[MergeRule | None]
    capacity: int = 0
    contradicted: Callable[[HostArray, HostArray, HostArray], HostArray] = staticmethod(
        lambda keys, classes, ids: np.zeros(len(classes), bool)
    )

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

    def check(self, arrays: Mapping[str, HostArray], samples: int) -> None:  # noqa: B027
        """Refuse dumped arrays that no stream of so many samples can lead to; they have the form that `restore` wants.

        It is for what comes from a file: `restore` protects what it allocates, this what is learnt from then on.
        """

    def check_sizes(self, arrays: Mapping[str, HostArray], classes: int, dim: int) -> None:  # noqa: B027
        """Refuse dumped arrays of another size than a head of so many classes and dimensions has.

        For a state of a small head, before one of this size is made: what that allocates must be in the arrays.
        """

    @abstractmethod
    def reindexed(self, arrays: Dump, position: HostArray, classes: int) -> Dump:
        """A dump for another list of classes; `position` (old K,) is the new index of each, -1 where it was removed."""

    @abstractmethod
    def merged(self, dumps: Sequence[Dump], start: Dump | None = None) -> Dump:
        """One dump of several; their order never matters.

        With `start`, all of them continued from it, and what it holds counts once.
        """

    def move(self, head: Head, position: HostArray | None = None) -> None:
        """Follow the head to another device, or with `position` (see `reindexed`) to other classes."""
        arrays = self.dump()
        if position is not None:
            arrays = self.reindexed(arrays, position, len(head))
        self.head = head
        self.restore(arrays)

    def settle(self) -> None:  # noqa: B027 (most kinds of state have nothing that waits)
        """Let everything that was added count from now on."""

    def review(self) -> None:  # noqa: B027
        """Follow a change of what is `contradicted`."""

    def entries(self) -> list[Entry]:
        """The samples it keeps, sorted by class and entropy."""
        return []

    @property
    def next_id(self) -> int:
        """An id above those of all samples that it keeps."""
        return 0

    @staticmethod
    def require(condition: object, rule: str) -> None:
        """Refuse arrays that break a rule."""
        if not condition:
            why = "it was damaged or edited, or another version wrote it"
            raise StateError(f"the state breaks a rule: {rule}; {why}. Use another copy.")

    @classmethod
    def require_within(cls, values: HostArray, low: float, high: float, name: str) -> None:
        """Refuse values outside a range."""
        within = not values.size or (values.min() >= low and values.max() <= high)
        cls.require(within, f"{name} must be from {low:.6g} to {high:.6g}")

    @classmethod
    def require_unit(cls, rows: HostArray, name: str) -> None:
        """Refuse rows (n, d) that do not have unit length up to rounding, also that of single precision."""
        cls.require_within(np.linalg.norm(rows, axis=1), 0.99, 1.01, f"the lengths of {name}")


class Tensors(State):
    """Arrays by name that depend on the order of the samples, and so have no merge rule.

    They start at zero, as does what is learnt of a new class. A method that can merge computes them again from its
    other parts when the merged state is settled.

    Args:
        head: see `State`.
        dtype: of all arrays; the head's if not given.
        ranges: the lowest and highest value of an array, by its name, where there are any.
        unit: name of an array (CLASSES, DIM) that leads from the class vectors to other unit vectors; "" for none.
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

    def __init__(
        self,
        head: Head,
        *,
        dtype: str | None = None,
        ranges: Mapping[str, Range] | None = None,
        unit: str = "",
        **axes: tuple[str | int, ...],
    ) -> None:
        self.dtype = dtype
        self.ranges = dict(ranges or {})
        self.unit = unit
        self.axes = axes
        super().__init__(head)

    def __getitem__(self, name: str) -> Array:
        """An array, to read or to change in place."""
        return self._values[name]

    @property
    def lasting(self) -> list[str]:
        """Names of the arrays that are always there: all of them, in most kinds of state."""
        return list(self.axes)

    def clear(self) -> None:
        """Set every array to zero."""
        xp = namespace(self.head.class_vectors)
        like = self.head.class_vectors
        dtype = getattr(xp, self.dtype) if self.dtype else like.dtype
        self._values = {name: xp.zeros(self._shape(name), dtype=dtype, device=device(like)) for name in self.lasting}

    def dump(self) -> Dump:
        """Every array that is there."""
        return {name: to_host(self[name]).copy() for name in self.axes if name in self._values}

    def restore(self, arrays: Mapping[str, HostArray]) -> None:
        """Take over dumped arrays."""
        names = ", ".join(self.lasting)
        self.require(set(self.lasting) <= set(arrays) <= set(self.axes), f"it must hold the arrays {names}")
        for name, values in arrays.items():
            shape = self._shape(name)
            numbers = self.dtype or "real numbers"
            fits = values.dtype.kind == "f" if self.dtype is None else values.dtype == self.dtype
            self.require(fits and values.shape == shape, f"{name} must be {numbers} {shape}")
            self.require(np.isfinite(values).all(), f"{name} must be finite")
        self.clear()
        like = next(iter(self._values.values()))
        self._values = {name: move(values.copy(), like) for name, values in arrays.items()}

    def check(self, arrays: Mapping[str, HostArray], samples: int) -> None:
        """Refuse values outside the ranges, and vectors that are not unit."""
        for name, values in arrays.items():
            self.require_within(values, *self.limits(name, samples), name)
        if self.unit:
            self.require_unit(to_host(self.head.class_vectors) + arrays[self.unit], f"class vectors plus {self.unit}")

    def limits(self, name: str, samples: int) -> Range:
        """The lowest and highest value that an array can have after so many samples."""
        return self.ranges.get(name, (-LARGEST, LARGEST))

    def check_sizes(self, arrays: Mapping[str, HostArray], classes: int, dim: int) -> None:
        """Refuse arrays whose axes have other lengths."""
        sizes = {CLASSES: classes, DIM: dim}
        for name in self.lasting:
            wanted = [sizes.get(str(axis)) for axis in self.axes[name]]  # None: the method may derive it from the head
            shape = arrays[name].shape if name in arrays else ()
            fits = len(shape) == len(wanted) and all(
                size in (None, given) for size, given in zip(wanted, shape, strict=False)
            )
            self.require(fits, f"{name} must have the axes {', '.join(map(str, self.axes[name]))}")

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
        """Zeros: what they were is lost; see the class. One dump alone stays as it is."""
        return dumps[0] if len(dumps) == 1 else {name: np.zeros_like(values) for name, values in dumps[0].items()}

    def _shape(self, name: str) -> tuple[int, ...]:
        sizes: dict[str | int, int] = {CLASSES: len(self.head), DIM: self.head.dim}
        return tuple(sizes.get(axis, axis) for axis in self.axes[name])  # type: ignore[arg-type]


class Sums(Tensors):
    """Running sums by name, which merge by addition.

    What is added waits until `settle`, so that a method can use the same sums for a whole block of the stream.

    Args:
        head: see `State`.
        dtype: float64 if not given, as a sum over a million samples needs more digits than its terms; None for the
            head's, to halve large sums.
        ranges: the least and the most that one sample adds to each number of a sum, by its name, where that is known.
        **axes: name of each sum and its axes: CLASSES, DIM or a number. What waits is dumped as "waiting.NAME".

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

    def __init__(
        self,
        head: Head,
        *,
        dtype: str | None = "float64",
        ranges: Mapping[str, Range] | None = None,
        **axes: tuple[str | int, ...],
    ) -> None:
        every: dict[str, Any] = axes | {f"{WAITING}{name}": each for name, each in axes.items()}
        super().__init__(head, dtype=dtype, ranges=ranges, **every)

    @property
    def lasting(self) -> list[str]:
        """Names of the sums; what waits is there only once something was added."""
        return [name for name in self.axes if not name.startswith(WAITING)]

    @property
    def waiting(self) -> list[str]:
        """Names of the sums to which something was added that does not count yet."""
        return [name for name in self.lasting if f"{WAITING}{name}" in self._values]

    def latest(self, name: str) -> Array:
        """A sum with what was not settled yet."""
        return self[name] + self._values.get(f"{WAITING}{name}", 0.0)

    def total(self, name: str) -> HostArray:
        """The same on the host."""
        return to_host(self.latest(name))

    def add(self, **terms: Array) -> None:
        """Add terms to the sums of these names; they count after the next `settle`."""
        for name, term in terms.items():
            key = f"{WAITING}{name}"
            if key in self._values:
                self._values[key] += term
            else:
                self._values[key] = namespace(term).astype(term, self[name].dtype, copy=True)

    def settle(self) -> None:
        """Let everything that was added count from now on."""
        for name in self.waiting:
            self._values[name] = self[name] + self._values.pop(f"{WAITING}{name}")

    def limits(self, name: str, samples: int) -> Range:
        """The lowest and highest value that an array can have after so many samples."""
        if name.removeprefix(WAITING) not in self.ranges:
            return super().limits(name, samples)
        low, high = self.ranges[name.removeprefix(WAITING)]
        return low * SLACK * samples, high * SLACK * samples

    def merged(self, dumps: Sequence[Dump], start: Dump | None = None) -> Dump:
        """Add the sums up; with `start`, add to it what each has added to it since, settled or not."""
        if start is None:
            there = [name for name in self.axes if any(name in dump for dump in dumps)]
            return {name: np.sum([dump[name] for dump in dumps if name in dump], axis=0) for name in there}
        sums = {}
        for name in self.lasting:
            before = _total(start, name)
            total = before.copy()
            for dump in dumps:
                total += _total(dump, name) - before  # not n sums less n - 1 starts, which would cost digits
            sums[name] = total.astype(start[name].dtype)
        return sums


def _total(dump: Dump, name: str) -> HostArray:
    """A dumped sum with what waits, in double precision."""
    total: HostArray = dump[name].astype(np.float64) + dump.get(f"{WAITING}{name}", 0.0)
    return total


class Moments(Sums):
    """Sums of samples with soft labels, from which the means and the covariance of Gaussians follow.

    They are those of the labels, "counts" (K,), of the features by label, "features" (K, d), and of the outer products
    of the features, "outer" (d, d). Features have a length of 1 at most, and the labels of a sample a sum of 1 at most.

    Examples:
        >>> import numpy as np
        >>> from acclimate import Head
        >>> moments = Moments(Head(np.eye(2), logit_scale=1.0))
        >>> {name: moments[name].shape for name in moments.lasting}
        {'counts': (2,), 'features': (2, 2), 'outer': (2, 2)}
    """

    def __init__(self, head: Head) -> None:
        ranges = {"counts": (0.0, 1.0), "features": (-1.0, 1.0), "outer": (-1.0, 1.0)}
        super().__init__(head, ranges=ranges, counts=(CLASSES,), features=(CLASSES, DIM), outer=(DIM, DIM))

    def check(self, arrays: Mapping[str, HostArray], samples: int) -> None:
        """Refuse moments that no samples have: the covariance would not be positive."""
        super().check(arrays, samples)
        for first in ("", WAITING):
            there = [arrays[name] for name in (f"{first}{each}" for each in self.lasting) if name in arrays]
            self.require(len(there) in (0, len(self.lasting)), "what waits must be there for all sums, or for none")
            if not there:
                continue
            counts, features, outer = there
            slack = ROUNDING * max(1, samples)
            within = np.linalg.norm(features, axis=1) <= SLACK * counts + slack
            self.require(within.all(), "features must be at most as long as the counts of their classes")
            self.require(np.abs(outer - outer.T).max() <= slack, "outer must be symmetric")
            rows = features / np.sqrt(np.maximum(counts, slack))[:, None]
            try:
                np.linalg.cholesky(outer - rows.T @ rows + slack * np.eye(len(outer)))
            except np.linalg.LinAlgError:
                self.require(False, "outer must hold the variance of the features")
