"""Tables from results and recipes: measured figures next to the paper's, and reasons why the two may differ.

Tables are written as Markdown, LaTeX and CSV, and with their figures as the page of a reproduction.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, product
from pathlib import Path
from string import ascii_lowercase
from typing import NamedTuple

import numpy as np

from acclimate.bench.plots import FIGURES, shown
from acclimate.bench.prequential import Variant
from acclimate.bench.recipes import AVERAGE, Recipe, row_of
from acclimate.bench.results import (
    ABSENT,
    OF_FILE,
    Score,
    latex_table,
    latex_text,
    markdown_list,
    markdown_table,
    write_page,
)
from acclimate.methods import list_methods
from acclimate.sources.datasets import DATASETS, Dataset

ABLATION_MODEL = "RN50"  # the model of the paper's ablations and times
BACKBONES = {"ViT-B/16": r"vit-b-16\b|vit-base-patch16\b", "RN50": r"rn50\b"}  # the paper's models -> parts of names

ON_STREAMS = """\
**These are not the paper's datasets.** They are feature files, with the model and the class vectors they were made
with. They show how the method responds to a setting, not how well it does on the paper's benchmarks. The second figure
of a cell is the paper's, measured with its model on its datasets, and shown for the direction of an effect."""
ON_DATASETS = """\
**These are the paper's datasets.** Each row has the prompts and views that it has in the paper, unless its cells say
otherwise. Other prompts alone change the accuracies, so compare the gains over zero-shot with the same prompts, in the
second table of each suite."""

HOW_TO_READ = (
    "Each cell: measured / reported in the paper, with its model on its data; letters say what is different here. "
    "Where the paper has no figure, the measured one stands alone."
)
ALWAYS_DIFFERENT = (
    "Where both figures are given, they always differ by precision (the authors' runs use half precision, these do "
    "not) and by the order of the samples."
)


@dataclass(frozen=True)
class Cell:
    """A measured figure, such as an accuracy in percent, and the paper's figure; None where there is none."""

    measured: float | None = None
    reported: float | None = None
    sd: float | None = None  # standard deviation over several orders
    why: tuple[str, ...] = ()  # reasons why the two may differ


@dataclass(frozen=True)
class Table:
    """A table of cells, with a row per name and a cell per column."""

    title: str
    context: str  # the model, prompts, views and orders
    corner: str  # heading of the row names
    columns: tuple[str, ...]  # headings
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    notes: tuple[str, ...] = ()  # prompts and views of the rows


class ResultGroup(NamedTuple):
    """Scores that can be compared in one table."""

    context: str  # the model and orders that they have in common, and the views of streams that are not the paper's
    results: list[Score]


def backbone(model: str) -> str | None:
    """Return which of the paper's two models (OpenAI's CLIP with ViT-B/16 or ResNet-50) a name refers to, or None.

    A name without a loader, as in open_clip:RN50/openai, is a description, which must say "OpenAI CLIP RN50" and
    nothing more: features of that model that were centred afterwards are not those of the paper.
    """
    name = model.lower()
    loaded = ":" in name and "openai" in name
    for paper, pattern in BACKBONES.items():
        if name == f"openai clip {paper.lower()}" or (loaded and re.search(pattern, name)):
            return paper
    return None


def paper_dataset(result: Score) -> Dataset | None:
    """Return the paper's dataset that a result was measured on; None for other datasets and feature files."""
    return None if result.prompts == OF_FILE else DATASETS.get(result.dataset)


def reasons(result: Score, model: str) -> tuple[str, ...]:
    """Return why a result may differ from the paper's figure for a model ("RN50"), apart from precision and order."""
    dataset = paper_dataset(result)
    why = [] if backbone(result.model) == model else [f"the model is not the paper's (OpenAI's CLIP {model})."]
    if dataset is None:
        return (*why, "the datasets and prompts are not the paper's.")
    row = row_of(result.method, dataset)
    changed = changed_settings(result, row) if result.settings == "given" else []
    authors = dataset.authors.get(result.method, {}) if result.settings == "paper" else {}
    others = [f"{name.lower()}: {ours}; in the paper: {theirs}." for name, (ours, theirs) in deviations(result).items()]
    rules = (
        *((True, remark) for remark in _part(result)),
        (result.classes != dataset.classes, f"{result.classes:,} classes; in the paper: {dataset.classes:,}."),
        *((True, remark) for remark in (*others, *row.remarks)),
        (result.trained != row.trained, f"fitted to {result.trained}; in the paper: {row.trained}."),
        (bool(changed), f"the settings are not the paper's: {', '.join(changed)}."),
        (
            any(result.config[name] != value for name, value in authors.items()),
            "the same settings (alpha, beta) for all datasets, as the paper states; the authors' published runs use "
            "different ones per dataset.",
        ),
        *(
            (
                part.part_of == dataset.key and result.method in part.authors,
                f"the authors' loader dropped files with {part.without!r} in their names, so the paper's figure is "
                f"probably on {part.test:,} of the {dataset.test:,} images.",
            )
            for part in DATASETS.values()
        ),
    )
    return (*why, *(reason for applies, reason in rules if applies))


