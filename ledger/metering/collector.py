"""What a process shows of itself, for prometheus-client; imported only when it is asked for."""

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import (
    Metric as Family,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from ledger.metering.declaration import Buckets, Exposed, Metric, MetricKind, Value

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


class ExposedCollector(Collector):
    """Register it with a registry of prometheus-client."""

    def __init__(self, exposed: Exposed) -> None:
        self._exposed = exposed

    def collect(self) -> Iterator[Family]:
        for metric, value in self._exposed.read():
            yield _family(metric, value)


def page_of(exposed: Exposed) -> "Page":
    """Return what makes the page of one process: *exposed*, and what the system says of it."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    registry.register(ExposedCollector(exposed))
    return Page(registry)


class Page:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def render(self) -> bytes:
        return generate_latest(self._registry)


def _family(metric: Metric[Any], value: Value) -> Family:
    if metric.kind is MetricKind.HISTOGRAM:
        assert isinstance(value, Buckets), metric.name
        histogram = HistogramMetricFamily(metric.name, metric.says, labels=metric.labels)
        counted, buckets = 0, []
        for bound, count in zip((*map(str, value.bounds), "+Inf"), list(value.counts), strict=True):
            counted += count
            buckets.append((bound, counted))
        histogram.add_metric((), buckets, value.total)
        return histogram
    of = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
    family = of(metric.name, metric.says, labels=metric.labels)
    if isinstance(value, Mapping):
        for labels, number in list(value.items()):
            family.add_metric((labels,) if isinstance(labels, str) else labels, number)
    elif value is not None:
        assert not isinstance(value, Buckets), metric.name
        family.add_metric((), value)
    return family
