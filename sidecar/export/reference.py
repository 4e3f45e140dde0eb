"""``python -m sidecar.export.reference``: every exported metric as a Markdown table (``docs/metrics.md``)."""

import sys

from sidecar.export import metrics
from sidecar.export.metrics import Metric

_HEAD = """# Metrics

Made from `sidecar/export/metrics.py` by `make docs`. Ratios are 0 to 1, times seconds. With `targets` set, every series
also has the label `target`. The `process_*` metrics of the sidecar's own process come on top.

| metric | type | labels | meaning |
|---|---|---|---|
"""


def all_metrics() -> list[Metric]:
    """Every metric of the contract, in the order of the code."""
    return [value for value in vars(metrics).values() if isinstance(value, Metric)]


def metrics_reference() -> str:
    """The table, with a line for every metric."""
    rows = [
        f"| `{metric.name}` | {metric.kind} | {', '.join(metric.labels) or 'none'} | {metric.help} |"
        for metric in all_metrics()
    ]
    return _HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(metrics_reference())
