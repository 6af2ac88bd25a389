"""Few-shot methods beside methods that use no labels, on feature files.

The samples of a stream are halved by class. Shots are drawn from one half, the rest of it is for validation, and all
methods are scored on the other half, in the order of the stream.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from acclimate.arrays import HostArray
from acclimate.bench import Progress, silent
from acclimate.bench.orders import stream_order
from acclimate.bench.prequential import Variant
from acclimate.bench.processes import run_all
from acclimate.bench.suite import read_labelled
from acclimate.errors import InputError
from acclimate.methods import FewShot, create, find_method, require
from acclimate.sources.shots import draw_shots
from acclimate.stream import FeatureStream, read_stream


class Task(NamedTuple):
    """Some methods on a stream that is halved by a seed."""

    path: Path
    seed: int
    shots: tuple[int, ...]
    variants: tuple[Variant, ...]
    held_out: int | None


@dataclass(frozen=True)
class Score:
    """What one method scored. The fields are the columns of few-shot.csv; scores are fractions."""

    stream: str
    method: str
    shots: int  # per class; 0 for methods that use no labels
    seed: int
    samples: int  # that were scored
    validation: int  # samples that alpha and beta were chosen by
    acc1: float
    gain: float  # accuracy above zero-shot
    alpha: float | None  # of the method after it was fitted; None for methods that use no labels
    beta: float | None


@dataclass(frozen=True)
class Curve:
    """The scores of one method."""

    method: str
    scores: tuple[Score, ...]

    @property
    def shots(self) -> tuple[int, ...]:
        """The numbers of shots that any stream was run with; (0,) for a method that uses no labels."""
        return tuple(sorted({score.shots for score in self.scores}))

    def at(self, shots: int, streams: Sequence[str]) -> tuple[Score, ...]:
        """The scores of some streams with a number of shots."""
        return tuple(score for score in self.scores if score.shots == shots and score.stream in streams)

    def accuracy(self, shots: int, streams: Sequence[str]) -> tuple[float, float | None]:
        """The mean over streams and seeds, and the standard deviation of a seed's mean; None for a single seed."""
        scores = self.at(shots, streams)
        seeds = sorted({score.seed for score in scores})
        means = np.array([np.mean([score.acc1 for score in scores if score.seed == seed]) for seed in seeds])
        return float(means.mean()), float(means.std(ddof=1)) if len(seeds) > 1 else None


@dataclass(frozen=True)
class Plan:
    """What to run, and which classes have fewer samples than asked for."""

    streams: tuple[str, ...]  # names
    shots: tuple[int, ...]
    tasks: tuple[Task, ...]
    short: tuple[str, ...]  # sentences


def plan_few_shot(
    paths: Sequence[Path],
    variants: Sequence[Variant],
    shots: Sequence[int],
    seeds: int = 3,
    held_out: int | None = None,
) -> Plan:
    """Read streams and list the runs. A class that has fewer samples than a number of shots gives what it has.

    Args:
        paths: feature files with labels.
        variants: the methods; zero-shot is always run first.
        shots: numbers of labelled samples per class.
        seeds: draws of each number of shots, 0 to seeds - 1.
        held_out: the most validation samples per class, 0 for none; all that are left of the half when not given.
    """
    streams = read_labelled(paths)
    chosen = (Variant("zero-shot"), *(each for each in variants if each.method != "zero-shot"))
    methods = [find_method(variant.method) for variant in chosen]
    for method in methods:
        require(method, views=all(stream.views > 1 for stream in streams.values()), labels=True)
    if not any(method.kind == "few-shot" for method in methods):
        raise InputError("none of these methods learns from labelled samples; add one that does, such as tip-adapter.")
    numbers = tuple(sorted(set(shots)))
    short = []
    most = 0
    for name, stream in streams.items():
        assert stream.labels is not None
        counts = (np.bincount(stream.labels, minlength=len(stream.head)) + 1) // 2
        most = max(most, int(counts.max()))
        rarest = stream.head.class_names[int(counts.argmin())]
        if not counts.min():
            raise InputError(f"{name} has no sample of the class {rarest!r}; every class needs one to learn from.")
        most_held_out = int(counts.max()) if held_out is None else held_out
        drawn, _ = halve(stream, seed=0)  # a class has as many samples there whatever the seed
        for each in numbers:
            labels = stream.labels[drawn]
            names = stream.head.class_names
            places, _ = draw_shots(labels, names, each, held_out=most_held_out, allow_fewer=True)
            given = np.bincount(labels[places], minlength=len(counts))
            if fewer := int((given < each).sum()):
                short.append(
                    f"{name} at {each} shots: {fewer} of {len(given)} classes give fewer, {given.min()} at least; "
                    "a fifth of each of these classes is held out for validation."
                )
    if most < numbers[-1]:
        raise InputError(f"no class has {numbers[-1]} samples in its half of a stream; choose at most {most} shots.")
    tasks = tuple(Task(path, seed, numbers, chosen, held_out) for path in paths for seed in range(seeds))
    return Plan(tuple(streams), numbers, tasks, tuple(short))


