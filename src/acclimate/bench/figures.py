"""The recipes' figures, drawn from their tables: filled marks are measured, hollow diamonds are the paper's."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.bench.plots import COLOURS, new_figure, save_figure
from acclimate.bench.tables import Cell, Table

GREY, GREEN, RED, BLUE, *_ = COLOURS
BY_METHOD = {"zero-shot": GREY, "positive": BLUE, "negative": RED, "both": GREEN, "tda": GREEN}
REPORTED: dict[str, Any] = {"marker": "D", "facecolors": "none", "edgecolors": "black", "s": 34, "zorder": 5}
GAIN = "gain over zero-shot, points"
PAPERS = "reported,\non the paper's data"


def draw_gains_by_dataset(tables: Sequence[Table], path: Path) -> None:
    """Bars: what each row of the first table gains over its zero-shot row, by dataset."""
    (table,) = tables
    rows = dict(table.rows)
    zero_shot = rows.pop("zero-shot")
    figure, (axes,) = new_figure(width=max(9.0, 1.1 * len(table.columns)))
    x, width = np.arange(len(table.columns)), 0.8 / len(rows)
    axes.axhline(0, color=GREY, linewidth=1)
    for place, (label, cells) in enumerate(rows.items()):
        at = x + (place - (len(rows) - 1) / 2) * width
        measured, told = _gains(cells, zero_shot)
        axes.bar(at, measured, 0.92 * width, color=BY_METHOD[label], label=label)
        axes.scatter(at, told, **REPORTED, label=None if place else PAPERS)
    axes.axvline(len(x) - 1.5, color=GREY, linewidth=0.8, linestyle=":")
    axes.set_xticks(x, table.columns)
    axes.set_ylabel(GAIN)
    axes.set_title(table.title.partition(":")[0], loc="left", fontsize=11)
    figure.legend(frameon=False, loc="outside right center")
    save_figure(figure, path)


def draw_curves(tables: Sequence[Table], path: Path) -> None:
    """A panel a table: the gain along the rows, thin for each dataset and thick for their average."""
    _draw_panels(tables, path, "solid")


def draw_ranges(tables: Sequence[Table], path: Path) -> None:
    """As `draw_curves` for rows that are not points of one scale: marks without lines, on one axis."""
    _draw_panels(tables, path, "none")


def _draw_panels(tables: Sequence[Table], path: Path, line: str) -> None:
    categories = line == "none"
    figure, panels = new_figure(len(tables), 4.4 * len(tables) + 1.4, share_y=categories)
    for axes, table in zip(panels, tables, strict=True):
        rows = dict(table.rows)
        zero_shot = rows.pop("zero-shot", None)
        x = np.arange(len(rows))
        gains = [_gains(cells, zero_shot) for cells in rows.values()]
        measured = np.array([each for each, _ in gains]).T  # (columns, rows)
        told = [next((gain for gain in each if gain == gain), np.nan) for _, each in gains]  # in whichever column
        if zero_shot:
            axes.axhline(0, color=GREY, linewidth=1)
        for name, values, colour in zip(table.columns[:-1], measured, _colours(len(table.columns)), strict=False):
            axes.plot(x, values, linestyle=line, marker="o", markersize=4, linewidth=1, color=colour, label=name)
        axes.plot(
            x,
            measured[-1],
            linestyle=line,
            marker="o",
            markersize=7,
            linewidth=2.6,
            color="black",
            label=table.columns[-1],
        )
        axes.scatter(x, told, **REPORTED, label=PAPERS)
        axes.set_xticks(x, rows, rotation=45 if categories else 0)
        axes.set_xlabel(table.corner)
        title, _, unit = table.title.partition(":")
        axes.set_ylabel(GAIN if zero_shot else unit)
        if categories:
            axes.label_outer()
        axes.set_title(title, loc="left", fontsize=11)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, loc="outside right center")
    save_figure(figure, path)


def draw_accuracies(tables: Sequence[Table], path: Path) -> None:
    """Marks: the accuracy of every measured row by dataset, filled, with the paper's beside it, hollow."""
    (table,) = tables
    rows = {label: cells for label, cells in table.rows if any(cell.measured is not None for cell in cells)}
    figure, (axes,) = new_figure(width=max(8.0, 1.1 * len(table.columns)))
    x = np.arange(len(table.columns))
    for place, ((label, cells), colour) in enumerate(zip(rows.items(), _colours(len(rows)), strict=False)):
        at = x + (place - (len(rows) - 1) / 2) * 0.14
        colour = BY_METHOD.get(label, colour)
        axes.scatter(at, [_number(cell.measured) for cell in cells], color=colour, s=46, label=label)
        axes.scatter(at, [_number(cell.reported) for cell in cells], **{**REPORTED, "edgecolors": colour})
    axes.scatter([], [], **REPORTED, label=PAPERS)
    axes.set_xticks(x, table.columns)
    axes.set_ylabel("top-1 accuracy, %")
    axes.set_title(table.title.partition(":")[0], loc="left", fontsize=11)
    figure.legend(frameon=False, loc="outside right center")
    save_figure(figure, path)


def draw_times(tables: Sequence[Table], path: Path) -> None:
    """Marks: accuracy over minutes, measured filled and reported hollow."""
    (table,) = tables
    figure, (axes,) = new_figure()
    for (label, (minutes, accuracy, *_)), colour in zip(table.rows, _colours(len(table.rows)), strict=False):
        colour = BY_METHOD.get(label, colour)
        axes.scatter(_number(minutes.measured), _number(accuracy.measured), color=colour, s=46, label=label)
        axes.scatter(minutes.reported, accuracy.reported, **{**REPORTED, "edgecolors": colour})
    axes.scatter([], [], **REPORTED, label=PAPERS)
    figure.legend(frameon=False, loc="outside right center")
    axes.set_xscale("log")
    axes.set_xlabel("minutes")
    axes.set_ylabel("top-1 accuracy, %")
    axes.set_title(table.title.partition(":")[0], loc="left", fontsize=11)
    save_figure(figure, path)


def _gains(cells: Sequence[Cell], zero_shot: Sequence[Cell] | None) -> tuple[list[float], list[float]]:
    """Measured and reported gains of a row over zero-shot; the figures themselves where there is no zero-shot."""
    base = zero_shot or [Cell(0.0, 0.0)] * len(cells)
    return (
        [_number(cell.measured) - _number(other.measured) for cell, other in zip(cells, base, strict=True)],
        [_number(cell.reported) - _number(other.reported) for cell, other in zip(cells, base, strict=True)],
    )


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _colours(count: int) -> list[str]:
    return [*COLOURS[1:], GREY] * (1 + count // len(COLOURS))
