"""From results and recipes to tables: what was measured next to what the paper reports."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from acclimate.bench.datasets import DATASETS
from acclimate.bench.prequential import Variant
from acclimate.bench.recipes import AVERAGE, RECIPES, Recipe, Sweep
from acclimate.bench.reported import backbone, paper_dataset, reasons
from acclimate.bench.results import Result
from acclimate.bench.tables import Cell, Table

OUR_NAMES = {"CLIP": "zero-shot"}  # the paper's name of a method -> ours, where they differ by more than case
SUITE_MODEL = "ViT-B/16"  # its figures are shown next to those of models that are not in the paper
ABLATION_MODEL = "RN50"  # the model of the paper's ablations and times


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
    return {"methods": _method_table, "cost": _cost_table, "settings": _sweep_tables}[recipe.kind](recipe, group)


def every_table(group: Group) -> list[Table]:
    """The tables of all recipes in the paper's order, then a table of everything that they do not show."""
    tables: list[Table] = []
    shown: list[dict[str, Any]] = []
    for recipe in RECIPES.values():
        if made := recipe_tables(recipe, group):
            tables += made
            shown += [variant.config for sweep in recipe.sweeps for variant in sweep.rows.values()]
    return tables + _other_table(group, shown)


def _stream(result: Result) -> tuple[str, ...]:
    return result.dataset, result.model, result.prompts, _views(result)


def _views(result: Result) -> str:
    dataset = paper_dataset(result)
    return "" if result.views == (dataset.views if dataset else 1) else str(result.views)


def _accuracy(result: Result) -> float:
    return 100 * (result.metrics["acc1"] or 0.0)


def _cache_label_accuracy(result: Result) -> float:
    return 100 * float(result.caches["positive"]["label_accuracy"] or 0.0)


SCORES: dict[str, Callable[[Result], float]] = {
    "accuracy": _accuracy,
    "cache label accuracy": _cache_label_accuracy,
}


def _zero_shot(result: Result) -> Result:
    """The result of zero-shot on the same stream, as stored in the result of another method."""
    baseline: dict[str, float | None] = {**(result.baseline or {})}
    cost = {**result.cost, "wall_s": result.cost["baseline_s"]}
    orders = {"names": result.orders["names"]}
    return replace(result, method="zero-shot", metrics=baseline, config={}, orders=orders, cost=cost)


def _sd(result: Result) -> float | None:
    """The standard deviation of the accuracy over several orders, in percent."""
    return 100 * result.orders["sd"] if "sd" in result.orders else None


def _mean_cell(
    results: Sequence[Result],
    figure: float | None,
    model: str,
    score: Callable[[Result], float] = _accuracy,
    also: tuple[str, ...] = (),
) -> Cell:
    """The mean score of results next to the paper's figure, with the reasons why they may differ.

    Args:
        results: may be empty.
        figure: the paper's, if it has one.
        model: the model of the paper's figure.
        score: what to average.
        also: a further reason.
    """
    if not results:
        return Cell(None, figure)
    measured = float(np.mean([score(result) for result in results]))
    sd = _sd(results[0]) if len(results) == 1 and score is _accuracy else None
    if figure is None or abs(measured - figure) < 0.005:
        return Cell(measured, figure, sd)
    why = dict.fromkeys(reason for result in results for reason in reasons(result, model))
    return Cell(measured, figure, sd, (*why, *also))


def _method_table(recipe: Recipe, group: Group) -> list[Table]:
    """Rows are the paper's methods in the paper's order, then others; columns are datasets and averages."""
    model = backbone(group.model) or SUITE_MODEL
    paper = {OUR_NAMES.get(name, name.lower()): name for name in recipe.reported[model]}
    measured = _results_by_row(recipe, group)
    if not measured:
        return []
    rows = []
    for method in dict.fromkeys([*paper, *(method for method, _ in measured)]):
        figures = _figures(recipe, model, paper[method]) if method in paper else {}
        found = {settings: results for (name, settings), results in measured.items() if name == method}
        for settings, results in found.items():
            label = method if settings in ("", "paper") else f"{method}, {settings}"
            rows.append((label, _method_cells(recipe, results, figures, model)))
        if not found:
            rows.append((paper[method], _method_cells(recipe, {}, figures, model)))
    columns = (*(DATASETS[key].title for key in recipe.datasets), *recipe.averages)
    return [Table(recipe.name, f"{recipe.title}: top-1 accuracy, %", group.context, "method", columns, tuple(rows))]


