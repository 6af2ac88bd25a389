"""The protocol: each sample is answered once, in order, and may be learnt from; no second pass."""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from acclimate.adapters.base import Adapter
from acclimate.arrays import HostArray, index, move, softmax_and_entropy, to_host
from acclimate.bench.metrics import expected_calibration_error, mean_per_class_recall
from acclimate.sources.features import FeatureStream


@dataclass(frozen=True)
class Run:
    """Answers of one adapter to one stream, in the order taken.

    Attributes:
        order: (n,) positions of the samples in the stream.
        top: (n, up to 5) classes by falling logit.
        confidence: (n,) softmax probability of the first.
        wall_s: seconds spent in the adapter.
    """

    order: HostArray
    top: HostArray
    confidence: HostArray
    wall_s: float

    @property
    def predictions(self) -> HostArray:
        """(n,) predicted classes."""
        return np.asarray(self.top[:, 0])

    def correct(self, labels: HostArray) -> HostArray:
        """(n,) whether each answer was right, for labels in the stream's own order."""
        return np.asarray(self.predictions == labels[self.order])

    def scores(self, labels: HostArray) -> dict[str, float]:
        """acc1, acc5, mean_per_class_recall and ece as fractions, for labels in the stream's own order."""
        truth = labels[self.order]
        correct = self.correct(labels)
        return {
            "acc1": float(correct.mean()),
            "acc5": float((self.top == truth[:, None]).any(axis=1).mean()),
            "mean_per_class_recall": mean_per_class_recall(self.predictions, truth),
            "ece": expected_calibration_error(self.confidence, correct),
        }


def run(
    adapter: Adapter,
    stream: FeatureStream,
    order: HostArray,
    batch_size: int = 256,
    progress: Callable[[int], None] = lambda samples: None,
) -> Run:
    """Show a stream to an adapter once.

    Args:
        adapter: learns as it goes, unless frozen.
        stream: the samples.
        order: (n,) the order to take them in.
        batch_size: samples a step; the answers do not depend on it.
        progress: called with the number of samples done after each step.
    """
    features = move(stream.features, adapter.class_vectors)
    tops, confidences, wall_s = [], [], 0.0
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        rows = features[index(batch, features)]
        began = perf_counter()
        logits = to_host(adapter.step(rows))
        wall_s += perf_counter() - began
        tops.append(np.argsort(-logits, axis=1, kind="stable")[:, :5])
        confidences.append(softmax_and_entropy(logits)[0].max(axis=1))
        progress(len(batch))
    return Run(order, np.concatenate(tops), np.concatenate(confidences), wall_s)
