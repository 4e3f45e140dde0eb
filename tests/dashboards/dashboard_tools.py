"""Reading a dashboard's JSON: its panels, its queries, and what a query selects."""

import json
from dataclasses import dataclass
from pathlib import Path

import promql_parser

from sidecar.export.metrics import METRICS

ROOT = Path(__file__).parents[2]
# By uid.
PAGES = {path.stem: json.loads(path.read_text()) for path in (ROOT / "dashboards").glob("*.json")}
RATE_INTERVAL = 4321  # seconds; nothing else in a query lasts as long
RATES = {"rate", "irate", "increase"}


CONTRACT = {  # by every name that a series can have
    metric.name + suffix: metric
    for metric in METRICS
    for suffix in (("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",))
}


@dataclass(frozen=True)
class Query:
    """One query of a panel."""

    panel: str
    expr: str
    legend: str
    instant: bool


@dataclass(frozen=True)
class Selector:
    """One selector of a query.

    ``seconds`` is how far it reaches back, and ``call`` the function around it.
    """

    name: str
    matchers: frozenset
    call: str | None
    seconds: float | None


def panels(page, *, rows=False):
    """All panels, those inside collapsed rows too."""
    for panel in page["panels"]:
        if panel["type"] != "row" or rows:
            yield panel
        yield from panel.get("panels", ())


def queries(page):
    for panel in panels(page):
        for target in panel.get("targets", ()):
            legend = target.get("legendFormat", "")
            yield Query(panel["title"], target["expr"], legend, target["instant"])


def annotations(page):
    return [annotation["expr"] for annotation in page["annotations"]["list"]]


def selectors(expr):
    """Every selector of a query, whose variables that stand for durations are durations.

    Raises:
        ValueError: it is not PromQL.
    """
    expr = expr.replace("$__rate_interval", f"{RATE_INTERVAL}s").replace("$past", "1d")
    expr = expr.replace("$__interval", "30s")
    selections, ranges = [], []
    call = None  # the last one that was entered: a range is an argument of a call

    def enter(node):
        nonlocal call
        if isinstance(node, promql_parser.Call):
            call = node.func.name
        elif isinstance(node, promql_parser.MatrixSelector):
            ranges.append(node.range.total_seconds())
        elif isinstance(node, promql_parser.VectorSelector):
            matchers = frozenset(
                (each.name, each.op == promql_parser.MatchOp.Re, each.value)
                for each in node.matchers.matchers
            )
            ranged = ranges.pop() if ranges else None
            selections.append(Selector(node.name, matchers, call if ranged else None, ranged))
        return True

    promql_parser.walk(promql_parser.parse(expr), enter)
    return selections


def filled_in(expr, **values):
    """The query as Grafana would send it; what is not in ``values`` is 'All'."""
    for name in ("job", "instance", "model_name", "temperature"):
        expr = expr.replace(f"${name}", values.get(name, ".+"))
    for name in ("cluster", "namespace", "pod"):
        expr = expr.replace(f"${name}", values.get(name, ".*"))
    expr = expr.replace("$__rate_interval", "20s").replace("$past", "5s")
    return expr.replace("$__interval", "30s")
