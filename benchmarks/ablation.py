"""The parts and constants of Accord, and what each earns: the method without it or with others, on streams.

Every part is taken out of the method by a subclass, and every constant is changed by one. All of them answer the same
streams in the same orders, online and in a second pass, and the change of the mean gain over zero-shot is also given
for every set of streams that leaves one out.

    python benchmarks/ablation.py STREAM... --orders 2 --jobs 16 --out docs/results

writes ablation.md, and ablation.csv with every run.
"""

import argparse
import csv
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from acclimate import Accord
from acclimate.arrays import Array
from acclimate.bench.leaderboard import SHORT, plan_board
from acclimate.bench.measurements import Measurements
from acclimate.bench.prequential import Variant
from acclimate.bench.results import Score, markdown_table, points, write_page
from acclimate.cli.comparing import as_patterns
from acclimate.files import write_atomically, writing
from acclimate.methods import register
from acclimate.methods.own.two_views import EVEN, SEEN, VIEWS, Figures, Scores, TwoViews
from acclimate.methods.state import Sums

SHAPES = ("shuffled", "class-sequential", "half-classes", "long-tail", "few-classes", SHORT)
WHOLE = "accord"
REFERENCE = "tda"
AGAIN = "second pass: "  # begins the title of what does not change online answers
PASSES = {1: "Online", 2: "Second pass"}
# what a part must earn, of mean or of the worst run of a shape
MEAN = 0.002
WORST = 0.01
COLUMNS = (
    "stream",
    "shape",
    "seed",
    "method",
    "gain",
    "ece",
    "second_gain",
    "second_ece",
)  # gains and errors in points
CHOSEN = (
    "**How the constants were chosen.** About 230 settings were tried on these six streams and on six older ones, "
    "whose class vectors are a learned text head, with all labels in view. So the tables flatter the method; "
    "what it does on other data has to be measured there."
)
PARTS = {WHOLE: "**the whole method**", REFERENCE: "TDA"}  # titles of methods
CONSTANTS = {WHOLE: "**the whole method**"}


def change(titles: dict[str, str], title: str, **members: Any) -> None:
    """Register Accord with other constants, settings or functions, under a name made of `title`."""
    settings = {name: type(members[name]) for name in members if name in Accord.default_settings()}
    name = f"{WHOLE}: {title}"
    method = type("Changed", (Accord,), {"name": name, "__annotations__": settings, **members})
    titles[name] = title
    register(dataclass(eq=False, repr=False, kw_only=True)(method))


def only(belief: int) -> dict[str, Any]:
    """Return members that ask one belief, where it may be asked, and zero-shot."""

    def weights(self: Accord, figures: Figures, beliefs: Sequence[int]) -> list[float]:
        return Accord._weights(self, figures, (belief,)) if belief in beliefs else [1.0, 0.0, 0.0]

    return {"_weights": weights, "_weigh": lambda self, figures: self._weights(figures, (EVEN, SEEN))}


def equal_weights(self: Accord, figures: Figures, beliefs: Sequence[int]) -> list[float]:
    """Give all experts that may be asked the same weight."""
    share = 1.0 / (1 + len(beliefs))
    return [share, *(share if belief in beliefs else 0.0 for belief in (EVEN, SEEN))]


def untempered(self: Accord) -> None:
    """Compute everything, and then answer at temperature 1."""
    Accord.recompute(self)
    if self.parameters is not None:
        self.parameters = self.parameters._replace(beta=1.0)


class Selfish(TwoViews):
    """A classifier that judges samples also by themselves."""

    def __call__(self, features: Array, own: Array | None = None) -> Scores:
        """Score features (B, d)."""
        return super().__call__(features)


class Unscaled(TwoViews):
    """A classifier for which the mean of few samples is as sure as that of many."""

    def __call__(self, features: Array, own: Array | None = None) -> Scores:
        """Score features (B, d)."""
        scores = super().__call__(features, own)
        others = self.counts + self.anchors[EVEN] - (0.0 if own is None else own)
        for view in range(len(VIEWS)):
            scores.views[EVEN][view] *= (others + 1.0) / others
        return scores


