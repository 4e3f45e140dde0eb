"""The chart as Helm 3 and Helm 4 render it, and what the post-renderer makes of other charts."""

import asyncio
import copy
import re
import shutil
import sys
import tarfile

import pytest
import yaml

from sidecar.app import running
from sidecar.settings import load_settings
from tests.deploy.deploy_tools import (
    CHART,
    RENDERED,
    ROOT,
    SIDECAR,
    build,
    check_object,
    container,
    environment,
    main_container,
    pod_of,
    post_rendered,
    read,
    read_all,
    run,
)
from tests.deploy.pod_checks import check_pod

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("programs")]
VALUES = sorted((CHART / "ci").glob("*-values.yaml"))
OPERATOR = ("monitoring.coreos.com/v1/PodMonitor", "monitoring.coreos.com/v1/PrometheusRule")
MONITORS = {"PodMonitor", "ServiceMonitor", "VMPodScrape", "PodMonitoring"}

with_values = pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)


def render(*arguments, helm="helm", release="vllm", chart=CHART, apis=()):
    """The objects that a release has, by kind."""
    apis = [f"--api-versions={api}" for api in apis]
    done = run(helm, "template", release, chart, "--namespace=llm", *apis, *arguments)
    assert done.returncode == 0, done.stderr
    kinds = {}
    for one in read_all(done.stdout):
        kinds.setdefault(one["kind"], []).append(one)
    return kinds


def objects(kinds):
    return [one for found in kinds.values() for one in found]


