"""From results and recipes to tables: what was measured next to what the paper reports, and why the two may differ."""

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from acclimate.bench.datasets import DATASETS, Dataset
from acclimate.bench.prequential import Variant
from acclimate.bench.recipes import AVERAGE, RECIPES, Recipe, Sweep
from acclimate.bench.results import OF_FILE, Result
from acclimate.bench.tables import Cell, Table

BACKBONES = {"ViT-B/16": r"vit-b-16\b|vit-base-patch16\b", "RN50": r"rn50\b"}  # the paper's models, as names have them
SUITE_MODEL = "ViT-B/16"  # its figures are shown next to those of models that are not in the paper
ABLATION_MODEL = "RN50"  # the model of the paper's ablations and times
OUR_NAMES = {"CLIP": "zero-shot"}  # the paper's name of a method -> ours, where they differ by more than case


@dataclass(frozen=True)
class Group:
    """Results that can be compared in one table.

    Attributes:
        model: name of the encoder.
        prompts: name of the prompts.
        views: "" for the paper's number of views, else the number.
        orders: names.
        results: those of methods that adapt, each with zero-shot in the same orders as its baseline; those of
            zero-shot only where no other method was run.
    """

    model: str
    prompts: str
    views: str
    orders: tuple[str, ...]
    results: tuple[Result, ...]

    @property
    def context(self) -> str:
        """What the results were measured with."""
        first, last, count = self.orders[0], self.orders[-1], len(self.orders)
        order = first if count == 1 else f"{count}, {first} to {last}"
        views = f" Views: {self.views}." if self.views else ""
        return f"Model: {self.model}. Prompts: {self.prompts}.{views} Order: {order}."

    @property
    def datasets(self) -> list[str]:
        """Names, in the order of the results."""
        return list(dict.fromkeys(result.dataset for result in self.results))

    def find(self, dataset: str, variant: Variant) -> Result | None:
        """The result of a variant on a dataset."""
        key = (dataset, variant.method, variant.config)
        return next((each for each in self.results if (each.dataset, each.method, each.config) == key), None)


def group_results(results: Iterable[Result]) -> list[Group]:
    """Sort results into groups; results without labels are left out."""
    scored = [result for result in results if result.metrics["acc1"] is not None]
    adapted = {_stream(result) for result in scored if result.method != "zero-shot"}
    members: dict[tuple[str, str, str, tuple[str, ...]], list[Result]] = {}
    for result in scored:
        if result.method != "zero-shot" or _stream(result) not in adapted:
            key = (result.model, result.prompts, _views(result), result.order_names)
            members.setdefault(key, []).append(result)
    return [Group(*key, tuple(each)) for key, each in members.items()]


def recipe_tables(recipe: Recipe, group: Group) -> list[Table]:
    """A recipe's tables from the results of a group; none if the group has no results for it."""
    return {"methods": _method_tables, "cost": _cost_tables, "settings": _sweep_tables}[recipe.kind](recipe, group)


def every_table(group: Group) -> list[Table]:
    """The tables of all recipes in the paper's order, then a table of everything that they do not show."""
    tables: list[Table] = []
    shown: list[dict[str, Any]] = []
    for recipe in RECIPES.values():
        if made := recipe_tables(recipe, group):
            tables += made
            shown += [variant.config for sweep in recipe.sweeps for variant in sweep.rows.values()]
    return tables + _other_tables(group, shown)


def backbone(model: str) -> str | None:
    """Which of the paper's two models (OpenAI's CLIP with ViT-B/16 or ResNet-50) a name refers to; None for others."""
    name = model.lower()
    matching = (paper for paper, pattern in BACKBONES.items() if re.search(pattern, name))
    return next(matching, None) if "openai" in name else None


def paper_dataset(result: Result) -> Dataset | None:
    """The paper's dataset that a result was measured on; None for others and for feature files of any name."""
    return None if result.prompts == OF_FILE else DATASETS.get(result.dataset)