def images_text(result: Score) -> str:
    """Return the number of images in words, such as "5,000 of 50,000 images" for a part of a dataset of the paper."""
    dataset = paper_dataset(result)
    if dataset is None or result.n in dataset.counts:
        return f"{result.n:,} images"
    if result.n < dataset.test:
        return f"{result.n:,} of {dataset.test:,} images"
    return f"{result.n:,} images; in the paper: {dataset.test:,}"


def _part(result: Score) -> list[str]:
    """Return a remark on a result that was not measured on all images of a dataset of the paper."""
    dataset = paper_dataset(result)
    return [f"{images_text(result)}."] if dataset and result.n not in dataset.counts else []


def deviations(result: Score) -> dict[str, tuple[str, str]]:
    """Return prompts and views that differ from the result's row, ours and the paper's; none for other datasets."""
    dataset = paper_dataset(result)
    if dataset is None:
        return {}
    row = row_of(result.method, dataset)
    kind = result.views_kind or row.views_kind  # not every feature file names the kind
    pairs = {
        "Prompts": (result.prompts, row.prompts),
        "Views": (views_text(result.views, kind), views_text(dataset.views_of(row.views), row.views_kind)),
    }
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def views_text(views: int, kind: str | None) -> str:
    """Return views per image in words, such as "64 crop"."""
    return "1" if views == 1 else f"{views} {kind}"


def changed_settings(result: Score, row: Variant | None = None) -> list[str]:
    """Return the settings of a result that are neither the method's defaults nor its protocol's, such as "epochs 1"."""
    method = list_methods().get(result.method)
    usual = {**(method.default_settings() if method else {}), **(row.config if row else {})}
    return [f"{name} {value}" for name, value in result.config.items() if value != usual.get(name)]


def group_results(results: Iterable[Score]) -> list[ResultGroup]:
    """Sort results into groups; results without labels are left out."""
    groups: dict[str, ResultGroup] = {}
    for result in results:
        if result.metrics["acc1"] is not None:
            context = _context(result)
            groups.setdefault(context, ResultGroup(context, [])).results.append(result)
    return list(groups.values())


def recipe_tables(recipe: Recipe, group: ResultGroup) -> list[Table]:
    """Return a recipe's tables from the results of a group; none if the group has no results for it."""
    return {"methods": _method_tables, "cost": _cost_tables, "settings": _sweep_tables}[recipe.kind](recipe, group)


def _context(result: Score) -> str:
    """Return what results in one table have in common."""
    own = {"Prompts": result.prompts} if paper_dataset(result) is None else {}
    own |= {"Views": str(result.views)} if own and result.views > 1 else {}
    first, *more = result.orders["names"]
    order = f"{1 + len(more)}, {first} to {more[-1]}" if more else first
    return " ".join(f"{name}: {what}." for name, what in ({"Model": result.model} | own | {"Order": order}).items())


def _zero_shot(result: Score) -> Score:
    """Return the score of zero-shot on the same stream, as stored in that of another method."""
    baseline = result.baseline or {}
    return replace(
        result,
        method="zero-shot",
        settings="paper",
        passes=1,
        config={},
        trained="",
        metrics={**baseline},
        ece=baseline.get("ece"),
        orders={"names": result.orders["names"]},
    )


def _first_by_dataset(results: Sequence[Score]) -> dict[str, Score]:
    """Return the first result of each dataset, in the order of the results."""
    return {result.dataset: result for result in results} | {result.dataset: result for result in reversed(results)}


