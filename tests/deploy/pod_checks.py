"""What must hold of every Pod that runs vLLM with the sidecar and its plug-in.

It does not matter what made the Pod.
"""

from collections.abc import Iterator
from pathlib import Path

from sidecar.cli import parser
from sidecar.requests.plugin import SOCKET
from sidecar.settings import Settings
from sidecar.settings.reading import read_settings
from tests.deploy.deploy_tools import (
    SIDECAR,
    WRITER,
    container,
    environment,
    every_container,
    main_container,
    option,
)


def check_pod(pod: dict, config: Path | None = None, *, is_native: bool = True) -> None:
    """All of it; ``config`` is the settings file that is mounted into the sidecar.

    ``is_native``: the sidecar is a native one, which starts before vLLM and stops after it.
    """
    our_containers_are_restricted(pod)
    the_sidecar_and_vllm_are_two_users(pod)
    vllm_loads_the_plugin_and_only_the_writer_can_write_it(pod)
    the_sidecar_is_native(pod) if is_native else the_sidecar_is_an_ordinary_container(pod)
    the_two_meet_at_one_socket_in_memory(pod, config)
    the_sidecar_polls_vllm_and_cannot_hold_the_pod_up(pod, config)
    every_mount_has_its_volume(pod)


def settings_of(pod: dict, config: Path | None = None) -> Settings:
    """Fails for a setting that the sidecar does not know or a value that it cannot use.

    Files that only the Pod has are left out.
    """
    loaded = read_settings(config, environment(container(pod, SIDECAR)))
    assert [line for line in loaded.problems if "No such file or directory" not in line] == []
    return loaded.settings


def our_containers_are_restricted(pod: dict) -> None:
    for name in (SIDECAR, WRITER):
        ours = container(pod, name)
        assert (
            ours["securityContext"].items()
            >= {
                "runAsNonRoot": True,
                "readOnlyRootFilesystem": True,
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            }.items()
        )
        every = {"cpu", "memory", "ephemeral-storage"}
        assert set(ours["resources"]["requests"]) == set(ours["resources"]["limits"]) == every


def the_sidecar_and_vllm_are_two_users(pod: dict) -> None:
    """A Pod that leaves vLLM's user open gets its image's, which is root or 2000."""
    default = pod.get("securityContext", {}).get("runAsUser")
    containers = (container(pod, SIDECAR), container(pod, WRITER), main_container(pod))
    sidecar, writer, vllm = (
        each.get("securityContext", {}).get("runAsUser", default) for each in containers
    )
    assert sidecar == writer != vllm


def vllm_loads_the_plugin_and_only_the_writer_can_write_it(pod: dict) -> None:
    writer, vllm = container(pod, WRITER), main_container(pod)
    assert writer in pod["initContainers"]
    assert "restartPolicy" not in writer
    command, folder = writer["args"]
    assert command == "plugin"
    assert environment(vllm)["PYTHONPATH"].split(":")[0] == folder
    [volume] = [mount["name"] for mount in writer["volumeMounts"] if mount["mountPath"] == folder]
    mounts = [
        (each["name"], mount)
        for each in every_container(pod)
        for mount in each.get("volumeMounts", [])
    ]
    read_only = {
        name: mount.get("readOnly", False) for name, mount in mounts if mount["name"] == volume
    }
    assert read_only == {WRITER: False, vllm["name"]: True}
    allowed = environment(vllm).get("VLLM_PLUGINS")
    assert allowed is None or "specdec" in allowed.split(",")


def the_sidecar_is_native(pod: dict) -> None:
    names = [each["name"] for each in pod["initContainers"]]
    assert names.index(WRITER) < names.index(SIDECAR)
    assert container(pod, SIDECAR)["restartPolicy"] == "Always"


def the_sidecar_is_an_ordinary_container(pod: dict) -> None:
    sidecar = container(pod, SIDECAR)
    assert sidecar in pod["containers"]
    assert "restartPolicy" not in sidecar


def the_two_meet_at_one_socket_in_memory(pod: dict, config: Path | None) -> None:
    path = str(settings_of(pod, config).plugin.socket)
    assert (environment(main_container(pod)).get("SPECDEC_PLUGIN__SOCKET") or SOCKET) == path
    listening, sending = (
        _mount_of(each, path) for each in (container(pod, SIDECAR), main_container(pod))
    )
    assert listening["name"] == sending["name"]
    assert (listening.get("readOnly", False), sending.get("readOnly", False)) == (False, True)
    assert listening["name"] not in {
        mount["name"] for mount in container(pod, WRITER)["volumeMounts"]
    }
    [volume] = [each for each in pod["volumes"] if each["name"] == listening["name"]]
    assert volume["emptyDir"]["medium"] == "Memory"


