"""Scores of a run. All are fractions, not percent."""

import numpy as np

from acclimate.arrays import HostArray


def mean_per_class_recall(predictions: HostArray, labels: HostArray) -> float:
    """Accuracy of each class that occurs, averaged over those classes; both (n,)."""
    return float(np.mean([np.mean(predictions[labels == label] == label) for label in np.unique(labels)]))


def expected_calibration_error(confidence: HostArray, correct: HostArray, bins: int = 15) -> float:
    """Mean gap between confidence and accuracy over equal-width bins of confidence (Guo et al., 2017); both (n,)."""
    bin_of = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = np.bincount(bin_of, weights=confidence - correct, minlength=bins)
    return float(np.abs(gaps).sum() / len(confidence))


def running_accuracy(correct: HostArray, window: int) -> HostArray:
    """Accuracy over the last `window` samples at every moment (fewer at the start); (n,) -> (n,)."""
    total = np.concatenate([[0], np.cumsum(correct)])
    ends = np.arange(1, len(correct) + 1)
    starts = np.maximum(ends - window, 0)
    return np.asarray((total[ends] - total[starts]) / (ends - starts))


def worst_tenth(accuracies: HostArray) -> float:
    """Mean of the worst 10 % of runs, at least one (expected tail accuracy; Fuchs et al., 2025)."""
    count = max(1, len(accuracies) // 10)
    return float(np.sort(accuracies)[:count].mean())