def _zero_shots(results: Sequence[Score]) -> dict[str, Score]:
    stored = {name: _zero_shot(result) for name, result in _first_by_dataset(results).items()}
    return stored | {result.dataset: result for result in results if result.method == "zero-shot"}


def _score(result: Score, score: str = "accuracy") -> float:
    """Return a score of `Sweep`, ECE, or the gain over zero-shot, in percent."""
    cache = result.learnt.get("positive", {})
    found = {
        "accuracy": result.metrics["acc1"],
        "ECE": result.ece,
        "gain": result.gain,
        "early gain": (result.early["acc1"] or 0.0) - (result.baseline or {}).get("early", 0.0),
        "cache label accuracy": cache.get("label_accuracy"),
        "short classes": cache.get("short_classes"),
    }[score]
    return 100 * (found or 0.0)


def _table(
    group: ResultGroup,
    title: str,
    corner: str,
    rows: Mapping[str, Mapping[str, Score]],
    columns: Mapping[str, Sequence[str]],
    reported: Mapping[str, Mapping[str, float]],
    model: str,
    score: str = "accuracy",
    remarks: Mapping[str, Mapping[str, str]] | None = None,
) -> Table:
    """Return a table of mean scores next to the paper's figures for a model.

    `rows` maps name -> dataset -> result, `columns` heading -> datasets to average over, `reported` name -> heading ->
    figure, and `remarks` name -> heading -> a remark on that figure, besides the reasons of a result. Where a row lacks
    one of the datasets of a column, nothing was measured.
    """
    made = []
    for label, found in rows.items():
        cells = []
        for heading, names in columns.items():
            results = [found[name] for name in names] if found.keys() >= set(names) else []
            figure = reported.get(label, {}).get(heading)
            measured = float(np.mean([_score(result, score) for result in results])) if results else None
            remark = (remarks or {}).get(label, {}).get(heading)
            differs = measured is not None and figure is not None and abs(measured - figure) >= 0.005
            why = [reason for result in results for reason in (reasons(result, model) if differs else _part(result))]
            why += [remark] if remark else []
            sd = results[0].orders.get("sd") if len(results) == 1 and score == "accuracy" else None
            cells.append(Cell(measured, figure, None if sd is None else 100 * sd, tuple(dict.fromkeys(why))))
        made.append((label, tuple(cells)))
    return Table(title, group.context, corner, tuple(columns), tuple(made))


def _method_tables(recipe: Recipe, group: ResultGroup) -> list[Table]:
    """Return accuracies and gains: the paper's methods, then others, by measured datasets and averages."""
    measured: dict[str, dict[str, dict[str, Score]]] = {}  # method -> name of the row -> dataset -> result
    for result in group.results:
        dataset = paper_dataset(result)
        if dataset and (dataset.part_of or dataset.key) in recipe.datasets and result.settings != "custom":
            measured.setdefault(result.method, {}).setdefault(row_title(result), {})[dataset.key] = result
    if not measured:
        return []
    model = backbone(group.results[0].model) or "ViT-B/16"  # shown next to models that are not in the paper
    keys = {key for named in measured.values() for found in named.values() for key in found}
    columns: dict[str, Sequence[str]] = {DATASETS[key].title: (key,) for key in DATASETS if key in keys}
    for heading, every in recipe.averages.items():
        present = [key for key in every if key in keys]
        if len(present) > 1:
            columns[_part_heading(heading, present, every)] = present
    measured["zero-shot"] = {"zero-shot": _zero_shots([each for each in group.results if each.dataset in keys])}
    rows = {}
    reported = {}
    remarks = {}
    for name in recipe.reported[model]:
        for label, found in measured.pop(recipe.rows[name].method, {name: {}}).items():
            rows[label] = found
            reported[label], remarks[label] = _paper_row(recipe, model, name, columns)
    for others in measured.values():
        rows |= others
    accuracies = _table(
        group, f"{recipe.title}: top-1 accuracy, %", "method", rows, columns, reported, model, remarks=remarks
    )
    notes = tuple(_how(label, list(found.values())) for label, found in rows.items() if found)
    base = reported["zero-shot"]
    rows = {label: found for label, found in rows.items() if found and label != "zero-shot"}
    paper = {
        label: {at: figure - base[at] for at, figure in reported.get(label, {}).items() if at in base} for label in rows
    }
    remark = "the paper's gain is over its CLIP row, which has prompts and views of its own."
    one_view = "Methods that answer each image from its own views are compared with zero-shot on one view."
    remarks = {label: dict.fromkeys(figures, remark) for label, figures in paper.items()}
    title = f"{recipe.title}: gain over zero-shot with the same prompts, points"
    gains = replace(_table(group, title, "method", rows, columns, paper, model, "gain", remarks), notes=(one_view,))
    return [replace(accuracies, notes=notes), *([gains] if rows else [])]


