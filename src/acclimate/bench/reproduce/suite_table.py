"""Recipes that set methods side by side: a row for every method, the paper's among them, a column for every dataset."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from acclimate.bench.datasets import DATASETS
from acclimate.bench.figures import draw_accuracies
from acclimate.bench.reported import backbone, paper_dataset, reported
from acclimate.bench.reproduce.cells import mean_cell, zero_shot_of
from acclimate.bench.reproduce.recipe import Group, Record, Variant
from acclimate.bench.tables import Cell, Table

METHODS = {"CLIP": "zero-shot"}  # the paper's name -> ours, where they are not the same word
DEFAULT_MODEL = "ViT-B/16"  # whose figures stand beside those of a model that the paper does not have


@dataclass(frozen=True)
class SuiteTable:
    """A recipe that compares methods over a suite; see `Recipe`.

    Attributes:
        averages: heading -> the datasets it is the mean of.
    """

    name: str
    title: str
    about: str
    datasets: tuple[str, ...]
    averages: Mapping[str, tuple[str, ...]]

    def variants(self, dataset: str) -> list[Variant]:
        """TDA with the paper's one pair (alpha, beta), and with the authors' own for the dataset."""
        alpha, beta = DATASETS[dataset].authors
        return [Variant(), Variant({"positive_alpha": alpha, "positive_beta": beta}, called="authors-per-dataset")]

    def tables(self, group: Group) -> list[Table]:
        """One table, with the paper's methods in the paper's order and others below."""
        model = backbone(group.model) or DEFAULT_MODEL
        told = {METHODS.get(name, name.lower()): (name, figures) for name, figures in self._told(model).items()}
        measured = _by_row(group, self.datasets)
        if not measured:
            return []
        rows = []
        for method in dict.fromkeys([*told, *(method for method, _ in measured)]):
            name, figures = told.get(method, (method, {}))
            own = [(settings, records) for (each, settings), records in measured.items() if each == method]
            rows += [
                (method if settings in ("", "paper") else f"{method}, {settings}", self._cells(records, figures, model))
                for settings, records in own
            ]
            if not own:
                rows.append((name, self._cells({}, figures, model)))
        columns = (*(DATASETS[key].title for key in self.datasets), *self.averages)
        return [Table(self.name, f"{self.title}: top-1 accuracy, %", group.context, "method", columns, tuple(rows))]

    def draw(self, tables: Sequence[Table], path: Path) -> None:
        """Draw the table of one group."""
        draw_accuracies(tables, path)

    def _told(self, model: str) -> dict[str, dict[str, float]]:
        """The paper's figures: its name of a method -> dataset or average -> percent."""
        paper = reported()[self.name]
        told = {}
        for name, figures in paper["rows"][model].items():
            by_dataset = dict(zip(self.datasets, figures, strict=True))
            means = {
                heading: float(np.mean([by_dataset[key] for key in keys])) for heading, keys in self.averages.items()
            }
            if "average" in paper:  # as printed, which is not always the mean of the printed columns
                means["Average"] = paper["average"][model][name]
            told[name] = {**by_dataset, **means}
        return told

    def _cells(self, records: Mapping[str, Record], told: Mapping[str, float], model: str) -> tuple[Cell, ...]:
        cells = [mean_cell([records[key]] if key in records else [], told.get(key), model) for key in self.datasets]
        for heading, keys in self.averages.items():
            whole = all(key in records for key in keys)
            cells.append(mean_cell([records[key] for key in keys] if whole else [], told.get(heading), model))
        return tuple(cells)


def _by_row(group: Group, datasets: Sequence[str]) -> dict[tuple[str, str], dict[str, Record]]:
    """(method, settings) -> dataset -> result, zero-shot among them; settings without a name are other recipes'."""
    rows: dict[tuple[str, str], dict[str, Record]] = {}
    for record in group.records:
        dataset = paper_dataset(record)
        if dataset and dataset.key in datasets and record["settings"] != "custom":
            rows.setdefault(("zero-shot", ""), {})[record["dataset"]] = zero_shot_of(record)
            if record["method"] != "zero-shot":
                rows.setdefault((record["method"], record["settings"]), {})[record["dataset"]] = record
    return rows
