"""What Prometheus reads. No stream, label or client is ever named: their number has no bound."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import log
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, Info, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from acclimate import __version__
from acclimate.errors import ImageError
from acclimate.serve.events import Events

if TYPE_CHECKING:
    from acclimate.serve.stream import Answered

SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
RATIOS = tuple(tenth / 10 for tenth in range(1, 11))


class Metrics(Events):
    """Counters and histograms of one service."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._images = Counter("acclimate_images_total", "Images received.", ["outcome"], registry=registry)
        self._requests = Histogram(
            "acclimate_request_duration_seconds",
            "Time to answer a request.",
            ["method", "route", "status"],
            buckets=SECONDS,
            registry=registry,
        )
        self._encoding = Histogram(
            "acclimate_encode_duration_seconds", "Time to encode a batch.", buckets=SECONDS, registry=registry
        )
        self._adapting = Histogram(
            "acclimate_adapt_duration_seconds", "Time to adapt to a request.", buckets=SECONDS, registry=registry
        )
        self._batches = Histogram("acclimate_batch_size", "Images encoded at once.", buckets=SIZES, registry=registry)
        self._replacements = Counter(
            "acclimate_cache_replacements_total", "Cache entries replaced by better ones.", registry=registry
        )
        self._entropies = Histogram(
            "acclimate_prediction_entropy_ratio",
            "Entropy of the zero-shot answer: 0 is certain, 1 as uncertain as can be.",
            buckets=RATIOS,
            registry=registry,
        )
        self._changed = Counter(
            "acclimate_changed_predictions_total", "Answers that adapting changed.", registry=registry
        )
        self._refused = Counter(
            "acclimate_refusals_total", "Images not learnt from because of a guard or the disk.", registry=registry
        )
        Info("acclimate_build", "The running version.", registry=registry).info({"version": __version__})
        # so that a rate can be taken before the first one
        for outcome in ("answered", "unreadable"):
            self._images.labels(outcome)

    def encoded(self, images: int, seconds: float) -> None:
        """A batch went through the encoder."""
        self._encoding.observe(seconds)
        self._batches.observe(images)

    def adapted(self, answers: Sequence["Answered"], replaced: int, seconds: float) -> None:
        """A request of a stream was adapted to."""
        self._adapting.observe(seconds)
        self._replacements.inc(replaced)
        self._changed.inc(sum(each.prediction.changed for each in answers))
        self._refused.inc(sum(each.refused is not None for each in answers))

    def answered(self, entropies: Sequence[float], labels: int) -> None:
        """Images were classified into so many labels; entropies of the zero-shot answers in nats."""
        self._images.labels("answered").inc(len(entropies))
        for entropy in entropies:
            self._entropies.observe(entropy / log(labels))

    @contextmanager
    def count_unreadable(self) -> Iterator[None]:
        """Count the image that cannot be read and fails a request."""
        try:
            yield
        except ImageError:
            self._images.labels("unreadable").inc()
            raise

    def requested(self, method: str, route: str, status: int, seconds: float) -> None:
        """A request was answered."""
        self._requests.labels(method, route, str(status)).observe(seconds)

    def count_entries(self, count: Callable[[], Mapping[str, int]]) -> None:
        """Have the cache entries of all streams counted, by cache, whenever the metrics are read."""
        self.registry.register(CacheEntries(count))

    def text(self) -> bytes:
        """All of it in Prometheus' format."""
        return generate_latest(self.registry)


class CacheEntries(Collector):
    """`acclimate_cache_entries`, counted when it is asked for."""

    def __init__(self, count: Callable[[], Mapping[str, int]]) -> None:
        self.count = count

    def collect(self) -> Iterator[Metric]:
        """The gauge."""
        family = GaugeMetricFamily("acclimate_cache_entries", "Entries in the caches of all streams.", labels=["kind"])
        for kind, entries in sorted(self.count().items()):
            family.add_metric([kind], entries)
        yield family
