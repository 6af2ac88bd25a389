"""Few-shot methods beside methods that use no labels, on feature files.

The samples of a stream are halved by class. Shots are drawn from one half, the rest of it is for validation, and all
methods are scored on the other half, in the order of the stream.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.arrays import HostArray
from acclimate.bench.measurements import Measurements, read_labelled, read_once
from acclimate.bench.orders import part_of, stream_order
from acclimate.bench.plots import draw_few_shot, shown
from acclimate.bench.prequential import Variant, compare
from acclimate.bench.results import ABSENT, Score, markdown_list, markdown_table, summarise, write_csv, write_page
from acclimate.errors import InputError
from acclimate.methods import FewShot, create, find_method, require
from acclimate.sources.source import draw_shots
from acclimate.stream import FeatureStream

NOTES = """\
- The samples of a stream are halved by class. The shots are drawn from one half, and the others of that half are the
  validation samples. All methods are scored on the other half, in the order of the stream, and never see its labels.
- Validation samples are labelled as well: they choose alpha and beta, and do nothing else. `--held-out` limits them.
- Methods without a number of shots use no labels. They see the same samples in the same order."""


@dataclass(frozen=True)
class Curve:
    """The scores of one method. What it learnt has an entry "fit": shots per class, validation samples and settings."""

    method: str
    scores: tuple[Score, ...]

    @property
    def shots(self) -> tuple[int, ...]:
        """The numbers of shots that any stream was run with; (0,) for a method that uses no labels."""
        return tuple(sorted({score.learnt["fit"]["shots"] for score in self.scores}))

    def at(self, shots: int, streams: Sequence[str]) -> list[Score]:
        """Return the scores of some streams with a number of shots."""
        return [each for each in self.scores if each.learnt["fit"]["shots"] == shots and each.stream in streams]

    def accuracy(self, shots: int, streams: Sequence[str]) -> tuple[float, float | None]:
        """Return the mean over streams and seeds, and the standard deviation of a seed's mean; None for one seed."""
        scores = self.at(shots, streams)
        seeds = sorted({score.seed or 0 for score in scores})
        means = np.array([np.mean([score.accuracy for score in scores if score.seed == seed]) for seed in seeds])
        return float(means.mean()), float(means.std(ddof=1)) if len(seeds) > 1 else None

    def chosen(self, shots: int, stream: str) -> str:
        """Return the means of alpha and beta as chosen by validation samples, as text."""
        fits = [score.learnt["fit"] for score in self.at(shots, [stream])]
        found = [(each["alpha"], each["beta"]) for each in fits if each["validation"] and each["alpha"] is not None]
        return " / ".join(f"{mean:.2f}" for mean in np.mean(found, axis=0)) if found else ABSENT


def plan_few_shot(
    paths: Sequence[Path],
    variants: Sequence[Variant],
    shots: Sequence[int],
    seeds: int = 3,
    held_out: int | None = None,
) -> Measurements:
    """Read streams and list the runs. A class that has fewer samples than a number of shots gives what it has.

    Args:
        paths: feature files with labels.
        variants: the methods; zero-shot is always run first.
        shots: numbers of labelled samples per class.
        seeds: draws of each number of shots, 0 to seeds - 1.
        held_out: the most validation samples per class, 0 for none; all that are left of the half when not given.
    """
    streams = read_labelled(paths)
    methods = [find_method(variant.method) for variant in variants]
    for method in methods:
        require(method, views=all(stream.views > 1 for stream in streams.values()), labels=True)
    if not any(method.kind == "few-shot" for method in methods):
        raise InputError("none of these methods learns from labelled samples; add one that does, such as tip-adapter.")
    numbers = tuple(sorted(set(shots)))
    short = []
    most = 0
    for name, stream in streams.items():
        drawn, _ = halve(stream, seed=0)  # a class has as many samples there whatever the seed
        labels = np.asarray(stream.labels)[drawn]
        counts = np.bincount(labels, minlength=len(stream.head))
        most = max(most, int(counts.max()))
        if not counts.min():
            rarest = stream.head.class_names[int(counts.argmin())]
            raise InputError(f"{name} has no sample of the class {rarest!r}; every class needs one to learn from.")
        kept = len(drawn) if held_out is None else held_out
        for each in numbers:
            fitted, _ = draw_shots(labels, stream.head.class_names, each, held_out=kept, allow_fewer=True)
            given = np.bincount(labels[fitted], minlength=len(counts))
            if fewer := int((given < each).sum()):
                short.append(
                    f"{name} at {each} shots: {fewer} of {len(given)} classes give fewer, {given.min()} at least; "
                    "a fifth of each of these classes is held out for validation."
                )
    if most < numbers[-1]:
        raise InputError(f"no class has {numbers[-1]} samples in its half of a stream; choose at most {most} shots.")
    run = partial(measure, shots=numbers, variants=tuple(variants), held_out=held_out)
    tasks = tuple(partial(run, path=path, seed=seed) for path in paths for seed in range(seeds))
    return Measurements(streams, tasks, tuple(short))


