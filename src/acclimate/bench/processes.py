"""Independent measurements in several processes with one thread each."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from acclimate.bench import Progress, silent
from acclimate.errors import RunError
from acclimate.methods import load_plugin, loaded_plugins

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
Task = TypeVar("Task")
Answer = TypeVar("Answer")


def run_all(
    measure: Callable[[Task], Answer], tasks: Sequence[Task], jobs: int = 1, progress: Progress = silent
) -> list[Answer]:
    """Measure tasks in `jobs` processes, or in this process if it is 1; the order is kept.

    Args:
        measure: a function at the top of a module.
        tasks: what it is called with.
        jobs: the most processes.
        progress: shows the number of runs done.
    """
    answers: list[Answer] = []
    with progress(len(tasks), "measuring", "runs") as advance, _mapping(min(jobs, len(tasks))) as map_all:
        for each in map_all(measure, tasks):
            answers.append(each)
            advance(1)
    return answers


def _begin(plugins: Sequence[Path]) -> None:
    """In a process that measures: know the parent's methods, leave interruptions to it, and end when it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()

    def end_with_parent() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    Thread(target=end_with_parent, daemon=True).start()
    for path in plugins:
        load_plugin(path)


@contextmanager
def _mapping(jobs: int) -> Iterator[Any]:
    """`map`, or that of a pool of processes; an interruption ends them after their current run."""
    if jobs <= 1:
        yield map
        return
    known = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)  # read when a process starts and loads its linear algebra
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), _begin, (loaded_plugins(),))
    try:
        yield pool.map
    except BrokenProcessPool as error:
        raise RunError("a process was killed, probably for want of memory; try fewer --jobs.") from error
    finally:
        pool.shutdown(cancel_futures=True)
        for name, value in known.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
