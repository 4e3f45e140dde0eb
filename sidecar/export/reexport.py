"""vLLM's own series on our page, as they are: an option for sites where Prometheus can't reach vLLM itself."""

from collections.abc import Iterable

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from sidecar.engine.names import PREFIXES


def own_series(pages: Iterable[bytes], limit: int) -> list[Metric]:
    """The families of vLLM on its own pages, at most ``limit`` series of them; a family is whole or left out.

    A family that several pages have is taken from the first: two servers' series would be the same. Times of creation
    are left out, since OpenMetrics takes their names for the counters' own. A page that prometheus_client can't read
    gives nothing.
    """
    found: dict[str, Metric] = {}
    series = 0
    for page in pages if limit else ():
        for family in _families(page):
            if family.name not in found and series + len(family.samples) <= limit:
                series += len(family.samples)
                found[family.name] = family
    return list(found.values())


def _families(page: bytes) -> list[Metric]:
    try:
        families = list(text_string_to_metric_families(page.decode()))
    except (ValueError, KeyError, IndexError):
        return []
    return [family for family in families if family.name.startswith(PREFIXES) and not family.name.endswith("_created")]
