"""Figures in one style. Needs matplotlib: `pip install 'acclimate[plot]'`.

The figures of recipes are drawn from their tables: filled markers are measured, hollow diamonds are the paper's.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.arrays import HostArray
from acclimate.bench.metrics import running_accuracy
from acclimate.bench.tables import Cell, Table
from acclimate.errors import InputError, MissingExtraError
from acclimate.files import write_atomically, writing

FORMATS = (".png", ".svg", ".pdf")
COLOURS = ("#8a8f98", "#0b6e4f", "#c8553d", "#3d5a80", "#b08900", "#6a4c93")  # the first, grey, is for zero-shot
GREY, GREEN, RED, BLUE, *_ = COLOURS
BY_METHOD = {"zero-shot": GREY, "positive": BLUE, "negative": RED, "both": GREEN, "tda": GREEN}
REPORTED: dict[str, Any] = {"marker": "D", "facecolors": "none", "edgecolors": "black", "s": 34, "zorder": 5}
REPORTED_LABEL = "reported,\non the paper's data"
GAIN = "gain over zero-shot, points"


def pyplot() -> Any:
    """matplotlib.pyplot, which draws to files only."""
    try:
        import matplotlib
    except ImportError:
        raise MissingExtraError("plots need matplotlib: pip install 'acclimate[plot]'.") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def check_picture(path: Path) -> None:
    """Refuse a picture that cannot be drawn, before any work is done."""
    pyplot()
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"cannot draw {path}; use one of the suffixes {', '.join(FORMATS)}.")


def plot_running_accuracy(correct: Mapping[str, HostArray], title: str, path: Path) -> None:
    """Draw the accuracy along the stream, one line per method.

    Args:
        correct: method -> (n,) whether each answer is right, in the order taken.
        title: what was measured.
        path: the picture to write; its suffix determines the format.
    """
    length = max(len(values) for values in correct.values())
    window = max(50, length // 20)
    figure, (axes,) = _new_figure()
    for (method, values), colour in zip(correct.items(), COLOURS * len(correct), strict=False):
        curve = 100 * running_accuracy(values, window)
        x = np.arange(1, len(curve) + 1)
        label = f"{method}  {100 * np.mean(values):.2f} %"
        axes.plot(x[window // 2 :], curve[window // 2 :], color=colour, linewidth=1.8, label=label)
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel("samples seen")
    axes.set_ylabel(f"accuracy over the last {window} samples, %")
    axes.set_xlim(0, length)
    axes.legend(frameon=False, loc="best")
    _save(figure, path)


def draw_gains(tables: Sequence[Table], path: Path) -> None:
    """Bars: the gain of each row over zero-shot, by dataset."""
    (table,) = tables
    rows = dict(table.rows)
    zero_shot = rows.pop("zero-shot")
    figure, (axes,) = _new_figure(width=max(9.0, 1.1 * len(table.columns)))
    x, width = np.arange(len(table.columns)), 0.8 / len(rows)
    axes.axhline(0, color=GREY, linewidth=1)
    for place, (label, cells) in enumerate(rows.items()):
        at = x + (place - (len(rows) - 1) / 2) * width
        measured, reported = _gains(cells, zero_shot)
        axes.bar(at, measured, 0.92 * width, color=BY_METHOD[label], label=label)
        axes.scatter(at, reported, **REPORTED, label=None if place else REPORTED_LABEL)
    axes.axvline(len(x) - 1.5, color=GREY, linewidth=0.8, linestyle=":")
    axes.set_xticks(x, table.columns)
    _finish(figure, axes, table, GAIN, path)


def draw_curves(tables: Sequence[Table], path: Path) -> None:
    """A panel per table: the gain along the rows, thin for each dataset and thick for their average.

    Rows that are ranges such as 0.2-0.5 are not points on a scale: they get markers without lines and a common y-axis.
    """
    categories = any("-" in label for label, _ in tables[0].rows if label != "zero-shot")
    style: dict[str, Any] = {"linestyle": "none" if categories else "solid", "marker": "o"}
    figure, panels = _new_figure(len(tables), 4.4 * len(tables) + 1.4, share_y=categories)
    for axes, table in zip(panels, tables, strict=True):
        rows = dict(table.rows)
        zero_shot = rows.pop("zero-shot", None)
        x = np.arange(len(rows))
        gains = [_gains(cells, zero_shot) for cells in rows.values()]
        measured = np.array([each for each, _ in gains]).T  # (columns, rows)
        reported = [next((gain for gain in each if gain == gain), np.nan) for _, each in gains]  # in any column
        if zero_shot:
            axes.axhline(0, color=GREY, linewidth=1)
        for name, values, colour in zip(table.columns[:-1], measured, _colours(len(table.columns)), strict=False):
            axes.plot(x, values, **style, markersize=4, linewidth=1, color=colour, label=name)
        axes.plot(x, measured[-1], **style, markersize=7, linewidth=2.6, color="black", label=table.columns[-1])
        axes.scatter(x, reported, **REPORTED, label=REPORTED_LABEL)
        axes.set_xticks(x, rows, rotation=45 if categories else 0)
        axes.set_xlabel(table.corner)
        title, _, unit = table.title.partition(":")
        axes.set_ylabel(GAIN if zero_shot else unit)
        if categories:
            axes.label_outer()
        axes.set_title(title, loc="left", fontsize=11)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, loc="outside right center")
    _save(figure, path)


def draw_accuracies(tables: Sequence[Table], path: Path) -> None:
    """Markers: the accuracy of every measured row by dataset, and the paper's."""
    (table,) = tables
    rows = {label: cells for label, cells in table.rows if any(cell.measured is not None for cell in cells)}
    figure, (axes,) = _new_figure(width=max(8.0, 1.1 * len(table.columns)))
    x = np.arange(len(table.columns))
    for place, ((label, cells), colour) in enumerate(zip(rows.items(), _colours(len(rows)), strict=False)):
        at = x + (place - (len(rows) - 1) / 2) * 0.14
        measured, reported = _gains(cells, None)
        _scatter_both(axes, label, colour, (at, measured), (at, reported))
    axes.scatter([], [], **REPORTED, label=REPORTED_LABEL)
    axes.set_xticks(x, table.columns)
    _finish(figure, axes, table, "top-1 accuracy, %", path)


