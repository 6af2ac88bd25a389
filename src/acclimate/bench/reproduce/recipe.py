"""What recipes are made of: results that may stand in one table, and the settings that a recipe runs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from acclimate.bench.reported import paper_dataset
from acclimate.bench.tables import Table
from acclimate.methods.base import configure, find

Record = dict[str, Any]  # one result, as JSON holds it


@dataclass(frozen=True)
class Variant:
    """A method with its settings.

    Attributes:
        settings: those that are not the method's defaults.
        method: its name.
        called: what the settings as a whole are called; see `results.summarise`.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    method: str = "tda"
    called: str | None = None

    @property
    def config(self) -> dict[str, Any]:
        """All settings."""
        return asdict(configure(find(self.method), self.settings))


@dataclass(frozen=True)
class Group:
    """Results that may stand in one table.

    Attributes:
        model: of all of them, by name.
        prompts: by name.
        views: "" for the paper's views and reducer, else what they are.
        orders: names.
        records: the results of methods that adapt, each with zero-shot's in the same orders as its baseline; those of
            zero-shot where it was run alone.
    """

    model: str
    prompts: str
    views: str
    orders: tuple[str, ...]
    records: tuple[Record, ...]

    @property
    def context(self) -> str:
        """What the results were measured with."""
        orders = (
            self.orders[0] if len(self.orders) == 1 else f"{len(self.orders)}, {self.orders[0]} to {self.orders[-1]}"
        )
        views = f" Views: {self.views}." if self.views else ""
        return f"Model: {self.model}. Prompts: {self.prompts}.{views} Order: {orders}."

    @property
    def datasets(self) -> list[str]:
        """Names, in the order of the results."""
        return list(dict.fromkeys(record["dataset"] for record in self.records))

    def find(self, dataset: str, variant: Variant) -> Record | None:
        """The result of a variant on a dataset."""
        wanted = (dataset, variant.method, variant.config)
        known = (each for each in self.records if (each["dataset"], each["method"], each["config"]) == wanted)
        return next(known, None)


class Recipe(Protocol):
    """One table or figure of the paper, to be measured again."""

    @property
    def name(self) -> str:
        """On the command line."""

    @property
    def title(self) -> str:
        """What it is in the paper."""

    @property
    def about(self) -> str:
        """What the paper shows with it, and what to look for."""

    @property
    def datasets(self) -> tuple[str, ...]:
        """The paper's, by key."""

    def variants(self, dataset: str) -> list[Variant]:
        """What to run on a dataset beside zero-shot."""

    def tables(self, group: Group) -> list[Table]:
        """What was measured beside what was reported; empty where the results are of something else."""

    def draw(self, tables: Sequence[Table], path: Path) -> None:
        """Draw the tables of one group as a picture."""


def groups(records: Iterable[Record]) -> list[Group]:
    """Sort results with labels into groups. Zero-shot's own are left out where they are another's baseline."""
    scored = [record for record in records if record["metrics"]["acc1"] is not None]
    adapted = {_beside(record) for record in scored if record["method"] != "zero-shot"}
    members: dict[tuple[str, str, str, tuple[str, ...]], list[Record]] = {}
    for record in scored:
        if record["method"] != "zero-shot" or _beside(record) not in adapted:
            key = (record["model"], record["prompts"], _views(record), tuple(record["orders"]["names"]))
            members.setdefault(key, []).append(record)
    return [Group(*key, tuple(each)) for key, each in members.items()]


def _beside(record: Record) -> tuple[str, ...]:
    return record["dataset"], record["model"], record["prompts"], _views(record)


def _views(record: Record) -> str:
    dataset = paper_dataset(record)
    views, reducer = record["views"], record["reducer"]
    if views == (dataset.views if dataset else 1) and reducer in (None, "confident-mean"):
        return ""
    return f"{views}, {reducer}" if reducer else str(views)
