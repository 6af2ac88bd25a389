"""What it costs to exchange states: their size, how long they take to travel and to merge, and the tree on Ray."""

from collections.abc import Sequence
from functools import partial

import ray
from ray import cloudpickle

from acclimate.cluster.adapting import LearntState, merged
from acclimate.cluster.connection import connect
from acclimate.methods import duplicate, merge_states, state_to_bytes
from cluster_parts.adapters import CLASSES, METHODS, features_of, filled, median_seconds
from cluster_parts.figures import Figures

PART = "exchange"
SHARDS = (2, 8, 16, 64)
SAMPLES = 128  # that a shard has seen since the last exchange; its state is as large with any number
STORE = 3 * 2**30  # bytes: 64 states of 20 MB, and what they are merged to


@ray.remote(num_cpus=0)
def _arrived(learnt: LearntState) -> None:
    """What a task of the next round does first."""
    duplicate(learnt.adapter)


def exchange(figures: Figures, quick: bool) -> None:
    """Measure each method, number of classes and number of shards."""
    classes, shards, turns = ((10,), (2, 8), 1) if quick else (CLASSES, SHARDS, 2)
    with connect(num_cpus=2, object_store_memory=STORE):
        _measure(Figures(), METHODS[0], classes[0], shards, 1 if quick else 5)  # Ray starts its processes meanwhile
        for method in METHODS:
            for count in classes:
                _measure(figures, method, count, shards, turns)
    tables(figures)


def _measure(figures: Figures, method: str, classes: int, shards: Sequence[int], turns: int) -> None:
    add = partial(figures.add, PART, method=method, classes=classes)
    start, rng = filled(method, classes)
    after = []
    for _ in range(8):
        after.append(duplicate(start))
        after[-1].step(features_of(start, rng, SAMPLES))
    add("MB of a state file", len(state_to_bytes(start)) / 1e6)
    add("MB of a state that travels", len(cloudpickle.dumps(LearntState(start, []))) / 1e6)
    add("ms, make a file", 1e3 * median_seconds(lambda: state_to_bytes(start), turns))
    add("ms, copy", 1e3 * median_seconds(lambda: duplicate(start), turns))
    add("ms, put and get", 1e3 * median_seconds(lambda: ray.get(ray.put(LearntState(start, []))), turns))
    for number in (2, 8):
        seconds = median_seconds(partial(merge_states, after[:number], start), turns)
        add("ms, merge in one process", 1e3 * seconds, shards=number)
    begin = ray.put(LearntState(start, []))
    afters = [ray.put(LearntState(after[place % 8], [])) for place in range(max(shards))]
    for number in shards:
        refs = afters[:number]
        seconds = median_seconds(lambda refs=refs: ray.get(_arrived.remote(merged(begin, refs))), turns)
        add("ms, exchange on Ray", 1e3 * seconds, shards=number)


def tables(figures: Figures) -> None:
    """Print what was measured."""
    rows = []
    waits = []
    shards = sorted({each.shards for each in figures.of(PART, "ms, exchange on Ray")})
    for method in METHODS:
        for classes in sorted({each.classes for each in figures.of(PART, "MB of a state file")}):
            value = partial(figures.value, PART, method=method, classes=classes)
            rows.append(
                (
                    f"{method}, {classes:,} classes",
                    f"{value('MB of a state file'):.2f}",
                    f"{value('MB of a state that travels'):.2f}",
                    f"{value('ms, make a file'):.1f}",
                    f"{value('ms, copy'):.1f}",
                    f"{value('ms, put and get'):.1f}",
                    f"{value('ms, merge in one process', shards=2):.1f}",
                    f"{value('ms, merge in one process', shards=8):.1f}",
                )
            )
            waits.append(
                (
                    f"{method}, {classes:,} classes",
                    *(f"{value('ms, exchange on Ray', shards=number):,.0f}" for number in shards),
                )
            )
    about = (
        "Features of 512 numbers, full caches. A file is what a checkpoint writes; what travels is what Ray hands "
        "from process to process. Put and get: into the object store and out of it, on one machine."
    )
    columns = (
        "",
        "file, MB",
        "travels, MB",
        "make file, ms",
        "copy, ms",
        "put and get, ms",
        "merge 2, ms",
        "merge 8, ms",
    )
    figures.table("A state", about, columns, rows)
    about = (
        "Milliseconds from the last state of a round to a task of the next round that has its copy of the merged "
        "state: a tree of tasks that merge up to eight states each. All processes share two cores here. On as many "
        "machines as there are shards the tasks of one level run side by side, and the network comes on top."
    )
    figures.table("An exchange on Ray", about, ("", *(f"{number} shards" for number in shards)), waits)