def plain(value):
    """Without what makes no difference: order, and a pull policy."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in sorted(value.items()) if key != "imagePullPolicy"}
    return sorted(map(plain, value), key=str) if isinstance(value, list) else value


@with_values
def test_both_helms_render_objects_that_kubernetes_knows_and_a_pod_like_every_other(values):
    for helm in ("helm", "helm3"):
        done = run(helm, "lint", "--strict", CHART, "--values", values)
        assert done.returncode == 0, done.stdout + done.stderr
    kinds = render("--values", values)
    assert plain(objects(kinds)) == plain(objects(render("--values", values, helm="helm3")))
    for one in objects(kinds):
        check_object(one)
    names = [(one["kind"], one["metadata"]["name"]) for one in objects(kinds)]
    assert len(names) == len(set(names))
    if "Deployment" in kinds:
        check_pod(pod_of(kinds["Deployment"]))


def test_the_chart_runs_the_pod_that_the_overlay_runs(pods):
    ours = plain(pod_of(render()["Deployment"]))
    theirs = plain(pods["overlay"])
    for users in (ours["securityContext"], theirs["securityContext"]):
        users.pop("runAsUser", None), users.pop("runAsGroup", None)  # each container has its own
    assert ours | {"serviceAccountName": "default"} == theirs | {"serviceAccountName": "default"}
    without = plain(pod_of(render("--set=plugin.enabled=false")["Deployment"]))
    assert plain(pod_of(build("base")))["initContainers"] == without["initContainers"]
    assert "PYTHONPATH" not in environment(main_container(without))


@pytest.mark.parametrize(
    ("apis", "monitor", "rules"),
    [
        ((), None, False),
        (OPERATOR, "PodMonitor", True),
        (["operator.victoriametrics.com/v1beta1/VMPodScrape"], "VMPodScrape", False),
        (["monitoring.googleapis.com/v1/PodMonitoring"], "PodMonitoring", False),
    ],
)
def test_by_default_the_chart_installs_what_the_cluster_has_types_for(apis, monitor, rules):
    kinds = render(apis=apis)
    assert set(kinds) & MONITORS == ({monitor} if monitor else set())
    assert ("PrometheusRule" in kinds) == rules


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Prometheus does NOT scrape the sidecars yet: this cluster has no PodMonitor"),
        ([], "The alerts are NOT installed: this cluster has no PrometheusRule"),
        (["--set=scrape.kind=PodMonitor"], "set scrape.labels.release"),
        (["--set=scrape.kind=annotations"], "The NetworkPolicy allows only the namespace monitoring"),
        (["--set=rules.enabled=true"], "set rules.enabled and dashboards.enabled to false in further releases"),
        (["--set=plugin.enabled=false"], "There is no split by temperature"),
        (["--set=vllm.enabled=false"], "Add the sidecar to your own vLLM's Pods"),
    ],
)
def test_the_notes_say_what_to_do(arguments, said):
    done = run("helm", "install", "vllm", CHART, "--dry-run=client", *arguments)
    assert said in " ".join(done.stdout.partition("NOTES:")[2].split()), done.stderr


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        # What the schema refuses.
        ('--set-json=plugn={"enabled": true}', "plugn"),
        ("--set=image.digest=latest", "digest"),
        ("--set=image.pullPolicy=Sometimes", "pullPolicy"),
        ('--set-json=vllm={"port": "8000"}', "port"),
        ('--set-json=vllm={"speculativeConfig": {"method": "ngram"}}', "speculativeConfig"),
        ("--set=vllm.speculativeConfig=ngram", "speculativeConfig"),
        ("--set=scrape.kind=podmonitor", "kind"),
        ("--set-string=scrape.interval=15", "interval"),
        ("--set-string=rules.enabled=yes", "enabled"),
        # What the templates refuse.
        ("--set=vllm.enabled=false,scrape.kind=annotations", "specdec-sidecar.podAnnotations"),
        ("--set=vllm.enabled=false,scrape.kind=ServiceMonitor", "needs scrape.podLabels"),
    ],
)
def test_what_could_not_work_is_refused_with_what_to_do(argument, said):
    done = run("helm", "template", "vllm", CHART, argument)
    assert done.returncode != 0
    assert said in done.stderr


@with_values
def test_every_selector_finds_its_pods_and_the_policy_lets_in_who_must_come(values):
    kinds = render("--values", values)
    if "Deployment" not in kinds:
        return
    labels = kinds["Deployment"][0]["spec"]["template"]["metadata"]["labels"]
    selectors = [one["spec"]["selector"] for one in kinds["Service"]]
    selectors += [one["spec"]["podSelector"]["matchLabels"] for one in kinds["NetworkPolicy"]]
    selectors += [
        one["spec"]["selector"]["matchLabels"] for kind in MONITORS - {"ServiceMonitor"} for one in kinds.get(kind, [])
    ]
    selectors.append(kinds["Deployment"][0]["spec"]["selector"]["matchLabels"])
    assert all(selector.items() <= labels.items() for selector in selectors)
    services = [one["metadata"]["labels"].items() for one in kinds["Service"]]
    for one in kinds.get("ServiceMonitor", []):
        assert [one["spec"]["selector"]["matchLabels"].items() <= has for has in services] == [False, True]
    [policy] = kinds["NetworkPolicy"]
    clients, observers = policy["spec"]["ingress"]
    assert clients == {"ports": [{"port": "http"}]}
    tests = observers["from"][1]["podSelector"]["matchLabels"]
    assert tests.items() <= kinds["Pod"][0]["metadata"]["labels"].items()


def test_rules_and_dashboards_are_the_repositorys():
    kinds = render("--set=vllm.enabled=false", apis=OPERATOR)
    assert [one["spec"] for one in kinds["PrometheusRule"]] == [
        read(path) for path in sorted((ROOT / "alerts").glob("*.yaml"))
    ]
    found = {name: yaml.safe_load(text) for one in kinds["ConfigMap"] for name, text in one["data"].items()}
    assert found == {path.name: yaml.safe_load(path.read_text()) for path in (ROOT / "dashboards").glob("*.json")}


def test_of_two_releases_one_has_rules_and_dashboards_and_no_name_is_taken_twice():
    first = render(apis=OPERATOR, release="chat")
    second = render("--set=rules.enabled=false,dashboards.enabled=false", apis=OPERATOR, release="code")
    assert "PrometheusRule" not in second
    assert "ConfigMap" not in second
    names = [(one["kind"], one["metadata"]["name"]) for kinds in (first, second) for one in objects(kinds)]
    assert len(names) == len(set(names))
    selectors = [
        one["spec"]["selector"] for kinds in (first, second) for one in (*kinds["PodMonitor"], kinds["Service"][0])
    ]
    assert all(selectors.count(selector) == 1 for selector in selectors)


def test_settings_become_a_file_that_the_sidecar_reads(tmp_path):
    kinds = render("--set=settings.thresholds.acceptance_net_negative=0.45,dashboards.enabled=false")
    pod, [config] = pod_of(kinds["Deployment"]), kinds["ConfigMap"]
    mine, [(name, text)] = container(pod, SIDECAR), config["data"].items()
    [mount] = [each for each in mine["volumeMounts"] if each["name"] == "specdec-settings"]
    assert mine["args"] == ["run", "--config", f"{mount['mountPath']}/{name}"]
    assert "subPath" not in mount  # Kubernetes does not update those
    [volume] = [each for each in pod["volumes"] if each["name"] == mount["name"]]
    assert volume["configMap"]["name"] == config["metadata"]["name"]
    (tmp_path / name).write_text(text)
    assert load_settings(tmp_path / name, environment(mine)).thresholds.acceptance_net_negative == 0.45


def test_the_templates_work_in_another_chart_as_the_readme_shows(tmp_path):
    """The README's own snippet, with what a Deployment needs around it."""
    [snippet] = re.findall(r"\n\n((?:    .*\n)+)\n`vllm\.port`", (CHART / "README.md").read_text())
    head = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: mine}\n"
    head += "spec:\n  selector: {matchLabels: {app: mine}}\n  template:\n"
    body = snippet.replace("      annotations:", "      labels: {app: mine}\n      annotations:")
    body = body.replace("- name: vllm\n", "- name: vllm\n          image: vllm/vllm-openai:v0.32.0\n")
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "deployment.yaml").write_text(head + body)
    dependency = "dependencies: [{name: specdec-sidecar, version: '*.*.*'}]"
    (tmp_path / "Chart.yaml").write_text(f"apiVersion: v2\nname: mine\nversion: 1.0.0\n{dependency}\n")
    (tmp_path / "values.yaml").write_text("specdec-sidecar: {vllm: {enabled: false}, scrape: {kind: none}}")
    shutil.copytree(CHART, tmp_path / "charts" / "specdec-sidecar")
    kinds = render(chart=tmp_path)
    for one in objects(kinds):
        check_object(one)
    check_pod(pod_of(kinds["Deployment"]))


