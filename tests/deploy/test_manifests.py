"""The manifests: Kubernetes accepts them, and what must hold of a Pod with the plug-in holds of each."""

import pytest

from tests.deploy import pod_checks
from tests.deploy.deploy_tools import build, check_object, dynamo_pods, main_container, option, pod_object

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("programs")]


@pytest.mark.parametrize("folder", ["base", "overlays/plugin", "monitoring"])
def test_every_object_is_one_that_kubernetes_knows(folder):
    objects = build(folder)
    assert objects
    for one in objects:
        check_object(one)


@pytest.mark.parametrize("name", ["overlay", "post-render", "llm-d", "kserve", "dynamo"])
def test_what_must_hold_of_every_pod_with_the_plugin(name, pods):
    check_object(pod_object(pods[name]))
    pod_checks.check_pod(pods[name])


def test_clients_reach_vllm_and_prometheus_the_sidecar():
    by_kind = {one["kind"]: one["spec"] for one in (*build("overlays/plugin"), *build("monitoring")) if "spec" in one}
    assert by_kind["Service"]["ports"] == [{"name": "http", "port": 80, "targetPort": "http"}]
    open_ports = [port["port"] for rule in by_kind["NetworkPolicy"]["ingress"] for port in rule["ports"]]
    assert open_ports == ["http", "specdec-metrics"]
    labels = by_kind["Deployment"]["template"]["metadata"]["labels"].items()
    assert by_kind["Service"]["selector"].items() <= labels
    assert by_kind["NetworkPolicy"]["podSelector"]["matchLabels"].items() <= labels
    assert by_kind["Deployment"]["selector"]["matchLabels"].items() <= labels
    assert by_kind["PodMonitor"]["selector"] == {}
    assert by_kind["PodMonitor"]["podMetricsEndpoints"][0]["port"] == "specdec-metrics"


def test_a_pod_has_the_time_to_end_what_it_has_begun(pods):
    engine = main_container(pods["overlay"])
    wait = int(engine["lifecycle"]["preStop"]["exec"]["command"][1]) + int(option(engine["args"], "shutdown-timeout"))
    assert pods["overlay"]["terminationGracePeriodSeconds"] > wait


def test_llm_ds_values_name_the_port_that_its_chart_gives_vllm(pods):
    # routing.proxy.targetPort of llm-d-modelservice 0.4.12, whose routing proxy has 8000.
    assert pod_checks.settings_of(pods["llm-d"]).vllm_url.endswith(":8200")


def test_dynamos_sidecar_reads_the_workers_system_port_and_its_frontend_is_one_that_kubernetes_knows(pods):
    # DynamoSystemPort of deploy/operator/internal/consts, to which the operator sets DYN_SYSTEM_PORT.
    assert pod_checks.settings_of(pods["dynamo"]).vllm_url.endswith(":9090")
    assert main_container(pods["dynamo"])["command"] == ["python3", "-m", "dynamo.vllm"]
    check_object(pod_object(dynamo_pods()["frontend"]))
