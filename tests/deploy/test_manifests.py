"""The manifests: Kubernetes accepts them, and what must hold of a Pod with the plug-in holds of each."""

import copy
import re
from importlib.metadata import distributions

import jsonschema
import kubernetes_validate
import pytest

from sidecar import __version__
from sidecar.cli import main
from sidecar.settings import Settings
from tests.deploy import pod_checks
from tests.deploy.deploy_tools import (
    DEPLOY,
    KUBERNETES,
    SIDECAR,
    WRITER,
    check_object,
    container,
    main_container,
    option,
    plugin_pods,
    pod_object,
)
from tests.deploy.kustomize_tools import build

FOLDERS = ("base", "overlays/plugin", "monitoring")
PODS = plugin_pods()


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_object_is_one_that_kubernetes_knows(folder):
    objects = build(KUBERNETES / folder)
    assert objects
    for one in objects:
        check_object(one)


@pytest.mark.parametrize("name", PODS)
def test_the_pods_of_other_stacks_are_valid(name):
    check_object(pod_object(PODS[name]))


@pytest.mark.parametrize("check", pod_checks.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", PODS)
def test_what_must_hold_of_every_pod_with_the_plugin(name, check):
    check(PODS[name])


@pytest.mark.parametrize(
    "change",
    [
        lambda pod: container(pod, SIDECAR)["securityContext"].update(readOnlyRootFilesystem=False),
        lambda pod: main_container(pod).update(securityContext={"runAsUser": 65532}),
        lambda pod: container(pod, SIDECAR).pop("restartPolicy"),
        lambda pod: container(pod, SIDECAR)["volumeMounts"].append({"name": WRITER, "mountPath": "/plugin"}),
        lambda pod: [mount.pop("readOnly", None) for mount in main_container(pod)["volumeMounts"]],
        lambda pod: main_container(pod)["env"].append({"name": "VLLM_PLUGINS", "value": "lora_filesystem_resolver"}),
        lambda pod: main_container(pod)["env"].append({"name": "SPECDEC_PLUGIN__SOCKET", "value": "/run/other.sock"}),
        lambda pod: container(pod, SIDECAR).update(readinessProbe={"httpGet": {"path": "/", "port": 9911}}),
        lambda pod: pod["volumes"].pop(),
    ],
)
def test_the_checks_of_a_pod_bite(change):
    pod = copy.deepcopy(PODS["overlay"])
    change(pod)
    with pytest.raises((AssertionError, KeyError, ValueError)):
        pod_checks.check_pod(pod)


@pytest.mark.parametrize(("key", "value"), [("restartPolcy", "Always"), ("ports", [{"containerPort": "9911"}])])
def test_the_check_of_built_in_kinds_bites(key, value):
    pod = copy.deepcopy(PODS["overlay"])
    pod["initContainers"][0][key] = value
    with pytest.raises(kubernetes_validate.ValidationError):
        check_object(pod_object(pod))


def podmonitor():
    [one] = [one for one in build(KUBERNETES / "monitoring") if one["kind"] == "PodMonitor"]
    return one


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: spec["podMetricsEndpoints"][0].update(scrapeInterval="15s"),
        lambda spec: spec["podMetricsEndpoints"][0].update(interval="15"),
        lambda spec: spec["podMetricsEndpoints"][0]["relabelings"][0].update(source_labels=["a"]),
        lambda spec: spec.pop("selector"),
    ],
)
def test_the_check_of_the_operators_kinds_bites(change):
    broken = podmonitor()
    change(broken["spec"])
    with pytest.raises(jsonschema.ValidationError):
        check_object(broken)


def test_clients_reach_vllm_and_prometheus_the_sidecar():
    by_kind = {one["kind"]: one["spec"] for one in build(KUBERNETES / "overlays" / "plugin")}
    assert by_kind["Service"]["ports"] == [{"name": "http", "port": 80, "targetPort": "http"}]
    open_ports = [port["port"] for rule in by_kind["NetworkPolicy"]["ingress"] for port in rule["ports"]]
    assert open_ports == ["http", "specdec-metrics"]
    labels = by_kind["Deployment"]["template"]["metadata"]["labels"].items()
    assert by_kind["Service"]["selector"].items() <= labels
    assert by_kind["NetworkPolicy"]["podSelector"]["matchLabels"].items() <= labels
    assert by_kind["Deployment"]["selector"]["matchLabels"].items() <= labels
    assert podmonitor()["spec"]["selector"] == {}
    assert podmonitor()["spec"]["podMetricsEndpoints"][0]["port"] == "specdec-metrics"


def test_a_pod_has_the_time_to_end_what_it_has_begun():
    engine = main_container(PODS["overlay"])
    wait = int(engine["lifecycle"]["preStop"]["exec"]["command"][1]) + int(option(engine["args"], "shutdown-timeout"))
    assert PODS["overlay"]["terminationGracePeriodSeconds"] > wait


def test_llm_ds_values_name_the_port_that_its_chart_gives_vllm():
    # routing.proxy.targetPort of llm-d-modelservice 0.4.12, whose routing proxy has 8000.
    assert pod_checks.settings_of(PODS["llm-d"]).vllm_url.endswith(":8200")


def test_vllm_finds_the_entry_point_in_what_the_writer_writes(tmp_path):
    command, _ = container(PODS["overlay"], WRITER)["args"]
    assert main([command, str(tmp_path)]) == 0
    [found] = [one for dist in distributions(path=[str(tmp_path)]) for one in dist.entry_points]
    assert (found.group, found.name) == ("vllm.general_plugins", "specdec")
    assert (tmp_path / f"{found.module}.py").is_file()


def texts():
    """Every file of deploy/ that is written by hand, with its text."""
    files = [path for path in DEPLOY.rglob("*") if path.is_file() and path.parent.name != "monitoring"]
    return {path: path.read_text() for path in files if not path.is_symlink()}


def known_variables():
    return {
        f"SPECDEC_{name.upper()}" + (f"__{inner.upper()}" if inner else "")
        for name, field in Settings.model_fields.items()
        for inner in (getattr(field.annotation, "model_fields", None) or [""])
    }


def test_only_settings_that_exist_are_named():
    for path, text in texts().items():
        if path.name != "_removed.tpl":
            assert set(re.findall(r"SPECDEC_[A-Z_]+(?<!_)", text)) <= known_variables(), path
            assert not re.search(r"otlp|--middleware|per-request-spec-decode", text), path


def test_our_image_has_this_version_and_vllms_is_the_same_everywhere():
    ours, vllms = set(), set()
    for text in texts().values():
        ours |= set(re.findall(r"image: specdec-sidecar:(\S+)", text))
        vllms |= set(re.findall(r"vllm/vllm-openai:(v[0-9.]+)", text))
    assert ours == {__version__}
    assert len(vllms) == 1
