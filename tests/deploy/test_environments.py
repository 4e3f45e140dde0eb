"""The chart in clusters of other people's: scrapers, autoscalers, quotas, meshes and OpenShift."""

import pytest
import yaml

from tests.debian_servers import free_port, running_prometheus
from tests.deploy.deploy_tools import (
    CHART,
    DEPLOY,
    SIDECAR,
    check_object,
    container,
    environment,
    every_container,
    main_container,
    pod_object,
    pod_of,
    read,
)
from tests.deploy.test_helm import render

pytestmark = pytest.mark.slow
AZURE = "azmonitoring.coreos.com/v1"


def pod(*arguments):
    return pod_of(render(*arguments)["Deployment"])


def test_the_sidecar_may_be_an_ordinary_container():
    """Scrape jobs that drop init containers never scrape a native sidecar."""
    native = pod()
    ordinary = pod("--set=nativeSidecar=false")
    assert SIDECAR in {each["name"] for each in native["initContainers"]}
    assert [each["name"] for each in ordinary["initContainers"]] == ["specdec-plugin"]
    assert SIDECAR in {each["name"] for each in ordinary["containers"]}

    own = container(native, SIDECAR)
    assert own.pop("restartPolicy") == "Always"
    assert container(ordinary, SIDECAR) == own
    check_object(pod_object(ordinary))

    alone = pod("--set=nativeSidecar=false,plugin.enabled=false")
    assert "initContainers" not in alone


@pytest.mark.servers
@pytest.mark.parametrize("is_native", [True, False])
async def test_a_job_that_drops_init_containers_scrapes_only_an_ordinary_one(
    is_native, http, tmp_path
):
    """Prometheus' own relabelling, on the targets that the chart's Pod gives."""
    made = pod(f"--set=nativeSidecar={str(is_native).lower()},scrape.kind=annotations")
    kinds = {"initContainers": "true", "containers": "false"}
    targets = [
        {
            "targets": [f"127.0.0.1:{free_port()}"],
            "labels": {
                "__meta_kubernetes_pod_container_init": init,
                "__meta_kubernetes_pod_container_port_number": str(port["containerPort"]),
                "__meta_kubernetes_pod_annotation_prometheus_io_port": "9911",
            },
        }
        for kind, init in kinds.items()
        for each in made[kind]
        for port in each.get("ports", [])
    ]
    drops_init = {
        "action": "drop",
        "source_labels": ["__meta_kubernetes_pod_container_init"],
        "regex": "true",
    }
    keeps_port = {
        "action": "keepequal",
        "source_labels": ["__meta_kubernetes_pod_annotation_prometheus_io_port"],
        "target_label": "__meta_kubernetes_pod_container_port_number",
    }
    (tmp_path / "targets.yaml").write_text(yaml.safe_dump(targets))
    job = {
        "job_name": "pods",
        "file_sd_configs": [{"files": [str(tmp_path / "targets.yaml")]}],
        "relabel_configs": [drops_init, keeps_port],
    }
    other = {"job_name": "there", "static_configs": [{"targets": ["127.0.0.1:1"]}]}
    config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [job, other]}
    async with running_prometheus(http, tmp_path, config) as prometheus:
        await prometheus.until('count_over_time(up{job="there"}[1m]) > 3')  # several rounds
        if is_native:
            assert list(await prometheus.instant('up{job="pods"}')) == []
        else:
            await prometheus.until('up{job="pods"} == 0')  # nothing listens there, but it is asked


