"""Results as JSON: a superset of clip_benchmark's, so that its tools read them.

What a second run would measure differently (times, memory) stands under one key, "cost"; the rest stays the same.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.bench.compare import Outcome
from acclimate.bench.machine import hardware, peak_memory_mb, versions
from acclimate.bench.metrics import cache_quality, changes, early_phase, worst_tenth
from acclimate.bench.prequential import Run
from acclimate.errors import InputError, RunError
from acclimate.files import write_atomically
from acclimate.stream import FeatureStream

OF_FILE = "those of the feature file"  # prompts that nobody knows but who made the file
METRICS = ("acc1", "acc5", "mean_per_class_recall")
KEYS = {"dataset", "model", "metrics", "method", "config", "baseline", "cost"}  # by which a result is known


@dataclass(frozen=True)
class Result:
    """What one method scored on one stream, over one or many orders, with zero-shot beside it.

    Scores, changes and curves are means over the orders; what needs labels is None or empty without them.
    """

    dataset: str
    model: str
    method: str
    settings: str
    config: dict[str, Any]
    prompts: str
    views: int
    reducer: str | None
    classes: int
    n: int
    n_skipped: int
    orders: tuple[str, ...]
    scores: tuple[dict[str, float], ...]
    baseline: dict[str, float] | None
    changes: dict[str, float | None]
    over_time: dict[str, list[float]] | None
    caches: dict[str, dict[str, float | int | None]]
    batch_size: int
    precision: str
    device: str
    wall_s: float
    baseline_s: float
    encode_s: float | None

    def mean(self, score: str) -> float | None:
        """A score's mean over the orders."""
        return float(np.mean([scores[score] for scores in self.scores])) if self.scores[0] else None

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
        if len(self.scores) < 2 or not self.scores[0]:
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
        seed = single.partition(":")[2] if single else ""
        return {
            "dataset": self.dataset,
            "model": self.model,
            "pretrained": "",
            "task": "zeroshot_classification",
            "language": "en",
            "metrics": {name: self.mean(name) for name in METRICS},
            "method": self.method,
            "settings": self.settings,
            "config": self.config,
            "prompts": self.prompts,
            "views": self.views,
            "reducer": self.reducer,
            "order": single or "many",
            "seed": int(seed) if seed else None,
            "orders": {"names": self.orders, **(self.spread() or {})},
            "n": self.n,
            "n_skipped": self.n_skipped,
            "classes": self.classes,
            "baseline": self.baseline,
            "gain": self.gain,
            **self.changes,
            "ece": self.mean("ece"),
            "brier": self.mean("brier"),
            "early": {"n": early_phase(self.n), "acc1": self.mean("early")},
            "over_time": self.over_time,
            "caches": self.caches,
            "batch_size": self.batch_size,
            "precision": self.precision,
            "device": self.device,
            "versions": versions(),
            "hardware": hardware(self.device),
            "cost": {
                "wall_s": self.wall_s,
                "baseline_s": self.baseline_s,
                "ms_per_image": 1000 / self.samples_per_s,
                "samples_per_s": self.samples_per_s,
                "encode_s": self.encode_s,
                "peak_memory_mb": peak_memory_mb(self.device),
            },
        }


def summarise(
    dataset: str,
    stream: FeatureStream,
    outcome: Outcome,
    zero_shot: Outcome,
    *,
    settings: str | None = None,
    prompts: str | None = None,
    encode_s: float | None = None,
) -> Result:
    """Score one method's outcome on a stream, with zero-shot's beside it.

    Args:
        dataset: its name.
        stream: the samples.
        outcome: the method's.
        zero_shot: zero-shot's on the same stream.
        settings: what the settings are called, such as "authors-per-dataset"; "paper" for a method's defaults and
            "custom" for others when not given.
        prompts: what the prompts are called; those that a feature file was made with when not given.
        encode_s: seconds that encoding the images took, where they were encoded for this stream.
    """
    adapter, known = outcome.adapter, stream.metadata
    runs = list(outcome.runs.values())
    unadapted = next(iter(zero_shot.runs.values()))
    beside = [unadapted.retaken(run.order) for run in runs]
    many_views = stream.features.ndim == 3
    return Result(
        dataset=dataset,
        model=known.get("encoder", "unknown"),
        method=adapter.name,
        settings=settings or ("paper" if adapter.config == type(adapter).Config() else "custom"),
        config=asdict(adapter.config),
        prompts=prompts or OF_FILE,
        views=stream.features.shape[1] if many_views else 1,
        reducer=outcome.reducer if many_views else None,
        classes=len(stream.class_names),
        n=len(stream),
        n_skipped=int(known.get("n_skipped", 0)),
        orders=tuple(outcome.runs),
        scores=tuple(run.scores() for run in runs),
        baseline=_mean([run.scores() for run in beside]) or None,
        changes=_mean([changes(a.predictions, b.predictions, a.labels) for a, b in zip(runs, beside, strict=True)]),
        over_time=None if stream.labels is None else {"acc1": _curve(runs), "baseline": _curve(beside)},
        caches=cache_quality(adapter.dump(), len(stream.class_names), runs[-1].labels),
        batch_size=outcome.batch_size,
        precision=str(adapter.class_vectors.dtype).removeprefix("torch."),
        device=outcome.device,
        wall_s=sum(run.wall_s for run in runs),
        baseline_s=unadapted.wall_s,
        encode_s=encode_s,
    )


def write_json(results: Sequence[Result], path: Path) -> None:
    """Write one result as an object, several as a list with one result a line."""
    content = [_rounded(result.as_json()) for result in results]
    lines = ",\n".join(json.dumps(each) for each in content)
    text = json.dumps(content[0], indent=2) if len(content) == 1 else f"[\n{lines}\n]"
    try:
        write_atomically(path, text.encode() + b"\n")
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}.") from error


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Every result in the JSON files below a folder, or in one file, by path; JSON of other kinds is left alone."""
    paths = sorted(folder.rglob("*.json")) if folder.is_dir() else [folder]
    results: list[dict[str, Any]] = []
    for path in paths:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read as JSON ({error}); remove it or run again.") from error
        content = content if isinstance(content, list) else [content]
        results += [each for each in content if isinstance(each, dict) and each.keys() >= KEYS]
    if not results:
        raise InputError(f"no results in {folder}; `acclimate bench`, `reproduce` and `run --json` write them.")
    return results


def _rounded(value: Any) -> Any:
    """Floats to six digits after the point: what follows depends on the machine's arithmetic, not on the method."""
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(each) for each in value]
    return round(value, 6) if isinstance(value, float) else value


def _mean(each: Sequence[Mapping[str, float | None]]) -> dict[str, Any]:
    """The mean of every number over many dicts with the same keys; None where there is none."""
    return {
        key: None if value is None else float(np.mean([one[key] for one in each])) for key, value in each[0].items()
    }


def _curve(runs: Sequence[Run]) -> list[float]:
    """Accuracy over time, averaged over the orders."""
    curve: list[float] = np.mean([run.over_time() for run in runs], axis=0).tolist()
    return curve
