"""The same families as prometheus_client's metrics: for OpenMetrics, and as the reference for the text page."""

from collections.abc import Iterable, Iterator

from prometheus_client import ProcessCollector
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from sidecar.export import metrics
from sidecar.export.families import Family
from sidecar.export.text import go_float


class MetricCollector(Collector):
    """Passes ready metrics to prometheus_client's encoders."""

    def __init__(self, found: Iterable[Metric]) -> None:
        self._metrics = list(found)

    def collect(self) -> Iterator[Metric]:
        """The metrics."""
        return iter(self._metrics)


class FamilyCollector(MetricCollector):
    """The same for families."""

    def __init__(self, families: Iterable[Family]) -> None:
        super().__init__(map(_metric, families))


def process_families(collector: ProcessCollector) -> list[Family]:
    """``process_*``: what the kernel reports about this process; empty if nothing."""
    return [_family(metric) for metric in collector.collect()]


def _family(metric: Metric) -> Family:
    kind = metrics.Kind(metric.type)
    name = metric.name + ("_total" if kind is metrics.Kind.COUNTER else "")
    values = [sample.value for sample in metric.samples if sample.name == name]
    return Family(metrics.Metric(name, kind, metric.documentation), (), [() for _ in values], values)


def _metric(family: Family) -> Metric:
    metric = family.metric
    if family.edges:
        return _histogram(family)
    converted = Metric(metric.name.removesuffix("_total"), metric.help, metric.kind)
    for labels, value in zip(family.labels, family.values, strict=True):
        converted.add_sample(metric.name, dict(zip(family.label_names, labels, strict=True)), value)
    return converted


def _histogram(family: Family) -> HistogramMetricFamily:
    converted = HistogramMetricFamily(family.metric.name, family.metric.help, labels=family.label_names)
    edges = [go_float(edge) for edge in (*family.edges, float("inf"))]
    row = len(edges) + 2
    for index, labels in enumerate(family.labels):
        values = family.values[index * row : (index + 1) * row]
        converted.add_metric(labels, list(zip(edges, values, strict=False)), values[-1])
    return converted
