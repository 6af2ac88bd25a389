"""Recipes that vary one thing: a row for every setting, a column for every dataset, and their average."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from acclimate.bench.datasets import DATASETS
from acclimate.bench.reported import reported
from acclimate.bench.reproduce.cells import accuracy, mean_cell, zero_shot_of
from acclimate.bench.reproduce.recipe import Group, Record, Variant
from acclimate.bench.tables import Table

AVERAGE = "average"
MODEL = "RN50"  # the paper's ablations are all with this one
CLIP_ON_IMAGENET, TDA_ON_IMAGENET = (reported()["ood"]["rows"][MODEL][method][0] for method in ("CLIP", "TDA"))


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

    def _table(self, group: Group, sweep: Sweep, found: Mapping[str, list[Record]]) -> Table:
        """A table of results by dataset, in the order of the sweep's rows."""
        rows = {label: [each[place] for each in found.values()] for place, label in enumerate(sweep.rows)}
        if sweep.score is accuracy:
            rows = {"zero-shot": [zero_shot_of(each[0]) for each in found.values()], **rows}
        headings = [*found, *([AVERAGE] if len(found) > 1 else [])]
        at = self.reported_for if self.reported_for in headings else headings[-1]
        same = list(found) == list(self.datasets) if at == AVERAGE else at == self.reported_for
        others = ", ".join(DATASETS[key].title for key in self.datasets)
        also = () if same else (f"the paper's figure is for {others}.",)
        cells = []
        for label, records in rows.items():
            told = [sweep.reported.get(label) if heading == at else None for heading in headings]
            parts = [*([record] for record in records), records]  # the last, for the average, only if there is one
            row = (mean_cell(*both, MODEL, sweep.score, also) for both in zip(parts, told, strict=False))
            cells.append((label, tuple(row)))
        return Table(self.name, sweep.title, group.context, sweep.corner, tuple(headings), tuple(cells))
