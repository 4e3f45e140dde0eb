"""The manifests are consistent with each other and with the sidecar."""

import importlib.util
import json
import subprocess
import sys

import pytest

from sidecar import __version__
from sidecar.cli import main
from sidecar.settings import load_settings
from tests.deploy.deploy_tools import (
    INTEGRATIONS,
    KUBERNETES,
    MIDDLEWARE,
    OVERLAYS,
    SIDECAR,
    container,
    environment,
    every_container,
    main_container,
    option,
    overlay_pod,
    pods,
)
from tests.deploy.kustomize_tools import build, read

ALL = sorted(pods())
NATIVE = sorted(set(ALL) - {"vllm-chart"})
BY_MIDDLEWARE = ["overlays/middleware", "production-stack", "llm-d", "kserve"]


def settings_of(pod):
    """Fails for a variable that the sidecar does not know or a value that it can't use."""
    return load_settings(None, environment(container(pod, SIDECAR)))


@pytest.mark.parametrize("name", ALL)
def test_the_sidecars_environment_is_one_that_it_takes(name):
    settings = settings_of(pods()[name])
    source = {"base": "none", "vllm-chart": "none"}.get(name, name.rpartition("/")[2])
    assert settings.requests.source == ("middleware" if name in BY_MIDDLEWARE else source)
    assert settings.log.format == "json"


