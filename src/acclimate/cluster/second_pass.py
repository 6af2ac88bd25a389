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
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import ray

from acclimate.classify.outputs import FeatureFile
from acclimate.classify.summary import Summary
from acclimate.cluster.adapting import ClusterJob, again_task
from acclimate.methods import Adapter
from acclimate.predict import second_answers
from acclimate.reading.walk import read_ahead

FETCH_THREADS = 8
CONCURRENT_WRITES = 16  # blocks


def answer_again(
    job: ClusterJob,
    adapter: Adapter,
    shape: tuple[int, ...],
    blocks: int,
    progress: Callable[[int], None],
    stop: Callable[[], bool],
) -> Summary | None:
    """Write all rows again.

    Args:
        job: the settings of all tasks.
        adapter: the adapter after the first pass.
        shape: shape of the features of an image.
        blocks: number of blocks of the stream.
        progress: called with the number of images that are done.
        stop: returns True to stop.

    Returns:
        The sums over the rows, or None if it was stopped.
    """
    summary = Summary(passes=2)
    with TemporaryDirectory(prefix="acclimate-") as folder:
        features = FeatureFile(Path(folder, "features"), shape)
        features.open()
        counts = []
        read = partial(job.out.read_features, shape=shape)
        for rows in read_ahead(read, range(blocks), FETCH_THREADS, 2 * FETCH_THREADS):
            if stop():
                return None
            features.write(rows)
            counts.append(len(rows))
        answers = second_answers(adapter, features.read(), job.top_k)
        shared = ray.put(job)
        writes = deque[Any]()
        for number, count in enumerate(counts):
            found = list(islice(answers, count))
            classes = np.array([each for each, _ in found])
            scores = np.array([each for _, each in found])
            writes.append(again_task.remote(shared, number, classes, scores))
            while writes and (len(writes) > CONCURRENT_WRITES or number + 1 == blocks):
                if stop():
                    return None
                summary.update(ray.get(writes.popleft()))
                progress(summary.images)
    return summary
