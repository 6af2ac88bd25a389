"""Recipes that vary one thing: a row for every setting, a column for every dataset, and their average."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from acclimate.bench.reported import reasons, reported
from acclimate.bench.reproduce.recipe import Group, Record, Variant
from acclimate.bench.tables import Cell, Table

AVERAGE = "average"
MODEL = "RN50"  # the paper's ablations are all with this one
CLIP_ON_IMAGENET, TDA_ON_IMAGENET = (reported()["ood"]["rows"][MODEL][method][0] for method in ("CLIP", "TDA"))


def accuracy(record: Record) -> float:
    """Top-1 accuracy in percent."""
    return 100.0 * float(record["metrics"]["acc1"])


def cache_label_accuracy(record: Record) -> float:
    """How many labels in the positive cache are right, in percent."""
    return 100.0 * float(record["caches"]["positive"]["label_accuracy"])


@dataclass(frozen=True)
class Sweep:
    """One table of an ablation.

    Attributes:
        title: what the figures are.
        corner: what is varied.
        rows: setting as the table names it -> what to run.
        reported: setting -> the paper's figure; "zero-shot" may be among them.
        score: the figure to show.
    """

    title: str
    corner: str
    rows: Mapping[str, Variant]
    reported: Mapping[str, float]
    score: Callable[[Record], float] = accuracy


@dataclass(frozen=True)
class Ablation:
    """A recipe that varies settings; see `Recipe`.

    Attributes:
        reported_for: the dataset that the paper's figures are for; "average" for the mean of `datasets`.
        sweeps: its tables.
        picture: draws them.
    """

    name: str
    title: str
    about: str
    datasets: tuple[str, ...]
    reported_for: str
    sweeps: tuple[Sweep, ...]
    picture: Callable[[Sequence[Table], Path], None]

    def variants(self, dataset: str) -> list[Variant]:
        """Every setting of every table."""
        return [variant for sweep in self.sweeps for variant in sweep.rows.values()]

    def tables(self, group: Group) -> list[Table]:
        """A table a sweep, over the datasets on which all its settings were run."""
        tables = []
        for sweep in self.sweeps:
            found = {name: [group.find(name, each) for each in sweep.rows.values()] for name in group.datasets}
            columns = {name: [each for each in found[name] if each] for name in found if None not in found[name]}
            if columns:
                tables.append(self._table(group, sweep, columns))
        return tables

    def draw(self, tables: Sequence[Table], path: Path) -> None:
        """Draw the tables of one group."""
        self.picture(tables, path)

    def _table(self, group: Group, sweep: Sweep, columns: Mapping[str, list[Record]]) -> Table:
        at = self.reported_for if self.reported_for in columns else AVERAGE
        rows = []
        if sweep.score is accuracy:
            baselines = [
                {**each[0], "method": "zero-shot", "metrics": each[0]["baseline"]} for each in columns.values()
            ]
            rows.append(self._row("zero-shot", sweep, list(columns), baselines, at))
        for place, label in enumerate(sweep.rows):
            records = [each[place] for each in columns.values()]
            rows.append(self._row(label, sweep, list(columns), records, at))
        return Table(self.name, sweep.title, group.context, sweep.corner, (*columns, AVERAGE), tuple(rows))

    def _row(
        self, label: str, sweep: Sweep, columns: Sequence[str], records: Sequence[Record], at: str
    ) -> tuple[str, tuple[Cell, ...]]:
        scores = [sweep.score(record) for record in records]
        spreads = [_spread(record) if sweep.score is accuracy else None for record in records]
        told = sweep.reported.get(label)
        cells = [
            _cell(score, told, spread, [record], self.reported_for) if name == at else Cell(score, None, spread)
            for name, score, spread, record in zip(columns, scores, spreads, records, strict=True)
        ]
        mean = float(np.mean(scores))
        average = _cell(mean, told, None, records, self.reported_for) if at == AVERAGE else Cell(mean)
        return label, (*cells, average)


def _cell(
    measured: float, told: float | None, spread: float | None, records: Sequence[Record], reported_for: str
) -> Cell:
    """A cell with the paper's figure, and the reasons if the two differ."""
    if told is None or abs(measured - told) < 0.005:
        return Cell(measured, told, spread)
    why = dict.fromkeys(reason for record in records for reason in reasons(record, MODEL))
    if [record["dataset"] for record in records] != [reported_for] and reported_for != AVERAGE:
        why["the paper's figure is for ImageNet."] = None
    return Cell(measured, told, spread, tuple(why))


def _spread(record: Record) -> float | None:
    sd = record["orders"].get("sd")
    return None if sd is None else 100.0 * float(sd)
