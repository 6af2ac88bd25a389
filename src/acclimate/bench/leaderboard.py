"""The leaderboard: every training-free method over many streams, in every shape that a stream can take.

One run is a stream in one order. All methods share its pass, so they answer the same samples from the same zero-shot
evidence, and runs are independent: they can be measured in several processes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from acclimate.bench.measurements import Measurements, read_labelled, read_once
from acclimate.bench.orders import (
    LEAVING_OUT_CLASSES,
    SHAPES,
    SHORT_SAMPLES,
    order_names,
    part_of,
    shape_title,
    stream_order,
)
from acclimate.bench.plots import draw_leaderboard, shown
from acclimate.bench.prequential import Variant, compare
from acclimate.bench.results import (
    Score,
    hardware,
    markdown_list,
    markdown_table,
    points,
    score_all,
    write_csv,
    write_page,
)
from acclimate.errors import InputError, nearest
from acclimate.methods import find_method, list_methods
from acclimate.stream import FeatureStream

SHORT = f"first-{SHORT_SAMPLES}"
DEFAULT_SHAPES = (
    *("seed", "class-sequential", "correlated", "few-classes", "half-classes", "long-tail", "domain-shift", SHORT),
)
SUMMARY = ("method", "mean gain", "worst run", "accuracy", "ECE", "Brier", "µs per sample", "state")
NOTES = """\
- **Mean gain**: accuracy above that of zero-shot on the same samples in the same order, in points. Each shape counts
  the same: the figure is the mean over the shapes of the mean over their runs. So are accuracy, ECE, Brier and time.
- **Worst run**: the lowest gain of all runs, and the stream and order it comes from.
- **ECE, Brier**: of the softmax of the logits. Expected calibration error over 15 bins in percent, and Brier score from
  0 to 2; lower is better.
- **Time**: what a sample takes in addition to zero-shot, whose line shows what all methods share; in batches of 256. A
  second pass includes the first.
- **State**: bytes of the arrays of the largest state. A second pass needs the features of the stream as well."""


@dataclass(frozen=True)
class Standing:
    """The scores of a method in all runs. Means are means over the shapes, each of which counts the same."""

    title: str
    scores: tuple[Score, ...]

    @property
    def shapes(self) -> dict[str, list[Score]]:
        """The scores by shape."""
        return {
            name: [score for score in self.scores if score.shape == name]
            for name in sorted({score.shape for score in self.scores}, key=list(SHAPES).index)
        }

    @property
    def worst(self) -> Score:
        """The run with the lowest gain."""
        return min(self.scores, key=lambda score: score.gain or 0.0)

    @property
    def size(self) -> str:
        """The bytes of the largest state, as text."""
        count = max(score.cost["state_bytes"] for score in self.scores)
        for unit, name in ((1e6, "MB"), (1e3, "kB")):
            if count >= unit:
                return f"{count / unit:.1f} {name}"
        return f"{count} B"

    def gains(self, shape: str) -> tuple[float, float]:
        """Return the mean and the lowest gain of a shape."""
        gains = [score.gain or 0.0 for score in self.shapes[shape]]
        return float(np.mean(gains)), min(gains)

    def mean(self, column: str) -> float:
        """Return the mean over the shapes' means of a column of leaderboard.csv."""
        return float(np.mean([np.mean([csv_row(score)[column] for score in each]) for each in self.shapes.values()]))


def csv_row(score: Score) -> dict[str, object]:
    """Return the columns of leaderboard.csv; scores are fractions.

    The microseconds are those beyond zero-shot, of all passes together; zero-shot has its own.
    """
    return {
        **{name: getattr(score, name) for name in ("stream", "shape", "seed", "method", "passes", "samples")},
        **{"acc1": score.accuracy, "gain": score.gain, "ece": score.ece, "brier": score.brier},
        **{name: score.cost[name] for name in ("us_per_sample", "state_bytes")},
    }


def plan_board(
    paths: Sequence[Path],
    methods: Sequence[str] = (),
    shapes: Sequence[str] = DEFAULT_SHAPES,
    orders: int = 5,
    limit: int | None = None,
    passes: int = 1,
) -> Measurements:
    """Read streams and list the runs, `orders` of each shape; what a stream or method cannot do is left out.

    Args:
        paths: feature files with labels.
        methods: their names; all training-free methods when not given.
        shapes: names of `acclimate.bench.orders.SHAPES`.
        orders: runs of each shape and stream, seeds 0 to orders - 1.
        limit: take at most this many samples of a stream, drawn at random.
        passes: 2 to score the second pass of every method that learns online, too.
    """
    if unknown := [shape for shape in shapes if shape not in SHAPES]:
        raise InputError(f"unknown shape {unknown[0]!r}; {nearest(unknown[0], SHAPES)}")
    streams = {name: _limited(stream, limit) for name, stream in read_labelled(paths).items()}
    with_views = all(stream.views > 1 for stream in streams.values())
    unfit = {name: _unfit(name, with_views) for name in methods or list_methods() if name != "zero-shot"}
    left_out = [f"The method {name} ({reason})." for name, reason in unfit.items() if reason]
    chosen = tuple(name for name, reason in unfit.items() if not reason)
    if not chosen:
        raise InputError(f"no method can run. {' '.join(left_out)}")
    tasks = []
    run = partial(measure, methods=chosen, limit=limit, passes=passes)
    for shape in dict.fromkeys(shapes):
        names = order_names(f"{shape}:0", orders)
        able = [path for path in paths if _can_take(streams[path.stem], names[0])]
        tasks += [partial(run, path=path, order=name) for path in able for name in names]
        if unable := [path.stem for path in paths if path not in able]:
            fewer = "two domains" if SHAPES[shape][0] == "domain" else f"{LEAVING_OUT_CLASSES} classes"
            why = f"no more than {SHORT_SAMPLES} samples" if shape == SHORT else f"fewer than {fewer}"
            left_out.append(f"{shape_title(shape).capitalize()}: {', '.join(unable)} ({why}).")
    if not tasks:
        raise InputError(f"no stream can take these shapes. {' '.join(left_out)}")
    tasks.sort(key=lambda task: paths.index(task.keywords["path"]))
    return Measurements(streams, tuple(tasks), tuple(left_out))


