"""Fairness between clients: how much of something each may hold, and threads on which they take turns."""

import asyncio
from collections import Counter
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from acclimate.errors import BusyError

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


class FairPool:
    """Threads for the work of many clients, used from the event loop: a client that asks for much waits longer.

    Each client has at most half as many jobs at the threads as there are threads, or one; its others wait until one of
    these is done. So the jobs of another client are behind few of them.

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
        self._share = max(1, threads // 2)
        self._jobs = jobs
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()  # clients at the threads
        self._unfinished: Counter[str] = Counter()  # jobs that wait or run, by client
        self._closed = False

    async def run(self, client: str, work: Callable[[], Result], ended: Callable[[], None] = lambda: None) -> Result:
        """Return the result of work that is done in a thread; BusyError if too much is waiting.

        If the caller is cancelled, work that has not begun is never done, and work that has begun ends on its own.
        In any case `ended` is called once, when nothing of it happens any more.
        """
        self._admit(client, ended)
        return await self._take_turn(client, work, partial(self._forget, client, ended))

    async def run_steps(self, client: str, steps: Generator[Any, None, Result]) -> Result:
        """Return the result of a generator, each of whose steps is a turn of this client.

        It keeps its place among the client's jobs from the first step to the last.
        """
        found: list[Result] = []

        def step() -> None:
            try:
                next(steps)
            except StopIteration as end:
                found.append(end.value)

        self._admit(client)
        try:
            while not found:
                await self._take_turn(client, step, lambda: None)
        finally:
            self._forget(client)
        return found[0]

    def _admit(self, client: str, refused: Callable[[], None] = lambda: None) -> None:
        """Count another job of a client; BusyError if too much is waiting."""
        mine = self._unfinished[client] + 1
        room = leaves_enough(mine, self._unfinished.total() + 1, TOTAL_JOBS_FACTOR * self._jobs, 1)
        if self._closed or mine > self._jobs or not room:
            refused()
            raise self._busy()
        self._unfinished[client] = mine

    def _forget(self, client: str, ended: Callable[[], None] = lambda: None) -> None:
        """Count one job of a client less."""
        self._unfinished -= Counter([client])  # drops clients without any
        ended()

    async def _take_turn(self, client: str, work: Callable[[], Result], ended: Callable[[], None]) -> Result:
        """Return the result of work that is done in a thread, when the client's earlier jobs leave one to it."""
        turn = self._turns.setdefault(client, asyncio.Semaphore(self._share))
        loop = asyncio.get_running_loop()

        def end() -> None:
            turn.release()
            ended()

        try:
            await turn.acquire()
        except asyncio.CancelledError:
            ended()
            raise
        if self._closed:
            end()
            raise self._busy()
        job = self._threads.submit(work)
        job.add_done_callback(lambda _: loop.call_soon_threadsafe(end))
        try:
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            if self._closed:
                raise self._busy() from None
            raise

    def stop(self) -> None:
        """Accept no more work, and refuse what is waiting with a BusyError; what is at the threads still ends."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def close(self) -> None:
        """Call `stop`, and return when nothing is running."""
        self.stop()
        await asyncio.to_thread(self._threads.shutdown)

    def _busy(self) -> BusyError:
        why = "the service is shutting down" if self._closed else "too many requests like this are waiting"
        return BusyError(f"{why}; try again in a moment.")
