"""The sidecar's ``/metrics`` page in the requested format."""

import gzip
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import ProcessCollector
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from sidecar.analysis.distributions import Distribution
from sidecar.export.declaration import ReportView
from sidecar.export.metrics import METRICS

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
        family = Family(metric.name.removesuffix("_total"), metric.help, metric.kind)
        for labels, value in metric.samples(shown):
            _add(family, metric.name, dict(zip(metric.labels, labels, strict=True)), value)
        if family.samples:
            yield family


def _add(family: Family, name: str, labels: dict[str, str], value: float | Distribution) -> None:
    if not isinstance(value, Distribution):
        family.add_sample(name, labels, value)
        return
    for edge, count in zip((*value.edges, math.inf), value.counts, strict=True):
        # prometheus_client leaves it untyped.
        le = floatToGoString(edge)  # type: ignore[no-untyped-call]
        family.add_sample(f"{name}_bucket", labels | {"le": le}, count)
    family.add_sample(f"{name}_count", labels, value.count)
    family.add_sample(f"{name}_sum", labels, value.sum)


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
