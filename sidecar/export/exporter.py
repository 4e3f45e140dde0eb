"""The sidecar's ``/metrics`` page in the requested format."""

import gzip
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from prometheus_client import ProcessCollector
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from sidecar.analysis.distributions import Distribution
from sidecar.export.declaration import Kind, ReportView
from sidecar.export.metrics import METRICS

_FAMILIES: Final[Mapping[Kind, type[Any]]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}
GZIP_LEVEL: Final = 1  # half the uncompressed size at a fifth of the default level's time


class Families(Collector):
    """Passes ready-made families to prometheus_client's encoders."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = list(families)

    def collect(self) -> Iterator[Family]:
        """The families."""
        return iter(self._families)


def families(shown: ReportView) -> Iterator[Family]:
    """Every metric that has a sample."""
    for metric in METRICS:
        family = _FAMILIES[metric.kind](metric.name, metric.help, labels=metric.labels)
        for labels, value in metric.samples(shown):
            if isinstance(value, Distribution):
                family.add_metric(labels, _buckets(value), value.sum)
            else:
                family.add_metric(labels, value)
        if family.samples:
            yield family


def _buckets(distribution: Distribution) -> list[tuple[str, int]]:
    """Each bucket's ``le`` and count."""
    edges = (*distribution.edges, math.inf)
    # prometheus_client leaves the function untyped.
    names = (floatToGoString(edge) for edge in edges)  # type: ignore[no-untyped-call]
    return list(zip(names, distribution.counts, strict=True))


@dataclass(frozen=True, slots=True)
class Format:
    """What a client accepts; there are only a few different ones."""

    content_type: str
    gzip: bool
    encode: Callable[[Collector], bytes] = field(compare=False)

    @property
    def headers(self) -> dict[str, str]:
        """The response headers for a page in this format."""
        headers = {"Content-Type": self.content_type, "Vary": "Accept, Accept-Encoding"}
        return headers | {"Content-Encoding": "gzip"} if self.gzip else headers


def chosen(accept: str, accept_encoding: str) -> Format:
    """The format for a request's ``Accept`` and ``Accept-Encoding``."""
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # a version that is not a number
        encode, content_type = choose_encoder("")
    return Format(content_type, gzip_accepted(accept_encoding), encode)


def rendered(shown: ReportView, form: Format) -> bytes:
    """The page, including the metrics of the sidecar's own process; not compressed."""
    process = ProcessCollector(registry=None).collect()
    return form.encode(Families([*families(shown), *process]))


def compressed(shown: ReportView, form: Format) -> bytes:
    """The page as it is sent."""
    body = rendered(shown, form)
    return gzip.compress(body, GZIP_LEVEL) if form.gzip else body
