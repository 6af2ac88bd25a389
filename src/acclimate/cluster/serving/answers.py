"""The answers of other processes: as futures, and with the errors that were raised there."""

from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import Any, TypeVar

import ray
from ray.exceptions import (
    GetTimeoutError,
    ObjectLostError,
    RayActorError,
    RayTaskError,
    TaskCancelledError,
)
from ray.serve.exceptions import BackPressureError, RayServeException

from acclimate.serve.http_errors import BusyError, UnusableError

Result = TypeVar("Result")
TIMEOUT_S = 10.0  # time limit of calls that return at once


class RemoteFuture(Future[Result]):
    """A future answer of another process. Cancelling it does not guarantee that the work is not done.

    Hence `cancel` returns False; it asks that process to stop, which helps unless it has begun.
    """

    def __init__(self) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()
        self._reference: Any = None

    def follow(self, reference: Any, translate: Callable[[Exception], Exception]) -> None:
        """Wait for the answer with this reference."""
        self._reference = reference
        reference.future().add_done_callback(lambda done: self._take(done, translate))

    def cancel(self) -> bool:
        """Ask for the work to be stopped; it may be done all the same."""
        if self._reference is not None and not self.done():
            ray.cancel(self._reference)
        return False

    def _take(self, done: "Future[Result]", translate: Callable[[Exception], Exception]) -> None:
        with suppress(InvalidStateError):
            try:
                self.set_result(done.result())
            except Exception as error:
                self.set_exception(translate(error))


def unwrapped(error: BaseException, what: str = "it") -> Exception:
    """Return the error that another process has raised, without Ray's wrapping; `what` is restarting if it has died."""
    while isinstance(error, RayTaskError) and isinstance(error.cause, Exception):
        error = error.cause
    if isinstance(error, TaskCancelledError):
        return CancelledError()
    if isinstance(error, RayActorError):
        return UnusableError(f"{what} is restarting; try again in a moment.")
    if isinstance(error, ObjectLostError):
        return UnusableError("the images were lost on the way, as a process has died; send them again.")
    if isinstance(error, BackPressureError):
        return BusyError("too many requests are waiting; try again in a moment.")
    if isinstance(error, GetTimeoutError):
        return TimeoutError()
    if isinstance(error, RayServeException):
        return UnusableError("the model is not served at the moment; try again in a moment.")
    return error if isinstance(error, Exception) else RuntimeError(str(error))


def within(seconds: float, future: "Future[Result]") -> Result:
    """Return the result of a future; TimeoutError, on every Python, if it is not there after so many seconds."""
    try:
        return future.result(seconds)
    except FutureTimeoutError:
        raise TimeoutError from None


def answer(reference: Any, seconds: float = TIMEOUT_S, what: str = "it") -> Any:
    """Return the answer of another process; blocks until it is there. TimeoutError after so many seconds."""
    try:
        return ray.get(reference, timeout=seconds)
    except Exception as error:
        raise unwrapped(error, what) from error
