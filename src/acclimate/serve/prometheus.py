"""Prometheus metrics. Streams, labels and clients never become labels of a metric: their number has no bound."""

from collections import Counter as Counts
from collections.abc import Callable, Mapping, Sequence
from math import log
from threading import Lock

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest

from acclimate import __version__
from acclimate.methods.gates import NearDuplicates, Rejector
from acclimate.predict import NONE, Prediction

SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
RATIOS = tuple(tenth / 10 for tenth in range(1, 11))


class Metrics:
    """Counters and histograms of one service; every method may be called from any thread."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._lock = Lock()
        self._images = self._counter("images_total", "Images received.", "outcome")
        self._changed = self._counter("changed_predictions_total", "Predictions changed by adaptation.")
        self._unsure = self._counter("unsure_predictions_total", "Predictions with a score below the threshold.")
        self._foreign = self._counter("foreign_images_total", "Images that belong to no label.")
        about = "Images not learnt because they are nearly the same as one before."
        self._duplicates = self._counter("near_duplicates_total", about)
        self._refused = self._counter("refusals_total", "Images not learnt because of a guard or the disk.")
        self._replaced = self._counter("cache_replacements_total", "Cache entries replaced by better ones.")
        about = "Entropy of the zero-shot prediction relative to its maximum, from 0 (certain) to 1."
        self._entropies = self._histogram("prediction_entropy_ratio", about, RATIOS)
        self._batches = self._histogram("batch_size", "Images encoded per batch, counting views.", SIZES)
        self._encoding = self._histogram("encode_duration_seconds", "Time to encode a batch.", SECONDS)
        self._adapting = self._histogram("adapt_duration_seconds", "Time to adapt to the images of a request.", SECONDS)
        about = "Time to answer a request."
        self._requests = self._histogram("request_duration_seconds", about, SECONDS, "method", "route", "status")
        about = "Entries in the caches of all streams."
        self._entries = Gauge("acclimate_cache_entries", about, ["kind"], registry=self._registry)
        about = "Corrections in all streams."
        self._corrections = Gauge("acclimate_corrections", about, registry=self._registry)
        Info("acclimate_build", "The running version.", registry=self._registry).info({"version": __version__})
        for outcome in ("answered", "unreadable"):  # a rate is then defined before the first image
            self._images.labels(outcome)

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(f"acclimate_{name}", about, labels, registry=self._registry)

    def _histogram(self, name: str, about: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(f"acclimate_{name}", about, labels, buckets=buckets, registry=self._registry)

    def watch_degraded(self, count: Callable[[], int]) -> None:
        """Ask for the number of streams that cannot be written whenever metrics are read."""
        about = "Streams that answer, but whose state cannot be written to the disk."
        Gauge("acclimate_degraded_streams", about, registry=self._registry).set_function(count)

    def encoded(self, images: int, seconds: float) -> None:
        """Count a batch that was encoded."""
        self._encoding.observe(seconds)
        self._batches.observe(images)

    def unreadable(self) -> None:
        """Count an image that cannot be read."""
        self._images.labels("unreadable").inc()

    def answered(self, predictions: Sequence[Prediction], labels: int) -> None:
        """Count images that were classified into one of so many labels."""
        self._images.labels("answered").inc(len(predictions))
        for prediction in predictions:
            self._entropies.observe(prediction.entropy / log(labels))

    def adapted(self, predictions: Sequence[Prediction], replaced: int, seconds: float) -> None:
        """Count what a request did to its stream: changed or unsure answers, images not learnt, entries replaced."""
        self._changed.inc(sum(prediction.changed for prediction in predictions))
        self._foreign.inc(sum(prediction.label == NONE for prediction in predictions))
        self._unsure.inc(sum(prediction.unsure for prediction in predictions))
        reasons = [prediction.refused for prediction in predictions if prediction.refused is not None]
        expected = Counts(reasons)
        self._duplicates.inc(expected.pop(NearDuplicates.reason, 0))
        expected.pop(Rejector.reason, None)
        self._refused.inc(expected.total())
        self._replaced.inc(replaced)
        self._adapting.observe(seconds)

    def requested(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(method, route, str(status)).observe(seconds)

    def text(self, entries: Mapping[str, int], corrections: int) -> bytes:
        """Return all metrics in Prometheus' text format, with the number of entries per cache and of corrections."""
        with self._lock:
            self._corrections.set(corrections)
            self._entries.clear()
            for kind, count in sorted(entries.items()):
                self._entries.labels(kind).set(count)
            return generate_latest(self._registry)
