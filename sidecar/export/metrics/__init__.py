"""Every metric that the sidecar exports, declared once: name, type, help, labels and where its
value is.

They are a contract with rules, dashboards and users (``docs/metrics.md``). Ratios are from 0 to 1,
times in seconds.
"""

from dataclasses import replace
from typing import Final

from sidecar.export.metrics import engine, own, requests

METRICS: Final = tuple(
    replace(metric, help=text)
    for metric, text in (*engine.METRICS.items(), *own.METRICS.items(), *requests.METRICS.items())
)
"""All metrics, in the order of ``/metrics``."""

MOST_SERIES: Final = (
    1500  # per pod with the default limits; tests/export/test_metrics.py fills each limit
)
