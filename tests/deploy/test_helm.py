"""The chart as Helm 3 and Helm 4 render it, and what the post-renderer makes of other charts."""

import asyncio
import copy
import json
import re
import shutil
import sys
import tarfile

import pytest

from sidecar.settings import load_settings
from tests.app.app_tools import running_sidecar
from tests.debian_servers import free_port
from tests.deploy.deploy_tools import (
    CHART,
    MOST_APPLIED,
    PAGES,
    RENDERED,
    RULES,
    SIDECAR,
    build,
    check_object,
    container,
    environment,
    main_container,
    output,
    plugin_pods,
    pod_of,
    post_rendered,
    read,
    run,
)
from tests.deploy.pod_checks import (
    check_pod,
    nobody_names_the_port_of_a_native_sidecar,
    violations_of_restricted,
)

pytestmark = pytest.mark.slow
VALUES = sorted((CHART / "ci").glob("*-values.yaml"))
OPERATOR = ("monitoring.coreos.com/v1/PodMonitor", "monitoring.coreos.com/v1/PrometheusRule")
MONITORS = {"PodMonitor", "ServiceMonitor", "VMPodScrape", "PodMonitoring"}
PATH, SOCKET, MOVED = "PYTHONPATH", "SPECDEC_PLUGIN__SOCKET", "/run/specdec/x"


def variable(name, value, *keys):
    """Helm's option that gives a variable to the containers whose ``env`` these keys are."""
    variables = json.dumps([{"name": name, "value": value}])
    return "--set-json=" + ",".join(f"{key}={variables}" for key in keys)


def render(*arguments, helm="helm", release="vllm", chart=CHART, apis=()):
    """The objects that a release has, by kind."""
    apis = [f"--api-versions={api}" for api in apis]
    kinds = {}
    for obj in output(helm, "template", release, chart, "--namespace=llm", *apis, *arguments):
        kinds.setdefault(obj["kind"], []).append(obj)
    return kinds


def objects(*releases):
    """All objects; no two have the same name."""
    everything = [obj for kinds in releases for of_kind in kinds.values() for obj in of_kind]
    names = [(obj["kind"], obj["metadata"]["name"]) for obj in everything]
    assert len(names) == len(set(names))
    return everything


