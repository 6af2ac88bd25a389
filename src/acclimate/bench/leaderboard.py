"""The leaderboard: every training-free method over many streams, in every shape that a stream can take.

One run is a stream in one order. All methods share its pass, so they answer the same samples from the same zero-shot
evidence, and runs are independent: they can be measured in several processes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from acclimate.bench import Progress, silent
from acclimate.bench.orders import LEAST, SHAPES, SHORT, order_names, stream_order
from acclimate.bench.prequential import Outcome, Run, Variant, compare
from acclimate.bench.processes import run_all
from acclimate.bench.results import pass_title
from acclimate.bench.suite import read_labelled
from acclimate.errors import InputError, nearest
from acclimate.methods import find_method, list_methods
from acclimate.sources.source import parse_order
from acclimate.stream import FeatureStream, read_stream

DEFAULT_SHAPES = (
    *("seed", "class-sequential", "correlated", "few-classes", "half-classes", "long-tail", "domain-shift"),
    f"first-{SHORT}",
)
SHAPE_TITLES = {"seed": "shuffled", "correlated": "bursts"}  # others are called by their names


class Task(NamedTuple):
    """One pass of some methods over a stream."""

    path: Path
    order: str
    methods: tuple[str, ...]
    limit: int | None
    passes: int


@dataclass(frozen=True)
class Score:
    """What one method scored in one run. The fields are the columns of leaderboard.csv; scores are fractions."""

    stream: str
    shape: str
    seed: int
    method: str
    passes: int  # 2 for the answers of the second pass
    samples: int
    acc1: float
    gain: float  # accuracy above zero-shot
    ece: float
    brier: float
    us_per_sample: float  # microseconds beyond those of zero-shot, of all passes together; zero-shot has its own
    state_bytes: int  # of the arrays of the state, at the end


@dataclass(frozen=True)
class Standing:
    """What a method scored in all runs. Means are means over the shapes, each of which counts the same."""

    title: str
    scores: tuple[Score, ...]

    @property
    def shapes(self) -> dict[str, tuple[Score, ...]]:
        """The scores by shape."""
        names = sorted({score.shape for score in self.scores}, key=list(SHAPES).index)
        return {name: tuple(score for score in self.scores if score.shape == name) for name in names}

    @property
    def worst(self) -> Score:
        """The run with the lowest gain."""
        return min(self.scores, key=lambda score: score.gain)

    @property
    def state_bytes(self) -> int:
        """Of the largest state."""
        return max(score.state_bytes for score in self.scores)

    def gains(self, shape: str) -> tuple[float, float]:
        """The mean and the lowest gain of a shape."""
        gains = [score.gain for score in self.shapes[shape]]
        return float(np.mean(gains)), min(gains)

    def mean(self, column: str) -> float:
        """The mean of a column over the shapes' means."""
        return float(np.mean([np.mean([getattr(score, column) for score in each]) for each in self.shapes.values()]))


@dataclass(frozen=True)
class Plan:
    """What to run, and what cannot be run."""

    streams: Mapping[str, FeatureStream]
    tasks: tuple[Task, ...]
    left_out: tuple[str, ...]  # sentences


def plan_board(
    paths: Sequence[Path],
    methods: Sequence[str] = (),
    shapes: Sequence[str] = DEFAULT_SHAPES,
    orders: int = 5,
    limit: int | None = None,
    passes: int = 1,
) -> Plan:
    """Read streams and list the runs, `orders` of each shape; what a stream or method cannot do is left out.

    Args:
        paths: feature files with labels.
        methods: their names; all training-free methods when not given.
        shapes: names of `acclimate.bench.orders.SHAPES`.
        orders: runs of each shape and stream, seeds 0 to orders - 1.
        limit: take at most this many samples of a stream, drawn at random.
        passes: 2 to score the second pass of every method that learns online, too.
    """
    for shape in shapes:
        if shape not in SHAPES:
            raise InputError(f"unknown shape {shape!r}; {nearest(shape, SHAPES)}")
    streams = {name: _limited(stream, limit) for name, stream in read_labelled(paths).items()}
    left_out = []
    with_views = all(stream.views > 1 for stream in streams.values())
    chosen = [name for name in dict.fromkeys(methods or list_methods()) if name != "zero-shot"]
    for name in list(chosen):
        if reason := _unfit(name, with_views):
            left_out.append(f"The method {name} ({reason}).")
            chosen.remove(name)
    if not chosen:
        raise InputError(f"no method can run. {' '.join(left_out)}")
    tasks = []
    for shape in dict.fromkeys(shapes):
        names = order_names(f"{shape}:0", orders)
        able = [path for path in paths if _can_take(streams[path.stem], names[0])]
        tasks += [Task(path, name, tuple(chosen), limit, passes) for path in able for name in names]
        if unable := [path.stem for path in paths if path not in able]:
            left_out.append(f"{shape_title(shape).capitalize()}: {', '.join(unable)} ({_why(shape)}).")
    if not tasks:
        raise InputError(f"no stream can take these shapes. {' '.join(left_out)}")
    return Plan(streams, tuple(sorted(tasks, key=lambda task: paths.index(task.path))), tuple(left_out))


