"""The Helm chart renders what the kustomize overlays build, and every value that it offers has its effect."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml

from sidecar import __version__
from sidecar.settings import load_settings
from tests.deploy.crd_schemas import SCHEMAS
from tests.deploy.deploy_tools import DEPLOY, KUBERNETES, ROOT, SIDECAR, container, environment, overlay_pod
from tests.deploy.kustomize_tools import build, read, read_all
from tests.deploy.test_deploy_kustomize import VERSIONS, check

CHART = DEPLOY / "helm" / "specdec-sidecar"
RENDER = Path(__file__).with_name("helm") / "render.go"
SOURCES = {"none": "base", "middleware": "overlays/middleware", "proxy": "overlays/proxy", "traces": "overlays/traces"}

needs_go = pytest.mark.skipif(shutil.which("go") is None, reason="Go is not installed (scripts/debian-tools golang-go)")
needs_helm = pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")


@pytest.fixture(scope="session")
def renderer(tmp_path_factory):
    """The built ``render.go``: Debian has Helm's libraries, but no Helm."""
    folder = tmp_path_factory.mktemp("render")
    go = {"GO111MODULE": "off", "GOPATH": "/usr/share/gocode", "GOCACHE": str(folder / "cache"), "GOFLAGS": ""}
    command = ["go", "build", "-o", folder / "render", RENDER]
    subprocess.run(command, env=os.environ | go, check=True, timeout=300)
    return folder / "render"


@pytest.fixture
def render(renderer, tmp_path):
    """Renders the chart with values; gives the objects."""

    def run(values=None):
        given = read(CHART / "values.yaml")
        _merge(given, values or {})
        jsonschema.Draft7Validator(json.loads((CHART / "values.schema.json").read_text())).validate(given)
        (tmp_path / "values.yaml").write_text(yaml.safe_dump(values or {}))
        command = [renderer, CHART, "vllm", "llm", tmp_path / "values.yaml"]
        return read_all(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)

    return run


def _merge(base, over):
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            _merge(base[key], value)
        else:
            base[key] = value


def one(objects, kind):
    [found] = [each for each in objects if each["kind"] == kind]
    return found


def pod_of(objects):
    return one(objects, "Deployment")["spec"]["template"]["spec"]


def plain(value):
    """Without what makes no difference: the order of named things (init containers aside), nulls, and a pull policy."""
    if isinstance(value, dict):
        kept = {key: plain(each) for key, each in value.items() if each is not None and key != "imagePullPolicy"}
        return {
            key: sorted(each, key=lambda one: one["name"])
            if key in ("env", "ports", "volumes", "volumeMounts")
            else each
            for key, each in kept.items()
        }
    return [plain(each) for each in value] if isinstance(value, list) else value


@needs_go
@pytest.mark.parametrize("source", SOURCES)
def test_the_chart_runs_the_pod_that_the_overlay_runs(render, source):
    ours, theirs = plain(pod_of(render({"source": source}))), plain(overlay_pod(SOURCES[source]))
    assert ours == theirs


@needs_go
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", [{"source": source} for source in SOURCES] + [{"vllm": {"enabled": False}}])
def test_every_object_is_one_that_kubernetes_knows(render, values, version):
    objects = render(values)
    assert {each["kind"] for each in objects} >= set(SCHEMAS) | {"ConfigMap"}
    for each in objects:
        check(each, version)


