"""The protocol: each sample is answered once, in order, and may be learnt from; no second pass.

Many adapters can watch the same pass: what the zero-shot model says of a batch is computed once and shown to all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from acclimate.arrays import Array, HostArray, as_floats, move, softmax_and_entropy, to_host, unit_rows
from acclimate.bench.metrics import (
    accuracy_over_time,
    early_phase,
    expected_calibration_error,
    mean_per_class_recall,
    squared_errors,
)
from acclimate.errors import InputError
from acclimate.evidence import Evidence, observe_unit
from acclimate.methods.base import Adapter
from acclimate.stream import FeatureStream
from acclimate.views import REDUCERS


@dataclass(frozen=True)
class Run:
    """Answers of one adapter to one stream, in the order taken.

    Attributes:
        order: (n,) positions of the samples in the stream.
        labels: (n,) their true classes; None where unknown.
        top: (n, up to 5) classes by falling logit.
        confidence: (n,) softmax probability of the first.
        errors: (n,) Brier's score of each answer; None without labels.
        wall_s: seconds that zero-shot and adapter together took.
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
        """(n,) whether each answer was right."""
        return np.asarray(self.predictions == self.labels)

    def scores(self) -> dict[str, float]:
        """Scores as fractions, by name; none without labels."""
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

    def retaken(self, order: HostArray) -> "Run":
        """The same answers in another order; for methods whose answers do not depend on it."""
        places = np.argsort(self.order)[order]
        labels, errors = (None if each is None else each[places] for each in (self.labels, self.errors))
        return Run(order, labels, self.top[places], self.confidence[places], errors, self.wall_s)

    def over_time(self) -> HostArray:
        """Accuracy in equal parts of the stream."""
        return accuracy_over_time(self.correct)


def run(
    adapters: Sequence[Adapter],
    stream: FeatureStream,
    order: HostArray,
    batch_size: int = 256,
    reducer: str = "confident-mean",
    progress: Callable[[int], None] = lambda samples: None,
) -> list[Run]:
    """Show a stream once to adapters that share its class vectors.

    Args:
        adapters: each learns as it goes, unless frozen; the first one's class vectors say where the work is done.
        stream: the samples; features (n, d), or (n, V, d) for V views a sample.
        order: (n,) the order to take them in.
        batch_size: rows a step, views counted; the answers do not depend on it.
        reducer: how views become one piece of evidence, by its name in `acclimate.views.REDUCERS`.
        progress: called with the number of samples done after each step, for each adapter.
    """
    if reducer not in REDUCERS:
        raise InputError(f"unknown reducer {reducer!r}; there are: {', '.join(REDUCERS)}.")
    views = stream.features.shape[1] if stream.features.ndim == 3 else 1
    size = max(1, batch_size // views)
    answers: list[list[tuple[HostArray, ...]]] = [[] for _ in adapters]
    seconds = np.zeros(len(adapters))
    for start in range(0, len(order), size):
        batch = order[start : start + size]
        truth = None if stream.labels is None else stream.labels[batch]
        began = perf_counter()
        evidence = _observe(stream.features[batch], adapters[0], reducer)
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


def _observe(features: HostArray, adapter: Adapter, reducer: str) -> Evidence:
    """What the zero-shot model says of a batch, where the adapter lives."""
    vectors = adapter.class_vectors
    unit: Array = unit_rows(move(as_floats(features, "features"), vectors), "features")
    look = observe_unit if unit.ndim == 2 else REDUCERS[reducer]
    return look(unit, vectors, adapter.logit_scale, adapter.logit_bias)


def _top(logits: HostArray, count: int) -> HostArray:
    """The classes of the highest logits (n, up to count), the highest first and of equal ones the first."""
    if logits.shape[1] > count:  # sorting all of a thousand classes takes longer than adapting
        best = np.sort(np.argpartition(-logits, count - 1, axis=1)[:, :count], axis=1)
    else:
        best = np.broadcast_to(np.arange(logits.shape[1]), logits.shape)
    by_logit = np.argsort(-np.take_along_axis(logits, best, axis=1), axis=1, kind="stable")
    return np.take_along_axis(best, by_logit, axis=1)


def _answers(logits: HostArray, truth: HostArray | None) -> tuple[HostArray, ...]:
    """A batch's top five classes, confidences and, where the truth is known, squared errors."""
    top = _top(logits, 5)
    probs = softmax_and_entropy(logits)[0]
    known = top, probs.max(axis=1)
    return known if truth is None else (*known, squared_errors(probs, truth))