def draw_times(tables: Sequence[Table], path: Path) -> None:
    """Markers: accuracy over minutes, and the paper's."""
    (table,) = tables
    figure, (axes,) = _new_figure()
    for (label, cells), colour in zip(table.rows, _colours(len(table.rows)), strict=False):
        (minutes, accuracy, _), reported = _gains(cells, None)
        _scatter_both(axes, label, colour, (minutes, accuracy), (reported[0], reported[1]))
    axes.scatter([], [], **REPORTED, label=REPORTED_LABEL)
    axes.set_xscale("log")
    axes.set_xlabel("minutes")
    _finish(figure, axes, table, "top-1 accuracy, %", path)


FIGURES: dict[str, Callable[[Sequence[Table], Path], None]] = {
    "gains": draw_gains,
    "curves": draw_curves,
    "accuracies": draw_accuracies,
    "times": draw_times,
}


def _new_figure(
    panels: int = 1, width: float = 8.0, height: float = 4.2, share_y: bool = False
) -> tuple[Any, list[Any]]:
    """A figure and its panels side by side: no box, a light grid, constrained layout."""
    figure, grid = pyplot().subplots(
        1, panels, figsize=(width, height), layout="constrained", sharey=share_y, squeeze=False
    )
    for axes in grid[0]:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
        axes.set_axisbelow(True)
    return figure, list(grid[0])


def _scatter_both(axes: Any, label: str, colour: str, measured: tuple[Any, Any], reported: tuple[Any, Any]) -> None:
    colour = BY_METHOD.get(label, colour)
    axes.scatter(*measured, color=colour, s=46, label=label)
    axes.scatter(*reported, **{**REPORTED, "edgecolors": colour})


def _finish(figure: Any, axes: Any, table: Table, unit: str, path: Path) -> None:
    axes.set_ylabel(unit)
    axes.set_title(table.title.partition(":")[0], loc="left", fontsize=11)
    figure.legend(frameon=False, loc="outside right center")
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    """Write a picture atomically; the same figure gives the same bytes."""
    content = io.BytesIO()
    kind = path.suffix.lower().removeprefix(".")
    # The metadata that would change with every run has a different name in each format.
    undated = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    try:
        with pyplot().rc_context({"svg.hashsalt": "acclimate"}):
            figure.savefig(content, format=kind, dpi=100, metadata=undated[kind])
    finally:
        pyplot().close(figure)
    with writing(path):
        write_atomically(path, content.getvalue())


def _gains(cells: Sequence[Cell], zero_shot: Sequence[Cell] | None) -> tuple[list[float], list[float]]:
    """Measured and reported gains of a row over zero-shot, or the figures themselves without it; nan where absent."""
    base = zero_shot or [Cell(0.0, 0.0)] * len(cells)
    return (
        [_number(cell.measured) - _number(other.measured) for cell, other in zip(cells, base, strict=True)],
        [_number(cell.reported) - _number(other.reported) for cell, other in zip(cells, base, strict=True)],
    )


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _colours(count: int) -> list[str]:
    return [*COLOURS[1:], GREY] * (1 + count // len(COLOURS))
