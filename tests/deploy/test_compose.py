"""The compose file: what it mounts is there, and what it starts is pinned.

Only this machine can reach it.
"""

import re
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
PROMETHEUS = read(FOLDER / "prometheus.yaml")
SERVICES = COMPOSE["services"]


def running(profile):
    return [
        service for service in SERVICES.values() if profile in service.get("profiles", [profile])
    ]


def inside(name, path):
    """Where what a service's container has at a path is in the repository."""
    places = dict(reversed(mount.split(":")[:2]) for mount in SERVICES[name]["volumes"])
    place = max((place for place in places if path.startswith(place)), key=len)
    return (FOLDER / (places[place] + path.removeprefix(place))).resolve()


def test_each_profile_has_one_sidecar_where_prometheus_looks_for_it():
    """The demo and a real vLLM take turns behind one name."""
    [job] = [job for job in PROMETHEUS["scrape_configs"] if job["job_name"] == "specdec-sidecar"]
    host, _, port = job["static_configs"][0]["targets"][0].partition(":")
    assert int(port) == load_settings(None, {}).listen.port
    for profile in PROFILES:
        networks = [
            service["networks"]["default"] for service in running(profile) if "networks" in service
        ]
        assert networks == [{"aliases": [host]}], profile


def test_what_is_mounted_is_there_and_read_only():
    mounts = [
        mount.split(":") for service in SERVICES.values() for mount in service.get("volumes", [])
    ]
    assert {source for source, *_ in mounts if not source.startswith(".")} == set(
        COMPOSE["volumes"]
    )
    for source, _, *mode in mounts:
        assert not source.startswith(".") or ((FOLDER / source).exists() and mode == ["ro,z"]), (
            source
        )
    for name in ("prometheus", "alertmanager"):
        assert inside(name, option(SERVICES[name]["command"], "config.file")).is_file()
    assert [inside("prometheus", pattern) for pattern in PROMETHEUS["rule_files"]] == [
        ROOT / "alerts" / "*.yaml"
    ]


def test_grafana_finds_its_dashboards_and_the_servers_that_it_asks():
    provisioning = ROOT / "dashboards" / "provisioning"
    [provider] = read(provisioning / "dashboards" / "specdec.yaml")["providers"]
    assert list(inside("grafana", provider["options"]["path"]).glob("*.json"))
    assert inside("grafana", "/etc/grafana/provisioning") == provisioning
    sources = read(provisioning / "datasources" / "prometheus.yaml")["datasources"]
    for source in sources:
        host, _, port = source["url"].removeprefix("http://").partition(":")
        assert f"127.0.0.1:{port}:{port}" in SERVICES[host]["ports"]
    [interval] = [
        source["jsonData"]["timeInterval"] for source in sources if source["type"] == "prometheus"
    ]
    assert interval == PROMETHEUS["global"]["scrape_interval"]


def test_grafana_opens_on_a_dashboard_and_alerts_link_to_addresses_of_this_machine():
    home = SERVICES["grafana"]["environment"]["GF_USERS_HOME_PAGE"]
    [uid] = re.findall(r"^/d/([\w-]+)\?from=now-30m&to=now$", home)
    assert (ROOT / "dashboards" / f"{uid}.json").is_file()
    for name in ("demo", "specdec-sidecar"):
        links = load_settings(None, SERVICES[name]["environment"]).alerting
        for address, server in ((links.runbooks, name), (links.dashboards, "grafana")):
            port = re.fullmatch(r"http://localhost:(\d+)(?:/runbooks)?", str(address))[1]
            assert f"127.0.0.1:{port}:{port}" in SERVICES[server]["ports"]


def test_ports_are_published_to_this_machine_alone():
    """None of these servers asks for a password."""
    for profile in PROFILES:
        published = [port for service in running(profile) for port in service.get("ports", [])]
        assert all(port.startswith("127.0.0.1:") for port in published)
        assert len(published) == len(set(published)) > 3


def test_images_are_pinned_and_all_but_vllm_run_read_only_without_capabilities():
    restricted = {
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
    }
    for name, service in SERVICES.items():
        assert any(digit.isdigit() for digit in service["image"].partition(":")[2]), name
        assert name == "vllm" or service | restricted == service, name
        if "build" in service:
            assert service["image"] == f"specdec-sidecar:{__version__}"
            assert service["build"]["args"]["VERSION"] == __version__


def test_the_sidecar_takes_its_commands_and_settings_and_meets_vllm():
    """By address, socket and plug-in folder, as the image's user may use them."""
    vllm, writer, sidecar = (SERVICES[name] for name in ("vllm", "plugin", "specdec-sidecar"))
    for service in (SERVICES["demo"], sidecar, writer):
        parser(service["command"]).parse_args(service["command"])
    settings, port = load_settings(None, sidecar["environment"]), option(vllm["command"], "port")
    assert settings.vllm_url == f"http://vllm:{port}"
    assert f"127.0.0.1:{port}:{port}" in vllm["ports"]
    folder, socket = writer["command"][1], settings.plugin.socket.parent
    assert vllm["environment"]["PYTHONPATH"] == folder
    assert (writer["volumes"], sidecar["volumes"]) == ([f"plugin:{folder}"], [f"socket:{socket}"])
    assert {f"plugin:{folder}:ro", f"socket:{socket}:ro"} < set(vllm["volumes"])
    # A new volume has the owner of the folder in the first image that mounts it.
    assert vllm["depends_on"]["plugin"] == {"condition": "service_completed_successfully"}
    assert set(vllm["depends_on"]) == {"plugin", "specdec-sidecar"}
    assert f"chown 65532:65532 {folder} {socket}" in (ROOT / "Dockerfile").read_text()
    assert sidecar["user"] == "65532:65532"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_prometheus_configuration():
    command = ["promtool", "check", "config", "--syntax-only", FOLDER / "prometheus.yaml"]
    assert subprocess.run(command, check=False).returncode == 0
