"""The paper's tables and figures as data (`data/recipes.json`): what to run on which datasets, and the paper's figures.

The figures are those of Karmanov et al., Efficient Test-Time Adaptation of Vision-Language Models, CVPR 2024.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from acclimate.bench.datasets import Dataset, read_data
from acclimate.bench.prequential import Variant
from acclimate.methods import list_methods
from acclimate.views import Kind

AVERAGE = "average"
# Of the answers; of the positive cache; of the answers to the first 1 % of the stream, less that of zero-shot.
Score = Literal["accuracy", "cache label accuracy", "short classes", "early gain"]
SEARCHED = " (settings searched on its validation images)"


@dataclass(frozen=True)
class Protocol:
    """How a row of a table is measured."""

    method: str
    prompts: str = "dataset"  # each dataset's template set, or the name of one set for all
    views: int | str = "paper"  # each dataset's number for TDA, or one for all
    views_kind: Kind = "augmix"
    settings: tuple[str, ...] = ("paper",)  # names of the settings that it is run with
    config: Mapping[str, Any] = field(default_factory=dict)  # "paper" settings that are not the method's defaults
    shots: int = 0  # training images per class of ImageNet that it is fitted to; 0 if it is not fitted
    validation: bool = False  # whether settings are searched on ImageNet's validation images
    remarks: tuple[str, ...] = ()  # what the authors did that is not done here, in words

    def views_of(self, dataset: Dataset) -> int:
        """The number of views per image."""
        return dataset.views if self.views == "paper" else int(self.views)

    @property
    def trained(self) -> str:
        """What it is fitted to, in words."""
        return trained_on(self.shots) + (SEARCHED if self.validation else "") if self.shots else ""

    def variants(self, dataset: Dataset, given: Mapping[str, Any] | None = None) -> list[Variant]:
        """What to run on a dataset: the settings of the protocol, or in their place some that are given."""
        if given:
            return [Variant(self.method, {**self.config, **given}, "given")]
        return [variant_for(self.method, dataset, name, self.config) for name in self.settings]


def trained_on(shots: int) -> str:
    """What a few-shot method is fitted to, in words."""
    return f"ImageNet's training images, {shots} per class"


def usual_protocol(method: str) -> Protocol:
    """How a method is measured that has no row in the paper: as TDA, but with the views or the training it needs."""
    known = list_methods().get(method)  # unknown if the result of another version is shown
    if known is None:
        return Protocol(method)
    if known.kind == "few-shot":
        return Protocol(method, views=1, shots=16, validation=True)
    return Protocol(method, views=64 if "views" in known.needs else "paper", views_kind=known.views_kind)


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
    `rows` says how each of the paper's methods is measured.
    """

    name: str  # on the command line
    title: str  # in the report
    about: str  # what the paper shows with it, and what to look for
    kind: Literal["methods", "cost", "settings"]
    figure: str  # how its tables are drawn; a name in `plots.FIGURES`
    datasets: tuple[str, ...]  # keys of the paper's datasets
    method: str = ""  # "settings": the method to run
    rows: Mapping[str, Protocol] = field(default_factory=dict)  # the paper's name of a method -> how it is run
    reported: Mapping[str, Any] = field(default_factory=dict)
    averages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # "methods": heading -> datasets averaged
    printed_averages: Mapping[str, Any] = field(default_factory=dict)  # "methods": model -> method -> heading -> figure
    sweeps: tuple[Sweep, ...] = ()  # "settings": the tables

    def protocol(self, method: str) -> Protocol:
        """How one of our methods is measured."""
        return next((row for row in self.rows.values() if row.method == method), usual_protocol(method))


def variant_for(method: str, dataset: Dataset, settings: str, config: Mapping[str, Any] | None = None) -> Variant:
    """A method with "paper" settings (`config`), or with those its authors published for the dataset, if any."""
    if settings == "authors-per-dataset" and method in dataset.authors:
        return Variant(method, dataset.authors[method], settings)
    return Variant(method, config or {}, "paper")


def protocol_of(method: str, dataset: Dataset) -> Protocol:
    """How a method is measured on one of the paper's datasets, or on a part of it."""
    suites = (recipe for recipe in RECIPES.values() if recipe.kind == "methods")
    return next(each for each in suites if (dataset.part_of or dataset.key) in each.datasets).protocol(method)


def _read_recipes() -> dict[str, Recipe]:
    recipes: dict[str, Recipe] = {}
    for name, facts in read_data("recipes.json").items():
        sweeps = []
        for sweep in facts.get("sweeps", ()):
            rows = {label: Variant(facts["method"], settings) for label, settings in sweep["rows"].items()}
            sweeps.append(Sweep(**{**sweep, "rows": rows}))
        facts = {**facts, "datasets": tuple(facts["datasets"]), "sweeps": tuple(sweeps)}
        facts["rows"] = {row: Protocol(**_with_tuples(how)) for row, how in facts.get("rows", {}).items()}
        recipes[name] = Recipe(name, **facts)
    return recipes


def _with_tuples(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()}


RECIPES: Mapping[str, Recipe] = _read_recipes()
