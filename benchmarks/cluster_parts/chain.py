"""Where one ordered adapter ends: how many samples per second it takes, if encoding costs nothing."""

import tempfile
from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import ray

from acclimate.classify.run import Checkpoint
from acclimate.classify.summary import Summary
from acclimate.cluster.adapting import ClusterJob, LearntState, adapt, adapt_task
from acclimate.cluster.connection import connect
from acclimate.cluster.machines import MachineWatch
from acclimate.cluster.output_folder import OutputFolder
from acclimate.cluster.passes import FirstPass
from cluster_parts.adapters import CLASSES, METHODS, encoded_block, features_of, filled
from cluster_parts.figures import Figures

PART = "chain"
BATCHES = (32, 256)  # images per batch of an encoder on a CPU, and on a GPU
EVERY = 1024
WAYS = ("in one process", "tasks on Ray", "tasks on Ray, with rows")


@ray.remote(num_cpus=0)
class Encoded:
    """Hands out blocks that are encoded already, as the actor that runs the encoders does."""

    def __init__(self, blocks: Sequence[Any]) -> None:
        self._blocks = iter(blocks)

    def next(self) -> list[Any]:
        """The reference to the next block; empty after the last."""
        return list(next(self._blocks, ()))


def chain(figures: Figures, quick: bool) -> None:
    """Measure each method, number of classes and size of batches."""
    classes, blocks, turns = ((10,), 2, 1) if quick else (CLASSES, 6, 1)
    with connect(num_cpus=2, object_store_memory=2**30):
        for method in METHODS:
            for count in classes:
                start, rng = filled(method, count)
                features = [features_of(start, rng, EVERY) for _ in range(blocks)]
                for batch in BATCHES:
                    given = {"method": method, "classes": count, "every": batch}
                    for way, rate in _rates(LearntState(start, []), features, batch, turns).items():
                        figures.add(PART, f"samples/s, {way}", rate, **given)
    tables(figures)


def _rates(learnt: LearntState, features: Sequence[np.ndarray], batch: int, turns: int) -> dict[str, float]:
    """Samples per second of each way, that of the fastest turn; they take turns."""
    blocks = [encoded_block(number, number * EVERY, rows, batch) for number, rows in enumerate(features)]
    refs = [ray.put(block) for block in blocks]
    with tempfile.TemporaryDirectory() as folder:
        job = ClusterJob(
            head=learnt.adapter.head,
            gates=(),
            first_id=learnt.adapter.next_id,
            learns=True,
            top_k=3,
            unsure=0.0,
            keep=False,
            out=OutputFolder(folder),
            about={},
        )
        ways = (partial(_in_process, job, learnt, blocks), partial(_tasks, job, learnt, refs))
        ways += (partial(_first_pass, job, learnt, refs),)
        seconds = {name: [way() for _ in range(turns + 1)][1:] for name, way in zip(WAYS, ways, strict=True)}
    return {name: len(features) * EVERY / min(each) for name, each in seconds.items()}


def _in_process(job: ClusterJob, learnt: LearntState, blocks: Sequence[Any]) -> float:
    began = perf_counter()
    for number, block in enumerate(blocks):
        after, _ = adapt(job, learnt, number, block)
        learnt = after or learnt
    return perf_counter() - began


def _tasks(job: ClusterJob, learnt: LearntState, blocks: Sequence[Any]) -> float:
    shared = ray.put(job)
    state = ray.put(learnt)
    task = adapt_task(alone=True)
    began = perf_counter()
    for number, block in enumerate(blocks):
        state, _ = task.remote(shared, state, number, block)
    ray.wait([state])
    return perf_counter() - began


def _first_pass(job: ClusterJob, learnt: LearntState, blocks: Sequence[Any]) -> float:
    encoding = Encoded.remote([[block] for block in blocks])
    ray.get(encoding.__ray_ready__.remote())
    done = Checkpoint(learnt.adapter, {}, 0, job.first_id, [], Summary())
    began = perf_counter()
    FirstPass(
        job=job,
        encoding=encoding,
        done=done,
        blocks=len(blocks),
        shards=1,
        ordered_first=0,
        save=lambda done: None,
        seconds=1e9,
        progress=lambda images: None,
        stop=lambda: False,
        machines=MachineWatch(0.0, 0.0, (1, 1)),
    ).run()
    seconds = perf_counter() - began
    ray.kill(encoding)
    return seconds


def tables(figures: Figures) -> None:
    """Print what was measured."""
    rows = []
    for each in figures.of(PART, f"samples/s, {WAYS[0]}"):
        given = {"method": each.method, "classes": each.classes, "every": each.every}
        alone, tasks, written = (figures.value(PART, f"samples/s, {way}", **given) for way in WAYS)
        name = f"{each.method}, {each.classes:,} classes, batch {each.every}"
        rows.append((name, f"{alone:,.0f}", f"{tasks:,.0f}", f"{written:,.0f}", f"{tasks / alone:.2f}"))
    about = (
        f"Samples per second of one ordered adapter, shown blocks of {EVERY:,} that are encoded already, in batches of "
        "32 (what an encoder on a CPU gives) and of 256 (on a GPU), with one thread. Each block is a task of Ray that "
        "takes the state of the task before. In the third column rows are written at the same time, on the same cores."
    )
    figures.table("One ordered adapter", about, ("", *WAYS, "tasks on Ray / in one process"), rows)
