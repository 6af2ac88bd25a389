"""Prometheus metrics. Streams, labels and clients never become labels of a metric: their number has no bound."""

from collections.abc import Mapping, Sequence
from math import log

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest

from acclimate import __version__
from acclimate.methods.gates import NearDuplicates, Rejector
from acclimate.predict import NONE, Prediction

SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
COUNTERS = {
    "images": "Images received.",
    "changed_predictions": "Predictions changed by adaptation.",
    "unsure_predictions": "Predictions with a score below the threshold.",
    "foreign_images": "Images that belong to no label.",
    "near_duplicates": "Images not learnt because they are nearly the same as one before.",
    "refusals": "Images not learnt because of the disk, or because their labels were corrected.",
    "cache_replacements": "Cache entries replaced by better ones.",
}
HISTOGRAMS = {
    "prediction_entropy_ratio": (
        "Entropy of the zero-shot prediction relative to its maximum, from 0 to 1.",
        [tenth / 10 for tenth in range(1, 11)],
    ),
    "batch_size": ("Images encoded per batch, counting views.", [2**power for power in range(8)]),
    "encode_duration_seconds": ("Time to encode a batch.", SECONDS),
    "adapt_duration_seconds": ("Time to adapt to the images of a request.", SECONDS),
    "request_duration_seconds": ("Time to answer a request.", SECONDS),
}
LABELS = {"images": ["outcome"], "request_duration_seconds": ["method", "route", "status"]}


class Metrics:
    """Counters and histograms of one service; every method may be called from any thread."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._counters = {
            name: Counter(f"acclimate_{name}", about, LABELS.get(name, ()), registry=self._registry)
            for name, about in COUNTERS.items()
        }
        self._histograms = {
            name: Histogram(f"acclimate_{name}", about, LABELS.get(name, ()), buckets=buckets, registry=self._registry)
            for name, (about, buckets) in HISTOGRAMS.items()
        }
        Info("acclimate_build", "The running version.", registry=self._registry).info({"version": __version__})
        for outcome in ("answered", "unreadable"):  # a rate is then defined before the first image
            self._counters["images"].labels(outcome)

    def encoded(self, images: int, seconds: float) -> None:
        """Count a batch that was encoded."""
        self._histograms["encode_duration_seconds"].observe(seconds)
        self._histograms["batch_size"].observe(images)

    def unreadable(self) -> None:
        """Count an image that cannot be read."""
        self._counters["images"].labels("unreadable").inc()

    def answered(self, predictions: Sequence[Prediction], labels: int) -> None:
        """Count images that were classified into one of so many labels."""
        self._counters["images"].labels("answered").inc(len(predictions))
        for prediction in predictions:
            self._histograms["prediction_entropy_ratio"].observe(prediction.entropy / log(labels))

    def adapted(self, predictions: Sequence[Prediction], replaced: int, seconds: float) -> None:
        """Count what a request did to its stream: changed or unsure answers, images not learnt, entries replaced."""
        expected = (None, NearDuplicates.reason, Rejector.reason)
        counts = {
            "changed_predictions": sum(prediction.changed for prediction in predictions),
            "foreign_images": sum(prediction.label == NONE for prediction in predictions),
            "unsure_predictions": sum(prediction.unsure for prediction in predictions),
            "near_duplicates": sum(prediction.refused == NearDuplicates.reason for prediction in predictions),
            "refusals": sum(prediction.refused not in expected for prediction in predictions),
            "cache_replacements": replaced,
        }
        for name, count in counts.items():
            self._counters[name].inc(count)
        self._histograms["adapt_duration_seconds"].observe(seconds)

    def requested(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._histograms["request_duration_seconds"].labels(method, route, str(status)).observe(seconds)

    def text(self, entries: Mapping[str, int], corrections: int, degraded: int) -> bytes:
        """Return all metrics in Prometheus' text format.

        Args:
            entries: number of entries per kind of cache.
            corrections: number of corrections.
            degraded: number of streams that cannot be written to the disk.
        """
        gauges = CollectorRegistry()
        Gauge(
            "acclimate_degraded_streams",
            "Streams that answer, but whose state cannot be written to the disk.",
            registry=gauges,
        ).set(degraded)
        Gauge("acclimate_corrections", "Corrections in all streams.", registry=gauges).set(corrections)
        cached = Gauge("acclimate_cache_entries", "Entries in the caches of all streams.", ["kind"], registry=gauges)
        for kind, count in sorted(entries.items()):
            cached.labels(kind).set(count)
        return generate_latest(self._registry) + generate_latest(gauges)
