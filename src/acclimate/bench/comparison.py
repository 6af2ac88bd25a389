"""From results and recipes to tables: what was measured next to what the paper reports, and why the two may differ."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from acclimate.bench.datasets import DATASETS, Dataset
from acclimate.bench.prequential import Variant
from acclimate.bench.recipes import AVERAGE, RECIPES, Recipe
from acclimate.bench.results import OF_FILE, Result

BACKBONES = {"ViT-B/16": r"vit-b-16\b|vit-base-patch16\b", "RN50": r"rn50\b"}  # the paper's models, as names have them
SUITE_MODEL = "ViT-B/16"  # its figures are shown next to those of models that are not in the paper
ABLATION_MODEL = "RN50"  # the model of the paper's ablations and times
OUR_NAMES = {"CLIP": "zero-shot"}  # the paper's name of a method -> ours, where they differ by more than case
ROUNDING = 0.0051  # how far a printed average may be from the mean of the printed cells


@dataclass(frozen=True)
class Cell:
    """A measured figure, such as an accuracy in percent, and the paper's figure; None where there is none."""

    measured: float | None = None
    reported: float | None = None
    sd: float | None = None  # standard deviation over several orders
    why: tuple[str, ...] = ()  # reasons why the two may differ


@dataclass(frozen=True)
class Table:
    """A table of cells."""

    title: str  # what the figures are
    context: str  # what they were measured with
    corner: str  # heading of the row names
    columns: tuple[str, ...]  # headings
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]  # names, and one cell per column


@dataclass(frozen=True)
class Group:
    """Results that can be compared in one table; those of zero-shot only where no other method was run."""

    context: str  # the model, prompts, views and orders that they have in common
    results: tuple[Result, ...]

    @property
    def datasets(self) -> list[str]:
        """Names, in the order of the results."""
        return list(dict.fromkeys(result.dataset for result in self.results))

    def find(self, dataset: str, variant: Variant) -> Result | None:
        """The result of a variant on a dataset after one pass."""
        key = (dataset, variant.method, variant.config, 1)
        matching = (each for each in self.results if (each.dataset, each.method, each.config, each.passes) == key)
        return next(matching, None)


def group_results(results: Iterable[Result]) -> list[Group]:
    """Sort results into groups; results without labels are left out."""
    scored = [(_context(result), result) for result in results if result.metrics["acc1"] is not None]
    adapted = {(context, result.dataset) for context, result in scored if result.method != "zero-shot"}
    members: dict[str, list[Result]] = {}
    for context, result in scored:
        if result.method != "zero-shot" or (context, result.dataset) not in adapted:
            members.setdefault(context, []).append(result)
    return [Group(context, tuple(each)) for context, each in members.items()]


def recipe_tables(recipe: Recipe, group: Group) -> list[Table]:
    """A recipe's tables from the results of a group; none if the group has no results for it."""
    return {"methods": _method_tables, "cost": _cost_tables, "settings": _sweep_tables}[recipe.kind](recipe, group)


def every_table(group: Group) -> list[Table]:
    """The tables of all recipes in the paper's order, one of other streams and of settings in no ablation, and ECE."""
    tables: list[Table] = []
    shown = []
    for recipe in RECIPES.values():
        if made := recipe_tables(recipe, group):
            tables += made
            shown += [variant.config for sweep in recipe.sweeps for variant in sweep.rows.values()]
    others: dict[str, dict[str, Result]] = {"zero-shot": {}}
    every: dict[str, dict[str, Result]] = {"zero-shot": {}}
    for result in group.results:
        custom = result.settings == "custom"
        if custom and result.config in shown:
            continue
        defaults = Variant(result.method).config if custom else result.config
        settings = (f"{key} {value}" for key, value in result.config.items() if value != defaults[key])
        name = ", ".join([result.title, *settings])
        for rows in (every, others) if custom or paper_dataset(result) is None else (every,):
            rows["zero-shot"][result.dataset] = _zero_shot(result)
            rows.setdefault(name, {})[result.dataset] = result
    titles = {"accuracy": "Other streams and settings: top-1 accuracy, %", "ECE": "Expected calibration error (ECE), %"}
    for rows, (score, title) in zip((others, every), titles.items(), strict=True):
        if columns := {name: (name,) for name in rows["zero-shot"]}:
            tables.append(_table(group, title, "method", rows, columns, {}, "", score))
    return tables


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
    why += (
        f"the authors' loader dropped files with {part.without!r} in their names, so the paper's figure is probably on "
        f"{part.test:,} of the {dataset.test:,} images."
        for part in DATASETS.values()
        if part.part_of == dataset.key and result.method in part.authors
    )
    if result.views != dataset.views:
        why.append(f"{result.views} view(s) per image; the paper uses {dataset.views}.")
    return tuple(why)


