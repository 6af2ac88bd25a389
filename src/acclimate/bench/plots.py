"""Figures in one style. Needs matplotlib, the extra `plot`.

The figures of recipes are drawn from their tables: filled markers are measured, hollow diamonds are the paper's.
"""

import io
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from acclimate.arrays import HostArray
from acclimate.bench.evaluation import interval_text
from acclimate.bench.prequential import Outcome
from acclimate.bench.recipes import AVERAGE
from acclimate.bench.scoring import running_accuracy
from acclimate.errors import InputError, MissingExtraError, missing
from acclimate.files import write_atomically, writing

if TYPE_CHECKING:
    from acclimate.bench.board import Standings
    from acclimate.bench.comparison import Cell, Table

# Suffixes, and the metadata that would change with every run, which has a different name in each format.
FORMATS = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
COLOURS = ("#8a8f98", "#0b6e4f", "#c8553d", "#3d5a80", "#b08900", "#6a4c93")  # grey is for zero-shot
GREY, GREEN, RED, BLUE, *_ = COLOURS
OTHER_COLOURS = (*COLOURS[1:], GREY)  # taken in turn
BY_METHOD = {"zero-shot": GREY, "positive": BLUE, "negative": RED, "both": GREEN, "tda": GREEN}
BY_ROW = {
    **BY_METHOD,
    "coop": "#b08900",
    "cocoop": "#e0c068",
    "difftpt": "#8fb0d8",
    "tda, authors-per-dataset": "#7fb89f",
    "tip-adapter": RED,
    "tpt": BLUE,
}
REPORTED: dict[str, Any] = {"marker": "D", "facecolors": "none", "edgecolors": "black", "s": 34, "zorder": 5}
REPORTED_LABEL = "reported\nin the paper"
STYLE = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "svg.hashsalt": "acclimate",
}
BESIDE: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}  # a legend at the right of its panel
GAIN = "gain over zero-shot, points"


def pyplot() -> Any:
    """Return matplotlib.pyplot, which draws to files only."""
    try:
        import matplotlib
    except ImportError:
        raise missing("plots need matplotlib", "plot") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def shown(title: str, path: Path, draw: Callable[[Path], None]) -> list[str]:
    """Draw a picture, and return the Markdown that shows it; nothing where matplotlib is missing."""
    try:
        draw(path)
    except MissingExtraError:
        return []
    return [f"![{title}]({path.name})"]


def check_picture(path: Path) -> None:
    """Refuse a picture that cannot be drawn, before any work is done."""
    pyplot()
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"cannot draw {path}; use one of the suffixes {', '.join(FORMATS)}.")


