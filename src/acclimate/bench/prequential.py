"""The protocol: each sample is answered once, in order, and may then be learnt from; there is no second pass.

Many adapters can share one pass: the zero-shot evidence of a batch is computed once and given to all of them.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from acclimate.arrays import Array, HostArray, as_floats, move, softmax_and_entropy, to_host, unit_rows
from acclimate.bench.metrics import (
    accuracy_over_time,
    early_phase,
    expected_calibration_error,
    mean_per_class_recall,
    squared_errors,
)
from acclimate.bench.orders import take_order
from acclimate.errors import InputError, MissingExtraError
from acclimate.evidence import Evidence, observe_unit
from acclimate.methods.base import Adapter, configure, create, find
from acclimate.stream import FeatureStream
from acclimate.views import REDUCERS


@dataclass(frozen=True)
class Variant:
    """A method with its settings.

    Attributes:
        method: its name.
        settings: those that differ from the method's defaults.
        settings_name: what results call the settings, such as "authors-per-dataset"; if empty, "paper" for the
            defaults and "custom" for others.
    """

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    settings_name: str = ""

    @property
    def config(self) -> dict[str, Any]:
        """All settings with their values."""
        return asdict(configure(find(self.method), self.settings))


@dataclass(frozen=True)
class Run:
    """The answers of one adapter to one stream, in the order taken.

    Attributes:
        order: (n,) positions of the samples in the stream.
        labels: (n,) true classes; None if unknown.
        top: (n, up to 5) classes by decreasing logit.
        confidence: (n,) softmax probability of the first class.
        errors: (n,) Brier score of each answer; None without labels.
        wall_s: seconds taken by zero-shot and adapter together.
    """

    order: HostArray
    labels: HostArray | None
    top: HostArray
    confidence: HostArray
    errors: HostArray | None
    wall_s: float

    @property
    def predictions(self) -> HostArray:
        """(n,) predicted classes."""
        return np.asarray(self.top[:, 0])

    @property
    def correct(self) -> HostArray:
        """(n,) whether each answer is right."""
        return np.asarray(self.predictions == self.labels)

    def scores(self) -> dict[str, float]:
        """Scores by name, as fractions; empty without labels."""
        if self.labels is None or self.errors is None:
            return {}
        return {
            "acc1": float(self.correct.mean()),
            "acc5": float((self.top == self.labels[:, None]).any(axis=1).mean()),
            "mean_per_class_recall": mean_per_class_recall(self.predictions, self.labels),
            "ece": expected_calibration_error(self.confidence, self.correct),
            "brier": float(self.errors.mean()),
            "early": float(self.correct[: early_phase(len(self.order))].mean()),
        }

    def over_time(self) -> HostArray:
        """Accuracy in equal consecutive parts of the stream."""
        return accuracy_over_time(self.correct)


@dataclass(frozen=True)
class Outcome:
    """One variant on one stream.

    Attributes:
        variant: the method and its settings.
        adapter: in its state after the last order.
        runs: order -> run.
        batch_size: rows per step.
        device: where the adapter ran.
    """

    variant: Variant
    adapter: Adapter
    runs: dict[str, Run]
    batch_size: int
    device: str


def compare(
    stream: FeatureStream,
    variants: Sequence[Variant],
    orders: Sequence[str] = ("stored",),
    batch_size: int = 256,
    device: str = "numpy",
    progress: Callable[[int], None] = lambda samples: None,
) -> list[Outcome]:
    """Run variants over a stream, all in one pass per order and each from scratch in every order.

    Args:
        stream: the samples; features (n, d), or (n, V, d) with V views per sample.
        variants: methods with their settings.
        orders: as `take_order` names them.
        batch_size: rows per step, where each view is a row; the answers do not depend on it.
        device: "numpy", or a PyTorch device such as "cpu" or "cuda".
        progress: called after each step with the number of samples done, for each adapter.

    Returns:
        The outcome of zero-shot, then the outcomes of the variants.
    """
    vectors = _on_device(stream.class_vectors, device)
    every = [Variant("zero-shot"), *variants]
    runs: list[dict[str, Run]] = [{} for _ in every]
    adapters: list[Adapter] = []
    for order in orders:
        adapters = [
            create(
                variant.method,
                vectors,
                logit_scale=stream.logit_scale,
                logit_bias=stream.logit_bias,
                class_names=stream.class_names,
                **variant.settings,
            )
            for variant in every
        ]
        domains = json.loads(stream.metadata.get("domains", "[]"))
        positions = take_order(order, len(stream), stream.labels, domains, stream.order)
        for known, run in zip(runs, _run_pass(adapters, stream, positions, batch_size, progress), strict=True):
            known[order] = run
    return [Outcome(*each, batch_size, device) for each in zip(every, adapters, runs, strict=True)]


def _run_pass(
    adapters: Sequence[Adapter],
    stream: FeatureStream,
    order: HostArray,
    batch_size: int,
    progress: Callable[[int], None],
) -> list[Run]:
    """One pass over a stream, shared by adapters."""
    views = stream.features.shape[1] if stream.features.ndim == 3 else 1
    size = max(1, batch_size // views)
    answers: list[list[tuple[HostArray, ...]]] = [[] for _ in adapters]
    seconds = np.zeros(len(adapters))
    for start in range(0, len(order), size):
        batch = order[start : start + size]
        truth = None if stream.labels is None else stream.labels[batch]
        began = perf_counter()
        evidence = _observe(stream.features[batch], adapters[0])
        seconds += perf_counter() - began
        for i, adapter in enumerate(adapters):
            began = perf_counter()
            logits = to_host(adapter.adapt(evidence))
            seconds[i] += perf_counter() - began
            answers[i].append(_answers(logits, truth))
            progress(len(batch))
    labels = None if stream.labels is None else stream.labels[order]
    runs = []
    for parts, wall_s in zip(answers, seconds, strict=True):
        top, confidence, *errors = (np.concatenate(part) for part in zip(*parts, strict=True))
        runs.append(Run(order, labels, top, confidence, errors[0] if errors else None, float(wall_s)))
    return runs


def _observe(features: HostArray, adapter: Adapter) -> Evidence:
    """The zero-shot evidence of a batch, on the adapter's device."""
    vectors = adapter.class_vectors
    unit: Array = unit_rows(move(as_floats(features, "features"), vectors), "features")
    observe = observe_unit if unit.ndim == 2 else REDUCERS["confident-mean"]
    return observe(unit, vectors, adapter.logit_scale, adapter.logit_bias)


