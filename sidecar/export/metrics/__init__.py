"""Every metric that the sidecar exports, declared once.

A declaration has the name, help and labels, in the order of prometheus_client, and the expression
that reads the value. The metrics are a contract with rules, dashboards and users
(``docs/metrics.md``). Ratios are from 0 to 1, times in seconds.
"""

from typing import Final

from sidecar.export.metrics import engine, own, requests

METRICS: Final = (*engine.METRICS, *own.METRICS, *requests.METRICS)
"""All metrics, in the order of ``/metrics``."""
