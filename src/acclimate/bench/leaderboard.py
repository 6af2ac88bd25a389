"""The leaderboard: every training-free method over many streams, in every shape that a stream can take.

One run is a stream in one order. All methods share its pass, so they answer the same samples from the same zero-shot
evidence, and runs are independent: they can be measured in several processes.
"""

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.bench.board import Answered, Board, Standings, settings_text
from acclimate.bench.evaluation import INTERVAL, interval_text
from acclimate.bench.measurements import Measurements, fingerprint, load_once, name_files, read_labelled, read_once
from acclimate.bench.orders import (
    LEAVING_OUT_CLASSES,
    SHAPES,
    SHORT_SAMPLES,
    order_names,
    part_of,
    stream_order,
)
from acclimate.bench.plots import draw_leaderboard, shown
from acclimate.bench.prequential import Variant, compare
from acclimate.bench.results import (
    ABSENT,
    Score,
    latex_table,
    latex_text,
    markdown_list,
    markdown_table,
    points,
    score_all,
    write_page,
)
from acclimate.errors import InputError, nearest
from acclimate.methods import Adapter, find_method, list_methods
from acclimate.sources.source import parse_order
from acclimate.stream import FeatureStream

SHORT = f"first-{SHORT_SAMPLES}"
DEFAULT_SHAPES = (
    *("shuffled", "class-sequential", "correlated", "few-classes", "half-classes", "long-tail", "domain-shift", SHORT),
)
Lines = tuple[Sequence[str], Sequence[Sequence[str]]]  # headings and lines of a table
TABLES: Mapping[str, tuple[Answered, str]] = {
    "Online": (
        "online",
        "Answers are given once, when a sample comes. A method that answers in batches has learnt from the samples of "
        "the batch before it answers them.",
    ),
    "Collections": (
        "set",
        "A stream is answered as a whole, when all of it is there: by methods that are made for that, and by the "
        "second passes of methods that learn online.",
    ),
}
NOTES = """\
- **Mean gain**: accuracy above that of zero-shot on the same samples in the same order, in points. Each shape counts
  the same: the figure is the mean over the shapes of the mean over their runs. So are accuracy, ECE and time.
- **95 % interval** of the mean gain, and **against the first**, the same of the difference to the mean gain of the
  first method: a paired bootstrap of 2,000 draws, the same for all methods. A draw takes data sets with replacement
  (all streams of one together: they have the same images), and for each stream and shape orders with replacement. So
  it covers other data sets of the kind, of which there are few here: such intervals are rather too narrow.
- **Least without one**: the lowest mean gain when one stream, or all streams of a data set, are left out.
- **Unseen streams**: the mean gain on the streams on which no constant of this library was chosen.
- **Cells won**: of all streams in all shapes, the share where the mean gain is the highest; methods that are level
  share a cell.
- **Worst run**: the lowest gain of all runs, and the stream and order it comes from.
- **ECE**: expected calibration error of the softmax of the logits, over 15 bins, in percent; lower is better.
- **Time**: what a sample takes in addition to zero-shot, whose line shows what all methods share; in batches of 256. A
  second pass includes the first.
- **State**: size of the arrays of the largest state. To answer a set takes the features of the stream as well."""


def plan_board(
    paths: Sequence[Path],
    variants: Sequence[Variant] = (),
    shapes: Sequence[str] = DEFAULT_SHAPES,
    orders: int = 5,
    limit: int | None = None,
    passes: int = 1,
    model: str | None = None,
) -> Measurements:
    """Read streams and list the runs, `orders` of each shape; what a stream or method cannot do is left out.

    Args:
        paths: runs or feature files with labels.
        variants: the methods; all training-free methods when not given.
        shapes: names of `acclimate.bench.orders.SHAPES`.
        orders: runs of each shape and stream, seeds 0 to orders - 1.
        limit: take at most this many samples of a stream, drawn at random.
        passes: 2 to score the answers to whole streams, too.
        model: name of the encoder of the features, for methods that need its text tower.
    """
    if unknown := [shape for shape in shapes if shape not in SHAPES]:
        raise InputError(f"unknown shape {unknown[0]!r}; {nearest(unknown[0], SHAPES)}")
    streams = {name: _limited(stream, limit) for name, stream in read_labelled(paths).items()}
    with_views = all(stream.views > 1 for stream in streams.values())
    asked = [each for each in variants or map(Variant, list_methods()) if each.method != "zero-shot"]
    unfit = {each.method: _unfit(find_method(each.method), with_views, passes, model) for each in asked}
    left_out = [f"The method {name} ({reason})." for name, reason in unfit.items() if reason]
    chosen = tuple(each for each in asked if not unfit[each.method])
    if not chosen:
        raise InputError(f"no method can run. {' '.join(left_out)}")
    tasks = []
    run = partial(measure, variants=chosen, limit=limit, passes=passes, model=model)
    files = name_files(paths)
    for shape in dict.fromkeys(shapes):
        names = order_names(f"{shape}:0", orders)
        able = [name for name, stream in streams.items() if _can_take(stream, names[0])]
        tasks += [partial(run, name=name, path=files[name], order=order) for name in able for order in names]
        if unable := [name for name in streams if name not in able]:
            fewer = "two domains" if SHAPES[shape][0] == "domain" else f"{LEAVING_OUT_CLASSES} classes"
            why = f"no more than {SHORT_SAMPLES} samples" if shape == SHORT else f"fewer than {fewer}"
            left_out.append(f"{shape.capitalize()}: {', '.join(unable)} ({why}).")
    if not tasks:
        raise InputError(f"no stream can take these shapes. {' '.join(left_out)}")
    tasks.sort(key=lambda task: list(files).index(task.keywords["name"]))
    return Measurements(streams, tuple(tasks), tuple(left_out))


