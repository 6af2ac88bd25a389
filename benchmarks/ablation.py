"""What each mechanism of Halves earns: the method without it, over streams and shapes, online and in a second pass.

Every mechanism is taken out of the method by a subclass, all of them answer the same streams in the same orders, and
the change of the mean gain over zero-shot is also given for every set of streams that leaves one out.

    python benchmarks/ablation.py STREAM... --orders 1 --limit 2000 --jobs 16 --out docs/results

writes ablation.md, and ablation.csv with every run.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from acclimate import Halves
from acclimate.arrays import Array, log_softmax, namespace
from acclimate.bench.board_page import points, write_scores
from acclimate.bench.leaderboard import Plan, Score, plan_board, run_board, shape_title
from acclimate.bench.orders import SHORT
from acclimate.cli.reproduce import as_patterns
from acclimate.evidence import Evidence
from acclimate.files import write_atomically, writing
from acclimate.methods import register

SHAPES = ("seed", "class-sequential", "half-classes", "long-tail", "few-classes", f"first-{SHORT}")
WHOLE, REFERENCE = "halves", "tda"
MEAN, WORST = 0.002, 0.01  # what a mechanism must earn, of mean or of the worst run of a shape
BELOW, ABOVE = (-2.0, -1.0), (2.0, 3.0)  # ranges below and above everything that is measured
TITLES = {WHOLE: "**the whole method**", REFERENCE: "TDA alone"}


def change(title: str, **members: Any) -> type[Halves]:
    """Register Halves with other constants, settings or functions, under a name made of `title`."""
    settings = {name: "bool | int" for name in members if name in Halves.default_settings()}
    name = f"{WHOLE}: {title}"
    method = type("Changed", (Halves,), {"name": name, "__annotations__": settings, **members})
    TITLES[name] = title
    return register(dataclass(eq=False, repr=False, kw_only=True)(method))


def then(function: Callable[..., None], **values: Any) -> Callable[..., None]:
    """The function of a method, after which attributes are set to these values."""

    def changed(self: Halves, *arguments: Any) -> None:
        function(self, *arguments)
        vars(self).update({name: value(self) if callable(value) else value for name, value in values.items()})

    return changed


def zero_shot_alone(self: Halves, evidence: Evidence, voted: Array) -> Array:
    """The base without TDA's votes."""
    return log_softmax(self.shares + evidence.logits)


def plain_scorers(self: Halves) -> list:
    """Scorers in which a mean of few samples counts as a mean of many."""
    return [each._replace(scale=namespace(each.scale).ones_like(each.scale)) for each in self.scorers]


change("no text anchor", ANCHOR=1e-3)
change("covariance shrunk by a constant", _shrinkage=lambda self, samples: self.SHRINK)
change("covariance shrunk by d / (n + d) only", SHRINK=0.0)
change("every class is known", KNOWN=0.0)
change("distance not standardised", _fit=then(Halves._fit, scorers=plain_scorers))
change("temperature of the head fixed at 1", _weigh=then(Halves._weigh, tau=1.0))
change("no votes", _base=zero_shot_alone)
change("votes always open", SURE=BELOW)
change("votes closed where few classes show, sure or not", SURE=ABOVE)
change("weight 2, whatever the agreement", WEIGHT=2.0, RATE=0.0)
change("no doubt", DOUBT=0.0)
change("no shared error", SHARED=0.0)
change("head and votes open, few classes or not", PRESENT=BELOW)
change("head open in runs of one class", RUNS=ABOVE)
change("no class shares", SHARES=0.0)
change("class shares, trusted or not", TRUST=BELOW)
change("class shares, even or not", EVEN=ABOVE)
change("labels are zero-shot's", LABELS=0.0)
change("labels are the answer's", LABELS=1.0)
change("not calibrated", _calibrate=lambda self: None)
change("second pass of one round", rounds=1)
change("second pass of four rounds", rounds=4)
change("parameters change at each doubling", PACES=tuple(pace._replace(growth=2.0) for pace in Halves.PACES))


@contextmanager
def printed(total: int, verb: str, things: str) -> Iterator[Callable[[int], None]]:
    """Progress as lines on stderr, ten seconds apart at least."""
    began = last = perf_counter()
    done = 0

    def advance(more: int) -> None:
        nonlocal done, last
        done += more
        now = perf_counter()
        if now - last > 10 or done == total:
            last = now
            print(f"{verb} {done}/{total} {things}, {now - began:.0f} s", file=sys.stderr, flush=True)

    yield advance


