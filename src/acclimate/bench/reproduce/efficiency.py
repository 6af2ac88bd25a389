"""Table 2: minutes and accuracy on ImageNet, everything from reading the images to the last answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from acclimate.bench.figures import draw_times
from acclimate.bench.reported import reasons, reported
from acclimate.bench.reproduce.ablation import MODEL
from acclimate.bench.reproduce.cells import zero_shot_of
from acclimate.bench.reproduce.recipe import Group, Record, Variant
from acclimate.bench.tables import Cell, Table


@dataclass(frozen=True)
class Efficiency:
    """Time and accuracy side by side; see `Recipe`."""

    name: str = "efficiency"
    title: str = "Efficiency on ImageNet (Table 2)"
    about: str = (
        "Minutes to read and encode the images and to adapt. TDA costs little more than zero-shot, methods that "
        "back-propagate through the encoder cost hundreds of times more. Minutes are those of the machine at hand."
    )
    datasets: tuple[str, ...] = ("imagenet",)

    def variants(self, dataset: str) -> list[Variant]:
        """TDA, as the paper has it."""
        return [Variant()]

    def tables(self, group: Group) -> list[Table]:
        """Minutes, accuracy and gain over zero-shot, for results whose images were encoded."""
        record = group.find(self.datasets[0], Variant())
        if record is None or record["cost"]["encode_s"] is None:
            return []
        measured = {"CLIP": zero_shot_of(record), "TDA": record}
        told = reported()[self.name]
        gains = {name: figures["accuracy"] - told["CLIP"]["accuracy"] for name, figures in told.items()}
        rows = tuple(
            (
                {"CLIP": "zero-shot", "TDA": "tda"}.get(name, name),
                _cells(measured.get(name), figures["minutes"], figures["accuracy"], gains[name]),
            )
            for name, figures in told.items()
        )
        context = f"{group.context} Hardware: {record['hardware']}."
        return [Table(self.name, self.title, context, "method", ("minutes", "accuracy, %", "gain"), rows)]

    def draw(self, tables: Sequence[Table], path: Path) -> None:
        """Accuracy over minutes."""
        draw_times(tables, path)


def _cells(record: Record | None, minutes: float, accuracy: float, gain: float) -> tuple[Cell, ...]:
    if record is None:
        return Cell(None, minutes), Cell(None, accuracy), Cell(None, gain)
    seconds = record["cost"]["encode_s"] + record["cost"]["wall_s"] / len(record["orders"]["names"])
    measured = 100 * record["metrics"]["acc1"]
    why = reasons(record, MODEL)
    return (
        Cell(seconds / 60, minutes, None, (*why, "the paper's machine has one RTX 6000.")),
        Cell(measured, accuracy, None, why),
        Cell(measured - 100 * record["baseline"]["acc1"], gain, None, why if gain else ()),
    )


RECIPE = Efficiency()
