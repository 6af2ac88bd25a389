"""The paper's tables and figures as data (`data/recipes.json`): what to run on which datasets, and the paper's figures.

The figures are those of Karmanov et al., Efficient Test-Time Adaptation of Vision-Language Models, CVPR 2024.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from acclimate.bench.datasets import DATASETS, Dataset, read_data
from acclimate.bench.prequential import Variant

AVERAGE = "average"
# Of the answers; of the positive cache; of the answers to the first 1 % of the stream, less that of zero-shot.
Score = Literal["accuracy", "cache label accuracy", "short classes", "early gain"]


@dataclass(frozen=True)
class Sweep:
    """One table of an ablation: a row per setting, a column per dataset."""

    title: str  # what the figures are
    corner: str  # the setting that is varied
    rows: Mapping[str, Variant]  # value as shown in the table -> what to run
    reported: Mapping[str, Mapping[str, float]]  # dataset or "average" -> value, or "zero-shot" -> the paper's figure
    score: Score = "accuracy"


@dataclass(frozen=True)
class Recipe:
    """A table or figure of the paper: "methods" by datasets, "cost" (time and accuracy), or an ablation of "settings".

    The paper's figures in `reported` are by model, method and dataset for "methods", and by method for "cost".
    """

    name: str  # on the command line
    title: str  # in the report
    about: str  # what the paper shows with it, and what to look for
    kind: Literal["methods", "cost", "settings"]
    figure: str  # how its tables are drawn; a name in `plots.FIGURES`
    method: str  # the method to run
    datasets: tuple[str, ...]  # keys of the paper's datasets
    reported: Mapping[str, Any] = field(default_factory=dict)
    averages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # "methods": heading -> datasets averaged
    printed_averages: Mapping[str, Any] = field(default_factory=dict)  # "methods": model -> method -> heading -> figure
    sweeps: tuple[Sweep, ...] = ()  # "settings": the tables

    def variants(self, dataset: str) -> list[Variant]:
        """What to run on a dataset; for an ablation it need not be one of the paper's."""
        if self.kind == "settings":
            return [variant for sweep in self.sweeps for variant in sweep.rows.values()]
        settings = ("paper", "authors-per-dataset") if self.kind == "methods" else ("paper",)
        return [variant_for(self.method, DATASETS[dataset], name) for name in settings]


def variant_for(method: str, dataset: Dataset, settings: str) -> Variant:
    """A method with "paper" settings, its defaults, or with those its authors published for the dataset, if any."""
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