def the_sidecar_polls_vllm_and_cannot_hold_the_pod_up(pod: dict, config: Path | None) -> None:
    settings, sidecar = settings_of(pod, config), container(pod, SIDECAR)
    ports = {port["name"]: port["containerPort"] for port in sidecar["ports"]}
    assert ports == {"specdec-metrics": settings.listen.port}
    port = option(main_container(pod).get("args", []), "port")
    assert port is None or settings.vllm_url.startswith(f"http://127.0.0.1:{port}")
    assert not {"startupProbe", "readinessProbe"} & set(sidecar)
    arguments = parser(sidecar["args"]).parse_args(sidecar["args"])
    assert arguments.command == "run"
    assert arguments.ignore_invalid_settings
    probe = sidecar["livenessProbe"]["httpGet"]
    assert (probe["path"], probe["port"]) == ("/-/healthy", "specdec-metrics")


def every_mount_has_its_volume(pod: dict) -> None:
    volumes = [volume["name"] for volume in pod["volumes"]]
    assert len(volumes) == len(set(volumes))
    assert all(len(volume) == 2 for volume in pod["volumes"])  # a name and one source
    for each in every_container(pod):
        assert {mount["name"] for mount in each.get("volumeMounts", [])} <= set(volumes)


def _mount_of(container: dict, path: str) -> dict:
    """The mount that a path lies in."""
    [mount] = [
        each for each in container["volumeMounts"] if path.startswith(each["mountPath"] + "/")
    ]
    return mount


def nobody_names_the_port_of_a_native_sidecar(objects: list[dict]) -> None:
    """Services before Kubernetes 1.32 and some NetworkPolicies find only containers' ports."""
    [deployment] = [each for each in objects if each["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    names = {port["name"] for each in pod["containers"] for port in each["ports"]}
    numbers = {
        port["containerPort"] for each in every_container(pod) for port in each.get("ports", [])
    }

    services = [each["spec"] for each in objects if each["kind"] == "Service"]
    policies = [each["spec"] for each in objects if each["kind"] == "NetworkPolicy"]
    targets = [port["targetPort"] for service in services for port in service["ports"]]
    targets += [
        port["port"] for policy in policies for rule in policy["ingress"] for port in rule["ports"]
    ]

    assert targets
    assert set(targets) <= names | numbers


_SHARED_WITH_THE_HOST = ("hostNetwork", "hostPID", "hostIPC")
_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim",
    "projected", "secret",
}  # fmt: skip
_SECCOMP = {"RuntimeDefault", "Localhost"}


def violations_of_restricted(pod: dict) -> list[str]:
    """What the Pod Security Standard "restricted" of Kubernetes would refuse, of every container.

    https://kubernetes.io/docs/concepts/security/pod-security-standards/
    """
    found = [field for field in _SHARED_WITH_THE_HOST if pod.get(field)]
    kinds = {kind for volume in pod.get("volumes", []) for kind in volume if kind != "name"}
    found += sorted(kinds - _VOLUMES)
    of_pod = pod.get("securityContext", {})
    if of_pod.get("sysctls"):
        found.append("sysctls")
    for each in every_container(pod):
        found += [f"{each['name']}: {field}" for field in _unrestricted(each, of_pod)]
    return found


def _unrestricted(container: dict, of_pod: dict) -> Iterator[str]:
    """The fields of one container, which has those of the Pod where it has none of its own."""
    own = container.get("securityContext", {})
    effective = of_pod | {name: value for name, value in own.items() if value is not None}
    capabilities = own.get("capabilities", {})

    if own.get("privileged"):
        yield "privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation"
    if "ALL" not in capabilities.get("drop", []):
        yield "capabilities.drop"
    if set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}:
        yield "capabilities.add"
    if effective.get("runAsNonRoot") is not True or effective.get("runAsUser") == 0:
        yield "runAsNonRoot"
    if effective.get("seccompProfile", {}).get("type") not in _SECCOMP:
        yield "seccompProfile"
    if any("hostPort" in port for port in container.get("ports", [])):
        yield "hostPort"
