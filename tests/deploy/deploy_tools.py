"""Where the deployment's files are, the programs that read them, and the Pods in them."""

import json
import os
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import kubernetes_validate
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
INTEGRATIONS = DEPLOY / "integrations"
CHART = DEPLOY / "helm" / "specdec-sidecar"
SIDECAR = "specdec-sidecar"
WRITER = "specdec-plugin"
# The first with native sidecars switched on, and the first in which they are stable.
VERSIONS = ("1.29", "1.33")
PROGRAMS = ROOT / ".venv" / "bin"  # into which scripts/kubectl-helm installs
# Kubernetes allows 262,144 bytes of annotations, and a client-side apply keeps the object in one.
MOST_APPLIED = 260_000
# The same language; in C, for the dashboards are long.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# By kind: the API, the list that it requires, the fields of what is in it, and others: those that
# we use, as in prometheus-operator 0.93.0, VictoriaMetrics' operator 0.74, Google's
# prometheus-engine 0.19 and Dynamo 1.6's operator (deploy/operator/api/v1beta1 of ai-dynamo/dynamo,
# whose podTemplate is Kubernetes' PodTemplateSpec).
_OPERATOR = "monitoring.coreos.com/v1"
_AZURE = "azmonitoring.coreos.com/v1"  # Azure Monitor's copies of the same types
_VICTORIA = "operator.victoriametrics.com/v1beta1"
_GOOGLE = "monitoring.googleapis.com/v1"
_ENDPOINT = {"port", "path", "scheme", "interval", "tlsConfig"}
_SCRAPE = _ENDPOINT | {"scrapeTimeout", "filterRunning"}
_RELABELINGS = {"relabelings.sourceLabels", "relabelings.targetLabel"}
_RELABEL_CONFIGS = {"relabelConfigs.sourceLabels", "relabelConfigs.targetLabel"}
_SELECTED = {"selector.matchLabels", "sampleLimit"}
_GOOGLES = {"selector.matchLabels", "filterRunning", "targetLabels.metadata", "limits.samples"}
_OTHERS_KINDS = {
    "PrometheusRule": (_OPERATOR, "groups", {"name", "interval", "limit", "rules"}, set()),
    "PodMonitor": (_OPERATOR, "podMetricsEndpoints", _SCRAPE | _RELABELINGS, _SELECTED),
    "ServiceMonitor": (_OPERATOR, "endpoints", _SCRAPE | _RELABELINGS, _SELECTED),
    "VMPodScrape": (_VICTORIA, "podMetricsEndpoints", _SCRAPE | _RELABEL_CONFIGS, _SELECTED),
    "PodMonitoring": (_GOOGLE, "endpoints", _ENDPOINT | {"timeout"}, _GOOGLES),
    "DynamoGraphDeployment": (
        "nvidia.com/v1beta1",
        "components",
        {"name", "type", "replicas", "podTemplate"},
        set(),
    ),
}
# Whatever they hold; promtool checks rules, and Kubernetes' schema each podTemplate's Pod.
_FREE = {"matchLabels", "tlsConfig", "rules", "podTemplate"}

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
    return [document for document in yaml.load_all(text, _LOADER) if document]


# What ships, as each way of deploying it must have it.
RULES = [read(path) for path in sorted((ROOT / "alerts").glob("*.yaml"))]
PAGES = {path.name: json.loads(path.read_text()) for path in (ROOT / "dashboards").glob("*.json")}


@cache
def install_programs() -> None:
    """Then helm (4), helm3 and kubectl are in ``PROGRAMS``."""
    subprocess.run([ROOT / "scripts" / "kubectl-helm"], check=True)


