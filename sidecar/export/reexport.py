"""vLLM's own series on our page: an option for sites whose Prometheus cannot reach vLLM itself."""

from collections.abc import Iterable, Iterator

from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from sidecar.engine.names import PREFIXES


class Families(Collector):
    """Passes ready families to prometheus_client's encoders."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterator[Metric]:
        """The families."""
        return iter(self._families)


def own_series(page: bytes, limit: int) -> bytes:
    """The text format of vLLM's own families on its page.

    ``limit`` bounds the series; a family is exported completely or not at all. Takes some 15 ms for the page of one
    engine.
    """
    found: list[Metric] = []
    series = 0
    for family in _families(page):
        if family.samples and series + len(family.samples) <= limit:
            series += len(family.samples)
            found.append(family)
    return generate_latest(Families(found))


def _families(page: bytes) -> list[Metric]:
    """The families of one page; none if prometheus_client cannot parse it.

    Creation times are left out: OpenMetrics would confuse their names with the counters' own.
    """
    try:
        families = list(text_string_to_metric_families(page.decode()))
    except (ValueError, KeyError, IndexError):
        return []
    return [family for family in families if family.name.startswith(PREFIXES) and not family.name.endswith("_created")]
