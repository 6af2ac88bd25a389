"""The paper's tables and figures as data (`data/recipes.json`): runs, datasets, and the paper's figures.

The figures are those of Karmanov et al., Efficient Test-Time Adaptation of Vision-Language Models, CVPR 2024.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any, Literal

from acclimate.bench.prequential import Variant
from acclimate.methods import list_methods
from acclimate.sources.datasets import Dataset

AVERAGE = "average"
SEARCHED = " (settings searched on its validation images)"


@dataclass(frozen=True)
class Sweep:
    """One table of an ablation: a row per setting, a column per dataset.

    Attributes:
        title: the title of the table.
        corner: the setting that is varied.
        rows: value as shown in the table -> variant to run.
        reported: dataset or "average" -> value, or "zero-shot" -> the paper's figure.
        score: the "accuracy" of the answers, "cache label accuracy" and "short classes" of the positive cache, or
            "early gain": the accuracy of the first 1 % of the answers above zero-shot.
    """

    title: str
    corner: str
    rows: Mapping[str, Variant]
    reported: Mapping[str, Mapping[str, float]]
    score: str = "accuracy"


@dataclass(frozen=True)
class Recipe:
    """A table or figure of the paper: "methods" by datasets, "cost" (time and accuracy), or an ablation of "settings".

    Attributes:
        name: the name on the command line.
        title: the title in the report.
        about: what the paper shows with it.
        kind: the kind of table.
        figure: a name in `plots.FIGURES`.
        datasets: keys of the paper's datasets.
        method: the method of an ablation.
        rows: the paper's name of a method -> variant to run.
        reported: the paper's figures, by model, method and dataset for "methods", and by method for "cost".
        averages: heading -> datasets averaged.
        printed_averages: model -> method -> heading -> the paper's figure.
        sweeps: the tables of an ablation.
    """

    name: str
    title: str
    about: str
    kind: Literal["methods", "cost", "settings"]
    figure: str
    datasets: tuple[str, ...]
    method: str = ""
    rows: Mapping[str, Variant] = field(default_factory=dict)
    reported: Mapping[str, Any] = field(default_factory=dict)
    averages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    printed_averages: Mapping[str, Any] = field(default_factory=dict)
    sweeps: tuple[Sweep, ...] = ()

    def row(self, method: str) -> Variant:
        """Return how one of our methods is measured: as the paper's row, or as usual if there is none."""
        return next((row for row in self.rows.values() if row.method == method), usual_row(method))

    def variants(self, row: Variant, dataset: Dataset, given: Mapping[str, Any] | None = None) -> list[Variant]:
        """Return what to run on a dataset: the settings of a row, and in a suite its authors'; or those given."""
        if given:
            return [replace(row, settings={**row.settings, **given}, settings_name="given")]
        if self.kind != "methods" or row.method not in dataset.authors:
            return [row]
        return [row, replace(row, settings=dataset.authors[row.method], settings_name="authors-per-dataset")]


def trained_on(shots: int) -> str:
    """Return a description of what a few-shot method is fitted to."""
    return f"ImageNet's training images, {shots} per class"


def usual_row(method: str) -> Variant:
    """Return how a method without a row in the paper is measured: as TDA, but with the views or training it needs."""
    known = list_methods().get(method)
    if known is None:  # the result of a plugin that is not loaded is shown
        return Variant("zero-shot", settings_name="paper")
    if known.kind == "few-shot":
        return Variant(
            method, settings_name="paper", trained=trained_on(16) + SEARCHED, views=1, shots=16, validation=True
        )
    return Variant(method, settings_name="paper", views=64 if "views" in known.needs else "paper")


def row_of(method: str, dataset: Dataset) -> Variant:
    """Return how a method is measured on one of the paper's datasets, or on a part of it."""
    suites = (recipe for recipe in RECIPES.values() if recipe.kind == "methods")
    return next(each for each in suites if (dataset.part_of or dataset.key) in each.datasets).row(method)


def _read_recipes() -> dict[str, Recipe]:
    recipes = {}
    text = (files("acclimate.bench") / "data" / "recipes.json").read_text(encoding="utf-8")
    for name, facts in json.loads(text).items():
        sweeps = []
        for sweep in facts.get("sweeps", ()):
            variants = {label: Variant(facts["method"], settings) for label, settings in sweep["rows"].items()}
            sweeps.append(Sweep(**{**sweep, "rows": variants}))
        rows = {}
        for row, how in facts.get("rows", {}).items():
            trained = trained_on(how["shots"]) if "shots" in how else ""
            rows[row] = Variant(
                settings_name="paper",
                trained=trained + (SEARCHED if "validation" in how else ""),
                **{**how, "remarks": tuple(how.get("remarks", ()))},
            )
        recipes[name] = Recipe(
            name, **{**facts, "datasets": tuple(facts["datasets"]), "rows": rows, "sweeps": tuple(sweeps)}
        )
    return recipes


RECIPES: Mapping[str, Recipe] = _read_recipes()
