"""Results as JSON files, a superset of clip_benchmark's format so that its tools can read them.

Everything that differs between two runs of the same command (times, memory) is under one key, "cost".
"""

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from acclimate import __version__
from acclimate.bench.metrics import accuracy_over_time, changes, early_phase, learnt, worst_tenth
from acclimate.bench.prequential import Outcome, Run
from acclimate.errors import InputError
from acclimate.files import MAX_LIST, open_text, write_atomically, writing
from acclimate.sources.source import parse_order
from acclimate.stream import FeatureStream

OF_FILE = "those of the feature file"  # prompts that only the author of a feature file knows
METRICS = ("acc1", "acc5", "mean_per_class_recall")
PACKAGES = ("numpy", "pillow", "onnxruntime", "torch", "transformers", "open_clip_torch")
DIGITS = 6  # further digits depend on the machine's arithmetic, not on the method


@dataclass(frozen=True)
class Result:
    """The scores of one method on one stream. The fields are the keys of the JSON file.

    Scores, changes and curves are means over the orders; those that need labels are None without labels. `baseline` and
    `cost["baseline_s"]` are the scores and the time of zero-shot on the same samples in the same orders.
    docs/benchmarks.md describes each key.
    """

    dataset: str
    model: str
    method: str
    settings: str
    config: dict[str, Any]
    prompts: str
    views: int
    classes: int
    n: int
    n_skipped: int
    metrics: dict[str, float | None]
    baseline: dict[str, float] | None
    gain: float | None
    changed: float
    helpful: float | None
    harmful: float | None
    ece: float | None
    brier: float | None
    early: dict[str, float | None]
    over_time: dict[str, list[float]] | None
    learnt: dict[str, dict[str, float | int | None]]
    order: str
    seed: int | None
    orders: dict[str, Any]
    batch_size: int
    precision: str
    device: str
    versions: dict[str, str]
    hardware: str
    cost: dict[str, float | None]
    passes: int = 1
    views_kind: str = ""
    trained: str = ""
    end_to_end: bool = False
    label: str = ""
    file: str = ""
    gain_interval: list[float] | None = None
    per_class: dict[str, dict[str, float | int | None]] | None = None
    pretrained: str = ""
    task: str = "zeroshot_classification"
    language: str = "en"

    @property
    def title(self) -> str:
        """The method with the settings that were given, and the pass if it is the second."""
        return pass_title(self.label or self.method, self.passes)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Result":
        """The result in an object of a JSON file; other keys are ignored, and a missing one is a KeyError.

        Keys that have a default may be missing: older files do not have them all.
        """
        needed = [field.name for field in fields(cls) if field.name in content or field.default is MISSING]
        return cls(**{name: content[name] for name in needed})


def pass_title(method: str, passes: int) -> str:
    """How tables and figures name the answers of a method after one or two passes."""
    return method if passes == 1 else f"{method}, second pass"


def summarise(
    dataset: str,
    stream: FeatureStream,
    outcome: Outcome,
    zero_shot: Outcome,
    prompts: str = OF_FILE,
    passes: int = 1,
    file: str = "",
) -> Result:
    """Score the outcome of a method on a stream against that of zero-shot; `dataset` and `prompts` are names.

    With `passes` 2, the answers of the second pass are scored. `file` names the feature file of a dataset.
    """
    adapter = outcome.adapter
    variant = outcome.variant
    names = list(outcome.runs)
    runs = list((outcome.runs if passes == 1 else outcome.refined).values())
    baselines = list(zero_shot.runs.values())
    scores = _mean([run.scores() for run in runs])
    baseline = _mean([run.scores() for run in baselines])
    wall_s = sum(run.wall_s for run in runs)
    answered = sum(len(run.order) for run in runs)
    samples = round(answered / len(runs))
    per_s = answered / wall_s
    result = Result(
        dataset=dataset,
        model=stream.encoder or "unknown",
        method=variant.method,
        settings=variant.settings_name,
        config=adapter.settings,
        prompts=prompts,
        views=stream.views,
        classes=len(stream.head),
        n=samples,
        n_skipped=stream.skipped,
        metrics={name: scores.get(name) for name in METRICS},
        baseline=baseline or None,
        gain=scores["acc1"] - baseline["acc1"] if scores else None,
        **_mean([changes(a.predictions, b.predictions, a.labels) for a, b in zip(runs, baselines, strict=True)]),
        ece=scores.get("ece"),
        brier=scores.get("brier"),
        early={"n": early_phase(samples), "acc1": scores.get("early")},
        over_time={"acc1": _curve(runs), "baseline": _curve(baselines)} if scores else None,
        learnt=learnt(adapter, None if adapter.kind == "few-shot" else runs[-1].labels),  # its entries are shots
        order=names[0] if len(names) == 1 else "many",
        seed=parse_order(names[0])[1] if len(names) == 1 else None,
        orders={"names": names, **_spread(runs)},
        batch_size=outcome.batch_size,
        precision=str(adapter.head.class_vectors.dtype).removeprefix("torch."),
        device=outcome.device,
        versions=versions(),
        hardware=hardware(outcome.device),
        cost={
            "wall_s": wall_s,
            "baseline_s": sum(run.wall_s for run in baselines),
            "ms_per_image": 1000 / per_s,
            "samples_per_s": per_s,
            "encode_s": stream.encode_s,
            "peak_memory_mb": peak_memory_mb(outcome.device),
        },
        passes=passes,
        views_kind=stream.views_kind,
        trained=variant.trained,
        label=variant.label,
        file=file,
    )
    return Result(**_rounded(asdict(result)))


