from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from threading import Event

import pytest

from acclimate.serve.batcher import WorkQueue


@pytest.fixture
def pool():
    with ThreadPoolExecutor(4) as pool:
        yield pool


def test_work_is_done_in_order_whatever_is_ready_first(pool):
    queue = WorkQueue(pool)
    done = []
    needs = [Future() for _ in range(20)]
    answers = [queue.put(lambda value: done.append(value) or value, need) for need in needs]
    for value in reversed(range(20)):
        assert not done
        needs[value].set_result(value)
    assert [answer.result(10) for answer in answers] == done == list(range(20))


def test_queues_do_not_wait_for_each_other(pool):
    slow = WorkQueue(pool)
    quick = WorkQueue(pool)
    waiting = slow.put(lambda value: value, never := Future())
    assert quick.put(lambda _: "at once").result(10) == "at once"
    assert not waiting.done()
    never.set_result("late")
    assert waiting.result(10) == "late"


def test_a_failure_does_not_stop_the_rest(pool):
    queue = WorkQueue(pool)
    broken = Future()
    first = queue.put(lambda _: 1 / 0)
    second = queue.put(lambda value: value, broken)
    third = queue.put(lambda _: "fine")
    broken.set_exception(KeyError("gone"))
    with pytest.raises(ZeroDivisionError):
        first.result(10)
    with pytest.raises(KeyError):
        second.result(10)
    assert third.result(10) == "fine"


def test_cancelled_work_is_not_done_and_its_needs_are_not_needed(pool):
    queue = WorkQueue(pool)
    hold = Event()
    done = []
    first = queue.put(lambda _: hold.wait(10))
    taken_back = queue.put(done.append, need := Future())
    last = queue.put(lambda _: "after")
    assert taken_back.cancel()
    assert need.cancelled()
    hold.set()
    assert first.result(10)
    assert last.result(10) == "after"
    assert not done
    assert not first.cancel()
    with pytest.raises(CancelledError):
        taken_back.result(10)


def test_reading_and_the_rest_take_turns(pool):
    queue = WorkQueue(pool)
    began = Event()
    hold = Event()
    done = []
    first = queue.put(lambda _: began.set() or hold.wait(10))
    assert began.wait(10)
    work = [queue.put(lambda _, i=i: done.append(f"work {i}")) for i in range(3)]
    late = queue.put(done.append, need := Future())
    reads = [queue.put(lambda _, i=i: done.append(f"read {i}"), reads=True) for i in range(5)]
    assert not done
    hold.set()
    for each in (first, *work, *reads):
        each.result(10)
    assert done == ["read 0", "work 0", "read 1", "work 1", "read 2", "work 2", "read 3", "read 4"]
    queue.put(lambda _: done.append("at once"), reads=True).result(10)  # does not wait for what is not ready
    need.set_result("late")
    late.result(10)
    assert done[-2:] == ["at once", "late"]