def plot_running_accuracy(streams: Sequence[tuple[str, Sequence[Outcome]]], path: Path) -> None:
    """Draw the accuracy along each stream, a panel per stream and a line per method and pass.

    `streams` has the name and the outcomes of each, the first of which is that of zero-shot. Over several orders the
    lines are means of the gain over zero-shot, which does not vary with the samples that happen to come together, and
    bands are one sd.
    """
    rows = -(-len(streams) // 2)  # two panels side by side
    width = 10.0 * min(2, len(streams))
    with _figure(path, len(streams), width, height=4.2 * rows, rows=rows, legend=False) as panels:
        for axes, (title, outcomes) in zip(panels, streams, strict=True):
            _draw_running_accuracy(axes, outcomes, title)
            axes.legend(**BESIDE)


def _draw_running_accuracy(axes: Any, outcomes: Iterable[Outcome], title: str) -> None:
    """Draw the panel of a stream; where orders take different numbers of samples, the shortest ends the lines."""
    correct = {
        method: [run.correct for run in runs.values()]
        for outcome in outcomes
        for method, runs in outcome.by_title.items()
    }
    length = min(len(values) for runs in correct.values() for values in runs)
    window = max(50, length // 20)
    first, *_ = correct.values()
    many = len(first) > 1
    base = [values[:length] * float(many) for values in first]  # the lines start from zero-shot, or from nothing
    styles = cycle(product(("-", "--", ":", "-."), COLOURS))
    x = np.arange(1, length + 1)[window // 2 :]
    for (method, runs), (line, colour) in zip(correct.items(), styles, strict=False):
        gains = [values[:length] - zero for values, zero in zip(runs, base, strict=True)]
        curves = 100 * np.array([running_accuracy(values, window)[window // 2 :] for values in gains])
        mean = curves.mean(axis=0)
        accuracies = 100 * np.array([np.mean(values) for values in runs])
        spread = f" ± {accuracies.std(ddof=1):.2f}" if many else ""
        axes.plot(x, mean, line, color=colour, linewidth=1.8, label=f"{method}  {accuracies.mean():.2f}{spread} %")
        if many:
            sd = curves.std(axis=0, ddof=1)
            axes.fill_between(x, mean - sd, mean + sd, color=colour, alpha=0.15, linewidth=0)
    axes.set(
        xlabel="samples seen",
        ylabel=f"gain over zero-shot, last {window} samples, points" if many else f"accuracy, last {window} samples, %",
        xlim=(0, length),
        title=f"{title}: mean and sd of {len(first)} orders" if many else title,
    )


def draw_gains(tables: "Sequence[Table]", path: Path) -> None:
    """Draw bars, a panel per table of accuracies: the gain of each measured row over zero-shot, by dataset."""
    drawn = [
        each for each in tables if "accuracy" in each.title and any(label == "zero-shot" for label, _ in each.rows)
    ]
    if not drawn:
        raise InputError(f"cannot draw {path}: the results have no accuracies beside those of zero-shot.")
    wide = max(sum(map(len, table.columns)) for table in drawn)
    with _figure(
        *(path, len(drawn), max(9.0, 0.17 * wide)), height=4.2 * len(drawn), rows=len(drawn), legend=False
    ) as panels:
        for axes, table in zip(panels, drawn, strict=True):
            _draw_bars(axes, table)
            axes.legend(*axes.get_legend_handles_labels(), **BESIDE)


def _draw_bars(axes: Any, table: "Table") -> None:
    rows = {label: cells for label, cells in table.rows if any(cell.measured is not None for cell in cells)}
    zero_shot = rows.pop("zero-shot")
    x = np.arange(len(table.columns))
    width = 0.8 / max(1, len(rows))
    axes.axhline(0, color=GREY, linewidth=1)
    for index, ((label, cells), colour) in enumerate(zip(rows.items(), _colours(rows.items()), strict=True)):
        at = x + (index - (len(rows) - 1) / 2) * width
        measured, reported = _gains(cells, zero_shot)
        axes.bar(at, measured, 0.92 * width, color=colour, label=label)
        axes.scatter(at, reported, **REPORTED, label=None if index or np.isnan(reported).all() else REPORTED_LABEL)
    if averages := [index for index, heading in enumerate(table.columns) if AVERAGE in heading.lower()]:
        axes.axvline(averages[0] - 0.5, color=GREY, linewidth=0.8, linestyle=":")
    axes.set_xticks(x, [heading.replace(" of ", "\nof ", 1) for heading in table.columns])
    methods = table.corner == "method"  # the rows of the paper's suites, whose zero-shot row has prompts of its own
    axes.set(ylabel="above the CLIP row, points" if methods else GAIN, title=table.title.partition(":")[0])


def draw_curves(tables: "Sequence[Table]", path: Path) -> None:
    """Draw a panel per table: the gain along the rows, thin for each dataset and thick for their average.

    Rows that are ranges such as 0.2-0.5 are not points on a scale: they get markers without lines and a common y-axis.
    """
    categories = any("-" in label for label, _ in tables[0].rows if label != "zero-shot")
    style: dict[str, Any] = {"linestyle": "none" if categories else "solid", "marker": "o"}
    with _figure(path, len(tables), 4.4 * len(tables) + 1.4, share_y=categories) as panels:
        for axes, table in zip(panels, tables, strict=True):
            rows = dict(table.rows)
            zero_shot = rows.pop("zero-shot", None)
            x = np.arange(len(rows))
            # (columns, rows) each
            measured, reported = np.stack([_gains(cells, zero_shot) for cells in rows.values()], axis=-1)
            if zero_shot:
                axes.axhline(0, color=GREY, linewidth=1)
            for name, values, paper, other in zip(
                table.columns, measured, reported, cycle(OTHER_COLOURS), strict=False
            ):
                thick = name.startswith(AVERAGE)
                colour = "black" if thick else other
                size = {"markersize": 7, "linewidth": 2.6} if thick else {"markersize": 4, "linewidth": 1}
                if not np.isnan(values).all():
                    axes.plot(x, values, **style, **size, color=colour, label=name)
                if not np.isnan(paper).all():
                    axes.scatter(x, paper, **{**REPORTED, "edgecolors": colour}, label=f"{name},\n{REPORTED_LABEL}")
            axes.set_xticks(x, rows, rotation=45 if categories else 0)
            title, _, score = table.title.partition(":")
            axes.set(xlabel=table.corner, ylabel=GAIN if zero_shot else score, title=title)
            if categories:
                axes.label_outer()


def draw_times(tables: "Sequence[Table]", path: Path) -> None:
    """Draw a panel per table: accuracy over minutes, and the paper's."""
    with _figure(path, len(tables), 4.4 * len(tables) + 1.4, share_y=True) as panels:
        for axes, table in zip(panels, tables, strict=True):
            for (label, cells), colour in zip(table.rows, _colours(table.rows), strict=True):
                measured, reported = _gains(cells, None)
                axes.scatter(measured[0], measured[2], color=colour, s=46, label=label)
                axes.scatter(reported[0], reported[2], **{**REPORTED, "edgecolors": colour})
            axes.scatter([], [], **REPORTED, label=REPORTED_LABEL)
            title = table.title.partition(": ")[2]
            axes.set(xscale="log", xlabel=table.columns[0], ylabel="top-1 accuracy, %", title=title)
            axes.label_outer()


def draw_leaderboard(tables: "Mapping[str, Standings]", path: Path) -> None:
    """Draw a heat map of methods and shapes for each table by title: mean gain and worst run; at the right, cost."""
    first = next(iter(tables.values()))
    zero_shot = list(first.titles).index("zero-shot")
    columns = [
        "all\nshapes",
        *(name.replace("-", "\n", 1) for name in first.shapes),
        "cells\nwon",
        f"ECE, %\n({100 * first.mean('ece')[zero_shot]:.1f})",
        "µs per\nsample",
    ]
    heights = [len(table.titles) - 1 for table in tables.values()]  # zero-shot has no line
    with _figure(
        path,
        len(tables),
        width=2.6 + 0.95 * len(columns),
        height=0.3 + 0.9 * len(tables) + 0.44 * sum(heights),
        rows=len(tables),
        legend=False,
    ) as panels:
        panels[0].get_gridspec().set_height_ratios(heights)
        for axes, (title, table) in zip(panels, tables.items(), strict=True):
            _draw_standings(axes, table)
            axes.set_title(title, fontsize=13, weight="bold", pad=8)
            axes.set_xticks(range(len(columns)), columns, fontsize=9)
        panels[0].figure.suptitle(
            "Accuracy above zero-shot in points: mean and worst run, and over all shapes the 95 % interval of the mean",
            fontsize=10,
        )


def _draw_standings(axes: Any, table: "Standings") -> None:
    """Draw a line for each method but zero-shot."""
    methods = [i for i, title in enumerate(table.titles) if title != "zero-shot"]
    gains = 100 * table.values["gain"][methods]  # (M, S, H, O)
    means = np.column_stack([100 * table.mean()[methods], np.nanmean(gains, axis=(1, 3))])
    worst = np.column_stack([np.nanmin(gains, axis=(1, 2, 3)), np.nanmin(gains, axis=(1, 3))])
    wide = means.shape[1]
    drawn = len(table.data_sets) > 1  # there is no interval of one data set
    axes.pcolormesh(
        np.arange(wide + 1) - 0.5,
        np.arange(len(methods) + 1) - 0.5,
        means,
        cmap=pyplot().matplotlib.colors.LinearSegmentedColormap.from_list(
            "",
            ("#e8907a", "#ffffff", "#6fb898"),  # loss to gain, light enough for dark figures
        ),
        vmin=-6,  # points with the full colour
        vmax=6,
        edgecolors="white",
        linewidth=2,
    )
    middle: dict[str, Any] = {"ha": "center", "va": "center"}
    for y, i in enumerate(methods):
        for x in range(wide):
            below = f"worst {worst[y, x]:+.1f}" if x or not drawn else interval_text(*table.intervals[0][i])
            colour = "#8c1405" if below[0] == "w" and worst[y, x] < -1 else "#333333"  # a loss over a point is red
            mean = f"{round(means[y, x], 1) + 0.0:+.1f}"  # zero is +0.0, never -0.0
            axes.text(x, y - 0.13, mean, **middle, fontsize=11, weight="normal" if x else "bold")
            axes.text(x, y + 0.27, below, **middle, fontsize=7, color=colour)
        axes.text(-0.6, y - 0.13, table.titles[i], ha="right", va="center", fontsize=11)
        axes.text(-0.6, y + 0.27, table.answered[i], ha="right", va="center", fontsize=7, color="#333333")
        further = (
            f"{100 * table.won[i]:.0f} %",
            f"{100 * table.mean('ece')[i]:.1f}",
            f"{table.mean('us')[i]:.0f}",
        )
        for x, text in enumerate(further, wide):
            axes.text(x, y, text, **middle, fontsize=9)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.set(xlim=(-0.5, wide + 2.5), ylim=(len(methods) - 0.5, -0.5), yticks=[])


FIGURES = {"gains": draw_gains, "curves": draw_curves, "times": draw_times}


@contextmanager
def _figure(
    path: Path,
    panels: int = 1,
    width: float = 8.0,
    share_y: bool = False,
    height: float = 4.2,
    rows: int = 1,
    legend: bool = True,
) -> Iterator[list[Any]]:
    """Open a figure and yield its panels in rows; write it at the end. The same figure has the same bytes.

    The legend is at the right of all panels, with the lines of the first.
    """
    plt = pyplot()
    content = io.BytesIO()
    suffix = path.suffix.lower()
    with plt.rc_context(STYLE):
        figure, cells = plt.subplots(
            rows, -(-panels // rows), figsize=(width, height), layout="constrained", sharey=share_y, squeeze=False
        )
        for axes in cells.ravel()[panels:]:
            axes.remove()
        try:
            yield list(cells.ravel()[:panels])
            if legend:
                figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center")
            figure.savefig(content, format=suffix[1:], dpi=100, metadata=FORMATS[suffix])
        finally:
            plt.close(figure)
    with writing(path):
        write_atomically(path, content.getvalue())


def _gains(cells: "Sequence[Cell]", zero_shot: "Sequence[Cell] | None") -> HostArray:
    """Return measured and reported gains (2, columns) over zero-shot, or the figures without it; nan where absent."""
    figures, base = (
        np.array([(cell.measured, cell.reported) for cell in row], float).T for row in (cells, zero_shot or ())
    )
    return np.asarray(figures - base if zero_shot else figures)


def _colours(rows: Collection[tuple[str, Any]]) -> list[str]:
    return [
        BY_ROW.get(label) or BY_ROW.get(label.partition(",")[0], other)
        for (label, _), other in zip(rows, cycle(OTHER_COLOURS), strict=False)
    ]
