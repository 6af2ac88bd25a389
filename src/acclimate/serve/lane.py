"""A lane: work done one piece at a time, in the order it was asked for, each when what it needs is there."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from threading import Lock
from typing import Any, TypeVar

Result = TypeVar("Result")


class Lane:
    """A queue of work for one stream; many lanes share a pool of threads.

    Args:
        pool: where the work is done.
    """

    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self._lock = Lock()
        self._queue: deque[tuple[Callable[[Any], Any], Future[Any], Future[Any]]] = deque()
        self._running = False

    def put(self, work: Callable[[Any], Result], needs: Future[Any] | None = None) -> Future[Result]:
        """Queue work behind all that was queued before.

        Args:
            work: called with the result of `needs`. If `needs` fails, so does the returned future.
            needs: waited for without holding a thread; nothing when not given.

        Returns:
            A future of the result. Cancelling it before the work began takes the work back, and cancels `needs`.
        """
        if needs is None:
            needs = Future()
            needs.set_result(None)
        answer: Future[Result] = Future()
        with self._lock:
            self._queue.append((work, needs, answer))
        needs.add_done_callback(lambda _: self._wake())
        answer.add_done_callback(lambda done: needs.cancel() if done.cancelled() else None)
        return answer

    def _wake(self) -> None:
        with self._lock:
            if self._running or not self._next_is_ready():
                return
            self._running = True
        self._pool.submit(self._run)

    def _next_is_ready(self) -> bool:
        return bool(self._queue) and self._queue[0][1].done()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._running = self._next_is_ready()
                if not self._running:
                    return
                work, needs, answer = self._queue.popleft()
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(work(needs.result()))
                except BaseException as error:
                    answer.set_exception(error)
