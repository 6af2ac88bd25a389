"""Fairness between clients: how much of something each may hold, and threads on which they take turns."""

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

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
        self._turns: dict[str, asyncio.Semaphore] = {}  # clients with jobs
        self._unfinished: Counter[str] = Counter()  # jobs that wait or run, by client
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
            raise self._busy()
        self._unfinished[client] = mine
        turn = self._turns.setdefault(client, asyncio.Semaphore(self._share))
        loop = asyncio.get_running_loop()

        def forget() -> None:
            self._unfinished -= Counter([client])  # drops clients without any
            if client not in self._unfinished:
                self._turns.pop(client, None)
            ended()

        def end() -> None:
            turn.release()
            forget()

        try:
            await turn.acquire()
        except asyncio.CancelledError:
            forget()
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
