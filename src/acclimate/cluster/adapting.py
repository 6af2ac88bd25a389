"""The tasks of Ray on encoded blocks: adapt to a block, merge states, write rows, answer a block again.

All are pure functions of what they are given, so Ray may run them again after a failure, and anywhere. They ask for no
CPU: encoders may hold all of them, and these tasks must run nevertheless. How many there are at a time is bounded by
the driver.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import ray

from acclimate.arrays import Array, HostArray
from acclimate.classify.summary import BlockSummary
from acclimate.cluster.encoding import encoded_batches
from acclimate.cluster.output_folder import OutputFolder
from acclimate.encoders.loading import torch_device
from acclimate.errors import missing
from acclimate.evidence import Head
from acclimate.methods import Adapter, duplicate, merge_states
from acclimate.methods.gates import Gate
from acclimate.predict import Predictions, adapt_batch, float16_features


@dataclass(frozen=True)
class ClusterJob:
    """The settings that all tasks of a job have in common."""

    head: Head
    gates: Sequence[Gate]
    first_id: int  # id of the stream's first image in the state
    learns: bool  # True if states change
    top_k: int
    unsure: float
    keep: bool  # True if features are kept for a second pass
    out: OutputFolder
    about: Mapping[str, str]  # metadata of each file of results
    device: str = ""  # PyTorch device of the adapters; "" for the host


class LearntState(NamedTuple):
    """The adapter and its gates after a part of a stream."""

    adapter: Adapter
    gates: list[str]  # their states


# The answered batches of a block, and their features (float16) if they are kept
Answered = tuple[list[Predictions], list[HostArray]]


def adapt(job: ClusterJob, learnt: LearntState, number: int, block: Any) -> tuple[LearntState | None, Answered]:
    """Show a block to a copy of an adapter, batch by batch as `Classifier.batches` does; None if nothing is learnt."""
    adapter = duplicate(learnt.adapter)  # what Ray hands over is read-only
    predictions = []
    features = []
    if job.device:
        move(adapter, job.gates, on_device(job.device))
    for gate, remembered in zip(job.gates, learnt.gates, strict=True):
        gate.restore(remembered)
    for batch in encoded_batches(block, number):
        found, evidence = adapt_batch(adapter, batch, job.top_k, job.unsure, first_id=job.first_id, gates=job.gates)
        predictions.append(found)
        if job.keep and evidence is not None:
            features.append(float16_features(evidence))
    if not job.learns:
        return None, (predictions, features)
    if job.device:
        move(adapter, job.gates, np.empty(0, np.float32))
    return LearntState(adapter, [gate.dump() for gate in job.gates]), (predictions, features)


def move(adapter: Adapter, gates: Sequence[Gate], like: Array) -> None:
    """Bring an adapter and its gates to where an array is."""
    adapter.to(like)
    for gate in gates:
        gate.relabel(adapter.head)


def on_device(device: str) -> Array:
    """Copy an array to a PyTorch device.

    Raises:
        MissingExtraError: there is no PyTorch.
        ModelError: there is no such device.
    """
    try:
        import torch
    except ModuleNotFoundError:
        raise missing("adapting on a GPU needs PyTorch", "torch", "or leave out --adapter-gpus") from None
    return torch.empty(0, dtype=torch.float32, device=torch_device(device))


def merge(start: LearntState, *afters: LearntState) -> LearntState:
    """Merge states that continued from one state; gates go on from the first."""
    return LearntState(merge_states([each.adapter for each in afters], start.adapter), afters[0].gates)


def write_block(job: ClusterJob, number: int, answered: Answered) -> BlockSummary:
    """Write the rows of a block, and its features if they are kept."""
    batches, features = answered
    if job.keep:
        job.out.write_features(number, features)
    return job.out.write_rows(number, [row for batch in batches for row in batch], job.about)


def answer_block_again(job: ClusterJob, number: int, answers: Sequence[tuple[HostArray, HostArray]]) -> BlockSummary:
    """Write the rows of a block once more, with the answers of `second_answers`."""
    online = job.out.read_rows(number, job.head.class_names)
    return job.out.write_rows(number, online.refined(iter(answers), job.top_k, job.unsure), job.about)


# A task whose process or machine is lost is repeated.
SPREAD: dict[str, Any] = {"num_cpus": 0, "max_retries": 5, "scheduling_strategy": "SPREAD"}
merge_task = ray.remote(**SPREAD)(merge)
write_task = ray.remote(**SPREAD)(write_block)
again_task = ray.remote(**SPREAD)(answer_block_again)


def adapt_task(alone: bool, gpus: float = 0.0) -> Any:
    """Make the task that adapts; `alone` if there is one at a time.

    Ray runs a task where most of its arguments are. That is right for one state, which is larger than a block: the
    features travel to it. Several would all end up at the place of the state they start from, and are spread.
    """
    how = SPREAD | {"num_returns": 2, "scheduling_strategy": "DEFAULT" if alone else "SPREAD"}
    if gpus:
        how |= {"num_gpus": gpus, "max_calls": 0}  # else each call would end its process, and free the GPU
    return ray.remote(**how)(adapt)


def merged(start: Any, afters: Sequence[Any], width: int = 8) -> Any:
    """Merge states, given as references, in a tree whose shape depends on their number alone."""
    level = list(afters)
    while len(level) > 1:
        groups = [level[first : first + width] for first in range(0, len(level), width)]
        level = [merge_task.remote(start, *group) if len(group) > 1 else group[0] for group in groups]
    return level[0]