@needs_go
@pytest.mark.parametrize("source", SOURCES)
def test_clients_and_prometheus_reach_what_the_overlay_lets_them_reach(render, source):
    built = build(KUBERNETES / SOURCES[source])
    ours = render({"source": source})
    assert one(ours, "Service")["spec"]["ports"] == one(built, "Service")["spec"]["ports"]
    assert one(ours, "NetworkPolicy")["spec"]["ingress"] == one(built, "NetworkPolicy")["spec"]["ingress"]
    labels = one(ours, "Deployment")["spec"]["template"]["metadata"]["labels"]
    for selector in (
        one(ours, "Service")["spec"]["selector"],
        one(ours, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        one(ours, "PodMonitor")["spec"]["selector"]["matchLabels"],
        one(ours, "Deployment")["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()


@needs_go
def test_rules_dashboards_and_monitor_are_those_of_the_repository(render):
    ours, built = render({"vllm": {"enabled": False}}), build(KUBERNETES / "monitoring")
    for kind in ("PrometheusRule", "PodMonitor"):
        assert sorted(yaml.safe_dump(each["spec"]) for each in ours if each["kind"] == kind) == sorted(
            yaml.safe_dump(each["spec"]) for each in built if each["kind"] == kind
        )
    data = [
        {
            name: json.loads(text)
            for each in objects
            if each["kind"] == "ConfigMap"
            for name, text in each["data"].items()
        }
        for objects in (ours, built)
    ]
    assert data[0] == data[1]
    assert data[0]


@needs_go
def test_settings_become_a_file_that_the_sidecar_reads(render, tmp_path):
    settings = {"thresholds": {"acceptance_net_negative": 0.45}, "default_temperature": 0.7}
    objects = render({"settings": settings, "rules": {"enabled": False}, "dashboards": {"enabled": False}})
    mine = container(pod_of(objects), SIDECAR)
    config = one(objects, "ConfigMap")
    [(name, text)] = config["data"].items()
    [mount] = [each for each in mine["volumeMounts"] if each["name"] == "specdec-settings"]
    assert mine["args"] == ["run", "--config", f"{mount['mountPath']}/{name}"]
    assert "subPath" not in mount  # Kubernetes does not update those
    [volume] = [each for each in pod_of(objects)["volumes"] if each["name"] == mount["name"]]
    assert volume["configMap"]["name"] == config["metadata"]["name"]
    (tmp_path / name).write_text(text)
    loaded = load_settings(tmp_path / name, environment(mine))
    assert loaded.thresholds.acceptance_net_negative == 0.45
    assert loaded.default_temperature == 0.7


@needs_go
def test_a_baseline_vllm_does_not_speculate(render):
    args = pod_of(render({"vllm": {"speculativeConfig": ""}}))["containers"][0]["args"]
    assert not [argument for argument in args if "speculative" in argument]


@needs_go
def test_switches_switch_off(render):
    off = {"enabled": False}
    objects = render(dict.fromkeys(("service", "podMonitor", "rules", "dashboards", "networkPolicy"), off))
    assert [each["kind"] for each in objects] == ["Deployment"]


@pytest.mark.parametrize(
    "values",
    [
        {"source": "magic"},
        {"sorce": "proxy"},
        {"vllm": {"port": "8000"}},
        {"vllm": {"speculativeConfig": {"method": "ngram"}}},
        {"vllm": {"speculativeConfig": "ngram"}},
        {"image": {"pullPolicy": "Sometimes"}},
        {"podMonitor": {"interval": "15"}},
    ],
)
def test_the_schema_refuses_what_could_not_work(values):
    given = read(CHART / "values.yaml")
    validator = jsonschema.Draft7Validator(json.loads((CHART / "values.schema.json").read_text()))
    validator.validate(given)
    _merge(given, values)
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(given)


def test_the_chart_has_the_packages_version():
    chart = read(CHART / "Chart.yaml")
    assert chart["version"] == chart["appVersion"] == __version__


def test_the_chart_carries_the_repositorys_own_rules_and_dashboards():
    assert (CHART / "files" / "alerts").resolve() == ROOT / "alerts"
    assert (CHART / "files" / "dashboards").resolve() == ROOT / "dashboards"


@needs_go
@needs_helm
@pytest.mark.parametrize("source", SOURCES)
def test_helm_renders_the_same(render, source):
    command = ["helm", "template", "vllm", CHART, "--namespace", "llm", "--set", f"source={source}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    key = lambda each: (each["kind"], each["metadata"]["name"])  # noqa: E731 - used twice, here
    assert sorted(read_all(done.stdout), key=key) == sorted(render({"source": source}), key=key)
