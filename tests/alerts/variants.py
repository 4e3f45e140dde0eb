"""The same pods as other sites scrape them: by what labels a pod has here, those of each scrape of it."""


def _bare(labels):
    return [{name: value for name, value in labels.items() if name != "namespace"}]


def _kubernetes(labels):
    """Every pod's instance is its node's, and two Prometheus replicas are read without deduplication."""
    pod = {"cluster": "eu", "instance": "node-1:9911", "pod": labels["instance"].partition(":")[0]}
    return [labels | pod | {"replica": replica} for replica in "ab"]


def _federated(labels):
    """Through another Prometheus, without ``honor_labels``."""
    own = {"exported_job": labels["job"], "exported_instance": labels["instance"]}
    return [labels | own | {"job": "federate", "instance": "prometheus:9090"}]


LABELS = {"without a namespace": _bare, "node, pod and replica": _kubernetes, "federated": _federated}