def learning(kind: type[TwoViews]) -> Callable[..., TwoViews]:
    """Return a `_model` that makes classifiers of this kind."""

    def changed(self: Accord, sums: Sums, samples: float) -> TwoViews:
        return kind(sums, samples, self.head.class_vectors, (self.anchor_even, self.anchor_seen), self.shrink)

    return changed


change(PARTS, "without seen", **only(EVEN))
change(PARTS, "without even", **only(SEEN))
change(PARTS, "equal weights, whatever the agreement", _weights=equal_weights)
change(PARTS, "nothing asked for a stake", bar=0.0)
change(PARTS, "no text in the means", anchor_even=1e-3, anchor_seen=1e-3)
change(PARTS, "few samples as sure as many", _model=learning(Unscaled))
change(PARTS, "covariance shrunk by d / (n + d) only", shrink=0.0)
change(PARTS, "even never ruled out by the shares", uneven=1e6)
change(PARTS, "nothing evened out", _evenness=staticmethod(lambda weights: 0.0))
change(PARTS, "shares fully believed", _trust=staticmethod(lambda figures: 1.0))
change(PARTS, "labels are zero-shot's", _label=staticmethod(lambda answered, probs: probs))
change(PARTS, "labels are the answer's", _label=staticmethod(lambda answered, probs: answered))
change(PARTS, "no chain", _likeness=lambda self, figures: 0.0)
change(
    PARTS,
    "temperature of the answer fixed at 1",
    recompute=untempered,
    _round=lambda self, *arguments: Accord._round(self, *arguments)._replace(beta=1.0),
)
change(PARTS, AGAIN + "a sample judged with itself", _model=learning(Selfish))
change(PARTS, AGAIN + "1 round", rounds=1)
change(PARTS, AGAIN + "3 rounds", rounds=3)
for constant, values in {
    "anchor_even": (1.0, 4.0),
    "anchor_seen": (4.0, 16.0),
    "shrink": (0.25, 0.75),
    "bar": (1.2, 2.0),
    "slope": (1.5, 6.0),
    "odds": (0.0, 2.0),
    "least": (0.01, 0.3),
    "uneven": (0.05, 0.2),
    "doubt": (1.0, 6.0),
}.items():
    for value in values:
        change(CONSTANTS, f"{constant} {value:g}", **{constant: value})


@contextmanager
def printed(total: int, verb: str, things: str) -> Iterator[Callable[[int], None]]:
    """Show progress as lines on stderr, ten seconds apart at least."""
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
        return min(self.scores, key=lambda score: score.gain or 0.0)

    def changes(self, whole: "Side") -> list[float]:
        """Return the change of the mean against the whole method: on all streams, and with each of them left out."""
        gaps = self.gains - whole.gains
        names = dict.fromkeys(self.streams)
        return [float(gaps.mean()), *(float(gaps[self.streams != name].mean()) for name in names if len(names) > 1)]

    def worst_change(self, whole: "Side") -> tuple[float, str]:
        """Return the worst change of the worst run of a shape, and the shape."""
        shapes = dict.fromkeys(score.shape for score in self.scores)
        lowest = [
            {shape: min(score.gain or 0.0 for score in side.scores if score.shape == shape) for shape in shapes}
            for side in (self, whole)
        ]
        return min((gain - lowest[1][shape], shape) for shape, gain in lowest[0].items())

    def row(self, title: str, whole: "Side") -> list[str]:
        """Return a line of the table."""
        run = f"{points(self.worst.gain or 0.0)} ({self.worst.stream}, {self.worst.order})"
        changes = self.changes(whole)
        cells = [""] * (len(changes) + 1)
        if self is not whole:
            loss, shape = self.worst_change(whole)
            cells = [*map(points, changes), f"{points(loss)} ({shape})"]
        return [title, points(self.gains.mean()), *cells[:-1], run, cells[-1], f"{100 * self.ece:.2f}"]

    def earns(self, whole: "Side") -> bool:
        """Return whether the method is notably worse like this than whole."""
        return self.changes(whole)[0] <= -MEAN or self.worst_change(whole)[0] <= -WORST


