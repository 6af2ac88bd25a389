"""Figures in one style. Needs matplotlib: `pip install 'acclimate[plot]'`."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.arrays import HostArray
from acclimate.bench.metrics import running_accuracy
from acclimate.errors import InputError, MissingExtraError, RunError
from acclimate.files import write_atomically

FORMATS = (".png", ".svg", ".pdf")
COLOURS = ("#8a8f98", "#0b6e4f", "#c8553d", "#3d5a80", "#b08900", "#6a4c93")  # zero-shot, in grey, comes first


def pyplot() -> Any:
    """matplotlib.pyplot, drawing to files only."""
    try:
        import matplotlib
    except ImportError:
        raise MissingExtraError("plots need matplotlib: pip install 'acclimate[plot]'.") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def check_picture(path: Path) -> None:
    """Refuse a picture that cannot be drawn, before the work and not after it."""
    pyplot()
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"cannot draw {path}; pictures end in {', '.join(FORMATS)}.")


def new_figure(
    panels: int = 1, width: float = 8.0, height: float = 4.2, share_y: bool = False
) -> tuple[Any, list[Any]]:
    """A figure and its panels, side by side, in the one style: no box, a light grid, constrained layout."""
    figure, grid = pyplot().subplots(
        1, panels, figsize=(width, height), layout="constrained", sharey=share_y, squeeze=False
    )
    for axes in grid[0]:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
        axes.set_axisbelow(True)
    return figure, list(grid[0])


def save_figure(figure: Any, path: Path) -> None:
    """Write a picture, whole or not at all; the same figure gives the same bytes."""
    content = io.BytesIO()
    kind = path.suffix.lower().removeprefix(".")
    # Each format has its own word for what would change with every run.
    undated = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    try:
        with pyplot().rc_context({"svg.hashsalt": "acclimate"}):
            figure.savefig(content, format=kind, dpi=100, metadata=undated[kind])
    finally:
        pyplot().close(figure)
    try:
        write_atomically(path, content.getvalue())
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}.") from error


def plot_running_accuracy(correct: Mapping[str, HostArray], title: str, path: Path) -> None:
    """Draw accuracy along the stream, one line a method.

    Args:
        correct: method -> (n,) whether each answer was right, in the order taken.
        title: what was measured.
        path: the picture to write; its suffix says the format.
    """
    length = max(len(values) for values in correct.values())
    window = max(50, length // 20)
    figure, (axes,) = new_figure()
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
    save_figure(figure, path)
