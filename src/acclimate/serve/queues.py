"""Fairness between clients: a queue in which they take turns, and threads that work through such a queue."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Container, Iterator
from concurrent.futures import Future
from threading import Condition, Thread
from typing import Any, Generic, NamedTuple, TypeVar

from acclimate.serve.http_errors import BusyError

Item = TypeVar("Item")
Result = TypeVar("Result")
TOTAL_JOBS_FACTOR = 4  # total job capacity = factor * capacity per client


def leaves_enough(mine: int, total: int, room: int, least: int = 0) -> bool:
    """Return True if a client that holds `mine` of the `total` leaves at least as much room for the others.

    Each client may always hold the `least`, however much the others hold.

    Examples:
        >>> leaves_enough(8, total=8, room=16), leaves_enough(9, total=9, room=16), leaves_enough(4, total=12, room=16)
        (True, False, True)
        >>> leaves_enough(1, total=17, room=16, least=1)
        True
    """
    return mine <= max(least, room - total)


class FairQueue(Generic[Item]):
    """A queue, first come, first served per client; the clients that wait take turns. Its user holds a lock.

    Examples:
        >>> queue = FairQueue()
        >>> for client, item in [("a", 1), ("a", 2), ("a", 3), ("b", 4)]:
        ...     queue.put(client, item)
        >>> [queue.take() for _ in range(len(queue))]
        [1, 4, 2, 3]
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Item]] = {}  # items by waiting client; the first client is next
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Item]:
        return (item for items in self._waiting.values() for item in items)

    def put(self, client: str, item: Item) -> None:
        """Add an item at the end of its client's queue."""
        self._waiting.setdefault(client, deque()).append(item)
        self._count += 1

    def take(self, allowed: Callable[[Item], bool] = lambda _: True, pausing: Container[str] = ()) -> Item | None:
        """Remove and return the first allowed item of the client whose turn it is, or of the next; None without one.

        Clients that are `pausing` keep their turn.
        """
        for client, items in self._waiting.items():
            if client in pausing:
                continue
            for index, item in enumerate(items):
                if allowed(item):
                    del items[index], self._waiting[client]
                    self._count -= 1
                    if items:
                        self._waiting[client] = items  # moves to the end: the others are next
                    return item
        return None

    def pass_turn(self, client: str) -> None:
        """Move this client behind all others that wait now."""
        if client in self._waiting:
            self._waiting[client] = self._waiting.pop(client)

    def drop(self, client: str, unwanted: Callable[[Item], bool]) -> int:
        """Remove a client's unwanted items; returns their number."""
        items = self._waiting.pop(client, deque())
        kept = deque(item for item in items if not unwanted(item))
        if kept:
            self._waiting = {client: kept, **self._waiting}
        self._count -= len(items) - len(kept)
        return len(items) - len(kept)


class _Job(NamedTuple):
    client: str
    work: Callable[[], Any]
    future: Future[Any]


class FairPool:
    """Threads for the work of many clients: a client that asks for much waits longer, and the others do not.

    Between two turns of a client that waits, everybody else has one at most. One client occupies at most half of the
    threads, or one. Work that is cancelled while it waits is never begun.

    Args:
        name: name of the threads.
        threads: number of threads.
        jobs: number of jobs of one client that may wait or run at the same time. All clients share room for four times
            as many, of which each leaves as much as it has.

    Examples:
        >>> pool = FairPool("answers", threads=2, jobs=8)
        >>> asyncio.run(pool.run("a client", lambda: 6 * 7))
        42
        >>> pool.close()
    """

    def __init__(self, name: str, threads: int, jobs: int) -> None:
        self._jobs = jobs
        self._share = max(1, threads // 2)
        self._change = Condition()
        self._waiting: FairQueue[_Job] = FairQueue()
        self._unfinished: Counter[str] = Counter()  # jobs that wait or run, by client
        self._running: Counter[str] = Counter()
        self._closed = False
        self._threads = [Thread(target=self._work, name=name, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    async def run(self, client: str, work: Callable[[], Result]) -> Result:
        """Return the result of work; if the caller is cancelled, work that has not begun is never done."""
        return await asyncio.wrap_future(self.submit(client, work))

    def submit(self, client: str, work: Callable[[], Result]) -> Future[Result]:
        """Have work done; BusyError if too much is waiting."""
        job = _Job(client, work, Future())
        with self._change:
            mine = self._unfinished[client] + 1
            room = leaves_enough(mine, self._unfinished.total() + 1, TOTAL_JOBS_FACTOR * self._jobs, 1)
            if self._closed:
                raise BusyError("the service is shutting down; try again in a moment.")
            if mine > self._jobs or not room:
                raise BusyError("too many requests like this are waiting; try again in a moment.")
            self._unfinished[client] += 1
            self._waiting.put(client, job)
            self._change.notify()
        # A callback that has the job would be a cycle, which keeps large work in memory for some time.
        job.future.add_done_callback(lambda future: self._forget(client, future))
        return job.future

    def stop(self) -> None:
        """Accept no more work, and fail what is waiting with a BusyError; what is running still ends."""
        with self._change:
            self._closed = True
            stopped = list(self._waiting)
            self._waiting = FairQueue()
            self._change.notify_all()
        for job in stopped:
            if job.future.set_running_or_notify_cancel():
                job.future.set_exception(BusyError("the service is shutting down; try again in a moment."))

    def close(self) -> None:
        """Call `stop`, and return when nothing is running."""
        self.stop()
        for thread in self._threads:
            thread.join()

    def _forget(self, client: str, future: Future[Any]) -> None:
        """Forget a job that is done or cancelled."""
        with self._change:
            self._waiting.drop(client, lambda each: each.future is future)
            self._unfinished -= Counter([client])  # drops clients without any

    def _work(self) -> None:
        while (job := self._next()) is not None:
            if job.future.set_running_or_notify_cancel():
                try:
                    job.future.set_result(job.work())
                except BaseException as error:
                    job.future.set_exception(error)
            with self._change:
                self._running -= Counter([job.client])
                self._waiting.pass_turn(job.client)  # others may have come during its turn
                self._change.notify()
            del job  # its work may hold a large body, and the next job may be a long time coming

    def _next(self) -> _Job | None:
        """Wait for a job whose client may have another thread; None when the pool is closed."""
        with self._change:
            while not self._closed:
                busy = [client for client, count in self._running.items() if count >= self._share]
                job = self._waiting.take(pausing=busy)
                if job is not None:
                    self._running[job.client] += 1
                    return job
                self._change.wait()
            return None
