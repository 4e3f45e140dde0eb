"""Where the deployment's files are, the programs that read them, and the Pods in them."""

import os
import subprocess
from pathlib import Path

import jsonschema
import kubernetes_validate
import yaml

from tests.deploy.crd_schemas import SCHEMAS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
INTEGRATIONS = DEPLOY / "integrations"
CHART = DEPLOY / "helm" / "specdec-sidecar"
# The first with native sidecars switched on, and the first in which they are stable.
VERSIONS = ("1.29", "1.33")
PROGRAMS = ROOT / ".venv" / "bin"  # into which scripts/kubectl-helm installs
SIDECAR = "specdec-sidecar"
WRITER = "specdec-plugin"

# The same language; in C, for the dashboards are long.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# What vLLM's chart and production-stack's render, as far as the patch can tell.
RENDERED = yaml.safe_load("""
apiVersion: apps/v1
kind: Deployment
metadata: {name: stack-qwen3-deployment-vllm}
spec:
  selector: {matchLabels: {model: qwen3}}
  template:
    metadata: {labels: {model: qwen3}}
    spec:
      initContainers: [{name: wait-download-model, image: x}]
      containers:
        - name: vllm
          image: vllm/vllm-openai:v0.32.0
          args: [Qwen/Qwen3-8B, --port=8000]
          volumeMounts: [{name: stack-storage, mountPath: /data}]
      volumes: [{name: stack-storage, emptyDir: {}}]
""")


def read(path: Path) -> dict:
    return yaml.load(path.read_text(), _LOADER)


def read_all(text: str) -> list[dict]:
    """Every document that is not empty."""
    return [one for one in yaml.load_all(text, _LOADER) if one]


def run(program: str | Path, *arguments: object, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a program with ours on the path; ``text`` is its standard input."""
    environment = os.environ | {"PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
    command = [str(part) for part in (program, *arguments)]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=60, env=environment)


def build(folder: str) -> list[dict]:
    """What kustomize makes of a folder of ``KUBERNETES``."""
    done = run("kubectl", "kustomize", KUBERNETES / folder)
    assert done.returncode == 0, done.stderr
    return read_all(done.stdout)


def post_rendered(*objects: dict) -> list[dict]:
    """What the post-renderer makes of what another chart renders."""
    done = run(INTEGRATIONS / "post-render" / "post-render", text=yaml.safe_dump_all(objects))
    assert done.returncode == 0, done.stderr
    return read_all(done.stdout)


def plugin_pods() -> dict[str, dict]:
    """The Pod of everything that runs vLLM with the plug-in in Kubernetes, the chart's aside, by a name for it."""
    return {
        "overlay": pod_of(build("overlays/plugin")),
        "post-render": pod_of(post_rendered(RENDERED)),
        "llm-d": _llm_d(),
        "kserve": _kserve(),
    }


def pod_of(objects: list[dict]) -> dict:
    """The Pod of the one Deployment among the objects."""
    [deployment] = [one for one in objects if one["kind"] == "Deployment"]
    return deployment["spec"]["template"]["spec"]


def _llm_d() -> dict:
    decode = read(INTEGRATIONS / "llm-d" / "values.yaml")["decode"]
    [engine] = decode["containers"]
    of_chart = {"modelCommand", "mountModelVolume"}
    own = {key: value for key, value in engine.items() if key not in of_chart}
    return {"initContainers": decode["initContainers"], "containers": [own], "volumes": decode["volumes"]}


def _kserve() -> dict:
    pod = read(INTEGRATIONS / "kserve" / "llminferenceservice.yaml")["spec"]["template"]
    [engine] = pod["containers"]
    return {**pod, "containers": [{"image": "x", **engine}]}  # KServe's own template has the image


def container(pod: dict, name: str) -> dict:
    [found] = [one for one in every_container(pod) if one["name"] == name]
    return found


def every_container(pod: dict) -> list[dict]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def main_container(pod: dict) -> dict:
    """vLLM's."""
    [found] = [one for one in pod["containers"] if one["name"] in ("vllm", "main")]
    return found


def environment(one: dict) -> dict[str, str]:
    return {item["name"]: item["value"] for item in one.get("env", [])}


def option(arguments: list[str], name: str) -> str | None:
    """The value of ``--name=value``."""
    found = [text.partition("=")[2] for text in arguments if text.startswith(f"--{name}=")]
    return found[0] if found else None


def check_object(one: dict) -> None:
    """Raises where the API server of one of ``VERSIONS`` would refuse the object."""
    if one["kind"] in SCHEMAS:
        jsonschema.Draft202012Validator(SCHEMAS[one["kind"]]).validate(one)
        return
    for version in VERSIONS:
        kubernetes_validate.validate(one, version, strict=True)


def pod_object(pod: dict) -> dict:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": pod}
