"""The same pods as other sites scrape them: by what labels a pod has here, those of each scrape of it."""


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
