"""Threads on which clients take turns."""

from collections import Counter
from collections.abc import Callable, Generator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import Any, TypeVar

from acclimate.serve.fair import FairQueue, leaves_enough
from acclimate.serve.http_errors import BusyError

Result = TypeVar("Result")
TOTAL_JOBS_FACTOR = 4  # total job capacity = factor * capacity per client


@dataclass(eq=False)
class _Job:
    client: str
    steps: Generator[Any, None, Any]
    whole: bool  # cannot be stopped once it has begun
    future: Future[Any] = field(default_factory=Future)


class FairPool:
    """Threads for the work of many clients: a client that asks for much waits longer, and the others do not.

    Between two turns of a client that waits, everybody else has one at most. One client occupies at most half of the
    threads, or one. A job that is cancelled while it waits is never begun.

    Args:
        name: name of the threads, which are started when they are first needed.
        threads: number of threads.
        jobs: number of jobs of one client that may wait or run at the same time. All clients share room for four times
            as many, of which each leaves as much as it has.

    Examples:
        >>> pool = FairPool("answers", threads=2, jobs=8)
        >>> pool.submit("a client", lambda: 6 * 7).result()
        42
        >>> pool.close()
    """

    def __init__(self, name: str, threads: int, jobs: int) -> None:
        self._name = name
        self._size = threads
        self._jobs = jobs
        self._share = max(1, threads // 2)
        self._change = Condition()
        self._waiting: FairQueue[_Job] = FairQueue()
        self._unfinished: Counter[str] = Counter()  # jobs of each client
        self._running: list[_Job] = []
        self._threads: list[Thread] = []
        self._closed = False

    def submit(self, client: str, work: Callable[[], Result]) -> Future[Result]:
        """Have work done; once it has begun, it cannot be cancelled. BusyError if too much is waiting."""

        def whole() -> Generator[None, None, Result]:
            return work()
            yield

        return self._add(_Job(client, whole(), whole=True))

    def submit_steps(self, client: str, steps: Generator[Any, None, Result]) -> Future[Result]:
        """Have a generator run to its end; whenever it yields, others have their turn, and it may be cancelled."""
        return self._add(_Job(client, steps, whole=False))

    def stop(self) -> None:
        """Accept no more work, and fail what is waiting, or has steps left, with a BusyError."""
        with self._change:
            self._closed = True
            stopped = [*self._waiting, *(job for job in self._running if not job.whole)]
            self._waiting = FairQueue()
            self._change.notify_all()
        for job in stopped:
            self._fail(job)

    def close(self) -> None:
        """Call `stop`, and return when the steps that are running have ended."""
        self.stop()
        for thread in self._threads:
            thread.join()

    def _add(self, job: _Job) -> Future[Any]:
        with self._change:
            if self._closed:
                raise _closing()
            mine = self._unfinished[job.client] + 1
            total = self._unfinished.total() + 1
            if mine > self._jobs or not leaves_enough(mine, total, TOTAL_JOBS_FACTOR * self._jobs, 1):
                raise BusyError("too many requests like this are waiting; try again in a moment.")
            self._unfinished[job.client] += 1
            self._waiting.put(job.client, job)
            idle = len(self._threads) - len(self._running)
            if len(self._threads) < self._size and len(self._waiting) > idle:
                self._threads.append(Thread(target=self._run, name=self._name, daemon=True))
                self._threads[-1].start()
            self._change.notify()
        job.future.add_done_callback(lambda _: self._leave(job))
        return job.future

    def _leave(self, job: _Job) -> None:
        """Forget a job that is done or cancelled."""
        with self._change:
            self._waiting.drop(job.client, lambda each: each is job)
            self._unfinished -= Counter([job.client])  # drops clients without any

    def _run(self) -> None:
        while (job := self._next()) is not None:
            again = self._step(job)
            with self._change:
                self._running.remove(job)
                if again and not job.future.done():
                    self._waiting.put(job.client, job)
                self._waiting.pass_turn(job.client)  # others may have come during its turn
                self._change.notify()

    def _next(self) -> _Job | None:
        """Wait for a job whose client may have another thread; None when the pool is closed."""
        with self._change:
            while True:
                threads = Counter(job.client for job in self._running)
                job = self._waiting.take(pausing=[each for each, count in threads.items() if count >= self._share])
                if job is not None:
                    self._running.append(job)
                    return job
                if self._closed:
                    return None
                self._change.wait()

    def _step(self, job: _Job) -> bool:
        """Go on with a job; return True if there is more to do."""
        if job.future.done() or (job.whole and not job.future.set_running_or_notify_cancel()):
            return False
        try:
            next(job.steps)
            return True
        except StopIteration as end:
            with suppress(InvalidStateError):  # cancelled
                job.future.set_result(end.value)
        except BaseException as error:
            with suppress(InvalidStateError):
                job.future.set_exception(error)
        return False

    def _fail(self, job: _Job) -> None:
        with suppress(InvalidStateError):
            job.future.set_exception(_closing())


def _closing() -> BusyError:
    return BusyError("the service is shutting down; try again in a moment.")