def reasons(result: Result, model: str) -> tuple[str, ...]:
    """Why a result may differ from the paper's figure for a model ("RN50"), apart from precision and order."""
    why = []
    if backbone(result.model) != model:
        why.append(f"the model is not the paper's (OpenAI's CLIP {model}).")
    dataset = paper_dataset(result)
    if dataset is None:
        return (*why, "the datasets and prompts are not the paper's.")
    if result.n not in dataset.counts or result.classes != dataset.classes:
        why.append("the number of images or classes is not the paper's.")
    if result.prompts != "dataset":
        why.append(f"the prompts are not the paper's: {result.prompts}.")
    elif result.method == "zero-shot":
        why.append("the paper's CLIP row uses an ensemble of 80 prompts; here zero-shot uses the same prompts as TDA.")
    authors = dataset.authors.get(result.method, {})
    if result.settings == "paper" and any(result.config[name] != value for name, value in authors.items()):
        why.append(
            "the same settings (alpha, beta) for all datasets, as the paper states; the authors' published runs use "
            "different ones per dataset."
        )
    if result.views != dataset.views:
        why.append(f"{result.views} view(s) per image; the paper uses {dataset.views}.")
    return tuple(why)


def _stream(result: Result) -> tuple[str, ...]:
    return result.dataset, result.model, result.prompts, _views(result)


def _views(result: Result) -> str:
    dataset = paper_dataset(result)
    return "" if result.views == (dataset.views if dataset else 1) else str(result.views)


def _zero_shot(result: Result) -> Result:
    """The result of zero-shot on the same stream, as stored in the result of another method."""
    metrics: dict[str, float | None] = {**(result.baseline or {})}
    cost = {**result.cost, "wall_s": result.cost["baseline_s"]}
    orders = {"names": result.orders["names"]}
    return replace(result, method="zero-shot", metrics=metrics, config={}, orders=orders, cost=cost)


def _score(result: Result, score: str = "accuracy") -> float:
    """A score of `Sweep` in percent."""
    value = result.metrics["acc1"] if score == "accuracy" else result.learnt["positive"]["label_accuracy"]
    return 100 * (value or 0.0)


def _mean_cell(
    results: Sequence[Result], figure: float | None, model: str, score: str = "accuracy", also: tuple[str, ...] = ()
) -> Cell:
    """The mean score of results (there may be none) next to the paper's figure for a model.

    If the two differ, the cell has the reasons of the results and those in `also`.
    """
    if not results:
        return Cell(None, figure)
    measured = float(np.mean([_score(result, score) for result in results]))
    spread = results[0].orders.get("sd") if len(results) == 1 and score == "accuracy" else None
    why: dict[str, None] = {}
    if figure is not None and abs(measured - figure) >= 0.005:
        why = dict.fromkeys([*(reason for result in results for reason in reasons(result, model)), *also])
    return Cell(measured, figure, None if spread is None else 100 * spread, tuple(why))


def _method_tables(recipe: Recipe, group: Group) -> list[Table]:
    """Rows are the paper's methods in the paper's order, then others; columns are datasets and averages."""
    model = backbone(group.model) or SUITE_MODEL
    measured: dict[str, dict[str, dict[str, Result]]] = {}  # method -> label of a row -> dataset -> result
    for result in group.results:
        dataset = paper_dataset(result)
        if dataset and dataset.key in recipe.datasets and result.settings != "custom":
            label = result.method if result.settings == "paper" else f"{result.method}, {result.settings}"
            measured.setdefault(result.method, {}).setdefault(label, {})[dataset.key] = result
            measured.setdefault("zero-shot", {}).setdefault("zero-shot", {})[dataset.key] = _zero_shot(result)
    if not measured:
        return []
    names = {OUR_NAMES.get(name, name.lower()): name for name in recipe.reported[model]}
    columns = {**{key: (key,) for key in recipe.datasets}, **recipe.averages}
    rows = []
    for method in dict.fromkeys([*names, *measured]):
        figures = _figures(recipe, model, names[method]) if method in names else {}
        for label, found in (measured.get(method) or {names[method]: {}}).items():
            cells = []
            for heading, keys in columns.items():
                results = [found[key] for key in keys] if found.keys() >= set(keys) else []
                cells.append(_mean_cell(results, figures.get(heading), model))
            rows.append((label, tuple(cells)))
    headings = (*(DATASETS[key].title for key in recipe.datasets), *recipe.averages)
    return [Table(f"{recipe.title}: top-1 accuracy, %", group.context, "method", headings, tuple(rows))]


def _figures(recipe: Recipe, model: str, name: str) -> dict[str, float]:
    """The paper's figures of a method: dataset or heading of an average -> percent."""
    figures = dict(zip(recipe.datasets, recipe.reported[model][name], strict=True))
    for heading, keys in recipe.averages.items():
        figures[heading] = float(np.mean([figures[key] for key in keys]))
    if recipe.printed_averages:  # not always the mean of the printed columns
        figures["Average"] = recipe.printed_averages[model][name]
    return figures