def run(
    program: str | Path, *arguments: object, text: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a program with ours on the path; ``text`` is its standard input."""
    install_programs()
    environment = os.environ | {"PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
    command = [str(part) for part in (program, *arguments)]
    return subprocess.run(
        command, input=text, capture_output=True, text=True, check=False, env=environment
    )


def output(program: str | Path, *arguments: object, text: str | None = None) -> list[dict]:
    """The documents that a program prints; fails with what it complains of."""
    done = run(program, *arguments, text=text)
    assert done.returncode == 0, done.stderr
    return read_all(done.stdout)


def build(folder: str) -> list[dict]:
    """What kustomize makes of a folder of ``KUBERNETES``."""
    return output("kubectl", "kustomize", KUBERNETES / folder)


def post_rendered(*objects: dict) -> list[dict]:
    """What the post-renderer makes of what another chart renders."""
    return output(INTEGRATIONS / "post-render" / "post-render", text=yaml.safe_dump_all(objects))


@cache
def plugin_pods() -> dict[str, dict]:
    """The Pod of everything that runs vLLM with the plug-in in Kubernetes, by a name for it.

    The chart's is not among them.
    """
    decode = read(INTEGRATIONS / "llm-d" / "values.yaml")["decode"]
    [engine] = decode["containers"]
    engine = {
        key: value
        for key, value in engine.items()
        if key not in {"modelCommand", "mountModelVolume"}
    }
    kserve = read(INTEGRATIONS / "kserve" / "llminferenceservice.yaml")["spec"]["template"]
    return {
        "overlay": pod_of(build("overlays/plugin")),
        "post-render": pod_of(post_rendered(RENDERED)),
        "llm-d": (
            {name: decode[name] for name in ("initContainers", "volumes")}
            | {"containers": [engine]}
        ),
        # KServe's own template has the image.
        "kserve": (
            kserve | {"containers": [{"image": "x", **each} for each in kserve["containers"]]}
        ),
        "dynamo": dynamo_pods()["worker"],
    }


def dynamo_pods() -> dict[str, dict]:
    """The Pod of each component, by its type."""
    graph = read(INTEGRATIONS / "dynamo" / "dynamographdeployment.yaml")
    check_object(graph)
    return {
        component["type"]: component["podTemplate"]["spec"]
        for component in graph["spec"]["components"]
    }


def pod_of(objects: list[dict]) -> dict:
    """The Pod of the one Deployment among the objects."""
    [deployment] = [each for each in objects if each["kind"] == "Deployment"]
    return deployment["spec"]["template"]["spec"]


def container(pod: dict, *names: str) -> dict:
    """The one container that has one of the names."""
    [match] = [each for each in every_container(pod) if each["name"] in names]
    return match


def every_container(pod: dict) -> list[dict]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def main_container(pod: dict) -> dict:
    """vLLM's."""
    return container(pod, "vllm", "main")


def environment(container: dict) -> dict[str, str]:
    return {item["name"]: item["value"] for item in container.get("env", [])}


def option(arguments: list[str], name: str) -> str | None:
    """The value of ``--name=value``."""
    return next(
        (text.partition("=")[2] for text in arguments if text.startswith(f"--{name}=")), None
    )


def check_object(obj: dict) -> None:
    """Raises where the API server of one of ``VERSIONS`` would refuse the object.

    It also raises where an operator would not know a field.
    """
    if obj["kind"] not in _OTHERS_KINDS:
        for version in VERSIONS:
            kubernetes_validate.validate(obj, version, strict=True)
        return
    api, items, of_items, others = _OTHERS_KINDS[obj["kind"]]
    is_azures = api == _OPERATOR and obj["kind"] != "PrometheusRule"
    assert obj["apiVersion"] in ({api, _AZURE} if is_azures else {api})
    assert obj["spec"][items]
    assert set(_fields(obj["spec"])) <= {f"{items}.{name}" for name in of_items} | others


def _fields(value: object, path: str = "") -> Iterator[str]:
    """The paths of all values, those in lists without their places."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        for each in value:
            yield from _fields(each, path)
    elif isinstance(value, dict) and path.rpartition(".")[2] not in _FREE:
        for name, each in value.items():
            yield from _fields(each, f"{path}.{name}".removeprefix("."))
    else:
        yield path


def pod_object(pod: dict) -> dict:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "any"}, "spec": pod}
