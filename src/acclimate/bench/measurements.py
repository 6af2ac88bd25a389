"""Independent measurements on runs and feature files, in several processes with one thread each."""

import hashlib
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache, partial
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread

from acclimate.bench import Progress, silent
from acclimate.bench.results import Score
from acclimate.encoders import load_encoder
from acclimate.errors import InputError, RunError
from acclimate.methods import load_plugin, loaded_plugins
from acclimate.run import Run, is_run
from acclimate.stream import FeatureStream, read_stream

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True)
class Measurements:
    """Measurements to be made on streams, each of which can be made in a process of its own."""

    streams: Mapping[str, FeatureStream]
    tasks: tuple[partial[list[Score]], ...]  # calls of functions at the top of a module
    notes: tuple[str, ...]  # sentences on what is left out

    def run(
        self,
        jobs: int = 1,
        progress: Progress = silent,
        keep: Callable[[list[Score]], None] = lambda scores: None,
    ) -> list[Score]:
        """Measure everything in `jobs` processes, or in this process if it is 1; the order is kept.

        `keep` is called with the scores of each measurement as soon as they and all before them are known.
        """
        scores: list[Score] = []
        with ExitStack() as stack:
            advance = stack.enter_context(progress(len(self.tasks), "measuring", "runs"))
            found: Iterator[list[Score]] = map(partial.__call__, self.tasks)
            if jobs > 1 < len(self.tasks):
                before = {name: value for name, value in os.environ.items() if name in ONE_THREAD}
                stack.callback(os.environ.update, before)
                for name in ONE_THREAD.keys() - before.keys():
                    stack.callback(os.environ.pop, name)
                os.environ.update(ONE_THREAD)  # read when a process starts and loads its linear algebra
                pool = ProcessPoolExecutor(
                    min(jobs, len(self.tasks)), get_context("spawn"), _begin, (loaded_plugins(),)
                )
                stack.callback(pool.shutdown, cancel_futures=True)  # an interruption ends them after their current run
                found = pool.map(partial.__call__, self.tasks)
            try:
                for each in found:
                    scores += each
                    keep(each)
                    advance(1)
            except BrokenProcessPool as error:
                raise RunError("a process was killed, probably for want of memory; try fewer --jobs.") from error
        return scores


def name_files(paths: Sequence[Path]) -> dict[str, Path]:
    """Return files by their names without the suffix, and with the folder where several have the same.

    Examples:
        >>> list(name_files([Path("clip/pets.npz"), Path("old/pets.npz"), Path("old/cars.npz")]))
        ['clip/pets', 'old/pets', 'cars']
    """
    stems = Counter(path.stem for path in paths)
    return {path.stem if stems[path.stem] == 1 else f"{path.resolve().parent.name}/{path.stem}": path for path in paths}


def read_labelled(paths: Sequence[Path]) -> dict[str, FeatureStream]:
    """Read runs and feature files with labels, by their names of `name_files`."""
    named = name_files(paths)
    if len(named) < len(paths):
        raise InputError("two feature files have the same name, which results are stored under; rename one.")
    streams = {name: read_stream(path) for name, path in named.items()}
    for name, stream in streams.items():
        if stream.targets is None:
            raise InputError(f"{name} has no labels, so there is nothing to score; add labels to the file.")
    return streams


def fingerprint(path: Path) -> str:
    """Return a digest that tells a run or feature file from others."""
    content = f"{Run.open(path).id} {Run.open(path).images}".encode() if is_run(path) else path.read_bytes()
    return hashlib.sha256(content).hexdigest()[:16]


# Once per process: the measurements of a stream follow each other.
read_once = lru_cache(maxsize=1)(read_stream)
load_once = lru_cache(maxsize=1)(load_encoder)


def _begin(plugins: Sequence[Path]) -> None:
    """Prepare a process: know the parent's methods, leave interruptions to it, and end when it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()

    def end_with_parent() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    Thread(target=end_with_parent, daemon=True).start()
    for path in plugins:
        load_plugin(path)