def measure(path: Path, order: str, methods: Sequence[str], limit: int | None, passes: int) -> list[Score]:
    """Score zero-shot and methods on at most `limit` samples of a feature file in one order."""
    stream = _limited(read_once(path), limit)
    return score_all(path.stem, stream, compare(stream, list(map(Variant, methods)), [order], passes=passes))


def standings(scores: Sequence[Score]) -> list[Standing]:
    """Return the methods by decreasing mean gain."""
    every = [
        Standing(title, tuple(score for score in scores if score.title == title))
        for title in {score.title for score in scores}
    ]
    return sorted(every, key=lambda standing: (-standing.mean("gain"), standing.title))


def write_board(plan: Measurements, scores: Sequence[Score], folder: Path, command: str) -> list[tuple[str, ...]]:
    """Write leaderboard.md, .png and .csv to a folder; `command` made them. Return the lines of the main table."""
    write_csv(list(map(csv_row, scores)), folder / "leaderboard.csv")
    board = standings(scores)
    shapes = list(board[0].shapes)
    summary = summary_rows(board)
    parts = [
        "# Leaderboard",
        f"Training-free methods, each with one setting for everything, on {len(plan.streams)} streams in "
        f"{len(shapes)} shape{'s' if len(shapes) > 1 else ''}: {len(plan.tasks)} runs, in each of which all methods "
        "answer the same samples. `leaderboard.csv` has the scores of every run. The files are generated by\n\n"
        f"```\n{command}\n```",
        *shown(
            "Mean gain over zero-shot, by method and shape of the stream",
            folder / "leaderboard.png",
            partial(draw_leaderboard, board),
        ),
        "## Methods",
        markdown_table(SUMMARY, summary),
        NOTES,
        f"Measured on {hardware('numpy')}.",
        "## Shapes",
        "Mean and lowest gain of the runs of each shape, in points. The shapes are those of the "
        "[protocol](../benchmarks.md#protocol).",
        markdown_table(
            ("method", *map(shape_title, shapes)),
            [(each.title, *(" / ".join(map(points, each.gains(shape))) for shape in shapes)) for each in board],
        ),
    ]
    if "seed" in shapes:
        parts += [
            "## Streams, shuffled",
            "Accuracy of zero-shot in percent, and the mean gain of the others in points.",
            markdown_table(
                ("stream", "samples", "classes", *(standing.title for standing in board)),
                [
                    (name, str(len(stream)), str(len(stream.head)), *(_shuffled(standing, name) for standing in board))
                    for name, stream in plan.streams.items()
                ],
            ),
        ]
    if plan.notes:
        parts += ["## Left out", *markdown_list(plan.notes)]
    write_page(parts, folder / "leaderboard.md")
    return summary


def summary_rows(board: Iterable[Standing]) -> list[tuple[str, ...]]:
    """Return the lines of the main table, with the columns of `SUMMARY`."""
    return [
        (
            standing.title,
            points(standing.mean("gain")),
            points(standing.worst.gain or 0.0)
            + ("" if standing.title == "zero-shot" else f" ({standing.worst.stream}, {standing.worst.order})"),
            f"{100 * standing.mean('acc1'):.2f}",
            f"{100 * standing.mean('ece'):.2f}",
            f"{standing.mean('brier'):.3f}",
            f"{standing.mean('us_per_sample'):.1f}",
            standing.size,
        )
        for standing in board
    ]


def _shuffled(standing: Standing, stream: str) -> str:
    runs = [score for score in standing.shapes["seed"] if score.stream == stream]
    gain = points(float(np.mean([score.gain for score in runs])))
    return f"{100 * runs[0].accuracy:.2f}" if standing.title == "zero-shot" else gain


def _unfit(name: str, with_views: bool) -> str | None:
    """Return why a method cannot run on feature files; None if it can."""
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
    # The first samples of a short stream would be the shuffled stream.
    return not (order.startswith(f"{SHORT}:") and taken == len(stream))


def _limited(stream: FeatureStream, limit: int | None) -> FeatureStream:
    if limit is None or limit >= len(stream):
        return stream
    return part_of(stream, np.sort(stream_order(stream, "seed:0")[:limit]))