def _part_heading(average: str, present: Sequence[str], every: Sequence[str]) -> str:
    """Return the heading of an average, such as "Average of 5 of 10" if it is not over all of its datasets."""
    return average if set(present) == set(every) else f"{average} of {len(present)} of {len(every)}"


def row_title(result: Score) -> str:
    """Return the name of a result in a table: its method, and the settings that are not those of its row."""
    dataset = paper_dataset(result)
    changed = changed_settings(result, row_of(result.method, dataset) if dataset else None)
    return ", ".join(
        [result.method, *{"paper": [], "given": changed, "custom": changed}.get(result.settings, [result.settings])]
    )


def _how(label: str, results: Sequence[Score]) -> str:
    words = {
        "prompts": [result.prompts for result in results],
        "views per image": [views_text(result.views, result.views_kind or "augmix") for result in results],
        "fitted to": [result.trained for result in results if result.trained],
    }
    parts = [f"{name} {' or '.join(dict.fromkeys(each))}" for name, each in words.items() if each]
    return f"{label}: {'; '.join(parts)}."


def _paper_row(
    recipe: Recipe, model: str, name: str, columns: Mapping[str, Sequence[str]]
) -> tuple[dict[str, float], dict[str, str]]:
    """Return the paper's figures of a method by heading, and remarks on printed averages that its cells do not give.

    A part of a dataset has the figure of the whole if the authors of the method used this part.
    """
    cells = dict(zip(recipe.datasets, recipe.reported[model][name], strict=True))
    parts = (each for each in DATASETS.values() if each.part_of in cells and name.lower() in each.authors)
    cells |= {each.key: cells[each.part_of] for each in parts}
    means = {
        heading: float(np.mean([cells[key] for key in keys]))
        for heading, keys in columns.items()
        if cells.keys() >= set(keys)
    }
    figures = {heading: recipe.printed_averages[model][name].get(heading, mean) for heading, mean in means.items()}
    remarks = {
        heading: f"printed in the paper; its cells give {mean:.6g}."
        for heading, mean in means.items()
        if abs(figures[heading] - mean) > 0.0049  # more than rounding explains; two averages round a half up
    }
    return figures, remarks


def _cost_tables(recipe: Recipe, group: ResultGroup) -> list[Table]:
    """Return the times of the rows on the recipe's dataset: the recorded seconds of encoding plus those of adapting."""
    dataset = DATASETS[recipe.datasets[0]]
    rows = {protocol.method: name for name, protocol in recipe.rows.items()}
    found = [each for each in group.results if each.dataset == dataset.key and each.settings in ("paper", "given")]
    measured = {each.method: each for each in reversed(found) if each.method in rows or each.settings == "given"}
    if "zero-shot" not in measured:
        return []
    zero_shot = measured["zero-shot"]
    table = Table(
        recipe.title,
        f"{group.context} Images: {zero_shot.n:,}. Adapting on {zero_shot.hardware}; encoding as the runs recorded it.",
        "method",
        (f"minutes for {dataset.test:,} images", "times zero-shot", "accuracy, %", "gain", "ms per image"),
        rows=tuple(
            _cost_row(rows.get(method, ""), measured.get(method), zero_shot, recipe.reported)
            for method in {**rows, **measured}
        ),
        notes=(
            *(_how(row_title(result), [result]) for result in measured.values()),
            *(
                f"{row_title(result)}: no time, as no run of these views has its seconds of encoding."
                for result in measured.values()
                if _ms_per_image(result) is None
            ),
        ),
    )
    return [table]


def _ms_per_image(result: Score) -> float | None:
    """Return the time of an image from its file to its answer; None if that of encoding is not recorded."""
    encode = result.cost["encode_ms_per_image"]
    return None if encode is None else encode + result.cost["ms_per_image"]