def measure(
    name: str,
    path: Path,
    order: str,
    variants: Sequence[Variant],
    limit: int | None,
    passes: int,
    model: str | None = None,
) -> list[Score]:
    """Score zero-shot and methods on at most `limit` samples of a run or feature file in one order."""
    stream = _limited(read_once(path), limit)
    encoder = load_once(model) if model else None
    return score_all(name, stream, compare(stream, variants, [order], passes=passes, encoder=encoder))


def open_board(
    paths: Sequence[Path], plan: Measurements, unseen: Sequence[str] = (), folder: Path | None = None
) -> Board:
    """Begin a board for the runs of a plan, or read the one in a folder, whose runs must be the same.

    `unseen` are patterns of files on which no constant was chosen.
    """
    files = name_files(paths)
    for pattern in unseen:
        if not any(fnmatch(str(path), pattern) for path in paths):
            raise InputError(f"--unseen {pattern} matches none of the feature files.")
    first = plan.tasks[0].keywords
    orders = {task.keywords["order"] for task in plan.tasks}
    protocol: dict[str, Any] = {
        "streams": {
            name: {
                "sha256": fingerprint(files[name]),
                "samples": len(stream),
                "classes": len(stream.head),
                "unseen": any(fnmatch(str(files[name]), pattern) for pattern in unseen),
            }
            for name, stream in plan.streams.items()
        },
        "shapes": [name for name in SHAPES if f"{name}:0" in orders],
        "orders": 1 + max(parse_order(order)[1] or 0 for order in orders),
        "limit": first["limit"],
        "passes": first["passes"],
    }
    board = Board(protocol) if folder is None else Board.read(folder)
    board.check_same(protocol)
    return board


def add_to_board(board: Board, plan: Measurements) -> Measurements:
    """Enter the methods of a plan into a board, and return the plan of those runs that the board does not have."""
    every: tuple[Variant, ...] = plan.tasks[0].keywords["variants"]
    for variant in every:
        board.enter(variant)
    board.notes = list(dict.fromkeys([*board.notes, *plan.notes]))
    tasks = []
    for task in plan.tasks:
        shape, seed = parse_order(task.keywords["order"])
        lacking = {title for title in board.methods if (task.keywords["name"], shape, seed, title) not in board.rows}
        if unasked := lacking - {variant.title for variant in every}:
            raise InputError(
                f"the board lacks runs of {', '.join(sorted(unasked))}; finish it first, without --method."
            )
        if lacking:
            tasks.append(partial(task, variants=tuple(each for each in every if each.title in lacking)))
    return Measurements(plan.streams, tuple(tasks), plan.notes)


def write_board(board: Board, folder: Path) -> dict[str, list[tuple[str, ...]]]:
    """Write leaderboard.md, .png and .tex from the runs of a board; return headings and lines of the main tables."""
    every = {title: board.standings(answered) for title, (answered, _) in TABLES.items()}
    tables = {title: table for title, table in every.items() if len(table.titles) > 1}
    mains = {title: summary_rows(board, table) for title, table in tables.items()}
    first = next(iter(tables.values()))
    parts = [
        "# Leaderboard",
        f"Training-free methods, each with one setting for everything, on {len(first.streams)} "
        f"stream{'s' if len(first.streams) > 1 else ''} in {len(first.shapes)} "
        f"shape{'s' if len(first.shapes) > 1 else ''}: {int(first.taken.sum())} runs, in each of which all methods "
        "answer the same samples. `leaderboard.csv` has the scores of every run, `leaderboard.tex` the tables for a "
        "paper. The files are generated by\n\n" + "\n".join(["```", *board.commands, "```"]),
        *shown(
            "Mean gain over zero-shot, by method and shape of the stream",
            folder / "leaderboard.png",
            partial(draw_leaderboard, tables),
        ),
    ]
    for title, (headings, *lines) in mains.items():
        parts += [f"## {title}", TABLES[title][1], markdown_table(headings, lines)]
    parts += [NOTES, f"Measured on {'; and on '.join(board.machines)}.", *_streams(board, first)]
    sections: dict[str, tuple[str, Callable[[Standings], Lines]]] = {
        "Shapes": (
            "Mean and lowest gain of the runs of each shape, in points. The shapes are those of the "
            "[protocol](../benchmarks.md#protocol).",
            _by_shape,
        ),
        "Streams": (
            "Mean gain in points over the shapes that a stream can take.",
            lambda table: _by_method(table, {name: table.on([name]) for name in table.streams}),
        ),
        "Without one": (
            "Mean gain in points of all streams but one, or but all of a data set.",
            lambda table: _by_method(table, table.without),
        ),
    }
    for heading, (sentence, make) in list(sections.items())[: 3 if first.without else 2]:
        parts += [f"## {heading}", sentence]
        for title, table in tables.items():
            parts += [f"### {heading}: {title.lower()}", markdown_table(*make(table))]
    settings = [
        f"**{title}**: {settings_text(each['settings'])}" + (f" ({each['published']})." if each["published"] else ".")
        for title, each in sorted(board.methods.items())
    ]
    parts += ["## Settings", *markdown_list(settings)]
    if board.notes:
        parts += ["## Left out", *markdown_list(board.notes)]
    write_page(parts, folder / "leaderboard.md")
    write_page(
        [f"% {latex_text(title)}\n{latex_table(headings, lines)}" for title, (headings, *lines) in mains.items()],
        folder / "leaderboard.tex",
    )
    return mains


