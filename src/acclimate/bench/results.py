"""Results as JSON: a superset of clip_benchmark's, so that its tools read them."""

import json
import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from acclimate import __version__
from acclimate.bench.compare import Outcome
from acclimate.bench.metrics import worst_tenth
from acclimate.errors import RunError
from acclimate.sources.features import FeatureStream
from acclimate.state import write_atomically

METRICS = ("acc1", "acc5", "mean_per_class_recall")


@dataclass(frozen=True)
class Result:
    """What one method scored on one stream, over one or many orders, with zero-shot beside it.

    Scores are means over the orders; without labels they are None.
    """

    dataset: str
    model: str
    method: str
    config: dict[str, Any]
    classes: int
    n: int
    orders: tuple[str, ...]
    scores: tuple[dict[str, float], ...]
    baseline: dict[str, float] | None
    changed: float
    wall_s: float
    batch_size: int
    precision: str

    def mean(self, score: str) -> float | None:
        """A score's mean over the orders."""
        return float(np.mean([scores[score] for scores in self.scores])) if self.scores else None

    @property
    def gain(self) -> float | None:
        """Accuracy above zero-shot."""
        accuracy = self.mean("acc1")
        return None if accuracy is None or self.baseline is None else accuracy - self.baseline["acc1"]

    @property
    def samples_per_s(self) -> float:
        """Samples adapted a second, encoder not counted."""
        return self.n * len(self.orders) / self.wall_s

    def spread(self) -> dict[str, Any] | None:
        """Mean, standard deviation and worst tenth of the accuracy over many orders."""
        if len(self.scores) < 2:
            return None
        accuracies = np.array([scores["acc1"] for scores in self.scores])
        return {
            "mean": float(accuracies.mean()),
            "sd": float(accuracies.std(ddof=1)),
            "worst_tenth": worst_tenth(accuracies),
            "acc1": accuracies.tolist(),
        }

    def as_json(self) -> dict[str, Any]:
        """The result as JSON holds it."""
        single = self.orders[0] if len(self.orders) == 1 else None
        return {
            "dataset": self.dataset,
            "model": self.model,
            "pretrained": "",
            "task": "zeroshot_classification",
            "language": "en",
            "metrics": {name: self.mean(name) for name in METRICS},
            "method": self.method,
            "config": self.config,
            "order": single or "many",
            "seed": int(single[5:]) if single and single.startswith("seed:") else None,
            "orders": {"names": self.orders, **(self.spread() or {})},
            "n": self.n,
            "classes": self.classes,
            "baseline": self.baseline,
            "gain": self.gain,
            "changed": self.changed,
            "ece": self.mean("ece"),
            "batch_size": self.batch_size,
            "precision": self.precision,
            "wall_s": self.wall_s,
            "samples_per_s": self.samples_per_s,
            "versions": _versions(),
            "hardware": f"{platform.machine()}, {os.cpu_count()} cores",
        }


def summarise(dataset: str, stream: FeatureStream, outcome: Outcome, zero_shot: Outcome) -> Result:
    """Score one method's outcome on a stream, with zero-shot's beside it."""
    adapter, labels, runs = outcome.adapter, stream.labels, outcome.runs.values()
    baseline = next(iter(zero_shot.runs.values()))
    unadapted = np.empty(len(stream), np.int64)
    unadapted[baseline.order] = baseline.predictions
    return Result(
        dataset=dataset,
        model=stream.metadata.get("encoder", "unknown"),
        method=adapter.name,
        config=asdict(adapter.config),
        classes=len(stream.class_names),
        n=len(stream),
        orders=tuple(outcome.runs),
        scores=() if labels is None else tuple(run.scores(labels) for run in runs),
        baseline=None if labels is None else baseline.scores(labels),
        changed=float(np.mean([np.mean(run.predictions != unadapted[run.order]) for run in runs])),
        wall_s=sum(run.wall_s for run in runs),
        batch_size=outcome.batch_size,
        precision=str(adapter.class_vectors.dtype).removeprefix("torch."),
    )


def write_json(results: Sequence[Result], path: Path) -> None:
    """Write one result as an object, several as a list."""
    content = [result.as_json() for result in results]
    text = json.dumps(content[0] if len(content) == 1 else content, indent=2)
    try:
        write_atomically(path, text.encode() + b"\n")
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}.") from error


def _versions() -> dict[str, str]:
    versions = {"acclimate": __version__, "python": platform.python_version()}
    for package in ("numpy", "torch"):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions
