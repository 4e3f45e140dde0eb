"""Where the deployment's files are, and how the tests look at Pods in them."""

import subprocess
import sys
from pathlib import Path

from tests.deploy.kustomize_tools import build, merge, read

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
INTEGRATIONS = DEPLOY / "integrations"
OVERLAYS = ("base", "overlays/proxy", "overlays/middleware", "overlays/traces")
SIDECAR = "specdec-sidecar"
MIDDLEWARE = "specdec-middleware"

# What production-stack's chart renders, as far as the patch can tell.
RENDERED = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "stack-qwen3-deployment-vllm"},
    "spec": {
        "selector": {"matchLabels": {"model": "qwen3"}},
        "template": {
            "metadata": {"labels": {"model": "qwen3"}},
            "spec": {
                "containers": [
                    {
                        "name": "vllm",
                        "image": "vllm/vllm-openai:v0.32.0",
                        "volumeMounts": [{"name": "stack-storage", "mountPath": "/data"}],
                    }
                ],
                "volumes": [{"name": "stack-storage", "emptyDir": {}}],
            },
        },
    },
}


def pods() -> dict[str, dict]:
    """The Pod specification of everything that runs the sidecar in Kubernetes, by a name for it."""
    return {
        **{name: overlay_pod(name) for name in OVERLAYS},
        "vllm-chart": _vllm_chart(),
        "production-stack": _production_stack(),
        "llm-d": _llm_d(),
        "kserve": _kserve(),
    }


def overlay_pod(name: str) -> dict:
    [deployment] = [one for one in build(KUBERNETES / name) if one["kind"] == "Deployment"]
    return deployment["spec"]["template"]["spec"]


def _vllm_chart() -> dict:
    values = read(INTEGRATIONS / "vllm-chart" / "values.yaml")
    return {"containers": [{"name": "vllm", "image": "x"}, *values["extraContainers"]]}


def _production_stack() -> dict:
    """The chart's Pod with its values' environment and flags, then patched."""
    folder = INTEGRATIONS / "production-stack"
    pod = merge(RENDERED, read(folder / "pod.yaml"))["spec"]["template"]["spec"]
    [model] = read(folder / "values.yaml")["servingEngineSpec"]["modelSpec"]
    engine = main_container(pod)
    engine["env"] = model["env"]
    engine["args"] = model["vllmConfig"]["extraArgs"]
    return pod


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


def generated(folder: Path, *, root: Path = ROOT) -> subprocess.CompletedProcess:
    """Runs the generator of manifests on ``root``'s alerts and dashboards."""
    script = ROOT / "scripts" / "manifests_generate.py"
    command = [sys.executable, str(script), str(folder)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
