"""Results as files: JSON, Markdown, LaTeX and CSV.

The JSON is a superset of clip_benchmark's format, so that its tools can read it. Everything that differs between two
runs of the same command (times, memory) is under one key, "cost".
"""

import csv
import io
import json
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import date
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from acclimate import __version__
from acclimate.bench.orders import stream_order
from acclimate.bench.prequential import SECOND_PASS, Outcome, Run
from acclimate.bench.scoring import accuracy_over_time, changes, early_phase, learnt, worst_tenth
from acclimate.files import to_cell, write_atomically, writing
from acclimate.sources.source import parse_order
from acclimate.stream import FeatureStream

ABSENT = "\N{EN DASH}"  # a cell without a figure
DIGITS = 6  # further digits depend on the machine's arithmetic, not on the method
OF_FILE = "those of the feature file"  # the prompts are known to the author of the file alone
TEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "±": r"$\pm$", "µ": r"$\mu$", ABSENT: "--"},
}


@dataclass(frozen=True)
class Score:
    """The score of one method on one stream, in one order or as the mean of several: a row of every table.

    The fields are the keys of the JSON file, which docs/benchmarks.md describes. Those that need labels are None
    without labels. `baseline` and `cost["baseline_s"]` are the scores and the time of zero-shot on the same samples in
    the same orders.
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
    learnt: dict[str, dict[str, Any]]
    order: str
    seed: int | None
    orders: dict[str, Any]
    batch_size: int
    precision: str
    device: str
    versions: dict[str, str]
    hardware: str
    cost: dict[str, Any]
    passes: int = 1
    views_kind: str = ""
    trained: str = ""
    label: str = ""
    file: str = ""
    gain_interval: list[float] | None = None
    per_class: dict[str, dict[str, float | int | None]] | None = None

    @property
    def title(self) -> str:
        """The method with the settings that were given, and the pass if it is the second."""
        return (self.label or self.method) + (SECOND_PASS if self.passes == 2 else "")

    @property
    def stream(self) -> str:
        """The name of the stream or dataset."""
        return self.dataset

    @property
    def shape(self) -> str:
        """The shape of the order, such as "long-tail"."""
        return parse_order(self.order)[0]

    @property
    def samples(self) -> int:
        """The number of samples; the mean where orders take different parts of a stream."""
        return self.n

    @property
    def accuracy(self) -> float:
        """Top-1 accuracy; nan without labels."""
        return float("nan") if self.metrics["acc1"] is None else self.metrics["acc1"]

    @property
    def mean_per_class_recall(self) -> float | None:
        """Accuracy per class, averaged over the classes."""
        return self.metrics["mean_per_class_recall"]

    @property
    def seconds(self) -> float:
        """Seconds of zero-shot and adapting, over all orders."""
        return float(self.cost["wall_s"])


def summarise(
    dataset: str,
    stream: FeatureStream,
    outcome: Outcome,
    zero_shot: Outcome,
    prompts: str = OF_FILE,
    passes: int = 1,
    file: str = "",
    orders: Sequence[str] = (),
) -> Score:
    """Score the outcome of a method on a stream against that of zero-shot; `dataset` and `prompts` are names.

    With `passes` 2, the answers of the second pass are scored. `file` names the feature file of a dataset. Only the
    runs in `orders` are scored, all of them when not given.
    """
    adapter = outcome.adapter
    names = list(orders or outcome.runs)
    runs = [(outcome.runs if passes == 1 else outcome.second_pass)[name] for name in names]
    baselines = [zero_shot.runs[name] for name in names]
    scores = _mean([run.scores() for run in runs])
    baseline = _mean([run.scores() for run in baselines])
    samples = round(np.mean([len(run.order) for run in runs]))
    last_order = names[-1] == [*outcome.runs][-1]  # the adapter is the one after that order
    targets = None if adapter.kind == "few-shot" else stream.targets  # the entries of few-shot methods are shots
    taken = None if targets is None else targets[stream_order(stream, names[-1])]
    return Score(
        dataset=dataset,
        model=stream.encoder or "unknown",
        method=outcome.variant.method,
        settings=outcome.variant.settings_name,
        config=adapter.settings,
        prompts=prompts,
        views=stream.views,
        classes=len(stream.head),
        n=samples,
        n_skipped=stream.skipped,
        metrics={name: scores.get(name) for name in ("acc1", "acc5", "mean_per_class_recall")},
        baseline=baseline or None,
        gain=scores["acc1"] - baseline["acc1"] if scores else None,
        **_mean([changes(a.predictions, b.predictions, a.targets) for a, b in zip(runs, baselines, strict=True)]),
        ece=scores.get("ece"),
        brier=scores.get("brier"),
        early={"n": early_phase(samples), "acc1": scores.get("early")},
        over_time={"acc1": _curve(runs), "baseline": _curve(baselines)} if scores else None,
        learnt=learnt(adapter, taken) if last_order else {},
        order=names[0] if len(names) == 1 else "many",
        seed=parse_order(names[0])[1] if len(names) == 1 else None,
        orders={"names": names, **_spread(runs)},
        batch_size=outcome.batch_size,
        precision=str(adapter.head.class_vectors.dtype).removeprefix("torch."),
        device=outcome.device,
        versions=versions(),
        hardware=hardware(outcome.device),
        cost=_cost(stream, outcome, runs, baselines, last_order),
        passes=passes,
        views_kind=stream.views_kind,
        trained=outcome.variant.trained,
        label=outcome.variant.label,
        file=file,
    )


def score_all(
    dataset: str, stream: FeatureStream, outcomes: Sequence[Outcome], prompts: str = OF_FILE, file: str = ""
) -> list[Score]:
    """Score every pass of all outcomes on a stream, the first of which is that of zero-shot."""
    return [
        summarise(dataset, stream, outcome, outcomes[0], prompts, passes, file)
        for outcome in outcomes
        for passes in ((1, 2) if outcome.second_pass else (1,))
    ]


def write_results(scores: Sequence[Score], path: Path) -> None:
    """Write one score as a JSON object, several as a list with one score per line."""
    exact = json.dumps(
        [
            # The last three are the other keys of clip_benchmark's format.
            {**asdict(score), "pretrained": "", "task": "zeroshot_classification", "language": "en"}
            for score in scores
        ]
    )
    content = json.loads(exact, parse_float=lambda digits: round(float(digits), DIGITS))
    lines = ",\n".join(map(json.dumps, content))
    text = json.dumps(content[0], indent=2) if len(content) == 1 else f"[\n{lines}\n]"
    write_page([text], path)


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return rows of text as a Markdown table."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def latex_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    r"""Return rows of text as a LaTeX table, which needs the booktabs package.

    Examples:
        >>> print(latex_table(["method", "accuracy, %"], [["free_tta", "61.30 <sup>a</sup>"]]))
        \begin{tabular}{lr}
        \toprule
        method & accuracy, \% \\
        \midrule
        free\_tta & 61.30$^{a}$ \\
        \bottomrule
        \end{tabular}
    """
    header, *lines = (" & ".join(map(latex_text, line)) + r" \\" for line in (columns, *rows))
    return "\n".join(
        [
            rf"\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}",
            *(r"\toprule", header, r"\midrule", *lines),
            *(r"\bottomrule", r"\end{tabular}"),
        ]
    )


def latex_text(text: str) -> str:
    """Return text with the signs escaped that mean something to LaTeX; `<sup>` and `<b>` become its commands."""
    signs = TEX | {"<b>": r"\textbf{", "</b>": "}", "<sup>": "$^{", " <sup>": "$^{", "</sup>": "}$"}
    return re.sub(r" ?<sup>|</sup>|</?b>|.", lambda found: signs.get(found[0], found[0]), text, flags=re.DOTALL)


def markdown_list(lines: Sequence[str]) -> list[str]:
    """Return one part of a page with lines as a Markdown list; no part if there are none."""
    return ["\n".join(f"- {line}" for line in lines)] if lines else []


def points(fraction: float) -> str:
    """Return a difference of accuracies in points; zero is +0.00, never -0.00."""
    return f"{round(100 * fraction, 2) + 0.0:+.2f}"


def write_page(parts: Iterable[str], path: Path) -> None:
    """Write a file of paragraphs, headings and tables; a Markdown page ends with its date."""
    if path.suffix == ".md":
        parts = [*parts, f"Written on {date.today().isoformat()} by acclimate {__version__}."]
    with writing(path):
        write_atomically(path, "\n\n".join(parts).encode() + b"\n")


def write_csv(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write a CSV file with a line per row; the keys of the first are the columns, and None is an empty cell."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(rows[0])
    for row in rows:
        values = [round(value, DIGITS) if isinstance(value, float) else value for value in row.values()]
        lines.writerow([to_cell(value) if isinstance(value, str) else value for value in values])
    with writing(path):
        write_atomically(path, text.getvalue().encode())


@cache
def versions() -> dict[str, str]:
    """Return the versions of everything that can change a result: this library, Python, array and model libraries."""
    found = {"acclimate": __version__, "python": platform.python_version()}
    for package in ("numpy", "pillow", "onnxruntime", "torch", "transformers", "open_clip_torch"):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


@cache
def hardware(device: str) -> str:
    """Return the processor, the number of cores, and the GPU if the device is one."""
    processor = platform.machine()
    with suppress(OSError, StopIteration):
        processor = next(
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        )
    words = f"{processor}, {os.cpu_count()} cores"
    if device.startswith("cuda"):
        import torch

        words += f", {torch.cuda.get_device_name(device)}"
    return words


def _cost(
    stream: FeatureStream, outcome: Outcome, runs: Sequence[Run], baselines: Sequence[Run], last_order: bool
) -> dict[str, Any]:
    wall_s = sum(run.wall_s for run in runs)
    baseline_s = sum(run.wall_s for run in baselines)
    first = [outcome.runs[name] for name, run in outcome.second_pass.items() if any(run is each for each in runs)]
    added_s = wall_s + sum(run.wall_s for run in first) - (0.0 if outcome.variant.method == "zero-shot" else baseline_s)
    answered = sum(len(run.order) for run in runs)
    return {
        "wall_s": wall_s,
        "baseline_s": baseline_s,
        "us_per_sample": 1e6 * added_s / answered,
        "ms_per_image": 1000 * wall_s / answered,
        "samples_per_s": answered / wall_s,
        "encode_s": stream.encode_s,
        "encode_ms_per_image": stream.encode_s and 1000 * stream.encode_s / (len(stream) + stream.skipped),
        "state_bytes": sum(values.nbytes for values in outcome.adapter.dump().values()) if last_order else 0,
    }


def _mean(each: Sequence[Mapping[str, float | None]]) -> dict[str, Any]:
    columns = {key: [one[key] for one in each] for key in each[0]}
    return {
        key: None if None in values else float(np.mean(np.array(values, np.float64))) for key, values in columns.items()
    }


def _spread(runs: Sequence[Run]) -> dict[str, Any]:
    if len(runs) < 2 or runs[0].targets is None:
        return {}
    accuracies = np.array([run.scores()["acc1"] for run in runs])
    return {
        "mean": float(accuracies.mean()),
        "sd": float(accuracies.std(ddof=1)),
        "worst_tenth": worst_tenth(accuracies),
        "acc1": accuracies.tolist(),
    }


def _curve(runs: Sequence[Run]) -> Any:
    # Orders may take different numbers of samples; the shortest run says into how many parts all are cut.
    parts = min(len(accuracy_over_time(run.correct)) for run in runs)
    return np.mean([accuracy_over_time(run.correct, parts) for run in runs], axis=0).tolist()