def _top(logits: HostArray, count: int) -> HostArray:
    """The classes of the highest logits (n, up to count), the highest first and of equal ones the first."""
    if logits.shape[1] > count:  # sorting all of a thousand classes takes longer than adapting
        best = np.sort(np.argpartition(-logits, count - 1, axis=1)[:, :count], axis=1)
    else:
        best = np.broadcast_to(np.arange(logits.shape[1]), logits.shape)
    by_logit = np.argsort(-np.take_along_axis(logits, best, axis=1), axis=1, kind="stable")
    return np.take_along_axis(best, by_logit, axis=1)


def _answers(logits: HostArray, truth: HostArray | None) -> tuple[HostArray, ...]:
    """Top five classes and confidences of a batch, and squared errors if the true classes are known."""
    top = _top(logits, 5)
    probs = softmax_and_entropy(logits)[0]
    known = top, probs.max(axis=1)
    return known if truth is None else (*known, squared_errors(probs, truth))


def _on_device(array: HostArray, device: str) -> Array:
    if device == "numpy":
        return array
    try:
        import torch
    except ImportError:
        raise MissingExtraError(f"device {device!r} needs PyTorch: pip install torch, or use numpy.") from None
    try:
        return torch.asarray(array, device=device)
    except (RuntimeError, AssertionError) as error:  # raised for an unknown device or a build of torch without it
        reason = str(error).splitlines()[0]
        raise InputError(f"cannot use device {device!r}: {reason}. Use numpy or cpu.") from error
