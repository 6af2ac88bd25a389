"""Processes that work for the threads of this one, with a part of memory that all of them see.

They start when they are needed, one for each thread that has work for one, and end with `close` or with this process.
"""

import multiprocessing.util  # first: what it does at exit has to come after what is done here
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.heap import BufferWrapper
from queue import SimpleQueue
from threading import Lock
from types import ModuleType
from typing import Any, Generic, TypeVar

from acclimate.errors import RunError

CHILDREN = Lock()  # multiprocessing's list of its children is not made for threads
CONTEXT: Any = multiprocessing.get_context("forkserver" if hasattr(os, "fork") else "spawn")
Task = TypeVar("Task")
Answer = TypeVar("Answer")
Work = Callable[[Task, "memoryview | None"], Answer]  # is given a slot of the memory, into which it may write


@contextmanager
def no_main() -> Iterator[None]:
    """Hide the running program from multiprocessing, which would import it in every process that it starts."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


class Processes(Generic[Task, Answer]):
    """Does tasks in other processes, at most one for each thread that calls it.

    The memory has no name: nothing of it is left behind, however the processes end.

    Args:
        work: done for each task; must be picklable, as tasks and answers must be.
        begin: called in each process first; must be picklable.
        slots: parts of the memory.
        size: of a slot, in bytes.
    """

    def __init__(self, work: Work[Task, Answer], begin: Callable[[], None], slots: int, size: int) -> None:
        memory = BufferWrapper(max(1, slots * size))  # an array of multiprocessing would be filled with zeros first
        self.memory: memoryview = memory.create_memoryview()
        self._arguments = (work, begin, memory, size)
        self._lock = Lock()
        self._idle: list[_Process] = []
        self._all: set[_Process] = set()
        self._waiting: deque[SimpleQueue[_Process | None]] = deque()  # threads, in turn
        self._starting = self._closed = False

    def __call__(self, tasks: Sequence[tuple[Task, int | None]]) -> list[Answer | None]:
        """The answers to tasks, each with the number of the slot that it may write to, if any.

        None is the answer to a task whose process ended. Of several, each is tried again by itself.

        Raises:
            RunError: the work failed, or no process can be started.
        """
        process = self._take()
        try:
            answers = process.ask(tasks)
        except (EOFError, OSError):
            self._end(process)
            return [None] if len(tasks) == 1 else [answer for task in tasks for answer in self([task])]
        self._give_back(process)
        if isinstance(answers, str):
            raise RunError(f"an image could not be prepared: {answers}.")
        return answers

    def close(self) -> None:
        """End all processes at once, whatever they do; threads that wait for one go on."""
        with self._lock:
            self._closed = True
            self._idle.clear()
            processes = list(self._all)
        for process in processes:
            process.kill()
        for process in processes:
            self._end(process)

    def _take(self) -> "_Process":
        """An idle process, or a new one. They are started one after another, and whoever waits gets what is idle first.

        So quick work is done by few processes, which is sooner than by many that all have to start.
        """
        turn: SimpleQueue[_Process | None] = SimpleQueue()
        with self._lock:
            if self._idle and not self._closed:
                return self._idle.pop()
            if self._starting:
                self._waiting.append(turn)
            else:
                self._starting = True
                turn.put(None)
        return turn.get() or self._start()

    def _start(self) -> "_Process":
        try:
            if self._closed:
                raise RunError("reading has ended.")
            process = _Process(*self._arguments)
            with self._lock:
                self._all.add(process)
                if self._closed:
                    process.kill()
            return process
        except (EOFError, OSError) as error:
            raise RunError(
                f"no process to read images could be started ({error}); choose fewer with --workers."
            ) from error
        finally:
            with self._lock:
                self._starting = bool(self._waiting)
                if self._waiting:
                    self._waiting.popleft().put(None)  # its turn to start one

    def _give_back(self, process: "_Process") -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().put(process)
            else:
                self._idle.append(process)

    def _end(self, process: "_Process") -> None:
        with self._lock:
            known = process in self._all
            self._all.discard(process)
        if known:
            process.end()


class _Process:
    def __init__(self, work: Work[Any, Any], begin: Callable[[], None], memory: BufferWrapper, size: int) -> None:
        self._connection, theirs = CONTEXT.Pipe()
        CONTEXT.set_forkserver_preload([type(work).__module__])
        with theirs, CHILDREN, no_main():
            self._process = CONTEXT.Process(target=serve, args=(theirs, work, begin, memory, size), daemon=True)
            self._process.start()

    def ask(self, tasks: Sequence[tuple[Any, int | None]]) -> list[Any] | str:
        """The answers to tasks, or why the work has failed; EOFError or OSError if the process has ended."""
        self._connection.send(tasks)
        answers: list[Any] | str = self._connection.recv()
        return answers

    def kill(self) -> None:
        with suppress(ValueError):  # another thread has ended it
            self._process.kill()

    def end(self) -> None:
        """Stop it, and release what it used."""
        self.kill()
        with CHILDREN:
            self._process.join()
            self._process.close()
        self._connection.close()


def serve(connection: Any, work: Work[Any, Any], begin: Callable[[], None], memory: BufferWrapper, size: int) -> None:
    """What runs in a process: tasks are done until the connection is closed, as it is when its parent has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its parent decides when to end
    begin()
    whole = memory.create_memoryview()
    with suppress(EOFError, OSError):
        while True:
            tasks = connection.recv()
            try:
                slots = [None if slot is None else whole[slot * size : (slot + 1) * size] for _, slot in tasks]
                answers: Any = [work(task, slot) for (task, _), slot in zip(tasks, slots, strict=True)]
            except Exception as error:
                answers = f"{type(error).__name__}: {error}"[:1000]
            connection.send(answers)