@pytest.mark.parametrize(
    ("arguments", "apis", "expected"),
    [
        ((), (f"{AZURE}/PodMonitor",), AZURE),
        ((), (f"{AZURE}/PodMonitor", "monitoring.coreos.com/v1/PodMonitor"), None),
        (
            (f"--set=scrape.apiVersion={AZURE}",),
            (f"{AZURE}/PodMonitor", "monitoring.coreos.com/v1/PodMonitor"),
            AZURE,
        ),
        (("--set=scrape.kind=PodMonitor", f"--set=scrape.apiVersion={AZURE}"), (), AZURE),
        ((f"--set=scrape.kind=ServiceMonitor,scrape.apiVersion={AZURE}",), (), AZURE),
    ],
)
def test_azure_monitor_has_monitors_of_its_own(arguments, apis, expected):
    kinds = render(*arguments, apis=apis)
    (monitor,) = [*kinds.get("PodMonitor", []), *kinds.get("ServiceMonitor", [])]
    assert monitor["apiVersion"] == (expected or "monitoring.coreos.com/v1")


def test_a_strict_mesh_leaves_the_port_alone_that_the_sidecar_listens_at():
    """By the annotations that the chart's README names for Istio and for Linkerd."""
    values = CHART / "ci" / "strict-mesh-values.yaml"
    template = render("--values", values)["Deployment"][0]["spec"]["template"]
    [port] = container(template["spec"], SIDECAR)["ports"]
    annotations = read(values)["vllm"]["podAnnotations"]
    assert annotations.items() <= template["metadata"]["annotations"].items()

    readme = (CHART / "README.md").read_text()
    for name, excluded in annotations.items():
        assert excluded == str(port["containerPort"])
        assert f'{name}: "{excluded}"' in readme


def test_an_autoscaler_has_the_number_of_pods_to_itself():
    """A null would otherwise be rendered as nothing, which the API server takes for 1."""
    kinds = render("--values", CHART / "ci" / "autoscaled-values.yaml")
    (deployment,) = kinds["Deployment"]
    assert "replicas" not in deployment["spec"]

    (budget,) = kinds["PodDisruptionBudget"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert budget["spec"]["maxUnavailable"] == 1
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()

    assert render("--set=vllm.replicas=0")["Deployment"][0]["spec"]["replicas"] == 0
    assert "PodDisruptionBudget" not in render()


def test_a_guaranteed_vllm_stays_guaranteed():
    """Every container's requests equal its limits, ours too."""
    made = pod("--values", CHART / "ci" / "guaranteed-values.yaml")
    for each in every_container(made):
        limits = each["resources"]["limits"]
        assert {"cpu", "memory"} <= set(limits)
        assert all(
            limits[name] == each["resources"]["requests"][name] for name in ("cpu", "memory")
        )


def test_what_takes_disk_says_how_much():
    made = pod()
    for each in every_container(made):
        for part in ("requests", "limits"):
            assert "ephemeral-storage" in each["resources"][part]

    emptied = [volume["emptyDir"] for volume in made["volumes"] if "emptyDir" in volume]
    assert all("sizeLimit" in each for each in emptied)
    claim = pod("--set=vllm.cache.persistentVolumeClaim.claimName=models")
    (cache,) = (volume for volume in claim["volumes"] if volume["name"] == "cache")
    assert cache == {"name": "cache", "persistentVolumeClaim": {"claimName": "models"}}


def test_vllm_has_a_home_and_a_name_whatever_its_user():
    """OpenShift's users have neither, and PyTorch needs both."""
    known = environment(main_container(pod("--set=plugin.enabled=false")))
    assert known == {"HOME": "/home/vllm", "USER": "vllm"}

    own = main_container(pod("--set=vllm.env[0].name=HOME,vllm.env[0].value=/work"))
    names = [each["name"] for each in own["env"]]
    assert sorted(names) == ["HOME", "PYTHONPATH", "USER"]
    assert environment(own)["HOME"] == "/work"


def test_compose_relabels_what_it_mounts_from_the_host():
    """Without it, SELinux keeps the containers from reading their configuration."""
    services = read(DEPLOY / "compose" / "compose.yaml")["services"]
    mounts = [mount for each in services.values() for mount in each.get("volumes", [])]
    from_host = [mount for mount in mounts if mount.startswith(".")]
    assert from_host
    assert all("z" in mount.rpartition(":")[2].split(",") for mount in from_host)
