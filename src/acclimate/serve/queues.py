"""Fairness between clients: a queue in which they take turns, and threads that work through such a queue."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Container, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar, cast

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

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def __iter__(self) -> Iterator[Item]:
        return (item for items in self._waiting.values() for item in items)

    def put(self, client: str, item: Item) -> None:
        """Add an item at the end of its client's queue."""
        self._waiting.setdefault(client, deque()).append(item)

    def take(self, allowed: Callable[[Item], bool] = lambda _: True, pausing: Container[str] = ()) -> Item | None:
        """Remove and return the first allowed item of the client whose turn it is, or of the next; None without one.

        Clients that are `pausing` keep their turn.
        """
        for client, items in self._waiting.items():
            for index, item in enumerate(() if client in pausing else items):
                if allowed(item):
                    del items[index], self._waiting[client]
                    if items:
                        self._waiting[client] = items  # moves to the end: the others are next
                    return item
        return None

    def drop(self, client: str, unwanted: Callable[[Item], bool]) -> int:
        """Remove a client's unwanted items, and move it behind the others; returns their number."""
        items = self._waiting.pop(client, deque())
        kept = deque(item for item in items if not unwanted(item))
        if kept:
            self._waiting[client] = kept
        return len(items) - len(kept)


class _Job(NamedTuple):
    client: str
    work: Callable[[], Any]
    ended: Callable[[], None]
    answer: asyncio.Future[Any]


class FairPool:
    """Threads for the work of many clients, used from the event loop: a client that asks for much waits longer.

    The clients that wait take turns, and one client occupies at most half of the threads, or one.

    Args:
        name: name of the threads, which are started when they are first needed.
        threads: number of threads.
        jobs: number of jobs of one client that may wait or run at the same time. All clients share room for four times
            as many, of which each leaves as much as it has.

    Examples:
        >>> async def compute():
        ...     pool = FairPool("answers", threads=2, jobs=8)
        ...     found = await pool.run("a client", lambda: 6 * 7)
        ...     await pool.close()
        ...     return found
        >>> asyncio.run(compute())
        42
    """

    def __init__(self, name: str, threads: int, jobs: int) -> None:
        self._threads = ThreadPoolExecutor(threads, name)
        self._free = threads
        self._share = max(1, threads // 2)
        self._jobs = jobs
        self._waiting: FairQueue[_Job] = FairQueue()
        self._unfinished: Counter[str] = Counter()  # jobs that wait or run, by client
        self._running: Counter[str] = Counter()
        self._closed = False

    async def run(self, client: str, work: Callable[[], Result], ended: Callable[[], None] = lambda: None) -> Result:
        """Return the result of work that is done in a thread; BusyError if too much is waiting.

        If the caller is cancelled, work that has not begun is never done, and work that has begun ends on its own.
        In any case `ended` is called once, when nothing of it happens any more.
        """
        mine = self._unfinished[client] + 1
        room = leaves_enough(mine, self._unfinished.total() + 1, TOTAL_JOBS_FACTOR * self._jobs, 1)
        if self._closed or mine > self._jobs or not room:
            ended()
            why = "the service is shutting down" if self._closed else "too many requests like this are waiting"
            raise BusyError(f"{why}; try again in a moment.")
        self._unfinished[client] = mine
        job = _Job(client, work, ended, asyncio.get_running_loop().create_future())
        self._waiting.put(client, job)
        self._start()
        try:
            return cast(Result, await job.answer)
        finally:
            if self._waiting.drop(client, lambda each: each is job):  # cancelled while it waited
                self._forget(job)

    def stop(self) -> None:
        """Accept no more work, and fail what is waiting with a BusyError; what is running still ends."""
        self._closed = True
        while job := self._waiting.take():
            job.answer.set_exception(BusyError("the service is shutting down; try again in a moment."))
            self._forget(job)

    async def close(self) -> None:
        """Call `stop`, and return when nothing is running."""
        self.stop()
        await asyncio.to_thread(self._threads.shutdown)

    def _start(self) -> None:
        """Begin the jobs for which there are threads."""
        while self._free and (job := self._waiting.take(pausing=self._busy())):
            self._free -= 1
            self._running[job.client] += 1
            running = asyncio.get_running_loop().run_in_executor(self._threads, job.work)
            running.add_done_callback(partial(self._end, job))

    def _busy(self) -> list[str]:
        """Return the clients that may have no other thread now."""
        return [client for client, count in self._running.items() if count >= self._share]

    def _end(self, job: _Job, done: asyncio.Future[Any]) -> None:
        self._free += 1
        self._running -= Counter([job.client])
        self._forget(job)
        self._waiting.drop(job.client, lambda _: False)  # moves it behind others that came during its turn
        error = done.exception()
        if not job.answer.done():
            job.answer.set_result(done.result()) if error is None else job.answer.set_exception(error)
        self._start()

    def _forget(self, job: _Job) -> None:
        self._unfinished -= Counter([job.client])  # drops clients without any
        job.ended()
