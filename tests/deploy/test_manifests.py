"""The manifests: Kubernetes accepts them.

What must hold of a Pod with the plug-in holds of each.
"""

import pytest

from tests.deploy import pod_checks
from tests.deploy.deploy_tools import (
    build,
    check_object,
    dynamo_pods,
    main_container,
    option,
    plugin_pods,
    pod_object,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("folder", ["base", "overlays/plugin", "monitoring"])
def test_kubernetes_knows_every_object(folder):
    for obj in build(folder):
        check_object(obj)


@pytest.mark.parametrize("name", ["overlay", "post-render", "llm-d", "kserve", "dynamo"])
def test_every_pod_with_the_plugin_is_safe_and_complete(name):
    """Whoever renders it: the overlay, a post-renderer, or an operator."""
    pod = plugin_pods()[name]
    check_object(pod_object(pod))
    pod_checks.check_pod(pod)


def test_clients_reach_vllm_and_prometheus_the_sidecar():
    """Selectors, ports and the network policy fit together."""
    objects = [*build("overlays/plugin"), *build("monitoring")]
    specs = {obj["kind"]: obj["spec"] for obj in objects if "spec" in obj}
    service, policy, deployment, monitor = (
        specs[kind] for kind in ("Service", "NetworkPolicy", "Deployment", "PodMonitor")
    )
    assert service["ports"] == [{"name": "http", "port": 80, "targetPort": "http"}]
    open_ports = [port["port"] for rule in policy["ingress"] for port in rule["ports"]]
    assert open_ports == ["http", 9911]
    pod_checks.nobody_names_the_port_of_a_native_sidecar(objects)
    labels = deployment["template"]["metadata"]["labels"].items()
    selectors = (
        service["selector"],
        policy["podSelector"]["matchLabels"],
        deployment["selector"]["matchLabels"],
    )
    assert all(selector.items() <= labels for selector in selectors)
    assert monitor["selector"] == {}
    assert monitor["podMetricsEndpoints"][0]["port"] == "specdec-metrics"


def test_a_pod_has_time_to_finish_its_requests():
    """Kubernetes' grace period is longer than the drain and vLLM's own shutdown."""
    pod = plugin_pods()["overlay"]
    engine = main_container(pod)
    wait = int(engine["lifecycle"]["preStop"]["exec"]["command"][1]) + int(
        option(engine["args"], "shutdown-timeout")
    )
    assert pod["terminationGracePeriodSeconds"] > wait


def test_the_sidecar_reads_the_port_that_llm_d_and_dynamo_give_vllm():
    pods = plugin_pods()
    # routing.proxy.targetPort of llm-d-modelservice 0.4.12, whose routing proxy has 8000; and
    # DynamoSystemPort of deploy/operator/internal/consts, to which the operator sets
    # DYN_SYSTEM_PORT.
    for name, port in (("llm-d", 8200), ("dynamo", 9090)):
        assert pod_checks.settings_of(pods[name]).vllm_url == f"http://127.0.0.1:{port}"
    assert main_container(pods["dynamo"])["command"] == ["python3", "-m", "dynamo.vllm"]
    check_object(pod_object(dynamo_pods()["frontend"]))
