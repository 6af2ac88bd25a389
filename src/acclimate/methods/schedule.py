"""The schedule of a cache: a batch decided as if its samples came one by one.

A class's queue is the `capacity` lowest (rank, id) pairs it was offered, so what the queue holds depends on the set
of samples alone. The walk is over host integers and floats only; no feature is touched.
"""

from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from acclimate.arrays import HostArray


class Queued(NamedTuple):
    """A sample in a queue. Tuples compare by rank, then id: lower is kept, and on equal rank the older stays."""

    rank: float
    id: int
    slot: int


Queues = dict[int, list[Queued]]  # class -> its entries, lowest rank first
Offer = tuple[int, int, float, int]  # a sample that asks for a slot: position in the batch, class, rank, id


@dataclass
class Schedule:
    """The changes that a batch makes to a cache. Samples are named by their positions in the batch."""

    queues: Queues = field(default_factory=dict)  # the new queues of the classes that changed
    samples: list[int] = field(default_factory=list)  # every admitted sample, in order of admission
    slots: list[int] = field(default_factory=list)  # the slot each of them takes
    deaths: list[int] = field(default_factory=list)  # the sample that evicts each of them; the batch's length if none
    evicted: dict[int, int] = field(default_factory=dict)  # slot of an old entry -> the sample that evicts it
    dropped: list[int] = field(default_factory=list)  # ids of all evicted entries, including newcomers
    # (admitted, width) the classes each newcomer votes on, padded with -1; see `cache.Cache`
    targets: HostArray = field(default_factory=lambda: np.empty((0, 1), np.int32))


def schedule(
    offers: Iterable[Offer],
    queues: Mapping[int, list[Queued]],
    capacity: int,
    size: int,
    batch: int,
) -> Schedule:
    """Schedule a batch without changing `queues`.

    Args:
        offers: the samples that ask for a slot, in order.
        queues: every class's entries before the batch, sorted.
        capacity: the most entries per class.
        size: number of slots in use; new ones are numbered from here.
        batch: length of the batch.
    """
    plan = Schedule()
    newcomer_in: dict[int, int] = {}  # slot -> index of the newcomer of this batch that holds it
    for sample, label, rank, entry_id in offers:
        queue = list(plan.queues.get(label) or queues.get(label, []))
        if len(queue) < capacity:
            slot = size
            size += 1
        elif (rank, entry_id) < queue[-1][:2]:
            _, dropped, slot = queue.pop()
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
