"""The paper's tables and figures as data (`data/recipes.json`): what to run on which datasets, and the paper's figures.

The figures are those of Karmanov et al., Efficient Test-Time Adaptation of Vision-Language Models, CVPR 2024.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from acclimate.bench.datasets import DATASETS, Dataset, read_data
from acclimate.bench.prequential import Variant

AVERAGE = "average"


@dataclass(frozen=True)
class Sweep:
    """One table of an ablation: a row per setting, a column per dataset.

    Attributes:
        title: what the figures are.
        corner: the setting that is varied.
        rows: value as shown in the table -> what to run.
        reported: value -> the paper's figure; may include "zero-shot".
        score: "accuracy", or "cache label accuracy": how many labels in the positive cache are right.
    """

    title: str
    corner: str
    rows: Mapping[str, Variant]
    reported: Mapping[str, float]
    score: Literal["accuracy", "cache label accuracy"] = "accuracy"


@dataclass(frozen=True)
class Recipe:
    """A table or figure of the paper.

    Attributes:
        name: on the command line.
        title: in the report.
        about: what the paper shows with it, and what to look for.
        kind: "methods" for a table of methods by datasets, "cost" for time and accuracy, "settings" for an ablation.
        figure: how its tables are drawn; a name in `plots.FIGURES`.
        method: the method to run.
        datasets: keys of the paper's datasets.
        reported: the paper's figures: model -> method -> accuracy per dataset ("methods"), or method -> minutes and
            accuracy ("cost").
        averages: for "methods": heading -> keys of the datasets averaged.
        printed_averages: for "methods": model -> method -> the paper's average, if it prints one.
        reported_for: for "settings": the dataset that the paper's figures are for, or "average".
        sweeps: for "settings": the tables.
    """

    name: str
    title: str
    about: str
    kind: Literal["methods", "cost", "settings"]
    figure: str
    method: str
    datasets: tuple[str, ...]
    reported: Mapping[str, Any] = field(default_factory=dict)
    averages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    printed_averages: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    reported_for: str = ""
    sweeps: tuple[Sweep, ...] = ()

    def variants(self, dataset: str) -> list[Variant]:
        """What to run on a dataset; for an ablation it need not be one of the paper's."""
        if self.kind == "settings":
            return [variant for sweep in self.sweeps for variant in sweep.rows.values()]
        settings = ("paper", "authors-per-dataset") if self.kind == "methods" else ("paper",)
        return [variant_for(self.method, DATASETS[dataset], name) for name in settings]


def variant_for(method: str, dataset: Dataset, settings: str) -> Variant:
    """A method on a dataset with "paper" (its defaults) or "authors-per-dataset" settings.

    The latter are those that the authors of the method published for the dataset, or the defaults if there are none.
    """
    if settings == "authors-per-dataset" and method in dataset.authors:
        return Variant(method, dataset.authors[method], settings)
    return Variant(method, {}, "paper")


def _read(name: str, facts: Mapping[str, Any]) -> Recipe:
    sweeps = []
    for sweep in facts.get("sweeps", ()):
        rows = {label: Variant(facts["method"], settings) for label, settings in sweep["rows"].items()}
        sweeps.append(Sweep(**{**sweep, "rows": rows}))
    return Recipe(name, **{**facts, "datasets": tuple(facts["datasets"]), "sweeps": tuple(sweeps)})


RECIPES: Mapping[str, Recipe] = {name: _read(name, facts) for name, facts in read_data("recipes.json").items()}
