from concurrent.futures import CancelledError
from contextlib import suppress
from itertools import pairwise
from threading import Event

import pytest

from acclimate.serve.http_errors import BusyError
from acclimate.serve.pools import FairPool
from waiting import wait_until


@pytest.fixture
def start():
    pools = []

    def begin(threads=1, jobs=8):
        pools.append(FairPool("test", threads, jobs))
        return pools[-1]

    yield begin
    for pool in pools:
        pool.close()


def test_clients_take_turns(start):
    pool = start()
    gate = Event()
    done = []
    first = pool.submit("greedy", lambda: gate.wait(30))
    many = [pool.submit("greedy", lambda i=i: done.append(i)) for i in range(3)]
    one = pool.submit("modest", lambda: done.append("modest"))
    gate.set()
    for each in (first, *many, one):
        each.result(30)
    assert done == ["modest", 0, 1, 2]


def test_one_client_never_has_all_threads(start):
    pool = start(threads=4)
    gate = Event()
    held = [pool.submit("greedy", lambda: gate.wait(30)) for _ in range(8)]
    wait_until(lambda: sum(each.running() for each in held) == 2)
    assert pool.submit("modest", lambda: "at once").result(30) == "at once"
    assert sum(each.running() for each in held) == 2
    gate.set()
    assert all(each.result(30) for each in held)


def test_steps_of_jobs_alternate_and_end_where_they_are_cancelled(start):
    pool = start()
    gate = Event()
    done = []

    def steps(name, count):
        for i in range(count):
            done.append(f"{name}{i}")
            yield
        return name

    hold = pool.submit("a", lambda: gate.wait(30))
    long, short, never = (pool.submit_steps("a", steps(*each)) for each in (("x", 4), ("y", 2), ("z", 1)))
    assert never.cancel()
    gate.set()
    assert hold.result(30)
    assert (long.result(30), short.result(30)) == ("x", "y")
    assert done == ["x0", "y0", "x1", "y1", "x2", "x3"]

    began = Event()
    more = Event()

    def endless():
        while True:
            began.set()
            more.wait(30)
            yield

    stopped = pool.submit_steps("a", endless())
    assert began.wait(30)
    assert stopped.cancel()
    more.set()
    assert pool.submit("a", lambda: "free").result(30) == "free"


def test_waiting_jobs_are_bounded_per_client_and_in_all(start):
    pool = start(jobs=2)
    gate = Event()
    held = [pool.submit(client, lambda: gate.wait(30)) for client in "aabbccd"]
    for client in ("a", "d"):  # one of each client is always taken
        with pytest.raises(BusyError, match="try again"):
            pool.submit(client, gate.set)
    assert held[1].cancel()  # waits, and makes room at once
    held[1] = pool.submit("e", lambda: True)
    gate.set()
    assert all(each.result(30) for each in held)
    assert pool.submit("a", lambda: 1).result(30) == 1


def test_work_that_has_begun_cannot_be_taken_back(start):
    pool = start()
    began = Event()
    gate = Event()
    running = pool.submit("a", lambda: began.set() or gate.wait(30))
    waiting = pool.submit("a", gate.set)
    assert began.wait(30)
    assert (running.cancel(), waiting.cancel()) == (False, True)
    assert not gate.is_set()
    gate.set()
    assert running.result(30)
    with pytest.raises(CancelledError):
        waiting.result(30)


def test_failures_are_the_futures_own(start):
    pool = start()
    with pytest.raises(ZeroDivisionError):
        pool.submit("a", lambda: 1 / 0).result(30)
    assert pool.submit("a", lambda: 2).result(30) == 2


def test_a_pool_that_stops_refuses_what_waits(start):
    pool = start()
    began = Event()
    gate = Event()

    def endless():
        while True:
            began.set()
            gate.wait(30)
            yield

    running = pool.submit_steps("a", endless())
    waiting = pool.submit("b", gate.set)
    assert began.wait(30)
    pool.stop()
    with pytest.raises(BusyError, match="shutting down"):
        waiting.result(30)
    gate.set()
    with pytest.raises(BusyError, match="shutting down"):
        running.result(30)
    pool.close()
    with pytest.raises(BusyError, match="shutting down"):
        pool.submit("a", gate.set)


def test_clients_who_ask_again_and_again_do_not_stop_a_job_with_steps(start):
    """Each of two has one short job at a time, and is never without one; who has steps to do is served in between."""
    pool = start()
    order = []
    ended = Event()

    def again(client):
        """Send a job, and the next one when that is answered."""
        if not ended.is_set() and len(order) < 500:
            pool.submit(client, lambda: order.append(client)).add_done_callback(lambda _: again(client))

    def steps():
        for _ in range(20):
            order.append("victim")
            yield
        ended.set()

    def begin():
        for client in ("one", "other"):
            again(client)
        return pool.submit_steps("victim", steps())

    pool.submit("host", begin).result(30).result(30)
    turns = [place for place, client in enumerate(order) if client == "victim"]
    assert len(order) > 50
    assert max(after - before for before, after in pairwise([0, *turns])) <= 3  # one turn of each other, at most


def test_however_many_clients_take_all_they_can_the_next_finds_room(start):
    pool = start(jobs=16)
    gate = Event()
    held = []
    for client in range(6):
        with suppress(BusyError):
            while True:
                held.append(pool.submit(f"hostile {client}", lambda: gate.wait(30)))
    modest = pool.submit("modest", lambda: "done")
    gate.set()
    assert modest.result(30) == "done"
    assert all(each.result(30) for each in held)
