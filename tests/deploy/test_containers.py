"""The image, and the three containers of a Pod from the manifests, as Debian's podman runs them."""

import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from sidecar.analysis.split.tallies import TemperatureBuckets
from tests.debian_servers import free_port
from tests.deploy.deploy_tools import ROOT, plugin_pods
from tests.page import Page
from tests.restarts.vllm import Options
from tests.waiting import START_SECONDS

pytestmark = [pytest.mark.slow, pytest.mark.limit(1200)]
BASE, IMAGE = "localhost/specdec-base", "localhost/specdec-sidecar:test"
# The limits are those of a plain machine, where podman asks for more than it may have.
OPTIONS = (
    "--network=host",
    "--ulimit=nofile=1024:1024",
    "--ulimit=nproc=4096:4096",
    "--no-healthcheck",
)
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# The simulated engine, with the plug-in that the init container wrote.
ENGINE = """
import asyncio, json, sys, specdec_plugin, sidecar.requests
sys.modules["sidecar.requests.plugin"] = specdec_plugin
from tests.page import Page
from tests.restarts.vllm import Options, Server
assert specdec_plugin.__file__ == "/plugin/specdec_plugin.py"
asyncio.run(Server(Options(**json.loads(sys.argv[1]))).run())
"""


def podman(*arguments, check=True):
    return subprocess.run(["podman", *arguments], check=check, capture_output=True, text=True)


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """The image, on Debian's Python, since a registry may not be reachable."""
    if os.getuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip("podman runs here as root on Debian")
    with (Path(tempfile.gettempdir()) / "specdec-containers.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests may run in several processes
        return _built(tmp_path_factory)


def _built(tmp_path_factory):
    subprocess.run([ROOT / "scripts/debian-tools", "podman", "runc", "debootstrap"], check=True)
    if podman("image", "exists", BASE, check=False).returncode != 0:
        _make_base(tmp_path_factory.mktemp("base"))
    done = podman("run", "--rm", *OPTIONS, BASE, "true", check=False)
    if done.returncode != 0:
        pytest.skip(f"podman cannot run a container here: {done.stderr}")
    environment = {**os.environ, "ENGINE": "podman", "IMAGE": IMAGE}
    command = [ROOT / "scripts/image", "--network=host", "--build-arg", f"BASE={BASE}"]
    subprocess.run(command, env=environment, check=True)
    return IMAGE


def _make_base(folder):
    """This release of Debian with Python.

    It trusts the certificates that this machine trusts.
    """
    target = "$(REPO_URI) $(CODENAME)"
    indexes = [
        "apt-get",
        "indextargets",
        "--format",
        target,
        "Created-By: Packages",
        "Component: main",
    ]
    uri, release = subprocess.run(
        indexes, check=True, capture_output=True, text=True
    ).stdout.split()[:2]
    packages = "--include=python3-venv,ca-certificates"
    command = ["debootstrap", "--variant=minbase", packages, release, folder, uri]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"debootstrap cannot make a base here: {done.stdout[-500:]}")
    shutil.copy(CERTIFICATES, folder / CERTIFICATES.relative_to("/"))
    (folder / "etc/pip.conf").write_text(f"[global]\ncert = {CERTIFICATES}\n")
    with subprocess.Popen(["tar", "-C", folder, "-c", "."], stdout=subprocess.PIPE) as tar:
        subprocess.run(
            ["podman", "import", "-", BASE], stdin=tar.stdout, check=True, capture_output=True
        )


def test_the_image_runs_as_kubernetes_would_run_it(image):
    environment = {**os.environ, "ENGINE": "podman", "ENGINE_OPTIONS": " ".join(OPTIONS)}
    subprocess.run([ROOT / "scripts/image-check", image], env=environment, check=True)


class Pod:
    """Runs a Pod's containers by their users, mounts and arguments.

    Its volumes are as a kubelet makes them.
    """

    def __init__(self, spec, folder):
        self._group = spec["securityContext"]["fsGroup"]
        self._folder = folder

    def options(self, container, network="--network=host"):
        context = container["securityContext"]
        for volume in container["volumeMounts"]:
            path = self._folder / volume["name"]
            if not path.exists():
                path.mkdir()
                os.chown(path, 0, self._group)
                path.chmod(0o2777)
            yield (
                f"--volume={path}:{volume['mountPath']}:{'ro' if volume.get('readOnly') else 'rw'}"
            )
        yield f"--user={context['runAsUser']}:{context['runAsGroup']}"
        yield f"--group-add={self._group}"
        yield f"--read-only={json.dumps(context.get('readOnlyRootFilesystem', False))}"
        yield from (
            "--read-only-tmpfs=false",
            "--cap-drop=ALL",
            "--security-opt=no-new-privileges",
            network,
            *OPTIONS[1:],
        )

    @contextmanager
    def running(self, container, *more, network="--network=host"):
        options = self.options(container, network)
        name = podman("run", "--detach", *options, *more).stdout.strip()
        try:
            yield name
        finally:
            print(podman("logs", name).stdout)  # noqa: T201 - shown if the test fails
            podman("rm", "--force", "--time=5", name)


