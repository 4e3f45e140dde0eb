"""Every metric that the sidecar exports, declared once.

A declaration has the name, type, help, labels, and where the value is. The metrics are a
contract with rules, dashboards and users (``docs/metrics.md``). Ratios are from 0 to 1, times in
seconds.
"""

from dataclasses import replace
from typing import Final

from sidecar.export.metrics import engine, own, requests

METRICS: Final = tuple(
    replace(metric, help=text)
    for metric, text in (*engine.METRICS.items(), *own.METRICS.items(), *requests.METRICS.items())
)
"""All metrics, in the order of ``/metrics``."""

# Per pod with the default limits; tests/export/test_metrics.py fills each limit.
MOST_SERIES: Final = 1500
