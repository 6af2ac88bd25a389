"""From results to the cells of a table."""

from collections.abc import Callable, Sequence

import numpy as np

from acclimate.bench.reported import reasons
from acclimate.bench.reproduce.recipe import Record
from acclimate.bench.tables import Cell


def accuracy(record: Record) -> float:
    """Top-1 accuracy in percent."""
    return 100.0 * float(record["metrics"]["acc1"])


def cache_label_accuracy(record: Record) -> float:
    """How many labels in the positive cache are right, in percent."""
    return 100.0 * float(record["caches"]["positive"]["label_accuracy"])


def zero_shot_of(record: Record) -> Record:
    """Zero-shot's result on the same stream with the same prompts, as another method's result holds it."""
    cost = {**record["cost"], "wall_s": record["cost"]["baseline_s"]}
    orders = {"names": record["orders"]["names"][:1]}
    return {**record, "method": "zero-shot", "metrics": record["baseline"], "orders": orders, "cost": cost}


def mean_cell(
    records: Sequence[Record],
    told: float | None,
    model: str,
    score: Callable[[Record], float] = accuracy,
    also: tuple[str, ...] = (),
) -> Cell:
    """The mean score of results beside the paper's figure, with the reasons where the two differ.

    Args:
        records: the results; none gives a cell with nothing measured.
        told: the paper's figure, if it has one.
        model: the paper's model for it.
        score: what to average.
        also: a reason of its own.
    """
    if not records:
        return Cell(None, told)
    measured = float(np.mean([score(record) for record in records]))
    sd = records[0]["orders"].get("sd") if len(records) == 1 and score is accuracy else None
    spread = None if sd is None else 100.0 * float(sd)
    if told is None or abs(measured - told) < 0.005:
        return Cell(measured, told, spread)
    why = dict.fromkeys(reason for record in records for reason in reasons(record, model))
    return Cell(measured, told, spread, (*why, *also))
