"""Every table that results allow: those of the recipes, and one of whatever is not in the paper."""

from collections.abc import Container
from dataclasses import asdict
from typing import Any

from acclimate.bench.reported import paper_dataset
from acclimate.bench.reproduce import RECIPES
from acclimate.bench.reproduce.ablation import Ablation
from acclimate.bench.reproduce.recipe import Group, Record
from acclimate.bench.tables import Cell, Table
from acclimate.methods.base import find


def every_table(group: Group) -> list[Table]:
    """The recipes' tables in the paper's order, then that of other streams and settings."""
    tables: list[Table] = []
    shown: list[dict[str, Any]] = []
    for recipe in RECIPES.values():
        made = recipe.tables(group)
        tables += made
        if made and isinstance(recipe, Ablation):
            shown += [variant.config for sweep in recipe.sweeps for variant in sweep.rows.values()]
    return tables + _others(group, shown)


def _others(group: Group, shown: Container[dict[str, Any]]) -> list[Table]:
    """Methods on streams that are not the paper's, and settings of one's own that no ablation shows."""
    rows: dict[str, dict[str, Cell]] = {"zero-shot": {}}
    for record in group.records:
        custom = record["settings"] == "custom"
        if (custom and record["config"] not in shown) or (not custom and paper_dataset(record) is None):
            name, sd = record["dataset"], record["orders"].get("sd")
            measured = 100 * record["metrics"]["acc1"]
            rows["zero-shot"][name] = Cell(100 * record["baseline"]["acc1"])
            rows.setdefault(_label(record), {})[name] = Cell(measured, sd=None if sd is None else 100 * sd)
    columns = tuple(rows["zero-shot"])
    if not columns:
        return []
    cells = tuple((label, tuple(row.get(name, Cell()) for name in columns)) for label, row in rows.items())
    return [Table("others", "Other streams and settings: top-1 accuracy, %", group.context, "method", columns, cells)]


def _label(record: Record) -> str:
    """A method, and its settings where they are not its defaults."""
    defaults = asdict(find(record["method"]).Config())
    own = (f"{key} {value}" for key, value in record["config"].items() if value != defaults[key])
    return ", ".join([record["method"], *own])