async def test_the_containers_of_a_pod_split_to_the_token(image, tmp_path):
    spec = plugin_pods()["overlay"]
    writes, observes = spec["initContainers"]
    (serves,) = spec["containers"]
    pod, port, page = Pod(spec, tmp_path), free_port(), free_port()
    vllm, ours = (Page(f"http://127.0.0.1:{each}") for each in (port, page))
    podman("run", "--rm", *pod.options(writes), image, *writes["args"])
    own = ("--env=SPECDEC_SCRAPE_INTERVAL=200ms", f"--env=SPECDEC_LISTEN=127.0.0.1:{page}")
    own += (f"--env=SPECDEC_VLLM_URL={vllm.url}",)
    engine = (
        "--env=PYTHONPATH=/plugin:/source",
        f"--volume={ROOT}/tests:/source/tests:ro",
        "--workdir=/source",
    )
    options = json.dumps(asdict(Options(port, "/run/specdec/plugin.sock")))
    with (
        pod.running(observes, *own, image, *observes["args"]),
        pod.running(serves, *engine, "--entrypoint=python", image, "-c", ENGINE, options) as served,
    ):
        await vllm.until(bool, seconds=START_SECONDS)
        await vllm.get("/traffic", "POST")
        await ours.until(
            lambda samples: samples.sum("specdec_drafts_total") > 2000, seconds=START_SECONDS
        )
        await vllm.get("/drain", "POST")
        truth = Counter()
        for by, value, count in json.loads((await vllm.get("/truth")).body):
            if by == "temperature":
                truth[TemperatureBuckets().label(round(100 * float(value)))] += count

        def split(samples):
            return {
                label: samples.sum("specdec_drafts_total", temperature=label) for label in truth
            }

        await ours.until(split, truth)
        for path in ("/run/specdec/plugin.sock", "/plugin/specdec_plugin.py"):
            assert "Read-only file system" in podman("exec", served, "rm", path, check=False).stderr
    assert [path.name for path in (tmp_path / "specdec-plugin").iterdir()]


@pytest.fixture
def ipv6_network():
    """A Pod's network in a cluster with IPv6 only: podman's option, and the Pod's address."""
    own = os.getpid() % 10_000  # its prefix, too: a run that was killed leaves its network
    name, outer, inner = (f"specdec-{kind}{own}" for kind in ("6", "o", "i"))
    node, pod = (f"fd00:9911:{own}::{number}" for number in (1, 2))
    inside = ("ip", "-n", name)
    commands = (
        ("ip", "netns", "add", name),
        ("ip", "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", name),
        ("ip", "address", "add", f"{node}/64", "dev", outer, "nodad"),
        ("ip", "link", "set", outer, "up"),
        (*inside, "address", "add", f"{pod}/64", "dev", inner, "nodad"),
        (*inside, "link", "set", inner, "up"),
        (*inside, "link", "set", "lo", "up"),
    )
    try:
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                pytest.skip(f"no network of one's own can be made here: {done.stderr}")
        yield f"--network=ns:/run/netns/{name}", f"[{pod}]"
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=False)


async def test_the_kubelet_and_prometheus_reach_it_in_a_cluster_with_ipv6_only(
    image, tmp_path, ipv6_network
):
    """With a setting that it cannot use, too, as vLLM waits for it."""
    network, address = ipv6_network
    spec = plugin_pods()["overlay"]
    observes = spec["initContainers"][1]
    page = Page(f"http://{address}:9911")
    invalid = "--env=SPECDEC_THRESHOLDS__COVERAGE=lots"
    container = (invalid, image, *observes["args"])
    with Pod(spec, tmp_path).running(observes, *container, network=network) as name:
        samples = await page.until(bool, seconds=START_SECONDS)
        probe = await page.get(observes["livenessProbe"]["httpGet"]["path"])
        podman("exec", name, "specdec-sidecar", "healthcheck")
        report = podman("exec", name, "specdec-sidecar", "report").stdout

    assert probe.status == 200
    assert samples.value("specdec_settings_invalid") == 1
    assert "invalid setting: SPECDEC_THRESHOLDS__COVERAGE=lots" in report
