"""A cache of samples by class: fixed arrays, read with one matrix product, merged exactly.

An entry is a key (a feature), the class that holds it, its entropy, a stable id, and its *targets*: the classes it
votes on. In TDA's positive cache an entry votes on its own class, in the negative cache on every class in its mask. The
read-out is a sum over targets; no one-hot or mask matrix is ever built.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from acclimate.arrays import Array, HostArray, device, index, move, namespace, to_host
from acclimate.evidence import Head
from acclimate.methods.jagged import Layout, add_by_class, lay_out
from acclimate.methods.schedule import Queued, Queues, Schedule, schedule
from acclimate.methods.state import Dump, Entry, State

# name -> kind of number and number of axes
FIELDS = {"keys": ("f", 2), "classes": ("i", 1), "entropies": ("f", 1), "ids": ("i", 1), "targets": ("i", 2)}


class Cache(State):
    """At most `capacity` entries per class, those of lowest (or highest) entropy.

    Memory grows with the entries held, that is with the classes seen, never with the stream.

    Args:
        head: the keys live where it lives.
        capacity: the most entries per class; None to keep every sample that is offered, for labelled ones.
        highest: keep the highest entropies instead of the lowest.
    """

    rule = "union"

    def __init__(self, head: Head, capacity: int | None, highest: bool = False) -> None:
        self.bounded = capacity is not None
        self.capacity = capacity or 0  # without a bound it grows: the most entries that a class holds
        self.highest = highest
        self._sign = -1.0 if highest else 1.0  # ratio of rank and entropy
        super().__init__(head)

    def clear(self) -> None:
        """Forget every entry."""
        if not self.bounded:
            self.capacity = 0
        self.queues: Queues = {}
        self.size = 0
        self._keys = self.head.class_vectors[:0]  # (room, d), rows beyond `size` unused
        self._targets = np.empty((0, 1), np.int32)  # (room, width), padded with -1
        self._layout: Layout | None = None
        # The rank a sample must not exceed to enter its class: that of the last entry of a full queue.
        self._threshold = np.full(len(self.head), np.inf)

    @property
    def keys(self) -> Array:
        """Keys (E, d) of the entries, by slot."""
        return self._keys[: self.size]

    @property
    def targets(self) -> HostArray:
        """The classes (E, width) that the entries vote on, by slot, padded with -1."""
        return self._targets[: self.size]

    @property
    def layout(self) -> Layout:
        """The entries by the classes they vote on, laid out once for several reads."""
        if self._layout is None:
            self._layout = lay_out(self.targets, self._keys)
        return self._layout

    @property
    def classes(self) -> HostArray:
        """The classes (E,) that hold the entries, by slot."""
        classes = np.empty(self.size, np.int32)
        slots = [entry.slot for queue in self.queues.values() for entry in queue]
        classes[slots] = np.repeat(list(self.queues), [len(queue) for queue in self.queues.values()])
        return classes

    def plan(self, offered: HostArray, classes: HostArray, entropies: HostArray, ids: HostArray) -> Schedule:
        """Plan a batch of B samples with these classes, entropies and ids (B,), of which some are offered (B,).

        Nothing changes yet. Newcomers vote on their own class, unless the plan's targets are replaced.
        """
        ranks = -entropies if self.highest else entropies
        offered = offered & (ranks <= self._threshold[classes])  # few, in a long stream
        samples = np.flatnonzero(offered)
        if not len(samples):
            return Schedule()
        columns = (samples, classes[samples], ranks[samples], ids[samples])
        offers = zip(*(column.tolist() for column in columns), strict=True)
        capacity = self.capacity if self.bounded else self.capacity + len(offered)
        plan = schedule(offers, self.queues, capacity, self.size, len(offered))
        plan.targets = classes[plan.samples, None].astype(np.int32)
        return plan

    def vote(
        self,
        votes: Array,
        features: Array,
        plan: Schedule,
        *,
        alpha: float,
        beta: float,
        self_match: bool = True,
    ) -> None:
        """Add to votes (K, B) the sum of `alpha * exp(-beta (1 - f.q))` over the entries q that vote on each class.

        Each entry counts only for the samples between its birth and its death, so the batch is read as if its samples
        had come one by one.

        Args:
            votes: (K, B) contiguous, changed in place. Classes come first so that entries are added row by row.
            features: (B, d) of the batch.
            plan: what the batch does to this cache.
            alpha: weight.
            beta: sharpness.
            self_match: read after the sample's own update; else before it.
        """
        first = 0 if self_match else -1
        last_seen = namespace(features).arange(first, first + features.shape[0], device=device(features))  # (B,)
        if self.size:
            weights = affinities(self.keys, features, beta)
            if plan.evicted:
                deaths = index(list(plan.evicted.values()), features)
                weights[index(list(plan.evicted), features)] *= last_seen < deaths[:, None]
            add_by_class(votes, weights, self.layout, alpha)
        if plan.samples:
            births = index(plan.samples, features)
            deaths = index(plan.deaths, features)
            weights = affinities(features[births], features, beta)
            weights *= (births[:, None] <= last_seen) & (last_seen < deaths[:, None])
            add_by_class(votes, weights, lay_out(plan.targets, features), alpha)

    def commit(self, plan: Schedule, features: Array) -> None:
        """Carry out a plan for a batch with features (B, d): write the newcomers that outlive it."""
        if not plan.samples:
            return
        staying = np.flatnonzero(np.array(plan.deaths) == features.shape[0])
        slots = np.array(plan.slots)[staying]
        size = max(self.size, int(slots.max()) + 1)
        room, old_width = self._targets.shape
        width = plan.targets.shape[1]
        if width > old_width:
            self._targets = _widened(self._targets, width)
        if size > room:
            more = max(size, 2 * room) - room  # doubling keeps the copying linear in the entries
            empty = namespace(features).zeros((more, self.head.dim), dtype=self._keys.dtype, device=device(features))
            self._keys = namespace(features).concat([self._keys, empty])
            self._targets = np.pad(self._targets, ((0, more), (0, 0)), constant_values=-1)
        self._keys[index(slots, features)] = features[index(np.array(plan.samples)[staying], features)]
        before = self._targets[slots]
        self._targets[slots] = -1
        self._targets[slots, :width] = plan.targets[staying]
        if not np.array_equal(before, self._targets[slots]):
            self._layout = None  # newcomers to a full positive cache vote as those they replace: there it stays
        self._take(plan.queues)
        self.size = size

    @property
    def next_id(self) -> int:
        """An id above those of all entries."""
        return 1 + max([-1, *(entry.id for queue in self.queues.values() for entry in queue)])

    def entries(self) -> list[Entry]:
        """Return the entries, sorted by class, entropy and id."""
        return sorted(
            Entry(label, self._sign * rank, entry_id)
            for label, queue in self.queues.items()
            for rank, entry_id, _ in queue
        )

    def dump(self) -> Dump:
        """Return all entries in slot order: keys (E, d), classes, entropies and ids (E,), targets (E, width)."""
        held = sorted(
            (slot, entry_id, self._sign * rank) for queue in self.queues.values() for rank, entry_id, slot in queue
        )
        width = max(1, int((self.targets >= 0).sum(axis=1).max(initial=1)))  # the width of evicted entries is not state
        return {
            "keys": to_host(self.keys).copy(),
            "classes": self.classes,
            "entropies": np.array([entropy for _, _, entropy in held], np.float64),
            "ids": np.array([entry_id for _, entry_id, _ in held], np.int64),
            "targets": self.targets[:, :width].copy(),
        }

    def restore(self, arrays: Mapping[str, HostArray]) -> None:
        """Replace the entries by dumped ones; slots are taken in their order."""
        self.require_entries(arrays, FIELDS)
        classes = len(self.head)
        targets = arrays["targets"]
        self.require(0 < targets.shape[1] <= classes, f"targets must have 1 to {classes} columns")
        self.require(np.all((targets >= -1) & (targets < classes)), f"targets must be from -1 to {classes - 1}")
        most = np.bincount(arrays["classes"], minlength=1).max()
        self.require(not self.bounded or most <= self.capacity, f"a class may hold at most {self.capacity} entries")
        self.clear()
        columns = [arrays[name].tolist() for name in ("classes", "entropies", "ids")]
        queues: Queues = {}
        for slot, (label, entropy, entry_id) in enumerate(zip(*columns, strict=True)):
            queues.setdefault(label, []).append(Queued(self._sign * entropy, entry_id, slot))
        self._take({label: sorted(queue) for label, queue in queues.items()})
        self.size = len(arrays["classes"])
        self._keys = move(arrays["keys"].copy(), self.head.class_vectors)
        self._targets = np.array(arrays["targets"], np.int32)

    def reindexed(self, arrays: Dump, position: HostArray, classes: int) -> Dump:
        """Keep the entries of the classes that remain."""
        kept = position[arrays["classes"]] >= 0
        targets = np.where(arrays["targets"] >= 0, position[arrays["targets"]], -1)
        targets = np.sort(np.where(targets >= 0, targets, classes), axis=1)[:, :classes]  # the padding comes last
        moved = arrays | {"classes": position[arrays["classes"]], "targets": np.where(targets < classes, targets, -1)}
        return {name: values[kept] for name, values in moved.items()}

    def merged(self, dumps: Sequence[Dump], start: Dump | None = None) -> Dump:
        """Keep the best entries of all.

        Entries are ordered by class, rank, id, then by key; an entry that several caches hold counts once.
        """
        width = max(dump["targets"].shape[1] for dump in dumps)
        padded = [dump | {"targets": _widened(dump["targets"], width)} for dump in dumps]
        entries = {name: np.concatenate([dump[name] for dump in padded]) for name in FIELDS}
        return {name: values[self._best(entries)] for name, values in entries.items()}

    def _best(self, entries: Dump) -> list[int]:
        """Return the indices of the best entries per class, best first."""
        ranks = -entries["entropies"] if self.highest else entries["entropies"]
        rows = [row.tobytes() for row in entries["keys"]]
        columns = (entries["classes"].tolist(), ranks.tolist(), entries["ids"].tolist(), rows, range(len(rows)))
        best: list[int] = []
        taken: dict[int, int] = {}
        previous: tuple[object, ...] = ()
        for *entry, i in sorted(zip(*columns, strict=True)):
            label = entry[0]
            if tuple(entry) != previous and (not self.bounded or taken.get(label, 0) < self.capacity):
                taken[label] = taken.get(label, 0) + 1
                best.append(i)
            previous = tuple(entry)
        return best

    def _take(self, queues: Queues) -> None:
        self.queues.update(queues)
        if not self.bounded:
            self.capacity = max([self.capacity, *map(len, queues.values())])
            return
        for label, queue in queues.items():
            self._threshold[label] = queue[-1].rank if len(queue) == self.capacity else np.inf


def _widened(targets: HostArray, width: int) -> HostArray:
    return np.pad(targets, ((0, 0), (0, width - targets.shape[1])), constant_values=-1)


def affinities(keys: Array, features: Array, beta: float) -> Array:
    """Return the weights (E, B), exp(-beta (1 - q.f)), of keys (E, d) for features (B, d).

    Examples:
        >>> affinities(np.eye(2), np.eye(2)[:1], beta=5.0).round(4)
        array([[1.    ],
               [0.0067]])
    """
    products = keys @ (beta * features).T
    products -= beta
    namespace(products).exp(products, out=products)  # the largest array of a step, changed in place
    return products
