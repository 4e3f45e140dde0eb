"""``python -m sidecar.export.reference FILE``: updates the first part of ``docs/metrics.md`` from the code."""

import sys
from pathlib import Path
from typing import Final

from sidecar.analysis.limitation import EXPLANATIONS
from sidecar.export import metrics
from sidecar.export.metrics import MOST_SERIES, Metric

_HEAD: Final = f"""# Metrics

`make docs` generates the tables of metrics and limitations from `sidecar/export/metrics.py` and
`sidecar/analysis/limitation.py`. Ratios are from 0 to 1, times in seconds. With `targets` set, every series also has
the label `target`. The `process_*` metrics of the sidecar's own process are exported too. With the default `limits`
each vLLM has at most {MOST_SERIES:,} series; values past a limit are summed under the label value `other` and counted
in `specdec_label_overflow_total`.

| metric | type | labels | meaning |
|---|---|---|---|
"""

_LIMITATIONS: Final = """
## Limitations of an engine's page

These are the values of the label `limitation` of `specdec_engine_limitation`.

| limitation | what it means and how to end it |
|---|---|
"""

_BY_HAND: Final = "\n## Why request events are dropped\n"  # the rest of the page is written by hand


def all_metrics() -> list[Metric]:
    """Every metric of the contract, in the order of the code."""
    return [value for value in vars(metrics).values() if isinstance(value, Metric)]


def metrics_reference(page: str) -> str:
    """``page`` with updated tables and an unchanged part written by hand.

    Raises:
        ValueError: the part written by hand is missing.
    """
    by_hand = page[page.index(_BY_HAND) :]
    of_metrics = [
        f"| `{metric.name}` | {metric.kind} | {', '.join(metric.labels) or 'none'} | {metric.help} |\n"
        for metric in all_metrics()
    ]
    of_limitations = [f"| `{limitation}` | {text} |\n" for limitation, text in EXPLANATIONS.items()]
    return "".join([_HEAD, *of_metrics, _LIMITATIONS, *of_limitations, by_hand])


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(metrics_reference(path.read_text()))