async def test_helm_tests_pod_asks_a_running_sidecar(socket_path, unused_tcp_port):
    [pod] = render()["Pod"]
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    [one] = pod["spec"]["containers"]
    assert one["command"] == ["python", "-c"]
    [code] = one["args"]
    address = f"127.0.0.1:{unused_tcp_port}"
    own = {"SPECDEC_LISTEN": address, "SPECDEC_PLUGIN__SOCKET": str(socket_path)}

    async def asked():
        command = [sys.executable, "-c", code.replace("vllm-metrics:9911", address)]
        return (await (await asyncio.create_subprocess_exec(*command)).wait()) == 0

    async with running(load_settings(None, own)):
        assert await asked()
    assert not await asked()


def test_the_package_has_rules_and_dashboards_and_nothing_else_of_the_repository(tmp_path):
    assert run("helm", "package", CHART, "--destination", tmp_path).returncode == 0
    [path] = tmp_path.glob("*.tgz")
    with tarfile.open(path) as archive:
        names = {name.removeprefix("specdec-sidecar/") for name in archive.getnames()}
    files = {name for name in names if name.startswith("files/")}
    assert files == {f"files/alerts/{path.name}" for path in (ROOT / "alerts").glob("*.yaml")} | {
        f"files/dashboards/{path.name}" for path in (ROOT / "dashboards").glob("*.json")
    }
    assert {name for name in names - files if not name.startswith("templates/")} == {
        "Chart.yaml", "README.md", "values.yaml", "values.schema.json", ".helmignore",
    }  # fmt: skip


def test_the_post_renderer_adds_the_sidecar_to_vllm_and_leaves_the_router_alone():
    router = copy.deepcopy(RENDERED)
    router["metadata"]["name"] = "stack-deployment-router"
    found = {one["metadata"]["name"]: one for one in post_rendered(RENDERED, router)}
    assert found["stack-deployment-router"] == router
    assert SIDECAR in {one["name"] for one in pod_of([found["stack-qwen3-deployment-vllm"]])["initContainers"]}