def summary_rows(board: Board, table: Standings) -> list[tuple[str, ...]]:
    """Return the headings of a main table, and a line for each method."""
    unseen = [name for name, each in board.protocol["streams"].items() if each["unseen"]]
    gains, differences = table.intervals
    several = len(table.data_sets) > 1
    figures = {name: table.mean(name) for name in ("gain", "acc1", "ece", "us")}
    rows = []
    for i, title in enumerate(table.titles):
        zero_shot = title == "zero-shot"
        rest = {name: float(means[i]) for name, means in table.without.items()}
        least = min(rest, key=lambda name: rest[name], default="")
        lowest, run = table.lowest(i)
        cells = {
            "method": title,
            "answered": table.answered[i],
            "mean gain": points(figures["gain"][i]),
            INTERVAL: interval_text(*gains[i]) if several and not zero_shot else ABSENT,
            "against the first": interval_text(*differences[i]) if several and i else ABSENT,
            "least without one": ABSENT if zero_shot or not least else f"{points(rest[least])} ({least})",
            **({"unseen streams": points(table.on(unseen)[i])} if unseen else {}),
            "cells won": f"{100 * table.won[i]:.0f} %",
            "worst run": ABSENT if zero_shot else f"{points(lowest)} ({run})",
            "accuracy": f"{100 * figures['acc1'][i]:.2f}",
            "ECE": f"{100 * figures['ece'][i]:.2f}",
            "µs per sample": f"{figures['us'][i]:.0f}",
            "state, kB": f"{np.nanmax(table.values['state_kb'][i]):,.1f}",
        }
        rows.append(cells)
    return [tuple(rows[0]), *(tuple(row.values()) for row in rows)]


def _streams(board: Board, table: Standings) -> list[str]:
    """Describe the streams: zero-shot's accuracy is the mean over the shapes, as all figures."""
    zero_shot = list(table.titles).index("zero-shot")
    marked = any(each["unseen"] for each in board.protocol["streams"].values())
    rows = [
        (
            name,
            *(str(each["samples"]), str(each["classes"]), f"{100 * table.on([name], 'acc1')[zero_shot]:.2f}"),
            *(["no" if each["unseen"] else "yes"] if marked else []),
        )
        for name, each in board.protocol["streams"].items()
    ]
    headings = ["stream", "samples", "classes", "zero-shot", *(["constants chosen on it"] if marked else [])]
    said = (
        "Streams on which constants of this library were chosen flatter its own methods, and the rivals whose setting "
        "was chosen there among the published ones; the column **unseen streams** has the others."
    )
    return ["## Data", *([said] if marked else []), markdown_table(headings, rows)]


def _by_shape(table: Standings) -> Lines:
    gains = np.moveaxis(table.values["gain"], 2, 1)  # (M, H, S, O)
    return ("method", *table.shapes), [
        (title, *(f"{points(np.nanmean(each))} / {points(np.nanmin(each))}" for each in shapes))
        for title, shapes in zip(table.titles, gains, strict=True)
    ]


def _by_method(table: Standings, gains: Mapping[str, Any]) -> Lines:
    return ("stream", *table.titles), [(name, *map(points, means)) for name, means in gains.items()]


def _unfit(method: type[Adapter], with_views: bool, passes: int, model: str | None) -> str | None:
    """Return why a method cannot run on these features; None if it can."""
    if method.kind == "few-shot":
        return "fitted to labelled samples"
    if method.kind == "collection" and passes == 1:
        return "answers a stream as a whole; --passes 2"
    if "text" in method.needs and model is None:
        return "needs the text tower of a model: --model"
    return "needs views in every stream" if "views" in method.needs and not with_views else None


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
    return part_of(stream, np.sort(stream_order(stream, "shuffled:0")[:limit]))