def plain(value):
    """Without what makes no difference: order, and a pull policy."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in sorted(value.items()) if key != "imagePullPolicy"}
    return sorted(map(plain, value), key=json.dumps) if isinstance(value, list) else value


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_both_helms_render_objects_that_kubernetes_knows_and_a_pod_like_every_other(
    values, tmp_path
):
    for helm in ("helm", "helm3"):
        done = run(helm, "lint", "--strict", CHART, "--values", values)
        assert done.returncode == 0, done.stdout + done.stderr
    kinds = render("--values", values)
    assert plain(objects(kinds)) == plain(objects(render("--values", values, helm="helm3")))
    for obj in objects(kinds):
        check_object(obj)
    for obj in kinds.get("ConfigMap", []):
        stored = json.dumps(obj, separators=(",", ":"), ensure_ascii=False)
        assert len(stored.encode()) < MOST_APPLIED
    if "Deployment" in kinds:
        pod, config = pod_of(kinds["Deployment"]), tmp_path / "settings.yaml"
        config.write_text(mounted_settings(kinds))
        if "PYTHONPATH" in environment(main_container(pod)):
            check_pod(pod, config, is_native=read(values).get("nativeSidecar", True))
        check_selectors(kinds)
        check_ports(kinds)


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_every_pod_keeps_to_the_restricted_standard(values):
    """But for the network of the host, where that is asked for."""
    kinds = render("--values", values)
    pods = [obj["spec"] for obj in kinds.get("Pod", [])]
    pods += [obj["spec"]["template"]["spec"] for obj in kinds.get("Deployment", [])]
    asked = (read(values).get("vllm") or {}).get("podSpec", {})

    found = [violation for pod in pods for violation in violations_of_restricted(pod)]
    assert found == [field for field in ("hostNetwork",) if field in asked]


def mounted_settings(kinds):
    """The settings file of a release; empty if it has none."""
    texts = (config["data"].get("settings.yaml") for config in kinds.get("ConfigMap", []))
    return next(filter(None, texts), "")


def check_selectors(kinds):
    """Each selector finds its Pods.

    The NetworkPolicy lets in clients, Prometheus and ``helm test``.
    """
    [deployment], policies = kinds["Deployment"], kinds.get("NetworkPolicy", [])
    specs = [obj["spec"] for kind in MONITORS - {"ServiceMonitor"} for obj in kinds.get(kind, [])]
    selectors = [spec["selector"]["matchLabels"] for spec in (*specs, deployment["spec"])]
    selectors += [
        *(policy["spec"]["podSelector"]["matchLabels"] for policy in policies),
        *(obj["spec"]["selector"] for obj in kinds["Service"]),
    ]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert all(selector.items() <= labels.items() for selector in selectors)
    services = [obj["metadata"]["labels"].items() for obj in kinds["Service"]]
    for monitor in kinds.get("ServiceMonitor", []):
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        assert [wanted <= labels for labels in services] == [False, True]
    for policy in policies:
        clients, observers = policy["spec"]["ingress"]
        assert clients == {"ports": [{"port": "http"}]}
        tests = observers["from"][1]["podSelector"]["matchLabels"]
        assert tests.items() <= kinds["Pod"][0]["metadata"]["labels"].items()


def check_ports(kinds):
    """Everything that names the sidecar's port follows where it listens."""
    pod = pod_of(kinds["Deployment"])
    [port] = [each["containerPort"] for each in container(pod, SIDECAR)["ports"]]
    service = kinds["Service"][-1]["spec"]["ports"]
    [asking] = kinds["Pod"][0]["spec"]["containers"]
    annotations = kinds["Deployment"][0]["spec"]["template"]["metadata"].get("annotations", {})

    nobody_names_the_port_of_a_native_sidecar(objects(kinds))
    assert service == [{"name": "specdec-metrics", "port": port, "targetPort": port}]
    for policy in kinds.get("NetworkPolicy", []):
        assert policy["spec"]["ingress"][1]["ports"] == [{"port": port}]
    assert f"-metrics:{port}/metrics" in asking["args"][0]
    assert annotations.get("prometheus.io/port", str(port)) == str(port)


@pytest.mark.parametrize(
    ("arguments", "port"),
    [
        ([], 9911),
        (["--set-string=settings.listen=0.0.0.0:9921"], 9921),
        (["--set-string=settings.listen=[::]:9922"], 9922),
        (['--set-json=env=[{"name": "SPECDEC_LISTEN", "value": "[::]:9923"}]'], 9923),
    ],
)
def test_everything_follows_where_the_sidecar_listens(arguments, port):
    kinds = render("--set=scrape.kind=annotations", *arguments)

    check_ports(kinds)
    [own] = container(pod_of(kinds["Deployment"]), SIDECAR)["ports"]
    assert own["containerPort"] == port
    notes = run("helm", "install", "vllm", CHART, "--dry-run=client", *arguments).stdout
    assert f"deployment/vllm {port}\n" in notes


@pytest.mark.parametrize(
    "arguments",
    [
        ["--set=settings.plugin.socket=/run/specdec/plugin.sock"],
        ["--set=settings.plugin.socket=/run/specdec/x", variable(SOCKET, MOVED, "vllm.env")],
        [variable(SOCKET, MOVED, "env", "vllm.env")],
        [variable(SOCKET, "", "env", "vllm.env")],
        [variable("VLLM_PLUGINS", "lora,specdec", "vllm.env")],
    ],
)
def test_vllm_may_have_the_plugins_variables_where_it_finds_the_plugin(arguments, tmp_path):
    kinds, config = render(*arguments), tmp_path / "settings.yaml"
    config.write_text(mounted_settings(kinds))

    check_pod(pod_of(kinds["Deployment"]), config, is_native=True)


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("/app:/plugin", "/app:/plugin"),
        ("/plugin/", "/plugin/"),
        ("/app:$(PYTHONPATH)", "/app:/plugin:/opt/connector"),
    ],
)
def test_a_python_path_of_vllms_own_is_its_only_one(given, path):
    """Helm 4 installs no container with two variables of one name."""
    arguments = ("--set=plugin.pythonPath=/opt/connector", variable(PATH, given, "vllm.env"))
    vllm = main_container(pod_of(render(*arguments)["Deployment"]))

    assert [each["value"] for each in vllm["env"] if each["name"] == PATH] == [path]


