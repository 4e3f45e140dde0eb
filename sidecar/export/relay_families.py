"""The proxy's own counts as samples."""

from typing import TYPE_CHECKING

from sidecar.export import metrics
from sidecar.export.families import Families

if TYPE_CHECKING:  # what it imports would cost memory where there is no proxy
    from sidecar.requests.proxy.stats import RelayStats


def add_relay(families: Families, stats: "RelayStats") -> None:
    """Adds what the proxy counts."""
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