def page(plan: Measurements, scores: Sequence[Score], command: str) -> Iterator[str]:
    """Make the parts of the page."""
    titles = PARTS | CONSTANTS
    sides = {
        (method, passes): Side([score for score in scores if (score.method, score.passes) == (method, passes)])
        for method in titles
        for passes in PASSES
    }
    streams = list(dict.fromkeys(score.stream for score in scores))
    shapes = len(dict.fromkeys(score.shape for score in scores))
    yield "# What each part earns"
    yield (
        f"[Our own method](../own_method.md) without one of its parts, and with other constants, on {len(streams)} "
        f"streams in {shapes} shapes: {len(plan.tasks)} runs, in each of which all lines answer the same samples. "
        f"`ablation.csv` has the gains of every run. The files are generated by\n\n```\n{command}\n```"
    )
    yield (
        "- **Gain**: accuracy above zero-shot in points; every stream in every shape counts once.\n"
        "- **Change** of the gain against the whole method, on all streams and **without** each of them: where all "
        "have the same sign, no single stream decides.\n"
        "- **Worst run**: the lowest gain of all runs. **Worst of a shape**: by how much the worst run of a shape "
        "changes, for the shape where that is the lowest.\n"
        "- **ECE**: expected calibration error in percent, the mean over streams and shapes."
    )
    yield CHOSEN
    without = [f"without {name}" for name in streams] if len(streams) > 1 else []
    heads = ["", "gain", "change", *without, "worst run", "worst of a shape", "ECE"]
    for what, group in (("parts", PARTS), ("constants", CONSTANTS)):
        for passes, heading in PASSES.items():
            whole = sides[WHOLE, passes]
            yield f"## {heading}: {what}"
            shown = {method: title for method, title in group.items() if passes == 2 or AGAIN not in title}
            yield markdown_table(heads, [sides[method, passes].row(title, whole) for method, title in shown.items()])
    yield "## What could be done without, or better"
    idle = [
        title
        for method, title in list(PARTS.items())[2:]
        if not any(sides[method, passes].earns(sides[WHOLE, passes]) for passes in PASSES)
    ]
    yield (
        f"A part earns its place by {100 * MEAN:.1f} points of mean, or {100 * WORST:.0f} point of the worst run "
        f"of a shape, in either pass. In these runs the following did not: {'; '.join(idle) or 'none'}."
    )
    better = []
    for method, title in list(titles.items())[2:]:
        changes = [sides[method, passes].changes(sides[WHOLE, passes]) for passes in PASSES]
        if np.mean(changes, axis=0).min() > 0.0:
            better.append(title)
    yield (
        f"Better in the mean of both passes, whichever stream is left out: {'; '.join(better) or 'none'}. "
        f"Of {len(titles) - 2} lines, some are better by chance."
    )


def write_gains(scores: Sequence[Score], path: Path) -> None:
    """Write a line for each run of each method, with both passes, in points with two digits."""
    lines: dict[tuple[Any, ...], dict[int, Score]] = {}
    for score in scores:
        if score.method in PARTS | CONSTANTS:
            key = (score.stream, score.shape, score.seed, score.method.removeprefix(f"{WHOLE}: "))
            lines.setdefault(key, {})[score.passes] = score
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for key, passes in lines.items():
        figures = [value or 0.0 for number in PASSES for value in (passes[number].gain, passes[number].ece)]
        table.writerow([*key, *(round(100 * value, 2) for value in figures)])
    with writing(path):
        write_atomically(path, text.getvalue().encode())


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("streams", type=Path, nargs="+", help="feature files with labels")
    parser.add_argument("--orders", type=int, default=2, help="orders of each shape, seeds 0 to N-1")
    parser.add_argument("--limit", type=int, help="use at most this many samples of each stream")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    variants = list(map(Variant, PARTS | CONSTANTS))
    plan = plan_board(options.streams, variants, SHAPES, options.orders, options.limit, passes=2)
    scores = plan.run(options.jobs, printed)
    limit = f" --limit {options.limit}" if options.limit else ""
    given = f"{as_patterns(options.streams)} --orders {options.orders}{limit} --out {options.out}"
    with writing(options.out):
        options.out.mkdir(parents=True, exist_ok=True)
    write_gains(scores, options.out / "ablation.csv")
    write_page(page(plan, scores, f"python benchmarks/ablation.py {given}"), options.out / "ablation.md")
    print(f"the tables are in {options.out}/ablation.md, all runs in {options.out}/ablation.csv")


if __name__ == "__main__":
    main()