@pytest.mark.parametrize("name", ["SPECDEC_CONFIG", "SPECDEC_VLLM_URL", "SPECDEC_LOG__FORMAT"])
def test_a_variable_of_the_sidecars_own_takes_the_place_of_the_charts(name):
    kinds = render("--set=settings.thresholds.min_requests=30", variable(name, "given", "env"))
    pod = pod_of(kinds["Deployment"])
    (sidecar,) = [one for one in pod["initContainers"] if one["name"] == "specdec-sidecar"]

    assert [each["value"] for each in sidecar["env"] if each["name"] == name] == ["given"]


def test_without_the_plugin_vllms_variables_are_left_alone():
    arguments = ("--set=plugin.enabled=false,settings.plugin.socket=/tmp/p.sock",)
    given = [{"name": PATH, "value": "/app"}, {"name": SOCKET, "value": "/tmp/q.sock"}]
    kinds = render(*arguments, f"--set-json=vllm.env={json.dumps(given)}")

    assert main_container(pod_of(kinds["Deployment"]))["env"][-2:] == given


def test_an_umbrella_chart_may_switch_it_on_and_have_globals(tmp_path):
    """The keys that Helm itself passes to a dependency."""
    dependency = "{name: specdec-sidecar, version: '*.*.*', condition: specdec-sidecar.enabled}"
    (tmp_path / "Chart.yaml").write_text(
        f"apiVersion: v2\nname: parent\nversion: 1.0.0\ndependencies: [{dependency}]\n"
    )
    shutil.copytree(CHART, tmp_path / "charts" / "specdec-sidecar")
    for helm in ("helm", "helm3"):
        for enabled in ("true", "false"):
            given = ("--set=global.region=eu", f"--set=specdec-sidecar.enabled={enabled}")
            assert ("Deployment" in render(*given, helm=helm, chart=tmp_path)) == (
                enabled == "true"
            )


def test_an_address_or_a_log_format_of_the_settings_is_not_overridden():
    """A variable of the chart's own would win over the file."""
    given = "--set=settings.vllm_url=http://127.0.0.1:9000,settings.log.format=console"
    sidecar = container(pod_of(render(given)["Deployment"]), SIDECAR)

    assert set(environment(sidecar)) == {"SPECDEC_CONFIG"}


def test_the_chart_runs_the_pod_that_the_overlay_runs():
    """Two ways to install it must not be two deployments to maintain."""
    ours = plain(pod_of(render()["Deployment"]))
    theirs = plain(plugin_pods()["overlay"])
    for users in (ours["securityContext"], theirs["securityContext"]):
        users.pop("runAsUser", None), users.pop("runAsGroup", None)  # each container has its own
    assert ours | {"serviceAccountName": "default"} == theirs | {"serviceAccountName": "default"}
    without = plain(pod_of(render("--set=plugin.enabled=false")["Deployment"]))
    assert plain(pod_of(build("base")))["initContainers"] == without["initContainers"]
    assert "PYTHONPATH" not in environment(main_container(without))


@pytest.mark.parametrize(
    ("apis", "installed"),
    [
        ((), set()),
        (OPERATOR, {"PodMonitor", "PrometheusRule"}),
        (["operator.victoriametrics.com/v1beta1/VMPodScrape"], {"VMPodScrape"}),
        (["monitoring.googleapis.com/v1/PodMonitoring"], {"PodMonitoring"}),
    ],
)
def test_by_default_the_chart_installs_what_the_cluster_has_types_for(apis, installed):
    """An object of an unknown type would fail the whole release."""
    assert set(render(apis=apis)) & {*MONITORS, "PrometheusRule"} == installed