class Side:
    """One method in one pass: its gains and ECE, as means over the orders of each stream and shape."""

    def __init__(self, scores: Sequence[Score]) -> None:
        cells: dict[tuple[str, str], list[Score]] = {}
        for score in scores:
            cells.setdefault((score.stream, score.shape), []).append(score)
        self.scores = scores
        self.streams = np.array([stream for stream, _ in cells])
        self.gains = np.array([np.mean([score.gain for score in each]) for each in cells.values()])
        self.ece = float(np.mean([np.mean([score.ece for score in each]) for each in cells.values()]))

    @property
    def worst(self) -> Score:
        """The run with the lowest gain."""
        return min(self.scores, key=lambda score: score.gain)

    def worst_by_shape(self) -> dict[str, float]:
        """The lowest gain of each shape."""
        shapes = dict.fromkeys(score.shape for score in self.scores)
        return {shape: min(score.gain for score in self.scores if score.shape == shape) for shape in shapes}

    def against(self, whole: "Side") -> tuple[float, tuple[float, float], tuple[float, str]]:
        """Change of the mean; its range when one stream is left out; the worst change of a shape's worst run."""
        gaps = self.gains - whole.gains
        names = dict.fromkeys(self.streams)
        without = [gaps[self.streams != name].mean() for name in names] if len(names) > 1 else [gaps.mean()]
        theirs = whole.worst_by_shape()
        worst = min((gain - theirs[shape], shape) for shape, gain in self.worst_by_shape().items())
        return float(gaps.mean()), (min(without), max(without)), worst

    def row(self, title: str, whole: "Side") -> str:
        """A line of the table."""
        mean, (least, greatest), (worst, shape) = self.against(whole)
        run = f"{points(self.worst.gain)} ({self.worst.stream}, {self.worst.shape}:{self.worst.seed})"
        if self is whole:
            cells = [points(self.gains.mean()), "", "", run, "", f"{100 * self.ece:.2f}"]
        else:
            lost = f"{points(worst)} ({shape_title(shape)})"
            left_out = f"{points(least)} to {points(greatest)}"
            cells = [points(self.gains.mean()), points(mean), left_out, run, lost, f"{100 * self.ece:.2f}"]
        return f"| {' | '.join([title, *cells])} |"

    def earns(self, whole: "Side") -> bool:
        """Whether the method is notably worse like this than whole."""
        mean, _, (worst, _) = self.against(whole)
        return mean <= -MEAN or worst <= -WORST


def page(plan: Plan, scores: Sequence[Score], command: str) -> str:
    """The tables as Markdown."""
    sides = {
        (method, passes): Side([score for score in scores if (score.method, score.passes) == (method, passes)])
        for method in TITLES
        for passes in (1, 2)
    }
    parts = [
        "# What each mechanism earns",
        f"[Our own method](../own_method.md) without one of its mechanisms, on {len(plan.streams)} streams in "
        f"{len(dict.fromkeys(score.shape for score in scores))} shapes: {len(plan.tasks)} runs, in each of which all "
        "lines answer the same samples. `ablation.csv` has the scores of every run. The files are generated by\n\n"
        f"```\n{command}\n```",
        "- **Gain**: accuracy above zero-shot in points; every stream in every shape counts once.\n"
        "- **Change** of the gain against the whole method, and its range when any one of the streams is **left out**: "
        "where both ends have the same sign, no single stream decides.\n"
        "- **Worst run**: the lowest gain of all runs. **Worst of a shape**: by how much the worst run of a shape "
        "changes, for the shape where that is the lowest.\n"
        "- **ECE**: expected calibration error in percent, the mean over streams and shapes.",
    ]
    for passes, heading in ((1, "Online"), (2, "Second pass")):
        whole = sides[WHOLE, passes]
        rows = [sides[method, passes].row(title, whole) for method, title in TITLES.items()]
        parts.append(f"## {heading}")
        parts.append(
            "\n".join(
                [
                    "| | gain | change | left out | worst run | worst of a shape | ECE |",
                    "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
                    *rows,
                ]
            )
        )
    idle = [
        title
        for method, title in TITLES.items()
        if method not in (WHOLE, REFERENCE) and not any(sides[method, n].earns(sides[WHOLE, n]) for n in (1, 2))
    ]
    parts.append("## What could be done without")
    parts.append(
        f"A mechanism earns its place by {100 * MEAN:.1f} points of mean, or {100 * WORST:.0f} point of the worst run "
        f"of a shape, in either pass. In these runs the following did not: {'; '.join(idle) or 'none'}."
    )
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("streams", type=Path, nargs="+", help="feature files with labels")
    parser.add_argument("--orders", type=int, default=1, help="orders of each shape, seeds 0 to N-1")
    parser.add_argument("--limit", type=int, help="use at most this many samples of each stream")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    plan = plan_board(options.streams, tuple(TITLES), SHAPES, options.orders, options.limit, passes=2)
    scores = run_board(plan.tasks, options.jobs, printed)
    limit = f" --limit {options.limit}" if options.limit else ""
    given = f"{as_patterns(options.streams)} --orders {options.orders}{limit} --out {options.out}"
    with writing(options.out):
        options.out.mkdir(parents=True, exist_ok=True)
    write_scores(scores, options.out / "ablation.csv")
    path = options.out / "ablation.md"
    with writing(path):
        write_atomically(path, page(plan, scores, f"python benchmarks/ablation.py {given}").encode())
    print(f"the tables are in {path}, all runs in {options.out}/ablation.csv")


if __name__ == "__main__":
    main()
