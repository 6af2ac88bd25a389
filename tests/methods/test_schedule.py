"""The schedule of a batch against a walk over the samples, one by one."""

from hypothesis import given
from hypothesis import strategies as st

from acclimate.methods.schedule import Queued, schedule

samples = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5).map(float)), min_size=1, max_size=40)


def one_by_one(offers, capacity):
    """Return the entries (class, rank, id) that each moment's cache holds, after the moment's sample."""
    queues = {}
    moments = []
    for i, (label, rank) in enumerate(offers):
        queue = queues.setdefault(label, [])
        if len(queue) < capacity:
            queue.append((rank, i))
        elif rank < queue[-1][0]:
            queue[-1] = (rank, i)
        queue.sort()
        moments.append({(c, rank, i) for c, queue in queues.items() for rank, i in queue})
    return moments


@given(samples, st.integers(1, 3), st.data())
def test_every_moment_of_every_cut_is_that_of_a_walk(offers, capacity, data):
    moments = one_by_one(offers, capacity)
    queues = {}
    size = 0
    start = 0
    while start < len(offers):
        batch = data.draw(st.integers(1, len(offers) - start))
        part = [(i, *offers[start + i], start + i) for i in range(batch)]
        before = {entry.slot: (label, entry.rank, entry.id) for label, queue in queues.items() for entry in queue}
        plan = schedule(part, queues, capacity, size, batch)
        for now in range(batch):
            alive = {entry for slot, entry in before.items() if now < plan.evicted.get(slot, batch)}
            alive |= {
                (*offers[start + sample], start + sample)
                for sample, death in zip(plan.samples, plan.deaths, strict=True)
                if sample <= now < death
            }
            assert alive == moments[start + now]
        queues.update(plan.queues)
        size = max([size, *(slot + 1 for slot in plan.slots)])
        start += batch
    slots = [entry.slot for queue in queues.values() for entry in queue]
    assert sorted(slots) == list(range(size))  # no slot is wasted


@given(samples, st.integers(1, 3))
def test_planning_changes_nothing(offers, capacity):
    queues = {0: [Queued(2.0, -1, 0)]}
    schedule([(i, *offer, i) for i, offer in enumerate(offers)], queues, capacity, 1, len(offers))
    assert queues == {0: [Queued(2.0, -1, 0)]}


def test_on_equal_rank_the_older_stays():
    plan = schedule([(0, 0, 1.0, 10), (1, 0, 1.0, 11), (2, 0, 0.5, 12)], {}, 1, 0, 3)
    assert plan.queues == {0: [Queued(0.5, 12, 0)]}
    assert (plan.samples, plan.deaths) == ([0, 2], [2, 3])