def _results_by_row(recipe: Recipe, group: Group) -> dict[tuple[str, str], dict[str, Result]]:
    """(method, name of settings) -> dataset -> result, with zero-shot first; custom settings are left out."""
    rows: dict[tuple[str, str], dict[str, Result]] = {}
    for result in group.results:
        dataset = paper_dataset(result)
        if dataset and dataset.key in recipe.datasets and result.settings != "custom":
            rows.setdefault(("zero-shot", ""), {})[result.dataset] = _zero_shot(result)
            if result.method != "zero-shot":
                rows.setdefault((result.method, result.settings), {})[result.dataset] = result
    return rows


def _figures(recipe: Recipe, model: str, name: str) -> dict[str, float]:
    """The paper's figures of a method: dataset or heading of an average -> percent."""
    figures = dict(zip(recipe.datasets, recipe.reported[model][name], strict=True))
    for heading, keys in recipe.averages.items():
        figures[heading] = float(np.mean([figures[key] for key in keys]))
    if recipe.printed_averages:  # not always the mean of the printed columns
        figures["Average"] = recipe.printed_averages[model][name]
    return figures


def _method_cells(
    recipe: Recipe, results: Mapping[str, Result], figures: Mapping[str, float], model: str
) -> tuple[Cell, ...]:
    columns = {**{key: (key,) for key in recipe.datasets}, **recipe.averages}
    cells = []
    for heading, keys in columns.items():
        complete = all(key in results for key in keys)
        found = [results[key] for key in keys] if complete else []
        cells.append(_mean_cell(found, figures.get(heading), model))
    return tuple(cells)


def _cost_table(recipe: Recipe, group: Group) -> list[Table]:
    """Minutes, accuracy and gain over zero-shot, if it is known how long the encoding took."""
    result = group.find(recipe.datasets[0], Variant(recipe.method))
    if result is None or result.cost["encode_s"] is None:
        return []
    measured = {"CLIP": _zero_shot(result), "TDA": result}
    rows = []
    for name, each in recipe.reported.items():
        paper = (each["minutes"], each["accuracy"], each["accuracy"] - recipe.reported["CLIP"]["accuracy"])
        label = measured[name].method if name in measured else name
        rows.append((label, _cost_cells(measured.get(name), *paper)))
    context = f"{group.context} Hardware: {result.hardware}."
    columns = ("minutes", "accuracy, %", "gain")
    return [Table(recipe.name, recipe.title, context, "method", columns, tuple(rows))]


def _cost_cells(result: Result | None, minutes: float, accuracy: float, gain: float) -> tuple[Cell, ...]:
    if result is None:
        return Cell(None, minutes), Cell(None, accuracy), Cell(None, gain)
    seconds = (result.cost["encode_s"] or 0.0) + (result.cost["wall_s"] or 0.0) / len(result.order_names)
    why = reasons(result, ABLATION_MODEL)
    return (
        Cell(seconds / 60, minutes, None, (*why, "the paper's machine has one RTX 6000.")),
        Cell(_accuracy(result), accuracy, None, why),
        Cell(_accuracy(result) - _accuracy(_zero_shot(result)), gain, None, why if gain else ()),
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
        columns = [[result] for result in results] + ([results] if AVERAGE in headings else [])
        figures = [sweep.reported.get(label) if heading == column else None for heading in headings]
        row = [
            _mean_cell(each, figure, ABLATION_MODEL, SCORES[sweep.score], also)
            for each, figure in zip(columns, figures, strict=True)
        ]
        cells.append((label, tuple(row)))
    return Table(recipe.name, sweep.title, group.context, sweep.corner, tuple(headings), tuple(cells))


def _other_table(group: Group, shown: Container[dict[str, Any]]) -> list[Table]:
    """Methods on streams that are not the paper's, and custom settings that no ablation shows."""
    rows: dict[str, dict[str, Cell]] = {"zero-shot": {}}
    for result in group.results:
        custom = result.settings == "custom"
        if (custom and result.config not in shown) or (not custom and paper_dataset(result) is None):
            rows["zero-shot"][result.dataset] = Cell(_accuracy(_zero_shot(result)))
            rows.setdefault(_label(result), {})[result.dataset] = Cell(_accuracy(result), sd=_sd(result))
    columns = tuple(rows["zero-shot"])
    if not columns:
        return []
    cells = tuple((label, tuple(row.get(name, Cell()) for name in columns)) for label, row in rows.items())
    return [Table("others", "Other streams and settings: top-1 accuracy, %", group.context, "method", columns, cells)]


def _label(result: Result) -> str:
    """The method, and those of its settings that differ from its defaults."""
    defaults = Variant(result.method).config
    changed = (f"{key} {value}" for key, value in result.config.items() if value != defaults[key])
    return ", ".join([result.method, *changed])