@pytest.mark.parametrize("name", ALL)
def test_every_container_of_ours_is_restricted_and_of_this_version(name):
    ours = [one for one in every_container(pods()[name]) if one["name"] in (SIDECAR, MIDDLEWARE)]
    assert ours
    for one in ours:
        context = one["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] == context["runAsGroup"] == 65532
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert set(one["resources"]["requests"]) == {"cpu", "memory"}
        assert "memory" in one["resources"]["limits"]
        assert one["image"] == f"specdec-sidecar:{__version__}"


@pytest.mark.parametrize("name", NATIVE)
def test_the_sidecar_is_a_native_one_and_the_file_is_written_before_it(name):
    names = [one["name"] for one in pods()[name]["initContainers"]]
    assert container(pods()[name], SIDECAR)["restartPolicy"] == "Always"
    if name in BY_MIDDLEWARE:
        assert names == [MIDDLEWARE, SIDECAR]
        assert "restartPolicy" not in container(pods()[name], MIDDLEWARE)


@pytest.mark.parametrize("name", ALL)
def test_ports_have_the_names_and_numbers_of_the_settings(name):
    pod = pods()[name]
    settings = settings_of(pod)
    listening = {"specdec-metrics": settings.listen.port}
    if settings.requests.source == "proxy":
        listening["proxy"] = settings.proxy.listen.port
    assert {port["name"]: port["containerPort"] for port in container(pod, SIDECAR)["ports"]} == listening


@pytest.mark.parametrize("name", ALL)
def test_only_a_sidecar_in_the_path_can_hold_the_pod_up(name):
    one = container(pods()[name], SIDECAR)
    in_path = name == "overlays/proxy"
    assert ("startupProbe" in one) == in_path
    assert ("readinessProbe" in one) == in_path
    assert one["livenessProbe"]["httpGet"] == {"path": "/-/healthy", "port": "specdec-metrics"}


def test_the_proxys_probes_wait_for_itself_first_and_for_vllm_then():
    one = container(overlay_pod("overlays/proxy"), SIDECAR)
    # vLLM starts only after the startup probe, so that must not ask vLLM.
    assert one["startupProbe"]["httpGet"] == {"path": "/-/healthy", "port": "specdec-metrics"}
    assert one["readinessProbe"]["httpGet"] == {"path": "/health", "port": "proxy"}
    assert "cpu" not in one["resources"]["limits"]


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_sidecar_polls_the_port_that_vllm_listens_on(name):
    pod = overlay_pod(name)
    engine = main_container(pod)
    port = int(option(engine["args"], "port"))
    assert environment(container(pod, SIDECAR))["SPECDEC_VLLM_URL"] == f"http://127.0.0.1:{port}"
    assert engine["ports"] == [{"name": "http", "containerPort": port}]
    speculation = json.loads(option(engine["args"], "speculative-config"))
    assert speculation["num_speculative_tokens"] > 0


@pytest.mark.parametrize("name", OVERLAYS)
def test_clients_reach_vllm_past_the_proxy_in_no_overlay_that_has_one(name):
    by_kind = {one["kind"]: one for one in build(KUBERNETES / name)}
    named = [port["name"] for one in every_container(overlay_pod(name)) for port in one.get("ports", [])]
    assert len(named) == len(set(named))
    wanted = "proxy" if name == "overlays/proxy" else "http"
    [port] = by_kind["Service"]["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (80, wanted)
    allowed = [port["port"] for rule in by_kind["NetworkPolicy"]["spec"]["ingress"] for port in rule["ports"]]
    assert allowed == [wanted, "specdec-metrics"]
    assert set(allowed) <= set(named)
    labels = by_kind["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert by_kind["Service"]["spec"]["selector"].items() <= labels.items()
    assert by_kind["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    assert by_kind["Deployment"]["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_the_podmonitor_scrapes_the_port_that_every_pod_names():
    [monitor] = [one for one in build(KUBERNETES / "monitoring") if one["kind"] == "PodMonitor"]
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    assert monitor["spec"]["selector"] == {}
    for pod in pods().values():
        assert endpoint["port"] in [port["name"] for port in container(pod, SIDECAR)["ports"]]


@pytest.mark.parametrize("name", ALL)
def test_every_mount_has_its_volume(name):
    pod = pods()[name]
    volumes = [volume["name"] for volume in pod.get("volumes", [])]
    assert len(volumes) == len(set(volumes))
    for one in every_container(pod):
        assert {mount["name"] for mount in one.get("volumeMounts", [])} <= set(volumes)


def mounted(one, path):
    """The mount that a path lies in."""
    [found] = [mount for mount in one["volumeMounts"] if path.startswith(mount["mountPath"] + "/")]
    return found


@pytest.mark.parametrize("name", BY_MIDDLEWARE)
def test_vllm_and_the_sidecar_meet_at_one_socket(name):
    pod = pods()[name]
    listening, sending = container(pod, SIDECAR), main_container(pod)
    path = str(settings_of(pod).middleware.socket)
    assert environment(sending)["SPECDEC_MIDDLEWARE__SOCKET"] == path
    assert mounted(listening, path)["name"] == mounted(sending, path)["name"]
    assert not mounted(listening, path).get("readOnly")
    assert mounted(sending, path)["readOnly"]


def flags_of(name, pod):
    """vLLM's arguments, however the stack passes them."""
    engine = main_container(pod)
    if name != "kserve":
        return engine["args"]
    shell = "set -f; eval \"printf '%s\\n' $VLLM_ADDITIONAL_ARGS\""
    done = subprocess.run(["bash", "-c", shell], env=environment(engine), capture_output=True, text=True, check=True)
    words = done.stdout.splitlines()
    return [f"{one}={value}" for one, value in zip(words[::2], words[1::2], strict=True)]


@pytest.mark.parametrize("name", BY_MIDDLEWARE)
def test_vllm_finds_the_class_in_the_file_that_the_init_container_writes(name, tmp_path, capsys, monkeypatch):
    pod = pods()[name]
    writer, engine = container(pod, MIDDLEWARE), main_container(pod)
    *command, written = writer["args"]
    module, _, class_name = option(flags_of(name, pod), "middleware").rpartition(".")
    folder, _, file_name = written.rpartition("/")
    assert environment(engine)["PYTHONPATH"] == folder
    assert mounted(writer, written)["name"] == mounted(engine, written)["name"]
    assert file_name == f"{module}.py"

    assert main([*command, str(tmp_path / file_name)]) == 0
    spec = importlib.util.spec_from_file_location(module, tmp_path / file_name)
    loaded = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, module, loaded)  # as an import does; msgspec looks types up there
    spec.loader.exec_module(loaded)
    assert callable(getattr(loaded, class_name))


@pytest.mark.parametrize("name", BY_MIDDLEWARE)
def test_vllm_speculates_and_tells_its_acceptance(name):
    flags = flags_of(name, pods()[name])
    assert json.loads(option(flags, "speculative-config"))["method"] == "draft_model"
    assert option(flags, "per-request-spec-decode-metrics") == "summary"


def test_vllm_sends_its_traces_to_where_the_sidecar_listens_and_nobody_else_can():
    pod = overlay_pod("overlays/traces")
    listen = settings_of(pod).traces.listen
    endpoint = option(main_container(pod)["args"], "otlp-traces-endpoint")
    assert endpoint == f"http://{listen}/v1/traces"
    assert listen.host == "127.0.0.1"
    assert environment(main_container(pod))["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] == "http/protobuf"


def test_a_pod_has_the_time_to_end_what_it_has_begun():
    pod = overlay_pod("overlays/proxy")
    engine = main_container(pod)
    wait = int(engine["lifecycle"]["preStop"]["exec"]["command"][1])
    drain = settings_of(pod).proxy.drain_timeout
    assert pod["terminationGracePeriodSeconds"] >= wait + int(option(engine["args"], "shutdown-timeout")) + drain


def test_llm_ds_values_name_the_port_that_its_chart_gives_vllm():
    # routing.proxy.targetPort of llm-d-modelservice 0.4.12, whose routing proxy has 8000.
    assert settings_of(pods()["llm-d"]).vllms[0].vllm_url.endswith(":8200")


def test_vllms_image_is_the_same_everywhere():
    texts = [read(INTEGRATIONS / "production-stack" / "values.yaml")["servingEngineSpec"]["modelSpec"][0]["tag"]]
    images = [main_container(pods()[name])["image"] for name in [*OVERLAYS, "llm-d"]]
    assert {image.partition(":")[2] for image in images} == set(texts)
