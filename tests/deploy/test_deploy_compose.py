"""The compose file: what it mounts is there, what it starts is pinned, and only this machine can reach it."""

import shutil
import subprocess

import pytest

from sidecar import __version__
from sidecar.cli import parser
from sidecar.settings import load_settings
from tests.deploy.deploy_tools import DEPLOY, ROOT, option
from tests.deploy.kustomize_tools import read

FOLDER = DEPLOY / "compose"
# What a service may have, of the compose specification; a misspelt key is one that is not here.
KEYS = {
    "build", "cap_drop", "command", "deploy", "entrypoint", "environment", "image", "mem_limit", "networks", "ports",
    "profiles", "read_only", "restart", "security_opt", "shm_size", "stop_grace_period", "tmpfs", "user", "volumes",
}  # fmt: skip


@pytest.fixture
def compose():
    return read(FOLDER / "compose.yaml")


@pytest.fixture
def services(compose):
    return compose["services"]


def running(services, profile):
    return {name: one for name, one in services.items() if profile in one.get("profiles", [profile])}


def test_keys_are_those_of_the_specification(compose, services):
    assert {key for key in compose if not key.startswith("x-")} == {"name", "services", "volumes"}
    for name, one in services.items():
        assert set(one) <= KEYS, name


def test_each_profile_has_one_sidecar_where_prometheus_looks_for_it(services):
    [job] = [one for one in read(FOLDER / "prometheus.yaml")["scrape_configs"] if one["job_name"] == "specdec-sidecar"]
    [target] = job["static_configs"][0]["targets"]
    host, _, port = target.partition(":")
    assert int(port) == load_settings(None, {}).listen.port
    for profile in ("demo", "gpu"):
        aliases = [
            name
            for name, one in running(services, profile).items()
            if host in one.get("networks", {}).get("default", {}).get("aliases", [])
        ]
        assert len(aliases) == 1, profile


def test_what_is_mounted_is_there_and_volumes_are_declared(compose, services):
    mounts = [mount.split(":") for one in services.values() for mount in one.get("volumes", [])]
    named = {source for source, *_ in mounts if not source.startswith(".")}
    assert named == set(compose["volumes"])
    for source, _, *mode in mounts:
        if source.startswith("."):
            assert (FOLDER / source).exists(), source
            assert mode == ["ro"], source


def test_configuration_files_that_commands_name_lie_in_what_is_mounted(services):
    for name in ("prometheus", "alertmanager"):
        path = option(services[name]["command"], "config.file")
        places = dict(reversed(mount.split(":")[:2]) for mount in services[name]["volumes"])
        inside = [source + path.removeprefix(place) for place, source in places.items() if path.startswith(place)]
        assert [(FOLDER / source).is_file() for source in inside] == [True], path


def test_grafana_finds_its_dashboards_and_the_servers_that_it_asks(services):
    provisioning = ROOT / "dashboards" / "provisioning"
    [provider] = read(provisioning / "dashboards" / "specdec.yaml")["providers"]
    places = dict(reversed(mount.split(":")[:2]) for mount in services["grafana"]["volumes"])
    assert list((FOLDER / places[provider["options"]["path"]]).glob("*.json"))
    assert (FOLDER / places["/etc/grafana/provisioning"]).resolve() == provisioning
    sources = read(provisioning / "datasources" / "prometheus.yaml")["datasources"]
    for source in sources:
        host, _, port = source["url"].removeprefix("http://").partition(":")
        assert f"127.0.0.1:{port}:{port}" in services[host]["ports"]
    [interval] = [source["jsonData"]["timeInterval"] for source in sources if source["type"] == "prometheus"]
    assert interval == read(FOLDER / "prometheus.yaml")["global"]["scrape_interval"]


def test_prometheus_finds_the_rules_where_they_are_mounted(services):
    [pattern] = read(FOLDER / "prometheus.yaml")["rule_files"]
    places = dict(reversed(mount.split(":")[:2]) for mount in services["prometheus"]["volumes"])
    folder, _, wildcard = pattern.rpartition("/")
    assert list((FOLDER / places[folder]).glob(wildcard))


def test_ports_are_published_to_this_machine_alone(services):
    published = [port for one in services.values() for port in one.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)
    for profile in ("demo", "gpu"):
        outside = [port.split(":")[1] for one in running(services, profile).values() for port in one.get("ports", [])]
        assert len(outside) == len(set(outside)), profile


def test_images_are_pinned_and_ours_is_of_this_version(services):
    for one in services.values():
        name, _, tag = one["image"].partition(":")
        assert any(digit.isdigit() for digit in tag), one["image"]
        if name == "specdec-sidecar":
            assert tag == one["build"]["args"]["VERSION"] == __version__
            assert (FOLDER / one["build"]["context"] / "Dockerfile").is_file()


def test_everything_but_vllm_runs_with_a_read_only_root_and_no_capability(services):
    for name, one in services.items():
        if name != "vllm":
            assert one["read_only"] is True, name
            assert one["cap_drop"] == ["ALL"], name
            assert one["security_opt"] == ["no-new-privileges:true"], name


def test_the_sidecars_command_and_settings_are_ones_that_it_takes(services):
    for name in ("demo", "specdec-sidecar"):
        parser(services[name]["command"]).parse_args(services[name]["command"])
    one = services["specdec-sidecar"]
    settings = load_settings(None, one["environment"])
    assert settings.requests.source == "proxy"
    assert settings.vllms[0].vllm_url == f"http://vllm:{option(services['vllm']['command'], 'port')}"
    inside = {int(port.rpartition(":")[2]) for port in one["ports"]}
    assert inside == {settings.listen.port, settings.proxy.listen.port}
    assert float(one["stop_grace_period"].removesuffix("s")) > settings.proxy.drain_timeout


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize(("change", "code"), [(("", ""), 0), (("rule_files", "rules_files"), 1)])
def test_promtool_takes_prometheus_configuration_and_refuses_a_broken_one(change, code, tmp_path):
    path = tmp_path / "prometheus.yaml"
    path.write_text((FOLDER / "prometheus.yaml").read_text().replace(*change))
    done = subprocess.run(["promtool", "check", "config", "--syntax-only", path], capture_output=True, check=False)
    assert done.returncode == code, done