@pytest.mark.parametrize(
    ("arguments", "note"),
    [
        ([], "Prometheus does NOT scrape the sidecars yet: this cluster has no PodMonitor"),
        ([], "The alerts are NOT installed: this cluster has no PrometheusRule"),
        (["--set=scrape.kind=PodMonitor"], "set scrape.labels.release"),
        (
            ["--set=scrape.kind=annotations"],
            "The NetworkPolicy allows only the namespace monitoring",
        ),
        (
            ["--set=rules.enabled=true"],
            "set rules.enabled and dashboards.enabled to false in further releases",
        ),
        (["--set=plugin.enabled=false"], "There is no split by temperature"),
        (["--set=vllm.enabled=false"], "Add the sidecar to your own vLLM's Pods"),
    ],
)
def test_the_notes_say_what_to_do(arguments, note):
    done = run("helm", "install", "vllm", CHART, "--dry-run=client", *arguments)
    assert note in " ".join(done.stdout.partition("NOTES:")[2].split()), done.stderr


@pytest.mark.parametrize(
    ("argument", "complaint"),
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
        ("--set=settings.thresolds.coverage=1", "thresolds"),
        ("--set=settings.thresholds.acceptance_net_negative=45", "acceptance_net_negative"),
        ("--set=settings.scrape_interval=fast", "scrape_interval"),
        ("--set=settings.listen=9911", "listen"),
        ("--set=settings.log.level=loud", "level"),
        ("--set=enabled=perhaps", "enabled"),
        # What the templates refuse.
        ("--set-string=settings.listen=127.0.0.1:9911", "could not reach the sidecar there"),
        ("--set-string=settings.listen=0.0.0.0:0", "needs a port from 1 to 65535"),
        (
            '--set-json=env=[{"name": "SPECDEC_LISTEN", "valueFrom": {"fieldRef": {}}}]',
            "give its value",
        ),
        ("--set=settings.plugin.socket=/tmp/p.sock", "at /tmp/p.sock (plugin.socket), and"),
        ("--set=settings.plugin.socket=/run/specdec/x", f"at {MOVED} (plugin.socket), and"),
        (variable(SOCKET, MOVED, "env"), f"at {MOVED} (plugin.socket), and"),
        (variable(SOCKET, MOVED, "vllm.env"), f"connects to {MOVED} (SPECDEC_PLUGIN__SOCKET in"),
        (
            variable(SOCKET, "/tmp/p.sock", "env", "vllm.env"),
            "both need the same socket in /run/specdec, where they share a volume",
        ),
        (
            f'--set-json=vllm.env=[{{"name": "{SOCKET}", "valueFrom": {{"fieldRef": {{}}}}}}]',
            "SPECDEC_PLUGIN__SOCKET with valueFrom",
        ),
        (variable(PATH, "/app:/plugins", "vllm.env"), "set plugin.pythonPath instead"),
        (variable(PATH, "$$(PYTHONPATH)", "vllm.env"), "set plugin.pythonPath instead"),
        (variable("VLLM_PLUGINS", "lora", "vllm.env"), "VLLM_PLUGINS without specdec"),
        ("--set=vllm.enabled=false,scrape.kind=annotations", "specdec-sidecar.podAnnotations"),
        ("--set=vllm.enabled=false,scrape.kind=ServiceMonitor", "needs scrape.podLabels"),
    ],
)
@pytest.mark.parametrize("helm", ["helm", "helm3"])
def test_values_that_cannot_work_are_refused_with_what_to_do(helm, argument, complaint):
    rendered = run(helm, "template", "vllm", CHART, argument)
    linted = run(helm, "lint", CHART, argument)

    assert rendered.returncode != 0
    assert complaint in rendered.stderr
    # `helm lint` ignores what a template itself refuses.
    is_by_schema = "execution error" not in rendered.stderr
    assert (linted.returncode != 0) == is_by_schema


def test_the_package_has_the_repositorys_rules_and_dashboards_and_nothing_else_of_it(tmp_path):
    assert run("helm", "package", CHART, "--destination", tmp_path).returncode == 0
    [path] = tmp_path.glob("*.tgz")
    kinds = render("--set=vllm.enabled=false", chart=path, apis=OPERATOR)
    assert [rule["spec"] for rule in kinds["PrometheusRule"]] == RULES
    assert {
        name: json.loads(text) for page in kinds["ConfigMap"] for name, text in page["data"].items()
    } == PAGES
    with tarfile.open(path) as archive:
        names = [name.removeprefix("specdec-sidecar/") for name in archive.getnames()]
    assert len([name for name in names if name.startswith("files/")]) == len(RULES) + len(PAGES)
    assert {name for name in names if not name.startswith(("files/", "templates/"))} == {
        "Chart.yaml", "README.md", "values.yaml", "values.schema.json", ".helmignore",
    }  # fmt: skip


