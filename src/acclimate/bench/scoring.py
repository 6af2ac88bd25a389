"""The scores of a run, as fractions, not percentages."""

from typing import Any

import numpy as np

from acclimate.arrays import HostArray
from acclimate.methods import Adapter


def mean_per_class_recall(predictions: HostArray, targets: HostArray) -> float:
    """Return accuracy per class, averaged over the classes that occur; both arguments (n,)."""
    totals = np.bincount(targets)
    hits = np.bincount(targets, weights=predictions == targets)
    return float(np.mean(hits[totals > 0] / totals[totals > 0]))


def expected_calibration_error(confidence: HostArray, correct: HostArray, bins: int = 15) -> float:
    """Return the mean gap between confidence and accuracy over equal-width bins (Guo et al., 2017); both (n,)."""
    bin_of = np.minimum((confidence * bins).astype(int), bins - 1)
    return float(np.abs(np.bincount(bin_of, weights=confidence - correct)).sum() / len(confidence))


def squared_errors(probs: HostArray, targets: HostArray) -> HostArray:
    """Return the Brier score of each sample (n,), the sum over classes of (p - 1[true])^2, from 0 to 2."""
    return np.asarray((probs * probs).sum(axis=1) - 2 * probs[np.arange(len(targets)), targets] + 1)


def running_accuracy(correct: HostArray, window: int) -> HostArray:
    """Return the accuracy over the last `window` samples at every position (fewer at the start); (n,) -> (n,)."""
    total = np.concatenate([[0], np.cumsum(correct)])
    ends = np.arange(1, len(correct) + 1)
    starts = np.maximum(ends - window, 0)
    return np.asarray((total[ends] - total[starts]) / (ends - starts))


def accuracy_over_time(correct: HostArray, parts: int = 20) -> HostArray:
    """Return the accuracy in each of `parts` equal consecutive parts of the stream (fewer parts if it is shorter)."""
    return np.array([np.mean(part) for part in np.array_split(correct, min(parts, len(correct)))])


def early_phase(samples: int) -> int:
    """Return the number of samples in the early phase of a stream: the first 1 %, at least one."""
    return max(1, round(0.01 * samples))


def changes(adapted: HostArray, unadapted: HostArray, targets: HostArray | None) -> dict[str, float | None]:
    """Return the fractions of answers that adapting changed, corrected and broke; None where targets are needed."""
    changed = float(np.mean(adapted != unadapted))
    if targets is None:
        return {"changed": changed, "helpful": None, "harmful": None}
    gained = (adapted == targets).astype(int) - (unadapted == targets)  # 1 where corrected, -1 where broken
    return {"changed": changed, "helpful": float(np.mean(gained > 0)), "harmful": float(np.mean(gained < 0))}


def learnt(adapter: Adapter, targets: HostArray | None) -> dict[str, dict[str, Any]]:
    """Summarise what an adapter has learnt from n samples, by the columns of its `learnt`; targets (n,) as taken.

    In a part that keeps entries, `label_accuracy` is the fraction whose class is the true one (the paper's figure for
    the positive cache), `short_classes` is the fraction of classes with fewer entries than there is room for, and
    `imbalance` goes from 0 (as many entries in every class) to 1 (all in one class).
    """
    entries = adapter.entries()
    summary: dict[str, dict[str, Any]] = {
        name: {"mean": float(values.mean()), "min": float(values.min()), "max": float(values.max())}
        for name, values in adapter.class_statistics().items()
        if name not in entries
    }
    for name, kept in entries.items():
        truth = np.full(adapter.samples_seen, -1) if targets is None else targets
        right = [truth[entry.id] == entry.class_index for entry in kept if truth[entry.id] >= 0]
        counts = np.bincount(np.array([entry.class_index for entry in kept], int), minlength=len(adapter.head))
        summary[name] = {
            "entries": len(kept),
            "label_accuracy": float(np.mean(right)) if right else None,
            "empty_classes": float(np.mean(counts == 0)),
            "short_classes": float(np.mean(counts < adapter.parts[name].capacity)),
            "imbalance": _imbalance(counts),
        }
    return summary


def _imbalance(counts: HostArray) -> float:
    shares = counts[counts > 0] / max(1, counts.sum())
    if len(counts) < 2 or not len(shares):
        return 0.0
    return max(0.0, float(1 + (shares * np.log(shares)).sum() / np.log(len(counts))))


def worst_tenth(accuracies: HostArray) -> float:
    """Return the mean of the worst 10 % of runs, at least one (expected tail accuracy; Fuchs et al., 2025)."""
    return float(np.sort(accuracies)[: max(1, len(accuracies) // 10)].mean())