def _costs(minutes: float | None, accuracy: float, base: tuple[float | None, float]) -> list[float | None]:
    """Return minutes, and how many times those of zero-shot; accuracy, and how much above zero-shot."""
    return [minutes, minutes / base[0] if minutes and base[0] else None, accuracy, accuracy - base[1]]


def _cost_row(
    name: str, result: Score | None, zero_shot: Score, reported: Mapping[str, Mapping[str, float]]
) -> tuple[str, tuple[Cell, ...]]:
    """Return the row of a method that the paper has under a name ("" if it has not), or that was measured, or both."""
    paper: list[float | None] = [None] * 4
    if name:
        base = reported["CLIP"]
        paper = _costs(**reported[name], base=(base["minutes"], base["accuracy"]))
    if result is None:
        return name, tuple(Cell(None, figure) for figure in (*paper, None))
    own: list[tuple[float | None, float]] = []
    for each in (result, zero_shot):
        ms = _ms_per_image(each)
        minutes = None if ms is None else ms * DATASETS[each.dataset].test / 60_000
        own.append((minutes, _score(each)))
    why = reasons(result, ABLATION_MODEL) if name else ()
    slower = [*why, "the paper's machine has one RTX 6000.", "the paper's times are for batch size 1."] if name else []
    if name and result.views_kind == "diffusion":
        slower.append("images are generated beforehand; the time for that is not counted.")
    cells = [
        Cell(figure, theirs, None, tuple(slower) if column < 2 else why)
        for column, (figure, theirs) in enumerate(zip(_costs(*own[0], own[1]), paper, strict=True))
    ]
    return row_title(result), (*cells, Cell(_ms_per_image(result)))


def _sweep_tables(recipe: Recipe, group: ResultGroup) -> list[Table]:
    """Return the tables of an ablation on all streams that have every setting of it."""
    tables = []
    for sweep in recipe.sweeps:
        found = {
            label: {
                each.dataset: each
                for each in reversed(group.results)
                if (each.method, each.config, each.passes) == (variant.method, variant.config, 1)
            }
            for label, variant in sweep.rows.items()
        }
        measured = _first_by_dataset(group.results)
        datasets = [name for name in measured if all(name in results for results in found.values())]
        if not datasets:
            continue
        if sweep.score == "accuracy":
            results = next(iter(found.values()))
            found = {"zero-shot": {name: _zero_shot(results[name]) for name in datasets}, **found}
        columns = {name: [name] for name in datasets}
        single = set(sweep.reported) - {AVERAGE} if AVERAGE in sweep.reported else set()  # the average leaves these out
        averaged = [name for name in datasets if name not in single]
        theirs = [key for key in recipe.datasets if key not in single] if AVERAGE in sweep.reported else []
        average = _part_heading(AVERAGE, averaged, theirs) if set(averaged) < set(theirs) else AVERAGE
        if len(averaged) > 1:
            columns[average] = averaged
        # The paper's figure for a dataset that was not measured has a column of its own.
        columns |= {column: [column] for column in sweep.reported if column not in (AVERAGE, *columns)}
        paper = {average if column == AVERAGE else column: figures for column, figures in sweep.reported.items()}
        reported = {
            label: {heading: figures[label] for heading, figures in paper.items() if label in figures}
            for label in found
        }
        remark = f"the paper's figure is for {', '.join(DATASETS[key].title for key in theirs)}."
        other_datasets = theirs and set(averaged) != set(theirs)
        remarks = {label: {average: remark} for label in (sweep.reported[AVERAGE] if other_datasets else ())}
        figures = (columns, reported, ABLATION_MODEL, sweep.score, remarks)
        tables.append(_table(group, sweep.title, sweep.corner, found, *figures))
    return tables


def letters(tables: Sequence[Table]) -> dict[str, str]:
    """Return the letter that refers to each reason, over all tables."""
    given = [reason for table in tables for _, cells in table.rows for cell in cells for reason in cell.why]
    names = ("".join(each) for length in count(1) for each in product(ascii_lowercase, repeat=length))  # a to z, aa, ab
    return dict(zip(dict.fromkeys(given), names, strict=False))


def notes(tables: Sequence[Table]) -> list[str]:
    """Return the notes below the tables: how to read a cell, and the reasons by letter."""
    reported = any(cell.reported is not None for table in tables for _, cells in table.rows for cell in cells)
    return [
        *([HOW_TO_READ] if reported else []),
        *(f"({letter}) {reason}" for reason, letter in letters(tables).items()),
        *([ALWAYS_DIFFERENT] if reported else []),
    ]