def write_results(results: Sequence[Result], path: Path) -> None:
    """Write one result as a JSON object, several as a list with one result per line."""
    content = [asdict(result) for result in results]
    lines = ",\n".join(json.dumps(each) for each in content)
    text = json.dumps(content[0], indent=2) if len(content) == 1 else f"[\n{lines}\n]"
    with writing(path):
        write_atomically(path, text.encode() + b"\n")


def read_results(path: Path) -> list[Result]:
    """All results in a JSON file, or in the JSON files below a folder in path order; other JSON is ignored."""
    paths = sorted(path.rglob("*.json")) if path.is_dir() else [path]
    results: list[Result] = []
    for each in paths:
        try:
            content = json.loads(open_text(each, MAX_LIST).read())
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read {each} as JSON ({error}); remove it or run again.") from error
        for candidate in content if isinstance(content, list) else [content]:
            with suppress(KeyError, TypeError):
                results.append(Result.from_json(candidate))
    if not results:
        raise InputError(f"no results in {path}; `acclimate bench` and `acclimate reproduce` write them.")
    return results


@cache
def versions() -> dict[str, str]:
    """Versions of everything that can change a result: this library, Python, array and model libraries."""
    found = {"acclimate": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


@cache
def hardware(device: str) -> str:
    """The processor, the number of cores, and the GPU if the device is one."""
    processor = platform.machine()
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    words = f"{processor}, {os.cpu_count()} cores"
    if device.startswith("cuda"):
        import torch

        words += f", {torch.cuda.get_device_name(device)}"
    return words


def reset_peak_memory(device: str) -> None:
    """Let `peak_memory_mb` count from now on; on the CPU this works on Linux only."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.reset_peak_memory_stats(device)
    else:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")


def peak_memory_mb(device: str) -> float | None:
    """Peak memory of the process, or of its tensors on a GPU; None if the system does not report it."""
    if device.startswith("cuda"):
        import torch

        return float(torch.cuda.max_memory_allocated(device) / 1e6)
    with suppress(OSError, StopIteration):  # Linux, where the peak can be reset
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) * 1024 / 1e6
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024  # bytes on macOS, kibibytes elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return round(value, DIGITS) if isinstance(value, float) else value


def _mean(each: Sequence[Mapping[str, float | None]]) -> dict[str, Any]:
    """Return the mean of every value over dicts with the same keys; None where one of them has None."""
    means: dict[str, Any] = {}
    for key in each[0]:
        values = [one[key] for one in each]
        means[key] = None if None in values else float(np.array(values, np.float64).mean())
    return means


def _spread(runs: Sequence[Run]) -> dict[str, Any]:
    """Mean, standard deviation and worst tenth of acc1 over several orders."""
    if len(runs) < 2 or runs[0].labels is None:
        return {}
    accuracies = np.array([run.scores()["acc1"] for run in runs])
    return {
        "mean": float(accuracies.mean()),
        "sd": float(accuracies.std(ddof=1)),
        "worst_tenth": worst_tenth(accuracies),
        "acc1": accuracies.tolist(),
    }


def _curve(runs: Sequence[Run]) -> Any:
    """Accuracy over time, averaged over the orders, in as many parts as the shortest run has."""
    parts = min(len(accuracy_over_time(run.correct)) for run in runs)
    return np.mean([accuracy_over_time(run.correct, parts) for run in runs], axis=0).tolist()