def run_few_shot(tasks: Sequence[Task], jobs: int = 1, progress: Progress = silent) -> list[Score]:
    """Measure runs, in `jobs` processes with one thread each, or in this process if it is 1; the order is kept."""
    return [score for scores in run_all(measure, tasks, jobs, progress) for score in scores]


def measure(task: Task) -> list[Score]:
    """The scores of all methods on a stream that is halved by a seed."""
    stream = _read(task.path)
    assert stream.labels is not None
    drawn, scored = halve(stream, task.seed)
    features = stream.head.unit_features(stream.features)
    labels = stream.labels
    scores: list[Score] = []
    for variant in task.variants:
        labelled = find_method(variant.method).kind == "few-shot"
        for shots in task.shots if labelled else (0,):
            adapter = create(variant.method, stream.head, **variant.settings)
            validation = np.empty(0, np.int64)
            if isinstance(adapter, FewShot):
                most = len(drawn) if task.held_out is None else task.held_out
                names = stream.head.class_names
                places = draw_shots(labels[drawn], names, shots, task.seed, most, allow_fewer=True)
                fitted, validation = (drawn[each] for each in places)
                held_out = (features[validation], labels[validation]) if len(validation) else None
                adapter.fit(features[fitted], labels[fitted], validation=held_out)
            accuracy = float(np.mean(adapter.step(features[scored]).argmax(axis=1) == labels[scored]))
            found = adapter.chosen() if isinstance(adapter, FewShot) else {}
            scores.append(
                Score(
                    stream=task.path.stem,
                    method=variant.method,
                    shots=shots,
                    seed=task.seed,
                    samples=len(scored),
                    validation=len(validation),
                    acc1=accuracy,
                    gain=accuracy - (scores[0].acc1 if scores else accuracy),
                    alpha=found.get("alpha"),
                    beta=found.get("beta"),
                )
            )
    return scores


def halve(stream: FeatureStream, seed: int) -> tuple[HostArray, HostArray]:
    """Positions of the half of a labelled stream that shots are drawn from, and of the other half in stream order.

    Each class is halved; of an odd number of samples, the first half gets one more.
    """
    assert stream.labels is not None
    rng = np.random.default_rng(seed)
    first = np.zeros(len(stream), bool)
    for label in np.unique(stream.labels):
        members = rng.permutation(np.flatnonzero(stream.labels == label))
        first[members[: (len(members) + 1) // 2]] = True
    order = stream_order(stream, "stored")
    return np.flatnonzero(first), order[~first[order]]


def curves(scores: Sequence[Score]) -> list[Curve]:
    """The scores by method, in the order in which the methods were run."""
    names = dict.fromkeys(score.method for score in scores)
    return [Curve(name, tuple(score for score in scores if score.method == name)) for name in names]


@lru_cache(maxsize=1)
def _read(path: Path) -> FeatureStream:
    """Runs of one stream follow each other, so that each process reads it once."""
    return read_stream(path)
