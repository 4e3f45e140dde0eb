"""``python -m sidecar.export.reference``: every exported metric as a Markdown table (``docs/metrics.md``)."""

import sys

from sidecar.analysis.limitation import EXPLANATIONS, Limitation
from sidecar.export import metrics
from sidecar.export.explained import DROPS, LIMITATION_CURES
from sidecar.export.metrics import Metric

_HEAD = """# Metrics

Made from `sidecar/export/metrics.py` by `make docs`. Ratios are 0 to 1, times seconds. With `targets` set, every series
also has the label `target`. The `process_*` metrics of the sidecar's own process come on top.

| metric | type | labels | meaning |
|---|---|---|---|
"""

_DROPS = """
## Why request events are dropped

The label `reason` of `specdec_request_events_dropped_total`. Nothing here has touched the traffic. A refused export of
traces counts as one, whatever was in it.

| source | reason | what happened | what to do |
|---|---|---|---|
"""

_LIMITATIONS = """
## What can't be known of an engine

The label `limitation` of `specdec_engine_limitation`.

| limitation | what it means | what ends it |
|---|---|---|
"""


def all_metrics() -> list[Metric]:
    """Every metric of the contract, in the order of the code."""
    return [value for value in vars(metrics).values() if isinstance(value, Metric)]


def metrics_reference() -> str:
    """The page: a line for every metric, and for every reason and limitation that a label names."""
    of_metrics = [
        f"| `{metric.name}` | {metric.kind} | {', '.join(metric.labels) or 'none'} | {metric.help} |"
        for metric in all_metrics()
    ]
    of_drops = [f"| {', '.join(drop.sources)} | `{drop.reason}` | {drop.meaning} | {drop.cure} |" for drop in DROPS]
    of_limitations = [f"| `{one}` | {EXPLANATIONS[one]} | {LIMITATION_CURES[one]} |" for one in Limitation]
    parts = ((_HEAD, of_metrics), (_DROPS, of_drops), (_LIMITATIONS, of_limitations))
    return "".join(head + "\n".join(rows) + "\n" for head, rows in parts)


if __name__ == "__main__":
    sys.stdout.write(metrics_reference())
