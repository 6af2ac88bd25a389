"""Turns of clients in a pool of threads."""

import asyncio
from itertools import pairwise
from threading import Event

import pytest
from anyio.from_thread import start_blocking_portal

from acclimate.errors import BusyError
from acclimate.serve.queues import FairPool
from waiting import wait_until


class Pool:
    """A pool in an event loop of its own."""

    def __init__(self, portal, *options):
        self.portal = portal
        self.pool = FairPool("test", *options)

    def submit(self, client, work):
        return self.portal.start_task_soon(self.pool.run, client, work)

    def run(self, client, work):
        return self.portal.call(self.pool.run, client, work)

    def waiting(self, count):
        wait_until(lambda: self.pool._unfinished.total() == count)


@pytest.fixture
def start():
    pools = []
    with start_blocking_portal() as portal:

        def begin(threads=1, jobs=8):
            pools.append(Pool(portal, threads, jobs))
            return pools[-1]

        yield begin
        for each in pools:
            portal.call(each.pool.close)


def test_clients_take_turns(start):
    pool = start()
    gate = Event()
    done = []
    first = pool.submit("greedy", lambda: gate.wait(180))
    many = [pool.submit("greedy", lambda i=i: done.append(i)) for i in range(3)]
    one = pool.submit("modest", lambda: done.append("modest"))
    pool.waiting(5)
    gate.set()
    for each in (first, *many, one):
        each.result(180)
    assert done == ["modest", 0, 1, 2]


def test_one_client_never_has_all_threads(start):
    pool = start(threads=4)
    gate = Event()
    running = []
    held = [pool.submit("greedy", lambda: running.append(1) or gate.wait(180)) for _ in range(8)]
    wait_until(lambda: len(running) == 2)
    pool.waiting(8)
    assert pool.run("modest", lambda: "at once") == "at once"
    assert len(running) == 2
    gate.set()
    assert all(each.result(180) for each in held)


def test_waiting_jobs_are_bounded_per_client_and_in_all(start):
    pool = start(jobs=2)
    gate = Event()
    held = [pool.submit(client, lambda: gate.wait(180)) for client in "aabbccd"]
    pool.waiting(7)
    for client in ("a", "d"):  # one of each client is always taken
        with pytest.raises(BusyError, match="try again"):
            pool.run(client, gate.set)
    assert held[1].cancel()  # waits, and makes room at once
    pool.waiting(6)
    held[1] = pool.submit("e", lambda: True)
    gate.set()
    assert all(each.result(180) for each in held)
    assert pool.run("a", lambda: 1) == 1


def test_however_many_clients_take_all_they_can_the_next_finds_room(start):
    pool = start(jobs=16)
    gate = Event()
    held = []
    for client in range(6):
        held += [pool.submit(f"hostile {client}", lambda: gate.wait(180)) for _ in range(40)]
    wait_until(lambda: len([each for each in held if not each.done()]) <= 6 * 16)
    modest = pool.submit("modest", lambda: "done")
    wait_until(lambda: pool.pool._unfinished["modest"])
    gate.set()
    assert modest.result(180) == "done"
    found = [each.exception(180) for each in held]
    assert {type(error) for error in found} == {type(None), BusyError}


def test_a_cancelled_caller_takes_back_what_has_not_begun(start):
    pool = start().pool
    began = Event()
    gate = Event()
    done = []

    async def call():
        running = asyncio.create_task(pool.run("a", lambda: began.set() or (gate.wait(180) and done.append("begun"))))
        waiting = asyncio.create_task(pool.run("a", lambda: done.append("waiting")))
        await asyncio.to_thread(began.wait, 30)
        for task in (running, waiting):
            task.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)
        gate.set()
        await pool.run("a", lambda: done.append("next"))

    start().portal.call(call)
    assert done == ["begun", "next"]


def test_failures_are_the_futures_own(start):
    pool = start()
    with pytest.raises(ZeroDivisionError):
        pool.run("a", lambda: 1 / 0)
    assert pool.run("a", lambda: 2) == 2


def test_a_pool_that_stops_refuses_what_waits(start):
    pool = start()
    began = Event()
    gate = Event()
    running = pool.submit("a", lambda: began.set() or gate.wait(180))
    waiting = pool.submit("b", gate.set)
    assert began.wait(180)
    pool.waiting(2)
    pool.portal.call(pool.pool.stop)
    with pytest.raises(BusyError, match="shutting down"):
        waiting.result(180)
    gate.set()
    assert running.result(180)  # what has begun ends
    with pytest.raises(BusyError, match="shutting down"):
        pool.run("a", gate.set)


def test_clients_who_ask_again_and_again_do_not_stop_a_job_of_many_steps(start):
    """Each of two has one short job at a time, and is never without one; who has steps to do is served in between."""
    pool = start().pool
    order = []

    async def again(client, ended):
        while not ended.is_set():
            await pool.run(client, lambda: order.append(client))

    async def steps():
        ended = asyncio.Event()
        others = [asyncio.create_task(again(client, ended)) for client in ("one", "other")]
        for _ in range(20):
            await pool.run("victim", lambda: order.append("victim"))
        ended.set()
        await asyncio.gather(*others)

    start().portal.call(steps)
    turns = [place for place, client in enumerate(order) if client == "victim"]
    assert len(order) > 30
    assert max(after - before for before, after in pairwise(turns)) <= 6  # few turns of the others in between
