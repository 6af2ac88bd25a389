"""The two passes over a stream. The first: encode, adapt, exchange, write, round by round.

A round is `shards` blocks. All of them start from the state at the end of the round before, and their states become
one. With one block per round, this is what one machine does. The driver sees neither images nor features nor rows: it
hands references from task to task, and gets the state when it saves a checkpoint. At that moment nothing else is under
way, so what follows depends on the checkpoint alone, and not on the tasks before it.

Memory is bounded, whatever is slowest: two rounds of encoded blocks are asked for ahead, Ray Data stops encoding when
its share of the object store is full, and few blocks beside those of two rounds wait to be adapted to or written.

The second pass answers all images once more, from everything that was learnt. A method may look at the whole stream
again, so this is done in one place, the driver. It collects the features in one local file, in half precision: 1 KB per
image at 512 dimensions. Rows are written by tasks. Writing a block again gives the same file, so a pass that was
stopped or killed begins anew.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

import ray

from acclimate.classify.outputs import FeatureFile
from acclimate.classify.run import Checkpoint
from acclimate.classify.summary import Summary
from acclimate.cluster.adapting import ClusterJob, LearntState, adapt_task, again_task, merged, write_task
from acclimate.cluster.machines import POLL_S, MachineWatch
from acclimate.methods import Adapter
from acclimate.predict import second_answers
from acclimate.reading.walk import read_ahead

CONCURRENT_ROUNDS = 2
CONCURRENT_WRITES = 8  # blocks that are being written or wait for it, beside those of these rounds


class StopRequest(Exception):  # noqa: N818 (it is not an error)
    """A user's request to stop the run."""


@dataclass(kw_only=True)
class FirstPass:
    """The first pass over the blocks of a stream that are not done yet."""

    job: ClusterJob  # settings of all tasks
    encoding: Any  # actor that gives the encoded blocks
    done: Checkpoint  # checkpoint to begin with; replaced by newer ones
    blocks: int  # number of blocks of the whole stream
    shards: int  # blocks per round
    ordered_first: int  # blocks at the beginning of the stream that are rounds of their own
    save: Callable[[Checkpoint], None]  # called with every new checkpoint
    seconds: float  # time between two checkpoints
    progress: Callable[[int], None]  # called with the number of images that are done
    stop: Callable[[], bool]  # returns True to stop
    machines: MachineWatch  # watch over the machines while waiting
    adapter_gpus: float = 0.0  # GPUs that an adapting task asks for

    def __post_init__(self) -> None:
        self._job = ray.put(self.job)
        self._adapt = adapt_task(self.job.learns and self.shards == 1, self.adapter_gpus)
        self._learnt: Any = ray.put(LearntState(self.done.adapter, self.done.gates))  # state after the last begun round
        self._summary = deepcopy(self.done.summary)
        self._writes: deque[Any] = deque()  # writes of the begun rounds, in order
        self._coming: deque[Any] = deque()  # encoded blocks that were asked for
        self._begun = self.done.position  # blocks

    def run(self) -> bool:
        """Go on to the end of the stream; returns False if it was stopped before."""
        saved = monotonic()
        with suppress(StopRequest):
            while self._begun < self.blocks:
                self._begin_round()
                if self._begun < self.blocks and monotonic() - saved >= self.seconds:
                    self._save()
                    saved = monotonic()
        self._save()
        return self._begun == self.blocks

    def _begin_round(self) -> None:
        afters = []
        writes = []
        shards = 1 if self._begun < self.ordered_first else self.shards
        for number in range(self._begun, min(self._begun + shards, self.blocks)):
            block = self._take(number)
            after, answered = self._adapt.remote(self._job, self._learnt, number, block)
            writes.append(write_task.remote(self._job, number, answered))
            afters.append(after)
        if self.job.learns:
            self._learnt = merged(self._learnt, afters)
        self._begun += len(afters)
        self._writes += writes
        while len(self._writes) > CONCURRENT_WRITES + CONCURRENT_ROUNDS * self.shards:
            self._finish_write()

    def _take(self, number: int) -> Any:
        """Return a reference to an encoded block, the next one; ask for those after it ahead."""
        while number + len(self._coming) < min(self.blocks, self._begun + (CONCURRENT_ROUNDS + 1) * self.shards):
            self._coming.append(self.encoding.next.remote())
        if self.stop():
            raise StopRequest
        self._wait(self._coming[0], stoppable=True)
        [block] = ray.get(self._coming.popleft())
        return block

    def _finish_write(self) -> None:
        write = self._writes.popleft()
        self._wait(write)
        self._summary.update(ray.get(write))
        self.progress(self._summary.images)

    def _save(self) -> None:
        """Wait for the rounds that were begun, and make a checkpoint of them."""
        if self._begun == self.done.position:
            return
        while self._writes:
            self._finish_write()
        self._wait(self._learnt)
        learnt: LearntState = ray.get(self._learnt)
        self.done = replace(
            self.done,
            adapter=learnt.adapter,
            position=self._begun,
            gates=learnt.gates,
            summary=deepcopy(self._summary),
        )
        self.save(self.done)
        self._learnt = ray.put(learnt)  # what Ray would compute again after a failure begins here

    def _wait(self, ref: Any, stoppable: bool = False) -> None:
        """Wait for a task, and look after the machines meanwhile."""
        began = monotonic()
        while not ray.wait([ref], timeout=POLL_S, fetch_local=False)[0]:
            if stoppable and self.stop():
                raise StopRequest
            self.machines.check(monotonic() - began)


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
        for rows in read_ahead(read, range(blocks), 8, 16):  # threads, and blocks that are read ahead
            if stop():
                return None
            features.write(rows)
            counts.append(len(rows))
        answers = second_answers(adapter, features.read(), job.top_k)
        shared = ray.put(job)
        writes = deque[Any]()
        for number, count in enumerate(counts):
            writes.append(again_task.remote(shared, number, list(islice(answers, count))))
            while writes and (len(writes) > CONCURRENT_WRITES or number + 1 == blocks):
                if stop():
                    return None
                summary.update(ray.get(writes.popleft()))
                progress(summary.images)
    return summary
