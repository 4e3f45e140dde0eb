"""The same scene as on other sites: at another scrape interval, or with other labels."""

import re

from tests.alerts.pods import DASHBOARDS
from tests.alerts.scene import variables

_PHASE = re.compile(r"(?P<start>[\d.]+(?:e[+-]?\d+)?)(?:\+(?P<step>[\d.]+(?:e[+-]?\d+)?))?x(?P<times>\d+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_COUNTER = re.compile(r"_(total|bucket|count)$")


def minutes(text):
    """The samples that promtool's notation stands for; None for none, "stale" as it is."""
    for part in text.split():
        if part.startswith("_"):
            yield from [None] * int(part[2:] or 1)
        elif found := _PHASE.fullmatch(part):
            start, step = float(found["start"]), float(found["step"] or 0)
            yield from (start + step * index for index in range(int(found["times"]) + 1))
        else:
            yield part if part == "stale" else float(part)


def resampled(text, seconds, *, counter):
    """Converts one sample per minute to one every ``seconds``; a counter grows evenly in between."""
    found = list(minutes(text))
    for index in range((len(found) - 1) * 60 // seconds + 1):
        minute, rest = divmod(index * seconds, 60)
        value = found[minute]
        following = found[minute + 1] if minute + 1 < len(found) else None
        if counter and rest and isinstance(value, float) and isinstance(following, float) and following > value:
            value += (following - value) * rest / 60
        yield "_" if value is None else value if value == "stale" else f"{value:.12g}"


def at_interval(test, seconds):
    """A promtool test whose series are scraped every ``seconds``."""
    series = [
        one
        | {"values": " ".join(resampled(one["values"], seconds, counter=_COUNTER.search(one["series"].split("{")[0])))}
        for one in test["input_series"]
    ]
    return test | {"interval": f"{seconds}s", "input_series": series}


def with_labels(test, relabelled):
    """A promtool test with other labels; ``relabelled`` gives the label sets that replace one."""
    series = [
        one | {"series": f"{name}{{{_written(labels)}}}"}
        for one in test["input_series"]
        for name, _, text in [one["series"].partition("{")]
        for labels in relabelled(dict(_LABEL.findall(text)))
    ]
    alerts = [
        check | {"exp_alerts": [other for one in check["exp_alerts"] for other in _expected(one, relabelled)]}
        for check in test["alert_rule_test"]
    ]
    return test | {"input_series": series, "alert_rule_test": alerts}


def _expected(alert, relabelled):
    rule = {name: alert["exp_labels"][name] for name in ("severity", "scope")}
    before = {name: value for name, value in alert["exp_labels"].items() if name not in rule}
    for labels in relabelled(before):
        annotations = alert["exp_annotations"] | {
            "dashboard_url": f"{DASHBOARDS}/d/specdec-operator?from=now-6h&to=now{variables(labels)}"
        }
        annotations["description"] = annotations["description"].replace(before["instance"], labels["instance"])
        yield {"exp_labels": labels | rule, "exp_annotations": annotations}


def _written(labels):
    return ",".join(f'{name}="{value}"' for name, value in labels.items())


def _bare(labels):
    return [{name: value for name, value in labels.items() if name != "namespace"}]


def _cluster(labels):
    return [labels | {"cluster": "eu", "pod": labels["instance"].partition(":")[0]}]


def _node(labels):
    """Every pod's instance is its node's."""
    return [labels | {"instance": "node-1:9911", "pod": labels["instance"].partition(":")[0]}]


def _replicas(labels):
    """Two Prometheus replicas, read without deduplication."""
    return [labels | {"replica": replica} for replica in "ab"]


def _other_cluster_label(labels):
    """Two clusters with the same addresses, distinguished by a label that no rule knows."""
    return [labels | {"k8s_cluster": cluster} for cluster in ("east", "west")]


def _federated(labels):
    """Through another Prometheus, without ``honor_labels``."""
    own = {"exported_job": labels["job"], "exported_instance": labels["instance"]}
    return [labels | own | {"job": "federate", "instance": "prometheus:9090"}]


LABELS = {
    "without a namespace": _bare,
    "cluster and pod": _cluster,
    "the node as instance": _node,
    "two replicas": _replicas,
    "another name for the cluster": _other_cluster_label,
    "federated": _federated,
}
