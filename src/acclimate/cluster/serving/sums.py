"""The metrics of many processes as those of one service: counters and histograms are added up."""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

Families = list[Metric]


def parse(text: bytes) -> Families:
    """Return the metrics in Prometheus' text format."""
    return list(text_string_to_metric_families(text.decode()))


class _Sums(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._sums: dict[str, Metric] = {}
        values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
        for family in families:
            self._sums.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            sums = values.setdefault(family.name, {})
            for sample in family.samples:
                key = (sample.name, tuple(sorted(sample.labels.items())))
                if sample.name.endswith("_created"):
                    sums[key] = min(sums.get(key, sample.value), sample.value)
                elif sample.name.endswith("_info"):
                    sums[key] = sample.value
                else:
                    sums[key] = sums.get(key, 0.0) + sample.value
        for name, family in self._sums.items():
            for (kind, labels), value in values[name].items():
                family.add_sample(kind, dict(labels), value)

    def collect(self) -> Iterator[Metric]:
        yield from self._sums.values()


def add_up(families: Iterable[Metric]) -> bytes:
    r"""Add up the metrics of many processes, in Prometheus' text format.

    Examples:
        >>> one = b"# TYPE images counter\nimages_total 2.0\n"
        >>> add_up([*parse(one), *parse(one)]).decode().splitlines()[-1]
        'images_total 4.0'
    """
    registry = CollectorRegistry()
    registry.register(_Sums(families))
    return generate_latest(registry)