def _cost_tables(recipe: Recipe, group: Group) -> list[Table]:
    """Minutes, accuracy and gain over zero-shot, if it is known how long the encoding took."""
    result = group.find(recipe.datasets[0], Variant(recipe.method))
    if result is None or result.cost["encode_s"] is None:
        return []
    measured = {"zero-shot": _zero_shot(result), result.method: result}
    rows = []
    for name, figures in recipe.reported.items():
        method = OUR_NAMES.get(name, name.lower())
        gain = figures["accuracy"] - recipe.reported["CLIP"]["accuracy"]
        paper = (figures["minutes"], figures["accuracy"], gain)
        if method in measured:
            rows.append((method, _cost_cells(measured[method], *paper)))
        else:
            rows.append((name, tuple(Cell(None, figure) for figure in paper)))
    context = f"{group.context} Hardware: {result.hardware}."
    columns = ("minutes", "accuracy, %", "gain")
    return [Table(recipe.title, context, "method", columns, tuple(rows))]


def _cost_cells(result: Result, minutes: float, accuracy: float, gain: float) -> tuple[Cell, ...]:
    seconds = (result.cost["encode_s"] or 0.0) + (result.cost["wall_s"] or 0.0) / len(result.order_names)
    why = reasons(result, ABLATION_MODEL)
    return (
        Cell(seconds / 60, minutes, None, (*why, "the paper's machine has one RTX 6000.")),
        Cell(_score(result), accuracy, None, why),
        Cell(_score(result) - _score(_zero_shot(result)), gain, None, why if gain else ()),
    )


def _sweep_tables(recipe: Recipe, group: Group) -> list[Table]:
    """A table per sweep, over the datasets on which all its settings were run."""
    tables = []
    for sweep in recipe.sweeps:
        found = {name: [group.find(name, each) for each in sweep.rows.values()] for name in group.datasets}
        complete = {name: [each for each in found[name] if each] for name in found if None not in found[name]}
        if complete:
            tables.append(_sweep_table(recipe, group, sweep, complete))
    return tables


def _sweep_table(recipe: Recipe, group: Group, sweep: Sweep, found: Mapping[str, Sequence[Result]]) -> Table:
    """A table of the results per dataset, which are in the order of the sweep's rows."""
    rows = {label: [results[place] for results in found.values()] for place, label in enumerate(sweep.rows)}
    if sweep.score == "accuracy":
        rows = {"zero-shot": [_zero_shot(results[0]) for results in found.values()], **rows}
    headings = [*found, *([AVERAGE] if len(found) > 1 else [])]
    column = recipe.reported_for if recipe.reported_for in headings else headings[-1]
    same = list(found) == list(recipe.datasets) if column == AVERAGE else column == recipe.reported_for
    titles = ", ".join(DATASETS[key].title for key in recipe.datasets)
    also = () if same else (f"the paper's figure is for {titles}.",)
    cells = []
    for label, results in rows.items():
        row = []
        for place, heading in enumerate(headings):
            figure = sweep.reported.get(label) if heading == column else None
            averaged = results if heading == AVERAGE else [results[place]]
            row.append(_mean_cell(averaged, figure, ABLATION_MODEL, sweep.score, also))
        cells.append((label, tuple(row)))
    return Table(sweep.title, group.context, sweep.corner, tuple(headings), tuple(cells))


def _other_tables(group: Group, shown: Container[dict[str, Any]]) -> list[Table]:
    """Methods on streams that are not the paper's, and custom settings that no ablation shows."""
    rows: dict[str, dict[str, Cell]] = {"zero-shot": {}}
    for result in group.results:
        custom = result.settings == "custom"
        if (custom and result.config not in shown) or (not custom and paper_dataset(result) is None):
            defaults = Variant(result.method).config
            settings = (f"{key} {value}" for key, value in result.config.items() if value != defaults[key])
            label = ", ".join([result.method, *settings])
            rows["zero-shot"][result.dataset] = _mean_cell([_zero_shot(result)], None, "")
            rows.setdefault(label, {})[result.dataset] = _mean_cell([result], None, "")
    columns = tuple(rows["zero-shot"])
    if not columns:
        return []
    cells = tuple((label, tuple(row.get(name, Cell()) for name in columns)) for label, row in rows.items())
    return [Table("Other streams and settings: top-1 accuracy, %", group.context, "method", columns, cells)]
