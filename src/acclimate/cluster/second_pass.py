"""The second pass: all images answered once more, from everything that was learnt.

A method may look at the whole stream again, so this is done in one place, the driver. It collects the features in one
local file, in half precision: 1 KB per image at 512 dimensions. Rows are written by tasks. Writing a block again gives
the same file, so a pass that was stopped or killed begins anew.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import ray

from acclimate.classify.outputs import FeatureFile
from acclimate.classify.summary import Summary
from acclimate.cluster.adapting import ClusterJob, again_task
from acclimate.cluster.parts import read_features
from acclimate.methods import Adapter
from acclimate.predict import second_answers
from acclimate.reading.walk import read_ahead

FETCH_THREADS = 8
CONCURRENT_WRITES = 16  # blocks


class SecondPass:
    """The second pass over the blocks of a stream.

    Args:
        job: the settings of all tasks.
        adapter: the adapter after the first pass.
        path: a local file for the features.
        shape: shape of the features of an image.
        blocks: number of blocks of the stream.
        progress: called with the number of images that are done.
        stop: returns True to stop.
    """

    def __init__(
        self,
        job: ClusterJob,
        adapter: Adapter,
        path: Path,
        shape: tuple[int, ...],
        *,
        blocks: int,
        progress: Callable[[int], None],
        stop: Callable[[], bool],
    ) -> None:
        self.job = job
        self.adapter = adapter
        self.blocks = blocks
        self.progress = progress
        self.stop = stop
        self.features = FeatureFile(path, shape)

    def run(self) -> Summary | None:
        """Write all rows again; returns what they add up to, or None if it was stopped."""
        summary = Summary(passes=2)
        writes = deque[Any]()
        job = ray.put(self.job)
        if not (counts := self._collect()) or self.stop():
            return None if self.blocks else summary
        answers = second_answers(self.adapter, self.features.read(), self.job.top_k)
        for number, count in enumerate(counts):
            if self.stop():
                return None
            found = list(islice(answers, count))
            classes = np.array([each for each, _ in found])
            scores = np.array([each for _, each in found])
            writes.append(again_task.remote(job, number, classes, scores))
            if len(writes) > CONCURRENT_WRITES:
                self._count(summary, writes)
        while writes:
            if self.stop():
                return None
            self._count(summary, writes)
        return summary

    def _count(self, summary: Summary, writes: deque[Any]) -> None:
        summary.update(ray.get(writes.popleft()))
        self.progress(summary.images)

    def _collect(self) -> list[int]:
        """Fetch the features; returns how many each block has, and nothing if it was stopped."""
        self.features.open()
        counts = []
        read = partial(read_features, self.job.out, shape=self.features.shape)
        for rows in read_ahead(read, range(self.blocks), FETCH_THREADS, 2 * FETCH_THREADS):
            if self.stop():
                return []
            self.features.write(rows)
            counts.append(len(rows))
        return counts
