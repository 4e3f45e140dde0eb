"""The runbook's remedy for dead proxies: bypass them without a restart."""

from tests.deploy.deploy_tools import KUBERNETES, ROOT
from tests.deploy.kustomize_tools import build


def objects(overlay):
    return {one["kind"]: one for one in build(KUBERNETES / "overlays" / overlay)}


def test_the_bypass_leaves_the_pods_as_they_are():
    before, after = objects("proxy"), objects("bypass")
    assert set(before) == set(after)
    assert {kind for kind in before if before[kind] != after[kind]} == {"NetworkPolicy", "Service"}


def test_clients_reach_vllm_where_it_listens_though_the_pod_is_not_ready():
    after = objects("bypass")
    (vllm,) = after["Deployment"]["spec"]["template"]["spec"]["containers"]
    (port,) = (one["containerPort"] for one in vllm["ports"] if one["name"] == "http")
    assert not [one for one in vllm["args"] if one.startswith("--host")]  # all addresses
    assert f"--port={port}" in vllm["args"] or port == 8000
    assert [one["targetPort"] for one in after["Service"]["spec"]["ports"]] == ["http"]
    assert after["Service"]["spec"]["publishNotReadyAddresses"] is True
    assert {"port": "http"} in after["NetworkPolicy"]["spec"]["ingress"][0]["ports"]


def test_the_runbook_names_it():
    assert (
        "kubectl apply -k deploy/kubernetes/overlays/bypass"
        in (ROOT / "alerts" / "runbooks" / "SpecDecodeProxyDown.md").read_text()
    )