def cell_text(cell: Cell) -> str:
    """Return a cell as text, such as "61.30 ± 0.12 / 61.35", without the letters of its reasons.

    Where the paper has no figure, the measured one stands alone.
    """
    measured = ABSENT if cell.measured is None else f"{cell.measured:.2f}"
    spread = "" if cell.sd is None else f" ± {cell.sd:.2f}"
    reported = "" if cell.reported is None else f" / {cell.reported:.2f}"
    return f"{measured}{spread}{reported}"


def text_rows(table: Table, known: Mapping[str, str], form: str = " <sup>%s</sup>") -> list[tuple[str, ...]]:
    """Return the rows of a table as text; letters of reasons have a form such as " (%s)"."""
    return [
        (
            name,
            *(
                cell_text(cell) + (form % ", ".join(sorted(known[reason] for reason in cell.why)) if cell.why else "")
                for cell in cells
            ),
        )
        for name, cells in table.rows
    ]


def latex(tables: Sequence[Table]) -> str:
    """Return tables as LaTeX, the best measured figure of each column in bold; they need the booktabs package."""
    parts = []
    for table in tables:
        best = [
            max((cell.measured for cell in column if cell.measured is not None), default=None)
            for column in zip(*(cells for _, cells in table.rows), strict=True)
        ]
        lines = []
        for name, cells in table.rows:
            texts = map(cell_text, cells)
            marked = (
                re.sub(r"^[^ ]+", r"<b>\g<0></b>", text) if cell.measured is not None and cell.measured == top else text
                for text, cell, top in zip(texts, cells, best, strict=True)
            )
            lines.append((name, *marked))
        parts += [
            r"\begin{table}",
            rf"\caption{{{latex_text(f'{table.title}. {table.context}')}}}",
            latex_table((table.corner, *table.columns), lines),
            *(r"\end{table}", ""),
        ]
    return "\n".join(parts)


def write_report(
    recipes: Sequence[Recipe],
    results: Sequence[Score],
    folder: Path,
    command: str,
    lacking: Callable[[str], Sequence[str]] = lambda recipe: (),
) -> list[Table]:
    """Write README.md with the command that made the results, and tables.tex; return the tables.

    `lacking` returns sentences on the rows of a recipe that were not measured.
    """
    parts = ["# Results", f"Generated by the command below; the results are in `runs/`.\n\n```\n{command}\n```"]
    made = [(group, [(each, recipe_tables(each, group)) for each in recipes]) for group in group_results(results)]
    every = [table for _, sections in made for _, tables in sections for table in tables]
    known = letters(every)
    for number, (group, sections) in enumerate(made, 1):
        opening = ON_DATASETS if paper_dataset(group.results[0]) else ON_STREAMS
        parts += [*([] if opening in parts else [opening]), group.context, _datasets(group)]
        for recipe, tables in ((recipe, tables) for recipe, tables in sections if tables):
            figure = folder / (f"{recipe.name}.png" if number == 1 else f"{recipe.name}-{number}.png")
            parts += [
                f"## {recipe.title}",
                recipe.about,
                *shown(recipe.title, figure, partial(FIGURES[recipe.figure], tables)),
                *(part for table in tables for part in _section(table, known, group.context)),
                *markdown_list(lacking(recipe.name)),
            ]
    write_page([*parts, "## Notes", *notes(every)], folder / "README.md")
    write_page([latex(every)], folder / "tables.tex")
    return every


def _section(table: Table, known: Mapping[str, str], known_context: str = "") -> list[str]:
    return [
        f"### {table.title}",
        *([] if table.context == known_context else [table.context]),
        markdown_table((table.corner, *table.columns), text_rows(table, known)),
        *markdown_list(table.notes),
    ]


def _datasets(group: ResultGroup) -> str:
    """Return a table of what the results were measured on."""
    rows = [
        (
            each.dataset,
            images_text(each).removesuffix(" images"),
            f"{each.classes:,}",
            each.prompts,
            f"{100 * (each.baseline or {})['acc1']:.2f}",
        )
        for each in _first_by_dataset(group.results).values()
    ]
    return markdown_table(["", "images", "classes", "prompts", "zero-shot, %"], rows)
