"""A cache of samples by class: fixed arrays, read with one matrix product, merged exactly.

An entry is a key (a feature), the class that holds it, its entropy, a stable id, and its *marks*: the classes it speaks
about. In TDA's positive cache an entry marks its own class, in the negative cache every class in its mask. The
read-out is a sum over marks; no one-hot or mask matrix is ever built.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from acclimate.arrays import Array, HostArray, device, index, move, namespace, to_host
from acclimate.errors import StateError
from acclimate.methods.schedule import Entry, Plan, Queues, schedule

Routes = tuple[Array, list[Array]]  # classes, and turns of entries; see `_routes`
FIELDS = ("keys", "classes", "entropies", "ids", "marks")
_KINDS = {"keys": ("f", 2), "classes": ("i", 1), "entropies": ("f", 1), "ids": ("i", 1), "marks": ("i", 2)}


class Cache:
    """At most `capacity` entries a class, those of lowest (or highest) entropy.

    Memory grows with the entries held, that is with the classes seen, never with the stream.

    Args:
        capacity: the most entries a class may hold.
        like: (K, d) the class vectors; the keys live where they live.
        highest: keep the highest entropies instead of the lowest.
    """

    def __init__(self, capacity: int, like: Array, highest: bool = False) -> None:
        self.capacity = capacity
        self.highest = highest
        self._like = like
        self.clear()

    def clear(self) -> None:
        """Forget every entry."""
        self.queues: Queues = {}
        self.size = 0
        self._keys = self._like[:0]  # (room, d), rows beyond `size` unused
        self._marks = np.empty((0, 1), np.int32)  # (room, width), padded with -1
        self._routes: Routes | None = None
        # The rank a sample must not exceed to enter its class: that of a full queue's last entry.
        self._bar = np.full(self._like.shape[0], np.inf)

    def plan(self, offered: HostArray, classes: HostArray, entropies: HostArray, ids: HostArray) -> Plan:
        """Plan a batch; nothing changes yet.

        Args:
            offered: (B,) whether each sample asks for a place.
            classes: (B,) predicted classes.
            entropies: (B,) zero-shot entropies.
            ids: (B,) stable ids.
        """
        ranks = -entropies if self.highest else entropies
        samples = np.flatnonzero(offered & (ranks <= self._bar[classes]))  # in a long stream, few
        columns = (samples, classes[samples], ranks[samples], ids[samples])
        offers = zip(*(column.tolist() for column in columns), strict=True)
        return schedule(offers, self.queues, self.capacity, self.size, len(offered))

    def vote(
        self,
        votes: Array,
        features: Array,
        weight: float,
        sharpness: float,
        plan: Plan,
        marks: HostArray,
        self_match: bool = True,
    ) -> None:
        """Add to votes (K, B) the sum of `weight * exp(-sharpness (1 - f.q))` over the entries that mark each class.

        Each entry counts only for the samples between its birth and its death, so the batch is read as if its samples
        had come one by one.

        Args:
            votes: (K, B) contiguous, changed in place. Classes come first so that entries are added row by row.
            features: (B, d) of the batch.
            weight: the paper's alpha.
            sharpness: the paper's beta.
            plan: what the batch does to this cache.
            marks: (N, width) classes marked by the plan's N newcomers, padded with -1.
            self_match: read after the sample's own update; else before it.
        """
        queries = (sharpness * features).T
        now = np.arange(features.shape[0]) - (0 if self_match else 1)
        if self.size:
            weights = _weigh(self._keys[: self.size], queries, weight, sharpness)
            if plan.evicted:
                evicted = index(np.fromiter(plan.evicted, np.int64), features)
                weights[evicted] *= move(now < np.array(list(plan.evicted.values()))[:, None], weights)
            if self._routes is None:
                self._routes = _routes(self._marks[: self.size], features)
            _add(votes, weights, self._routes)
        if plan.samples:
            births, deaths = np.array(plan.samples)[:, None], np.array(plan.deaths)[:, None]
            weights = _weigh(features[index(births[:, 0], features)], queries, weight, sharpness)
            weights *= move((births <= now) & (now < deaths), weights)
            _add(votes, weights, _routes(marks, features))

    def commit(self, plan: Plan, features: Array, marks: HostArray) -> None:
        """Carry out a plan: write the newcomers that outlive the batch.

        Args:
            plan: from `plan`, for the same batch.
            features: (B, d) of the batch.
            marks: (N, width) of the plan's newcomers.
        """
        if not plan.samples:
            return
        stay = np.flatnonzero(np.array(plan.deaths) == features.shape[0])
        slots = np.array(plan.slots)[stay]
        self._grow(int(slots.max()) + 1, marks.shape[1])
        self._keys[index(slots, features)] = features[index(np.array(plan.samples)[stay], features)]
        self._marks[slots] = -1
        self._marks[slots, : marks.shape[1]] = marks[stay]
        self._take(plan.queues)
        self.size = max(self.size, int(slots.max()) + 1)
        self._routes = None

    def dump(self) -> dict[str, HostArray]:
        """All entries in slot order: keys (E, d), classes, entropies and ids (E,), marks (E, width)."""
        classes, entropies = np.empty(self.size, np.int32), np.empty(self.size, np.float64)
        ids = np.empty(self.size, np.int64)
        for label, queue in self.queues.items():
            for rank, entry_id, slot in queue:
                classes[slot], entropies[slot], ids[slot] = label, abs(rank), entry_id
        marks = self._marks[: self.size]
        width = max(1, int((marks >= 0).sum(axis=1).max(initial=1)))  # what evicted entries needed is not state
        keys = to_host(self._keys[: self.size]).copy()
        return {"keys": keys, "classes": classes, "entropies": entropies, "ids": ids, "marks": marks[:, :width].copy()}

    def restore(self, entries: Mapping[str, HostArray]) -> None:
        """Replace the contents by dumped entries; slots are taken in their order."""
        count, dim = self._like.shape
        keys, classes, marks = entries["keys"], entries["classes"], entries["marks"]
        size = classes.size
        if (
            any((entries[name].dtype.kind, entries[name].ndim) != kind for name, kind in _KINDS.items())
            or keys.shape != (size, dim)
            or marks.shape[1] == 0
            or any(len(entries[name]) != size for name in FIELDS)
            or not (np.isfinite(keys).all() and np.isfinite(entries["entropies"]).all())
            or np.any((classes < 0) | (classes >= count))
            or np.any((marks < -1) | (marks >= count))
            or np.any(np.bincount(classes, minlength=1) > self.capacity)
        ):
            raise StateError("the cache entries do not fit together; the file was damaged or edited. Use another.")
        self.clear()
        sign = -1.0 if self.highest else 1.0
        queues: Queues = {}
        for slot, (label, entropy, entry_id) in enumerate(
            zip(classes.tolist(), entries["entropies"].tolist(), entries["ids"].tolist(), strict=True)
        ):
            queues.setdefault(label, []).append(Entry(sign * entropy, entry_id, slot))
        self._take({label: sorted(queue) for label, queue in queues.items()})
        self.size = size
        self._keys = move(keys.copy(), self._like)
        self._marks = np.array(marks, np.int32)

    def reindex(self, position: HostArray, like: Array) -> None:
        """Follow a change of the class list, keeping the entries of the classes that remain.

        Args:
            position: (K,) the new index of each old class, or -1 where it was removed.
            like: (K', d) the new class vectors.
        """
        entries = self.dump()
        entries["classes"] = position[entries["classes"]]
        marks = np.where(entries["marks"] >= 0, position[entries["marks"]], -1)
        marks = np.sort(np.where(marks >= 0, marks, len(like)), axis=1)  # the padding comes last
        entries["marks"] = np.where(marks < len(like), marks, -1)
        kept = entries["classes"] >= 0
        self._like = like
        self.restore({name: values[kept] for name, values in entries.items()})

    def merge(self, others: Sequence["Cache"]) -> None:
        """Keep the best entries of this cache and the others; the order of caches never matters.

        Entries are ordered by class, rank, id, then by key; an entry that several caches hold counts once.
        """
        entries = _concatenate([cache.dump() for cache in (self, *others)])
        ranks = -entries["entropies"] if self.highest else entries["entropies"]
        rows = [row.tobytes() for row in entries["keys"]]
        labels, ids = entries["classes"].tolist(), entries["ids"].tolist()
        best: list[int] = []
        seen: set[tuple[int, float, int, bytes]] = set()
        taken: dict[int, int] = {}
        order = zip(labels, ranks.tolist(), ids, rows, range(len(rows)), strict=True)
        for label, rank, entry_id, row, i in sorted(order):
            if taken.get(label, 0) < self.capacity and (label, rank, entry_id, row) not in seen:
                seen.add((label, rank, entry_id, row))
                taken[label] = taken.get(label, 0) + 1
                best.append(i)
        self.restore({name: values[best] for name, values in entries.items()})

    def _take(self, queues: Queues) -> None:
        self.queues.update(queues)
        for label, queue in queues.items():
            self._bar[label] = queue[-1].rank if len(queue) == self.capacity else np.inf

    def _grow(self, size: int, width: int) -> None:
        room, old_width = self._marks.shape
        if width > old_width:
            self._marks = np.pad(self._marks, ((0, 0), (0, width - old_width)), constant_values=-1)
        if size > room:
            xp = namespace(self._like)
            more = max(size, 2 * room) - room  # doubling keeps the copying linear in the entries
            empty = xp.zeros((more, self._like.shape[1]), dtype=self._like.dtype, device=device(self._like))
            self._keys = xp.concat([self._keys, empty])
            self._marks = np.pad(self._marks, ((0, more), (0, 0)), constant_values=-1)


def pad_marks(mask: HostArray) -> HostArray:
    """Turn a boolean mask (N, K) into marks (N, width): the marked classes of each row, padded with -1."""
    entries, classes = np.nonzero(mask)
    counts = mask.sum(axis=1)
    marks = np.full((len(mask), max(1, int(counts.max(initial=0)))), -1, np.int32)
    marks[entries, np.arange(len(entries)) - np.repeat(np.cumsum(counts) - counts, counts)] = classes
    return marks


def _weigh(keys: Array, queries: Array, weight: float, sharpness: float) -> Array:
    """Weights (E, B), weight * exp(-sharpness (1 - q.f)), of keys (E, d) for queries (d, B) that hold sharpness * f."""
    weights = keys @ queries
    weights -= sharpness
    namespace(weights).exp(weights, out=weights)  # in place: this is the largest array of a step
    weights *= weight
    return weights


def _routes(marks: HostArray, like: Array) -> Routes:
    """Lay the marks (E, width) out so that a sum over marks is a few sums of whole blocks of rows.

    Classes are ordered by falling number of marks, and the t-th turn names the t-th entry of each class that has so
    many (the jagged diagonals of the sparse matrix class x entry). Every turn is then one gather and one addition to
    the first rows of the sum, in the same order on every machine; scatter-add has no place in the array API and is not
    deterministic on GPUs.
    """
    entries, columns = np.nonzero(marks >= 0)
    classes = marks[entries, columns]
    by_class = _stable_order(classes)
    classes, entries = classes[by_class], entries[by_class]
    counts = np.bincount(classes)
    most_first = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    turns = np.arange(len(classes)) - np.repeat(np.cumsum(counts) - counts, counts)
    place = np.empty(len(counts), np.int64)
    place[most_first] = np.arange(len(most_first))
    by_place = _stable_order(place[classes])
    by_turn = by_place[_stable_order(turns[by_place])]
    ends = np.cumsum(np.bincount(turns)).tolist()
    of_entry = index(entries[by_turn], like)
    return index(most_first, like), [of_entry[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _stable_order(numbers: HostArray) -> HostArray:
    """Stable argsort of small numbers, ten times faster in the narrowest type, where NumPy sorts by radix."""
    return np.argsort(numbers.astype(np.min_scalar_type(int(numbers.max(initial=0)))), kind="stable")


def _add(votes: Array, weights: Array, routes: Routes) -> None:
    """Add weights (E, B) to the votes (K, B) of the classes they mark, in place."""
    classes, turns = routes
    if turns:
        total = weights[turns[0]]
        for entries in turns[1:]:
            total[: entries.shape[0]] += weights[entries]
        votes[classes] += total


def _concatenate(dumps: Sequence[dict[str, HostArray]]) -> dict[str, HostArray]:
    width = max(dump["marks"].shape[1] for dump in dumps)
    for dump in dumps:
        padding = width - dump["marks"].shape[1]
        dump["marks"] = np.pad(dump["marks"], ((0, 0), (0, padding)), constant_values=-1)
    return {name: np.concatenate([dump[name] for dump in dumps]) for name in FIELDS}
