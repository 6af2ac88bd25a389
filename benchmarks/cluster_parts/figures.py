"""What `cluster.py` measures: one line per figure, in a csv file from which pages and tables are made."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from acclimate.bench.results import markdown_table, write_csv


@dataclass(frozen=True)
class Figure:
    """One figure, and what it was measured with; 0 and "" where that does not apply."""

    part: str
    what: str
    value: float
    method: str = ""
    stream: str = ""
    classes: int = 0
    shards: int = 0
    every: int = 0


@dataclass
class Figures:
    """All figures, and the sections of the page."""

    all: list[Figure] = field(default_factory=list)
    sections: list[str] = field(default_factory=list)

    def add(self, part: str, what: str, value: float, **given: str | int) -> float:
        """Note a figure; returns its value."""
        self.all.append(Figure(part, what, float(value), **given))  # type: ignore[arg-type]
        return float(value)

    def of(self, part: str, what: str, **given: str | int) -> list[Figure]:
        """The figures of a part that were measured with all that is given."""
        found = (each for each in self.all if (each.part, each.what) == (part, what))
        return [each for each in found if all(getattr(each, name) == value for name, value in given.items())]

    def value(self, part: str, what: str, **given: str | int) -> float:
        """The one figure of a part that was measured with all that is given."""
        found = self.of(part, what, **given)
        if len(found) != 1:
            raise LookupError(f"{len(found)} figures {part}/{what} with {given}; measure them with cluster.py.")
        return found[0].value

    def mean(self, part: str, what: str, **given: str | int) -> float:
        """The mean of the figures of a part, for instance over streams."""
        values = [each.value for each in self.of(part, what, **given)]
        return sum(values) / len(values)

    def methods(self, part: str) -> list[str]:
        """Return the methods that a part was measured with."""
        return list(dict.fromkeys(each.method for each in self.all if each.part == part and each.method))

    def table(self, title: str, about: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Add and print a section with a table."""
        self.sections.append("\n\n".join((f"## {title}", about, markdown_table(columns, rows))))
        print(f"{self.sections[-1]}\n", flush=True)

    def write(self, path: Path) -> None:
        """Write the figures as csv."""
        write_csv([asdict(each) for each in self.all], path)

    @classmethod
    def read(cls, path: Path) -> "Figures":
        """Figures that were written."""
        return cls(list(_read(path)))


def _read(path: Path) -> Iterator[Figure]:
    kinds = {each.name: each.type for each in fields(Figure)}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            yield Figure(**{name: kinds[name](value) for name, value in row.items()})  # type: ignore[operator]
