"""The proxy's counters as samples."""

from typing import TYPE_CHECKING

from sidecar.export import metrics
from sidecar.export.families import Families

if TYPE_CHECKING:  # its imports cost memory, and few sidecars need them
    from sidecar.requests.proxy.outcomes import ProxyStats


def add_proxy(families: Families, stats: "ProxyStats") -> None:
    """Adds the proxy's counters."""
    for outcome, count in stats.outcomes.items():
        families.add(metrics.PROXY_EXCHANGES, count, outcome)
    for reason, count in stats.refused.items():
        families.add(metrics.PROXY_REFUSED, count, reason)
    for kind, count in stats.upstream_errors.items():
        families.add(metrics.PROXY_UPSTREAM_ERRORS, count, kind)
    families.add(metrics.PROXY_RETRIES, stats.retries)
    families.add(metrics.PROXY_OBSERVER_FAILURES, stats.observer_failures)
    families.add(metrics.PROXY_CONNECTIONS, stats.client_connections, "client")
    families.add(metrics.PROXY_CONNECTIONS, stats.upstream_connections, "upstream")
