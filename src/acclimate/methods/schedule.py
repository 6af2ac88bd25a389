"""Who enters a cache, who leaves, and when: a batch decided as if its samples came one by one.

A class's queue is the `capacity` lowest (rank, id) pairs it was offered, so what the queue holds depends on the set
of samples alone, unless another rule says which entry of a full queue gives way. The walk is over host integers and
floats only; no feature is touched.
"""

from bisect import insort
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from acclimate.arrays import Array, HostArray, indices


class Queued(NamedTuple):
    """A sample in a queue. Tuples compare by rank, then id: lower is kept, and on equal rank the older stays."""

    rank: float
    id: int
    slot: int


Queues = dict[int, list[Queued]]  # class -> its entries, lowest rank first
Offer = tuple[int, int, float, int]  # a sample that asks for a slot: position in the batch, class, rank, id
# Which entry of a full queue gives way to a newcomer with this rank and id: its position, None if none does.
GivesWay = Callable[[list[Queued], float, int], int | None]


@dataclass
class Plan:
    """What a batch does to a cache. Samples are named by their positions in the batch."""

    queues: Queues = field(default_factory=dict)  # the new queues of the classes that changed
    samples: list[int] = field(default_factory=list)  # every admitted sample, in order of admission
    slots: list[int] = field(default_factory=list)  # the slot each of them takes
    deaths: list[int] = field(default_factory=list)  # which sample pushes each out again; the batch's length if none
    evicted: dict[int, int] = field(default_factory=dict)  # slot of an old entry -> the sample that pushes it out
    dropped: list[int] = field(default_factory=list)  # ids of all entries that are pushed out, including newcomers
    # (admitted, width) the classes each newcomer votes on, padded with -1; see `cache.Cache`
    targets: HostArray = field(default_factory=lambda: np.empty((0, 1), np.int32))
    mask: Array | None = None  # (admitted, K) instead of targets: the same on a device, not known to the host yet
    _positions: "Positions | None" = None

    def on(self, like: Array, batch: int) -> "Positions":
        """The positions that reading and writing take, where `like` lives; brought there once."""
        if self._positions is None:
            samples, slots, deaths = (np.array(each, np.int64) for each in (self.samples, self.slots, self.deaths))
            evicted = [np.fromiter(each, np.int64, len(self.evicted)) for each in (self.evicted, self.evicted.values())]
            stay = deaths == batch
            self._positions = Positions(*indices([samples, deaths, *evicted, samples[stay], slots[stay]], like))
        return self._positions


class Positions(NamedTuple):
    """A plan where the features live."""

    samples: Array  # (admitted,)
    deaths: Array  # (admitted,)
    evicted: Array  # (evicted,) slots of old entries
    evicted_by: Array  # (evicted,) the samples that push them out
    staying: Array  # (staying,) the admitted samples that outlive the batch
    slots: Array  # (staying,) their slots


def last_if_worse(queue: list[Queued], rank: float, entry_id: int) -> int | None:
    """The rule of all caches unless they are given another: the entry of highest rank gives way to a lower one."""
    return len(queue) - 1 if (rank, entry_id) < queue[-1][:2] else None


def schedule(
    offers: Iterable[Offer],
    queues: Mapping[int, list[Queued]],
    capacity: int,
    size: int,
    batch: int,
    gives_way: GivesWay = last_if_worse,
) -> Plan:
    """Plan a batch without changing `queues`.

    Args:
        offers: the samples that ask for a slot, in order.
        queues: every class's entries before the batch, sorted.
        capacity: the most entries per class.
        size: number of slots in use; new ones are numbered from here.
        batch: length of the batch.
        gives_way: the rule for full queues.
    """
    plan = Plan()
    newcomer_in: dict[int, int] = {}  # slot -> index of the newcomer of this batch that holds it
    for sample, label, rank, entry_id in offers:
        queue = plan.queues.get(label) or queues.get(label, [])
        if len(queue) < capacity:
            queue = queue.copy()
            slot = size
            size = size + 1
        elif (place := gives_way(queue, rank, entry_id)) is not None:
            queue = queue.copy()
            _, dropped, slot = queue.pop(place)
            plan.dropped.append(dropped)
            if slot in newcomer_in:
                plan.deaths[newcomer_in[slot]] = sample
            else:
                plan.evicted[slot] = sample
        else:
            continue
        insort(queue, Queued(rank, entry_id, slot))
        plan.queues[label] = queue
        newcomer_in[slot] = len(plan.samples)
        plan.samples.append(sample)
        plan.slots.append(slot)
        plan.deaths.append(batch)
    return plan
