"""The compose file: what it mounts is there, what it starts is pinned, and only this machine can reach it."""

import shutil
import subprocess

import pytest

from sidecar import __version__
from sidecar.cli import parser
from sidecar.settings import load_settings
from tests.deploy.deploy_tools import DEPLOY, ROOT, option, read

FOLDER = DEPLOY / "compose"
PROFILES = ("demo", "vllm")
COMPOSE = read(FOLDER / "compose.yaml")
SERVICES = COMPOSE["services"]


def running(profile):
    return [one for one in SERVICES.values() if profile in one.get("profiles", [profile])]


def test_each_profile_has_one_sidecar_where_prometheus_looks_for_it():
    [job] = [one for one in read(FOLDER / "prometheus.yaml")["scrape_configs"] if one["job_name"] == "specdec-sidecar"]
    host, _, port = job["static_configs"][0]["targets"][0].partition(":")
    assert int(port) == load_settings(None, {}).listen.port
    for profile in PROFILES:
        networks = [one["networks"]["default"] for one in running(profile) if "networks" in one]
        assert networks == [{"aliases": [host]}], profile


def test_what_is_mounted_is_there_and_volumes_are_declared():
    mounts = [mount.split(":") for one in SERVICES.values() for mount in one.get("volumes", [])]
    named = {source for source, *_ in mounts if not source.startswith(".")}
    assert named == set(COMPOSE["volumes"])
    for source, _, *mode in mounts:
        if source.startswith("."):
            assert (FOLDER / source).exists(), source
            assert mode == ["ro"], source


def inside(service, path):
    """Where what a service's container has at a path is in the repository."""
    places = dict(reversed(mount.split(":")[:2]) for mount in service["volumes"])
    place = max((place for place in places if path.startswith(place)), key=len)
    return (FOLDER / (places[place] + path.removeprefix(place))).resolve()


def test_configuration_and_rules_are_where_they_are_mounted():
    for name in ("prometheus", "alertmanager"):
        assert inside(SERVICES[name], option(SERVICES[name]["command"], "config.file")).is_file()
    [pattern] = read(FOLDER / "prometheus.yaml")["rule_files"]
    assert inside(SERVICES["prometheus"], pattern) == ROOT / "alerts" / "*.yaml"


def test_grafana_finds_its_dashboards_and_the_servers_that_it_asks():
    provisioning = ROOT / "dashboards" / "provisioning"
    [provider] = read(provisioning / "dashboards" / "specdec.yaml")["providers"]
    assert list(inside(SERVICES["grafana"], provider["options"]["path"]).glob("*.json"))
    assert inside(SERVICES["grafana"], "/etc/grafana/provisioning") == provisioning
    sources = read(provisioning / "datasources" / "prometheus.yaml")["datasources"]
    for source in sources:
        host, _, port = source["url"].removeprefix("http://").partition(":")
        assert f"127.0.0.1:{port}:{port}" in SERVICES[host]["ports"]
    [interval] = [source["jsonData"]["timeInterval"] for source in sources if source["type"] == "prometheus"]
    assert interval == read(FOLDER / "prometheus.yaml")["global"]["scrape_interval"]


def test_ports_are_published_to_this_machine_alone():
    for profile in PROFILES:
        published = [port for one in running(profile) for port in one.get("ports", [])]
        assert all(port.startswith("127.0.0.1:") for port in published)
        assert len(published) == len(set(published)) > 3


def test_images_are_pinned_and_ours_is_of_this_version():
    for one in SERVICES.values():
        assert any(digit.isdigit() for digit in one["image"].partition(":")[2]), one["image"]
        if "build" in one:
            assert (
                one["image"] == f"specdec-sidecar:{one['build']['args']['VERSION']}" == f"specdec-sidecar:{__version__}"
            )


def test_everything_but_vllm_runs_with_a_read_only_root_and_no_capability():
    wanted = {"read_only": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges:true"]}
    for name, one in SERVICES.items():
        assert name == "vllm" or one | wanted == one, name


def test_the_sidecars_commands_and_settings_are_ones_that_it_takes():
    for name in ("demo", "specdec-sidecar", "plugin"):
        parser(SERVICES[name]["command"]).parse_args(SERVICES[name]["command"])
    settings = load_settings(None, SERVICES["specdec-sidecar"]["environment"])
    port = option(SERVICES["vllm"]["command"], "port")
    assert settings.vllm_url == f"http://vllm:{port}"
    assert f"127.0.0.1:{port}:{port}" in SERVICES["vllm"]["ports"]


def test_vllm_loads_the_plugin_that_only_its_writer_can_write_and_meets_the_sidecar_at_its_socket():
    folder = SERVICES["plugin"]["command"][1]
    socket = load_settings(None, SERVICES["specdec-sidecar"]["environment"]).plugin.socket.parent
    assert SERVICES["vllm"]["environment"]["PYTHONPATH"] == folder
    assert SERVICES["plugin"]["volumes"] == [f"plugin:{folder}"]
    assert SERVICES["specdec-sidecar"]["volumes"] == [f"socket:{socket}"]
    assert {f"plugin:{folder}:ro", f"socket:{socket}:ro"} < set(SERVICES["vllm"]["volumes"])
    # A new volume has the owner of the folder in the first image that mounts it.
    assert SERVICES["vllm"]["depends_on"]["plugin"] == {"condition": "service_completed_successfully"}
    assert set(SERVICES["vllm"]["depends_on"]) == {"plugin", "specdec-sidecar"}
    assert f"chown 65532:65532 {folder} {socket}" in (ROOT / "Dockerfile").read_text()
    assert SERVICES["specdec-sidecar"]["user"] == "65532:65532"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_takes_prometheus_configuration():
    command = ["promtool", "check", "config", "--syntax-only", FOLDER / "prometheus.yaml"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, done