def _context(result: Result) -> str:
    """What a result was measured with; the views only if they are not those of the paper."""
    dataset = paper_dataset(result)
    views = "" if result.views == (dataset.views if dataset else 1) else f" Views: {result.views}."
    first, *more = result.orders["names"]
    order = f"{1 + len(more)}, {first} to {more[-1]}" if more else first
    return f"Model: {result.model}. Prompts: {result.prompts}.{views} Order: {order}."


def _zero_shot(result: Result) -> Result:
    """The result of zero-shot on the same stream, as stored in the result of another method."""
    metrics: dict[str, float | None] = {**(result.baseline or {})}
    cost = {**result.cost, "wall_s": result.cost["baseline_s"]}
    orders = {"names": result.orders["names"]}
    scored = replace(result, metrics=metrics, ece=metrics.get("ece"), cost=cost)
    return replace(scored, method="zero-shot", passes=1, config={}, orders=orders)


def _score(result: Result, score: str = "accuracy") -> float:
    """A score of `Sweep`, or ECE, in percent."""
    if score == "cache label accuracy":
        return 100 * (result.learnt["positive"]["label_accuracy"] or 0.0)
    if score == "short classes":
        return 100 * (result.learnt["positive"]["short_classes"] or 0.0)
    if score == "early gain":
        return 100 * ((result.early["acc1"] or 0.0) - (result.baseline or {})["early"])
    return 100 * ((result.ece if score == "ECE" else result.metrics["acc1"]) or 0.0)


def _table(
    group: Group,
    title: str,
    corner: str,
    rows: Mapping[str, Mapping[str, Result]],
    columns: Mapping[str, Sequence[str]],
    reported: Mapping[str, Mapping[str, float]],
    model: str,
    score: str = "accuracy",
    remarks: Mapping[str, Mapping[str, str]] | None = None,
) -> Table:
    """A table of mean scores next to the paper's figures for a model.

    `rows` maps name -> dataset -> result, `columns` heading -> datasets to average over, `reported` name -> heading ->
    figure, and `remarks` name -> heading -> what is to be said of that figure, besides the reasons of a result. Where a
    row lacks one of the datasets of a column, nothing was measured.
    """

    def cell(results: Sequence[Result], figure: float | None, remark: tuple[str, ...]) -> Cell:
        if not results:
            return Cell(None, figure, None, remark)
        measured = float(np.mean([_score(result, score) for result in results]))
        sd = results[0].orders.get("sd") if len(results) == 1 and score == "accuracy" else None
        differs = figure is not None and abs(measured - figure) >= 0.005
        why = [reason for result in results for reason in reasons(result, model)] if differs else []
        return Cell(measured, figure, None if sd is None else 100 * sd, tuple(dict.fromkeys([*why, *remark])))

    made = []
    for label, found in rows.items():
        cells = []
        for heading, names in columns.items():
            results = [found[name] for name in names] if found.keys() >= set(names) else []
            remark = (remarks or {}).get(label, {}).get(heading)
            cells.append(cell(results, reported.get(label, {}).get(heading), (remark,) if remark else ()))
        made.append((label, tuple(cells)))
    return Table(title, group.context, corner, tuple(columns), tuple(made))


def _method_tables(recipe: Recipe, group: Group) -> list[Table]:
    """Rows are the paper's methods in the paper's order, then others; columns are datasets and averages."""
    measured: dict[str, dict[str, dict[str, Result]]] = {}  # method -> name of the row -> dataset -> result
    for result in group.results:
        dataset = paper_dataset(result)
        if dataset and (dataset.part_of or dataset.key) in recipe.datasets and result.settings != "custom":
            label = result.method if result.settings == "paper" else f"{result.method}, {result.settings}"
            measured.setdefault(result.method, {}).setdefault(label, {})[dataset.key] = result
            measured.setdefault("zero-shot", {}).setdefault("zero-shot", {})[dataset.key] = _zero_shot(result)
    if not measured:
        return []
    model = backbone(group.results[0].model) or SUITE_MODEL
    parts = [key for key in group.datasets if key in DATASETS and DATASETS[key].part_of in recipe.datasets]
    shown = {each.title: (key,) for key, each in DATASETS.items() if key in (*recipe.datasets, *parts)}
    columns = {**shown, **recipe.averages}
    rows, reported, remarks = {}, {}, {}
    for name in recipe.reported[model]:
        figures = _paper_row(recipe, model, name, columns)
        for label, found in measured.pop(OUR_NAMES.get(name, name.lower()), {name: {}}).items():
            rows[label], (reported[label], remarks[label]) = found, figures
    for others in measured.values():
        rows |= others
    title = f"{recipe.title}: top-1 accuracy, %"
    return [_table(group, title, "method", rows, columns, reported, model, remarks=remarks)]


