"""The same families as prometheus_client's metrics: the reference for the text page, and every other format."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import ProcessCollector
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from sidecar.export.families import Family, is_histogram
from sidecar.export.metrics import Kind
from sidecar.export.metrics import Metric as OwnMetric
from sidecar.export.number import go_float


class FamilyCollector(Collector):
    """Hands families to prometheus_client's encoders. Collecting has no side effects."""

    def __init__(self, families: Callable[[], Iterable[Family]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """The families of this moment."""
        return map(client_metric, self._families())


def client_metric(family: Family) -> Metric:
    """One family in prometheus_client's form."""
    metric = family.metric
    if is_histogram(family):
        return _histogram(family)
    converted = Metric(metric.name.removesuffix("_total"), metric.help, metric.kind)
    for labels, value in zip(family.labels, family.values, strict=True):
        converted.add_sample(metric.name, dict(zip(family.label_names, labels, strict=True)), value)
    return converted


def process_families(collector: ProcessCollector) -> list[Family]:
    """``process_*``: what the kernel says of this process; empty where it says nothing."""
    return [_family(metric) for metric in collector.collect()]


def _family(metric: Metric) -> Family:
    kind = Kind(metric.type)
    name = metric.name + ("_total" if kind is Kind.COUNTER else "")
    samples = [sample for sample in metric.samples if sample.name == name]
    return Family(OwnMetric(name, kind, metric.documentation), (), [() for _ in samples], [s.value for s in samples])


def _histogram(family: Family) -> HistogramMetricFamily:
    converted = HistogramMetricFamily(family.metric.name, family.metric.help, labels=family.label_names)
    edges = [go_float(edge) for edge in (*family.edges, float("inf"))]
    row = len(edges) + 2
    for index, labels in enumerate(family.labels):
        values = family.values[index * row : (index + 1) * row]
        converted.add_metric(labels, list(zip(edges, values, strict=False)), values[-1])
    return converted
