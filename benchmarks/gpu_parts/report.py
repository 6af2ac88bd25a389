"""The tables of `gpu.py`: printed as they are filled, and written as a page with a picture."""

import csv
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from acclimate.bench.plots import BLUE, GREEN, GREY, pyplot
from acclimate.bench.results import hardware, write_page
from acclimate.errors import MissingExtraError

PACKAGES = ("torch", "torchvision", "transformers", "numpy", "pillow")
COLOURS = {"read": GREY, "encode": BLUE, "whole": GREEN}


@dataclass
class Report:
    """A collection of tables, figures of the summary, and bars of the picture."""

    parts: list[str] = field(default_factory=list)
    figures: list[tuple[str, str]] = field(default_factory=list)
    bars: list[tuple[str, str, float]] = field(default_factory=list)  # kind, name, images/s

    def table(self, title: str, heading: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> None:
        """Add and print a table whose first column holds names and whose others hold figures."""
        cells = [list(heading), *map(list, rows)]
        widths = [max(len(row[place]) for row in cells) for place in range(len(heading))]
        lines = [self._line(row, widths) for row in cells]
        lines.insert(1, f"| {'-' * widths[0]} |" + "".join(f" {'-' * (width - 1)}: |" for width in widths[1:]))
        self.parts.append("\n\n".join(part for part in (f"## {title}", "\n".join(lines), note) if part))
        print(f"{self.parts[-1]}\n", flush=True)

    @staticmethod
    def _line(row: Sequence[str], widths: Sequence[int]) -> str:
        figures = "".join(f" {cell:>{width}} |" for cell, width in zip(row[1:], widths[1:], strict=True))
        return f"| {row[0]:{widths[0]}} |{figures}"

    def say(self, title: str, text: str) -> None:
        """Add and print a paragraph."""
        self.parts.append(f"## {title}\n\n{text}")
        print(f"{self.parts[-1]}\n", flush=True)

    def figure(self, what: str, value: float, digits: int = 0) -> None:
        """Add a line to the summary."""
        self.figures.append((what, f"{value:,.{digits}f}"))

    def bar(self, kind: str, name: str, rate: float) -> None:
        """Add a bar of the picture; its kind is "read", "encode" or "whole"."""
        self.bars.append((kind, name, rate))

    def summary(self) -> None:
        """Print the most important figures and put them first."""
        self.table("Summary", ("", "measured"), self.figures)
        self.parts.insert(0, self.parts.pop())

    def write(self, page: Path, command: str, device: str, about: str) -> None:
        """Write the page, and the bars as csv and as a picture."""
        where = f"{hardware(device)}; Python {platform.python_version()}, {', '.join(_versions())}"
        picture = [f"![Images per second by stage]({page.stem}.png)"] if self.bars else []
        parts = ["# Speed on a GPU", f"`{command}`: {where}.", about, self.parts[0], *picture, *self.parts[1:]]
        write_page(parts, page)
        with page.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(
                [("kind", "name", "images/s"), *((*bar[:2], round(bar[2], 1)) for bar in self.bars)]
            )
        try:
            self.draw(page.with_suffix(".png"))
        except MissingExtraError as error:
            print(f"{error} Draw it elsewhere: gpu.py --draw {page.with_suffix('.csv').name}", file=sys.stderr)

    @classmethod
    def read(cls, bars: Path) -> "Report":
        """Read the bars of a report that was written."""
        with bars.open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))[1:]
        return cls(bars=[(kind, name, float(rate)) for kind, name, rate in rows])

    def draw(self, path: Path) -> None:
        """Draw images per second of each stage and of the whole as bars."""
        plt = pyplot()
        if not self.bars:
            return
        figure, axes = plt.subplots(figsize=(9.0, 0.6 + 0.34 * len(self.bars)), layout="constrained")
        kinds, names, rates = zip(*self.bars, strict=True)
        places = np.arange(len(rates))[::-1]
        axes.barh(places, rates, 0.72, color=[COLOURS[kind] for kind in kinds])
        for place, rate in zip(places, rates, strict=True):
            axes.annotate(f"{rate:,.0f}", (rate, place), (4, 0), textcoords="offset points", va="center", fontsize=9)
        axes.set_yticks(places, names)
        axes.set_xlabel("images per second")
        axes.set_xlim(0, 1.1 * max(rates))
        axes.set_ylim(-0.6, len(rates) - 0.4)
        axes.xaxis.set_major_formatter(plt.FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="x", alpha=0.25)
        axes.set_axisbelow(True)
        handles = [plt.Rectangle((0, 0), 1, 1, color=COLOURS[kind]) for kind in COLOURS]
        axes.legend(handles, ("reading alone", "encoding alone", "the whole"), frameon=False, loc="lower right")
        figure.savefig(path, dpi=110, metadata={"Software": None})
        plt.close(figure)


def _versions() -> list[str]:
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            print(f"{name} is not installed", file=sys.stderr)
    return found
