"""What must hold of every Pod that runs vLLM with the sidecar and its plug-in, whatever made the Pod."""

from sidecar.requests.plugin import SOCKET
from sidecar.settings import Settings, load_settings
from tests.deploy.deploy_tools import SIDECAR, WRITER, container, environment, every_container, main_container, option


def settings_of(pod: dict) -> Settings:
    """Fails for a variable that the sidecar does not know or a value that it can't use."""
    return load_settings(None, environment(container(pod, SIDECAR)))


def our_containers_are_restricted(pod: dict) -> None:
    for name in (SIDECAR, WRITER):
        one = container(pod, name)
        context = one["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert set(one["resources"]["requests"]) == {"cpu", "memory"}
        assert "memory" in one["resources"]["limits"]


def the_sidecar_and_vllm_are_two_users(pod: dict) -> None:
    """A Pod that leaves vLLM's user open gets its image's, which is root or 2000."""
    default = pod.get("securityContext", {}).get("runAsUser")
    users = [one.get("securityContext", {}).get("runAsUser", default) for one in _sidecar_and_vllm(pod)]
    assert users[0] == container(pod, WRITER)["securityContext"].get("runAsUser", default)
    assert users[0] != users[1]


def the_plugin_is_written_first_and_the_sidecar_is_a_native_one(pod: dict) -> None:
    names = [one["name"] for one in pod["initContainers"]]
    assert names.index(WRITER) < names.index(SIDECAR)
    assert "restartPolicy" not in container(pod, WRITER)
    assert container(pod, SIDECAR)["restartPolicy"] == "Always"


def vllm_loads_the_plugin_and_only_the_writer_can_write_it(pod: dict) -> None:
    command, folder = container(pod, WRITER)["args"]
    assert command == "plugin"
    [written] = [mount for mount in container(pod, WRITER)["volumeMounts"] if mount["mountPath"] == folder]
    assert environment(main_container(pod))["PYTHONPATH"].split(":")[0] == folder
    mounts = {
        one["name"]: mount.get("readOnly", False)
        for one in every_container(pod)
        for mount in one.get("volumeMounts", [])
        if mount["name"] == written["name"]
    }
    assert mounts == {WRITER: False, main_container(pod)["name"]: True}
    allowed = environment(main_container(pod)).get("VLLM_PLUGINS")
    assert allowed is None or "specdec" in allowed.split(",")


def the_two_meet_at_one_socket_in_memory(pod: dict) -> None:
    path = str(settings_of(pod).plugin.socket)
    assert environment(main_container(pod)).get("SPECDEC_PLUGIN__SOCKET", SOCKET) == path
    listening, sending = (_mount_of(one, path) for one in _sidecar_and_vllm(pod))
    assert listening["name"] == sending["name"]
    assert (listening.get("readOnly", False), sending.get("readOnly", False)) == (False, True)
    assert listening["name"] not in {mount["name"] for mount in container(pod, WRITER)["volumeMounts"]}
    [volume] = [one for one in pod["volumes"] if one["name"] == listening["name"]]
    assert volume["emptyDir"]["medium"] == "Memory"


def the_sidecar_polls_vllms_own_port_and_clients_go_straight_there(pod: dict) -> None:
    settings = settings_of(pod)
    ports = {port["name"]: port["containerPort"] for port in container(pod, SIDECAR)["ports"]}
    assert ports == {"specdec-metrics": settings.listen.port}
    port = option(main_container(pod).get("args", []), "port")
    assert port is None or settings.vllm_url == f"http://127.0.0.1:{port}"


def the_sidecar_cannot_hold_the_pod_up(pod: dict) -> None:
    one = container(pod, SIDECAR)
    assert not {"startupProbe", "readinessProbe"} & set(one)
    assert one["livenessProbe"]["httpGet"]["path"] == "/-/healthy"
    assert one["livenessProbe"]["httpGet"]["port"] == "specdec-metrics"


def every_mount_has_its_volume(pod: dict) -> None:
    volumes = [volume["name"] for volume in pod["volumes"]]
    assert len(volumes) == len(set(volumes))
    assert all(len(volume) == 2 for volume in pod["volumes"])  # a name and one source
    for one in every_container(pod):
        # A chart of others brings the volumes that it mounts.
        assert {mount["name"] for mount in one.get("volumeMounts", [])} <= set(volumes)


def check_pod(pod: dict) -> None:
    """All of it."""
    our_containers_are_restricted(pod)
    the_sidecar_and_vllm_are_two_users(pod)
    the_plugin_is_written_first_and_the_sidecar_is_a_native_one(pod)
    vllm_loads_the_plugin_and_only_the_writer_can_write_it(pod)
    the_two_meet_at_one_socket_in_memory(pod)
    the_sidecar_polls_vllms_own_port_and_clients_go_straight_there(pod)
    the_sidecar_cannot_hold_the_pod_up(pod)
    every_mount_has_its_volume(pod)


def _sidecar_and_vllm(pod: dict) -> tuple[dict, dict]:
    return container(pod, SIDECAR), main_container(pod)


def _mount_of(one: dict, path: str) -> dict:
    """The mount that a path lies in."""
    [found] = [mount for mount in one["volumeMounts"] if path.startswith(mount["mountPath"] + "/")]
    return found