def test_of_two_releases_one_has_rules_and_dashboards_and_no_name_is_taken_twice():
    first = render(apis=OPERATOR, release="chat")
    second = render(
        "--set=rules.enabled=false,dashboards.enabled=false", apis=OPERATOR, release="code"
    )
    assert not {"PrometheusRule", "ConfigMap"} & set(second)
    assert objects(first, second)
    selectors = [
        obj["spec"]["selector"]
        for kinds in (first, second)
        for obj in (*kinds["PodMonitor"], kinds["Service"][0])
    ]
    assert all(selectors.count(selector) == 1 for selector in selectors)


def test_settings_become_a_file_that_the_sidecar_reads(tmp_path):
    kinds = render(
        "--set=settings.thresholds.acceptance_net_negative=0.45,dashboards.enabled=false"
    )
    pod, [config] = pod_of(kinds["Deployment"]), kinds["ConfigMap"]
    sidecar, [(name, text)] = container(pod, SIDECAR), config["data"].items()
    [mount] = [mount for mount in sidecar["volumeMounts"] if mount["name"] == "specdec-settings"]
    # By the environment, for the other commands that run in the container too.
    assert environment(sidecar)["SPECDEC_CONFIG"] == f"{mount['mountPath']}/{name}"
    assert "subPath" not in mount  # Kubernetes does not update those
    [volume] = [volume for volume in pod["volumes"] if volume["name"] == mount["name"]]
    assert volume["configMap"]["name"] == config["metadata"]["name"]
    (tmp_path / name).write_text(text)
    assert (
        load_settings(tmp_path / name, environment(sidecar)).thresholds.acceptance_net_negative
        == 0.45
    )


def test_the_templates_work_in_another_chart_as_the_readme_shows(tmp_path):
    """The README's own snippet, with what a Deployment needs around it."""
    [snippet] = re.findall(
        r"\n\n((?:    .*\n)+)\nIn an umbrella", (CHART / "README.md").read_text()
    )
    head = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: mine}\n"
    head += "spec:\n  selector: {matchLabels: {app: mine}}\n  template:\n"
    body = snippet.replace("      annotations:", "      labels: {app: mine}\n      annotations:")
    body = body.replace(
        "- name: vllm\n", "- name: vllm\n          image: vllm/vllm-openai:v0.32.0\n"
    )
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "deployment.yaml").write_text(head + body)
    dependency = "dependencies: [{name: specdec-sidecar, version: '*.*.*'}]"
    (tmp_path / "Chart.yaml").write_text(
        f"apiVersion: v2\nname: mine\nversion: 1.0.0\n{dependency}\n"
    )
    (tmp_path / "values.yaml").write_text(
        "specdec-sidecar: {vllm: {enabled: false}, scrape: {kind: none}}"
    )
    shutil.copytree(CHART, tmp_path / "charts" / "specdec-sidecar")
    kinds = render(chart=tmp_path)
    for obj in objects(kinds):
        check_object(obj)
    check_pod(pod_of(kinds["Deployment"]))


async def test_helm_tests_pod_passes_only_with_a_running_sidecar(socket_path):
    [pod] = render()["Pod"]
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    [asking] = pod["spec"]["containers"]
    assert asking["command"] == ["python", "-c"]
    [code] = asking["args"]
    address = f"127.0.0.1:{free_port()}"

    async def passes():
        command = [sys.executable, "-c", code.replace("vllm-metrics:9911", address)]
        return (await (await asyncio.create_subprocess_exec(*command)).wait()) == 0

    async with running_sidecar(socket_path, "http://127.0.0.1:1", listen=address):
        assert await passes()
    assert not await passes()


def test_the_post_renderer_adds_the_sidecar_to_vllm_and_leaves_the_router_alone():
    router = copy.deepcopy(RENDERED)
    router["metadata"]["name"] = "stack-deployment-router"
    vllm, other = sorted(post_rendered(RENDERED, router), key=lambda obj: obj == router)
    assert other == router
    assert SIDECAR in {container["name"] for container in pod_of([vllm])["initContainers"]}