def _paper_row(
    recipe: Recipe, model: str, name: str, columns: Mapping[str, Sequence[str]]
) -> tuple[dict[str, float], dict[str, str]]:
    """The paper's figures of a method by heading, and remarks on printed averages that its cells do not give.

    A part of a dataset has the figure of the whole if the authors of the method used this part.
    """
    cells = dict(zip(recipe.datasets, recipe.reported[model][name], strict=True))
    parts = (each for each in DATASETS.values() if each.part_of in cells and name.lower() in each.authors)
    cells |= {each.key: cells[each.part_of] for each in parts}
    figures, remarks = {}, {}
    for heading, keys in columns.items():
        if cells.keys() >= set(keys):
            mean = float(np.mean([cells[key] for key in keys]))
            figures[heading] = recipe.printed_averages[model][name].get(heading, mean)
            if abs(figures[heading] - mean) > ROUNDING:
                remarks[heading] = f"printed in the paper; its cells give {mean:.6g}."
    return figures, remarks


def _cost_tables(recipe: Recipe, group: Group) -> list[Table]:
    """Minutes, accuracy and gain over zero-shot, if it is known how long the encoding took."""
    result = group.find(recipe.datasets[0], Variant(recipe.method))
    if result is None or result.cost["encode_s"] is None:
        return []
    zero_shot = _zero_shot(result)
    measured = {"zero-shot": zero_shot, result.method: result}
    rows = []
    for name, figures in recipe.reported.items():
        gain = figures["accuracy"] - recipe.reported["CLIP"]["accuracy"]
        paper = (figures["minutes"], figures["accuracy"], gain)
        method = OUR_NAMES.get(name, name.lower())
        if (found := measured.get(method)) is None:
            rows.append((name, tuple(Cell(None, figure) for figure in paper)))
            continue
        seconds = result.cost["encode_s"] + (found.cost["wall_s"] or 0.0) / len(found.orders["names"])
        ours = (seconds / 60, _score(found), _score(found) - _score(zero_shot))
        why = reasons(found, ABLATION_MODEL)
        whys = ((*why, "the paper's machine has one RTX 6000."), why, why if gain else ())
        cells = (Cell(figure, theirs, None, each) for figure, theirs, each in zip(ours, paper, whys, strict=True))
        rows.append((method, tuple(cells)))
    context = f"{group.context} Hardware: {result.hardware}."
    return [Table(recipe.title, context, "method", ("minutes", "accuracy, %", "gain"), tuple(rows))]


def _sweep_tables(recipe: Recipe, group: Group) -> list[Table]:
    """A table per sweep, over the datasets on which all its settings were run."""
    tables = []
    for sweep in recipe.sweeps:
        found = {
            label: {name: result for name in group.datasets if (result := group.find(name, variant))}
            for label, variant in sweep.rows.items()
        }
        datasets = [name for name in group.datasets if all(name in results for results in found.values())]
        if not datasets:
            continue
        if sweep.score == "accuracy":
            results = next(iter(found.values()))
            found = {"zero-shot": {name: _zero_shot(results[name]) for name in datasets}, **found}
        columns = {name: [name] for name in datasets}
        single = set(sweep.reported) - {AVERAGE} if AVERAGE in sweep.reported else set()  # those the average leaves out
        if len(averaged := [name for name in datasets if name not in single]) > 1:
            columns[AVERAGE] = averaged
        reported: dict[str, dict[str, float]] = {}
        remarks: dict[str, dict[str, str]] = {}
        shown = [place for place in sweep.reported if place in columns]
        for place in shown or list(sweep.reported)[:1]:
            column = place if shown else list(columns)[-1]
            theirs = [key for key in recipe.datasets if key not in single] if place == AVERAGE else [place]
            titles = ", ".join(DATASETS[key].title for key in theirs)
            for label, figure in sweep.reported[place].items():
                reported.setdefault(label, {})[column] = figure
                if set(columns[column]) != set(theirs):
                    remarks.setdefault(label, {})[column] = f"the paper's figure is for {titles}."
        model, score = ABLATION_MODEL, sweep.score
        tables.append(_table(group, sweep.title, sweep.corner, found, columns, reported, model, score, remarks))
    return tables