def measure(
    path: Path, seed: int, shots: Sequence[int], variants: Sequence[Variant], held_out: int | None
) -> list[Score]:
    """Score zero-shot and methods on the second half of a stream; few-shot methods are fitted to shots of the first."""
    stream = read_once(path)
    drawn, scored = halve(stream, seed)
    labels = np.asarray(stream.labels)[drawn]
    features = stream.features[drawn]
    most = len(drawn) if held_out is None else held_out
    runs: list[Variant] = []
    fits: list[dict[str, Any]] = [{"shots": 0, "validation": 0, "alpha": None, "beta": None}]
    for variant in (each for each in variants if each.method != "zero-shot"):
        if find_method(variant.method).kind != "few-shot":
            runs.append(variant)
            fits.append(fits[0])
            continue
        for count in shots:
            adapter = create(variant.method, stream.head, **variant.settings)
            assert isinstance(adapter, FewShot)
            fitted, rest = draw_shots(labels, stream.head.class_names, count, seed, most, allow_fewer=True)
            adapter.fit(
                features[fitted], labels[fitted], validation=(features[rest], labels[rest]) if len(rest) else None
            )
            runs.append(replace(variant, fitted=adapter))
            fits.append({**fits[0], "shots": count, "validation": len(rest), **adapter.chosen()})
    half = part_of(stream, scored)
    outcomes = compare(half, runs)
    return [
        replace(summarise(path.stem, half, outcome, outcomes[0]), seed=seed, learnt={"fit": fit})
        for outcome, fit in zip(outcomes, fits, strict=True)
    ]


def halve(stream: FeatureStream, seed: int) -> tuple[HostArray, HostArray]:
    """Return positions of the half of a labelled stream to draw shots from, and of the other half in stream order.

    Each class is halved; of an odd number of samples, the first half gets one more.
    """
    labels = np.asarray(stream.labels)
    rng = np.random.default_rng(seed)
    first = np.zeros(len(stream), bool)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        first[members[: (len(members) + 1) // 2]] = True
    order = stream_order(stream, "stored")
    return np.flatnonzero(first), order[~first[order]]


def curves(scores: Sequence[Score]) -> list[Curve]:
    """Return the scores by method, in the order in which the methods were run."""
    return [
        Curve(name, tuple(score for score in scores if score.method == name))
        for name in dict.fromkeys(score.method for score in scores)
    ]


def write_few_shot(plan: Measurements, scores: Sequence[Score], folder: Path, command: str) -> list[list[str]]:
    """Write few-shot.md, .png and .csv to a folder; `command` made them. Return the headings and lines of the table."""
    write_csv([_row(score, score.learnt["fit"]) for score in scores], folder / "few-shot.csv")
    board = curves(scores)
    streams = list(plan.streams)
    panels = {name: [name] for name in streams}
    means = {f"mean of {len(panels)} streams": streams} if len(panels) > 1 else {}
    seeds = len({score.seed for score in scores})
    table = [["method", "shots", "mean", *streams]]
    for curve in board:
        for shots in curve.shots:
            pairs = [curve.accuracy(shots, names) for names in (streams, *panels.values())]
            cells = [f"{100 * mean:.2f}" + ("" if sd is None else f" ± {100 * sd:.2f}") for mean, sd in pairs]
            table.append([curve.method, str(shots or ABSENT), *cells])
    parts = [
        "# Few-shot methods",
        f"Methods that learn from a few labelled samples of every class, beside methods that use no labels, on "
        f"{len(panels)} streams. `few-shot.csv` has every run. The files are generated by\n\n```\n{command}\n```",
        *shown(
            "Accuracy over the number of labelled shots per class",
            folder / "few-shot.png",
            partial(draw_few_shot, board, {**means, **panels}),
        ),
        "## Accuracy",
        "Top-1 accuracy in percent. "
        + (f"Mean ± standard deviation over {seeds} draws." if seeds > 1 else "One draw."),
        markdown_table(table[0], table[1:]),
        NOTES,
    ]
    numbers = sorted({shots for curve in board for shots in curve.shots if shots})
    lines = [
        [curve.method, name, *(curve.chosen(each, name) for each in numbers)] for curve in board for name in streams
    ]
    if chosen := [line for line in lines if set(line[2:]) != {ABSENT}]:
        used = sorted({score.learnt["fit"]["validation"] for score in scores} - {0})
        span = str(used[0]) if len(used) == 1 else f"{used[0]} to {used[-1]}"
        parts += [
            "## Chosen alpha / beta",
            f"By the validation samples, of which a run has {span}; means of the draws.",
            markdown_table(
                ("method", "stream", *(f"{number} shot{'s' if number > 1 else ''}" for number in numbers)), chosen
            ),
        ]
    if plan.notes:
        parts += ["## Classes with fewer samples", *markdown_list(plan.notes)]
    write_page(parts, folder / "few-shot.md")
    return table


def _row(score: Score, fit: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "stream": score.stream,
        "method": score.method,
        "shots": fit["shots"],
        "seed": score.seed,
        "samples": score.samples,
        "validation": fit["validation"],
        "acc1": score.accuracy,
        "gain": score.gain,
        "alpha": fit["alpha"],
        "beta": fit["beta"],
    }
