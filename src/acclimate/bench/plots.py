"""Figures in one style. Needs matplotlib: `pip install 'acclimate[plot]'`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.arrays import HostArray
from acclimate.bench.metrics import running_accuracy
from acclimate.errors import InputError, MissingExtraError

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


def plot_running_accuracy(correct: Mapping[str, HostArray], title: str, path: Path) -> None:
    """Draw accuracy along the stream, one line a method.

    Args:
        correct: method -> (n,) whether each answer was right, in the order taken.
        title: what was measured.
        path: the picture to write; its suffix says the format.
    """
    plt = pyplot()
    length = max(len(values) for values in correct.values())
    window = max(50, length // 20)
    figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
    for (method, values), colour in zip(correct.items(), COLOURS * len(correct), strict=False):
        curve = 100 * running_accuracy(values, window)
        x = np.arange(1, len(curve) + 1)
        label = f"{method}  {100 * np.mean(values):.2f} %"
        axes.plot(x[window // 2 :], curve[window // 2 :], color=colour, linewidth=1.8, label=label)
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel("samples seen")
    axes.set_ylabel(f"accuracy over the last {window} samples, %")
    axes.set_xlim(0, length)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)
    axes.legend(frameon=False, loc="best")
    try:
        figure.savefig(path, dpi=150)
    finally:
        plt.close(figure)
