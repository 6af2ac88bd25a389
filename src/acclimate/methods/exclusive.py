"""One thread at a time: the lock of an object, and the decorator of the methods that take it."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import wraps
from inspect import isgeneratorfunction
from threading import RLock
from typing import Any, TypeVar, cast

from acclimate.arrays import ordinary_tensors

AnyMethod = TypeVar("AnyMethod", bound=Callable[..., Any])
END = object()  # follows the last value of a generator


class Turn:
    """A lock that a thread may take again. A copy of it, or one that was pickled, is a new lock."""

    def __init__(self) -> None:
        self._lock = RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type["Turn"], tuple[()]]:
        return Turn, ()


def exclusive(method: AnyMethod) -> AnyMethod:
    """Make the methods of an object wait for each other, by its `turn`, and compute on `ordinary_tensors`.

    A generator computes on a copy of the object, which may go on changing between two of its values.
    """

    @wraps(method)
    def alone(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self.turn, ordinary_tensors():
            return method(self, *args, **kwargs)

    @wraps(method)
    def on_a_copy(self: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        values = method(deepcopy(self), *args, **kwargs)
        while True:
            with ordinary_tensors():
                value = next(values, END)
            if value is END:
                return
            yield value

    return cast(AnyMethod, on_a_copy if isgeneratorfunction(method) else alone)
