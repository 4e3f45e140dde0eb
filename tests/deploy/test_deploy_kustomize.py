"""Every overlay builds, and Kubernetes accepts the result."""

import copy
import shutil
import subprocess

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.deploy.crd_schemas import SCHEMAS
from tests.deploy.deploy_tools import INTEGRATIONS, KUBERNETES, OVERLAYS, RENDERED, overlay_pod, pods
from tests.deploy.kustomize_tools import build, read, read_all

FOLDERS = (*OVERLAYS, "monitoring")
# The first with native sidecars switched on, and a late one.
VERSIONS = ("1.29", "1.37")

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")


def check(one, version):
    """Raises where the API server of that version would refuse the object."""
    if one["kind"] in SCHEMAS:
        jsonschema.Draft202012Validator(SCHEMAS[one["kind"]]).validate(one)
    else:
        kubernetes_validate.validate(one, version, strict=True)


def pod_object(pod):
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": pod}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("folder", FOLDERS)
def test_every_object_is_one_that_kubernetes_knows(folder, version):
    objects = build(KUBERNETES / folder)
    assert objects
    for one in objects:
        check(one, version)


@pytest.mark.parametrize("name", sorted(pods()))
def test_the_pods_of_the_overlays_and_of_other_stacks_are_valid(name):
    for version in VERSIONS:
        kubernetes_validate.validate(pod_object(pods()[name]), version, strict=True)


@pytest.mark.parametrize(
    ("where", "key", "value"),
    [
        ("initContainers", "restartPolcy", "Always"),
        ("initContainers", "ports", [{"containerPort": "9911"}]),
        ("containers", "livenessProbe", {"httpGet": {"path": "/health"}}),
        ("containers", "securityContext", {"capabilities": {"drop": "ALL"}}),
    ],
)
def test_the_check_of_built_in_kinds_bites(where, key, value):
    pod = overlay_pod("base")
    pod[where][0][key] = value
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(pod_object(pod), "1.37", strict=True)


def podmonitor():
    [one] = [one for one in build(KUBERNETES / "monitoring") if one["kind"] == "PodMonitor"]
    return one


RULE = {
    "apiVersion": "monitoring.coreos.com/v1",
    "kind": "PrometheusRule",
    "metadata": {"name": "one"},
    "spec": {"groups": [{"name": "g", "rules": [{"alert": "A", "expr": "up == 0", "for": "5m"}]}]},
}


@pytest.mark.parametrize(
    ("one", "change"),
    [
        (podmonitor(), lambda spec: spec["podMetricsEndpoints"][0].update(scrapeInterval="15s")),
        (podmonitor(), lambda spec: spec["podMetricsEndpoints"][0].update(interval="15")),
        (podmonitor(), lambda spec: spec["podMetricsEndpoints"][0].update(port=9911)),
        (podmonitor(), lambda spec: spec["podMetricsEndpoints"][0]["relabelings"][0].update(source_labels=["a"])),
        (podmonitor(), lambda spec: spec.pop("selector")),
        (RULE, lambda spec: spec["groups"][0]["rules"][0].pop("expr")),
        (RULE, lambda spec: spec["groups"][0]["rules"][0].update({"for": "5 minutes"})),
        (RULE, lambda spec: spec["groups"][0]["rules"][0].update(labels={"severity": 1})),
        (RULE, lambda spec: spec["groups"][0].update(partial_response="warn")),
    ],
)
def test_the_check_of_the_operators_kinds_bites(one, change):
    check(one, "1.37")
    broken = copy.deepcopy(one)
    change(broken["spec"])
    with pytest.raises(jsonschema.ValidationError):
        check(broken, "1.37")


def ordered(objects):
    return sorted(objects, key=lambda one: (one["kind"], one["metadata"]["name"]))


@needs_kubectl
@pytest.mark.parametrize("folder", FOLDERS)
def test_kubectl_builds_the_same(folder):
    done = subprocess.run(["kubectl", "kustomize", KUBERNETES / folder], capture_output=True, text=True, check=True)
    assert ordered(read_all(done.stdout)) == ordered(build(KUBERNETES / folder))


@needs_kubectl
def test_the_post_renderer_adds_the_sidecar_to_vllm_and_leaves_the_router_alone():
    router = copy.deepcopy(RENDERED)
    router["metadata"]["name"] = "stack-deployment-router"
    done = subprocess.run(
        [INTEGRATIONS / "production-stack" / "post-render"],
        input=yaml.safe_dump_all([RENDERED, router]),
        capture_output=True,
        text=True,
        check=True,
    )
    by_name = {one["metadata"]["name"]: one for one in read_all(done.stdout)}
    assert by_name["stack-deployment-router"] == router
    pod = by_name["stack-qwen3-deployment-vllm"]["spec"]["template"]["spec"]
    assert pod["initContainers"] == pods()["production-stack"]["initContainers"]
    assert {"name": "stack-storage", "mountPath": "/data"} in pod["containers"][0]["volumeMounts"]


def test_kserve_is_asked_for_the_version_that_the_file_was_written_for():
    service = read(INTEGRATIONS / "kserve" / "llminferenceservice.yaml")
    assert (service["apiVersion"], service["kind"]) == ("serving.kserve.io/v1alpha2", "LLMInferenceService")
    assert set(service["spec"]) == {"model", "replicas", "router", "template"}