def run_board(tasks: Sequence[Task], jobs: int = 1, progress: Progress = silent) -> list[Score]:
    """Measure runs, in `jobs` processes with one thread each, or in this process if it is 1; the order is kept."""
    return [score for scores in run_all(measure, tasks, jobs, progress) for score in scores]


def measure(task: Task) -> list[Score]:
    """The scores of zero-shot and of all methods in one run."""
    variants = [Variant(name) for name in task.methods]
    outcomes = compare(_read(task.path, task.limit), variants, [task.order], passes=task.passes)
    zero_shot = outcomes[0].runs[task.order]
    scores = []
    for outcome in outcomes:
        seconds = 0.0 if outcome is outcomes[0] else -zero_shot.wall_s
        for passes, runs in enumerate((outcome.runs, outcome.refined), 1):
            if task.order in runs:
                seconds += runs[task.order].wall_s
                scores.append(_score(task, outcome, passes, runs[task.order], zero_shot, seconds))
    return scores


def standings(scores: Iterable[Score]) -> list[Standing]:
    """The methods by decreasing mean gain."""
    by_title: dict[str, list[Score]] = {}
    for score in scores:
        by_title.setdefault(pass_title(score.method, score.passes), []).append(score)
    every = [Standing(title, tuple(each)) for title, each in by_title.items()]
    return sorted(every, key=lambda standing: (-standing.mean("gain"), standing.title))


def shape_title(shape: str) -> str:
    """How tables and figures call a shape."""
    return SHAPE_TITLES.get(shape, shape.replace("-", " "))


def size_text(count: int) -> str:
    """A number of bytes as text."""
    for unit, name in ((1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} B"


def _unfit(name: str, with_views: bool) -> str | None:
    """Why a method cannot run on feature files; None if it can."""
    method = find_method(name)
    if method.kind == "few-shot":
        return "fitted to labelled samples"
    if missing := sorted(method.needs - ({"views"} if with_views else set())):
        return f"needs {' and '.join(missing)}" + (" in every stream" if missing == ["views"] else "")
    return None


def _can_take(stream: FeatureStream, order: str) -> bool:
    try:
        taken = len(stream_order(stream, order))
    except InputError:
        return False
    return not (order.startswith(f"first-{SHORT}:") and taken == len(stream))  # that would be the shuffled stream


def _why(shape: str) -> str:
    if shape == f"first-{SHORT}":
        return f"no more than {SHORT} samples"
    return "fewer than two domains" if SHAPES[shape][0] == "domain" else f"fewer than {LEAST} classes"


def _limited(stream: FeatureStream, limit: int | None) -> FeatureStream:
    """Some samples of a stream, drawn at random."""
    if limit is None or limit >= len(stream):
        return stream
    kept = np.sort(stream_order(stream, "seed:0")[:limit])
    labels = None if stream.labels is None else stream.labels[kept]
    domains = None if stream.domains is None else tuple(stream.domains[i] for i in kept)
    return replace(stream, features=stream.features[kept], labels=labels, domains=domains, order=None, files=None)


@lru_cache(maxsize=1)
def _read(path: Path, limit: int | None) -> FeatureStream:
    """Runs of one stream follow each other, so that each process reads it once."""
    return _limited(read_stream(path), limit)


def _score(task: Task, outcome: Outcome, passes: int, run: Run, zero_shot: Run, seconds: float) -> Score:
    shape, seed = parse_order(task.order)
    scores = run.scores()
    return Score(
        stream=task.path.stem,
        shape=shape,
        seed=seed or 0,
        method=outcome.variant.method,
        passes=passes,
        samples=len(run.order),
        acc1=scores["acc1"],
        gain=scores["acc1"] - zero_shot.scores()["acc1"],
        ece=scores["ece"],
        brier=scores["brier"],
        us_per_sample=1e6 * seconds / len(run.order),
        state_bytes=sum(values.nbytes for values in outcome.adapter.dump().values()),
    )
