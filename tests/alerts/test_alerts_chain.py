"""From hot traffic to the notification, through real servers, and back."""

import asyncio
import json
import re

import pytest

from sidecar.app import running
from sidecar.demo.options import SimulatorOptions
from sidecar.demo.server import SimulatedVllm
from tests.alerts.alert_tools import DASHBOARD, RUNBOOKS, shipped
from tests.alerts.chain_tools import (
    PATIENCE,
    Receivers,
    alertmanager,
    prometheus,
    pushing_to,
    settings_of,
    traffic,
)
from tests.debian_servers import free_port

pytestmark = [pytest.mark.servers, pytest.mark.limit(600)]

COLD = {0.0: 1}
MIXED = {0.0: 7, 1.2: 3}
HOT = {1.2: 1}
LOW, AT_TEMPERATURE = "SpecDecodeAcceptanceLow", "SpecDecodeAcceptanceLowAtTemperature"
REGRESSED = "SpecDecodeAcceptanceRegressed"


async def through_hot_traffic(proxy, receivers, http, alertmanager_url):
    """Cold, mixed, hot and cold traffic; returns the two alerts as they were delivered, and prints the times."""
    async with traffic(proxy, MIXED) as begun:
        bucket, arrival = await receivers.until(AT_TEMPERATURE, "firing")
        say(f"one temperature hot: notified after {arrival - begun:.1f} s")
        assert not [alert for alert, _ in receivers.alerts if alert["labels"]["alertname"] == LOW]
        text = await receivers.message("[1] demo: speculative decoding loses at one temperature")
        assert "of the draft tokens at temperature 1+, less than" in text
        assert f"Runbook: {RUNBOOKS}/{AT_TEMPERATURE}.md" in text
    async with traffic(proxy, HOT) as begun:
        pod, arrival = await receivers.until(LOW, "firing")
        say(f"all traffic hot: notified after {arrival - begun:.1f} s")
        page = await receivers.page("costs more than it gives")
        assert page["payload"]["summary"] == "[1] demo: speculative decoding costs more than it gives"
        assert page["payload"]["severity"] == "critical"
        assert page["links"] == [{"href": f"{RUNBOOKS}/{LOW}.md", "text": "Runbook"}]
        await held_back(http, alertmanager_url, AT_TEMPERATURE)
    async with traffic(proxy, COLD) as begun:
        for name in (LOW, AT_TEMPERATURE):
            _, arrival = await receivers.until(name, "resolved")
            say(f"all traffic cold: {name} resolved after {arrival - begun:.1f} s")
    return bucket, pod


def say(text):
    print(text, flush=True)  # noqa: T201 - the detection time is a result, shown with -s


async def held_back(http, url, name, instance=""):
    """Waits until Alertmanager holds such an alert back, of any instance or of one."""
    async with asyncio.timeout(PATIENCE):
        while True:
            async with http.get(f"{url}/api/v2/alerts") as answer:
                alerts = await answer.json()
            found = [one for one in alerts if one["labels"]["alertname"] == name and one["status"]["inhibitedBy"]]
            if any(instance in one["labels"]["instance"] for one in found):
                return
            await asyncio.sleep(0.1)


@pytest.fixture
async def vllm():
    async with SimulatedVllm(SimulatorOptions(speed=4)) as simulated:
        yield simulated


@pytest.fixture
async def around(http, served, tmp_path):
    """The receivers of notifications, and the address of an Alertmanager that sends them."""
    receivers = Receivers()
    async with served(receivers.take) as url, alertmanager(http, tmp_path, url) as address:
        yield receivers, address


async def test_hot_traffic_pages_through_prometheus_and_alertmanager(vllm, around, http, tmp_path):
    receivers, address = around
    port = free_port()
    async with running(settings_of(vllm.url, port)) as listening:
        page = f"http://127.0.0.1:{listening.port}"
        async with prometheus(http, tmp_path, page, address) as prometheus_url:
            bucket, pod = await through_hot_traffic(f"http://127.0.0.1:{port}", receivers, http, address)
            await every_rule_evaluates(http, prometheus_url)
            await every_recorded_series_has_data(http, prometheus_url)
    instance = page.removeprefix("http://")
    where = {"job": "vllm", "instance": instance, "model_name": "demo"}
    assert bucket["labels"] == {"alertname": AT_TEMPERATURE, "severity": "warning", "temperature": "1+", **where}
    assert pod["labels"] == {"alertname": LOW, "severity": "critical", **where}
    check_the_texts(bucket, pod, instance)
    link = f"{DASHBOARD}&var-instance={instance.replace(':', '%3A')}&var-job=vllm&var-model_name=demo"
    assert pod["annotations"]["dashboard_url"] == link
    assert bucket["annotations"]["dashboard_url"] == f"{link}&var-temperature=1%2B"


async def test_hot_traffic_pages_by_direct_push(vllm, around, http):
    receivers, address = around
    port = free_port()
    async with running(settings_of(vllm.url, port, **pushing_to(address))) as listening:
        bucket, pod = await through_hot_traffic(f"http://127.0.0.1:{port}", receivers, http, address)
        async with http.get(f"http://127.0.0.1:{listening.port}/metrics") as answer:
            page = await answer.text()
    counted = re.findall(r'specdec_alerts_sent_total\{alertmanager="(.+)",outcome="(\w+)"\} (\S+)', page)
    sent = {outcome: float(count) for name, outcome, count in counted if name == address.removeprefix("http://")}
    assert sent.pop("accepted") >= 4
    assert sent == {"rejected": 0, "failed": 0, "dropped": 0}
    where = {"source": "sidecar", "instance": "pod-7", "model_name": "demo"}
    assert bucket["labels"] == {"alertname": AT_TEMPERATURE, "severity": "warning", "temperature": "1+", **where}
    assert pod["labels"] == {"alertname": LOW, "severity": "critical", **where}
    check_the_texts(bucket, pod, "pod-7")


def plain_steps(seconds):
    """A baseline of the simulated vLLM, to be compared with steps of some 5 ms."""
    curve = {"running": [1, 16], "seconds": [seconds] * 2, "errors": [seconds / 100] * 2, "prompt_seconds": 0.0}
    return {"SPECDEC_PLAIN_STEPS": json.dumps({"demo": curve})}


@pytest.mark.parametrize(
    "case", [(0.7, 0.001, "SpecDecodeSlowerThanPlain", "critical"), (0.35, 0.05, LOW, "info")], ids=["slower", "faster"]
)
async def test_time_pages_and_acceptance_does_not(case, around, http, tmp_path):
    """A pod that accepts 70 % and is slower than plain decoding pages; one that accepts 35 % and is faster does not."""
    acceptance, plain, name, severity = case
    receivers, address = around
    port = free_port()
    options = SimulatorOptions(speed=4, cold_acceptance=acceptance, hot_acceptance=acceptance)
    async with (
        SimulatedVllm(options) as vllm,
        running(settings_of(vllm.url, port, **plain_steps(plain))) as listening,
        prometheus(http, tmp_path, f"http://127.0.0.1:{listening.port}", address),
        traffic(f"http://127.0.0.1:{port}", MIXED),
    ):
        await firing(http, address, name, severity)
        if severity == "critical":
            page = await receivers.page()
            assert page["payload"]["summary"] == "[1] demo: slower than without speculation"
        else:
            assert receivers.pages == []


async def firing(http, url, name, severity):
    async with asyncio.timeout(PATIENCE):
        while True:
            async with http.get(f"{url}/api/v2/alerts") as answer:
                found = [one["labels"] for one in await answer.json()]
            if any((one["alertname"], one["severity"]) == (name, severity) for one in found):
                return
            await asyncio.sleep(0.1)


async def test_information_on_a_pod_that_pays_holds_back_its_parts_but_no_regression(around, http):
    receivers, address = around

    async def post(*alerts):
        names = ("alertname", "severity", "instance")
        labels = [{"model_name": "m"} | dict(zip(names, values, strict=True)) for values in alerts]
        body = [{"labels": own, "annotations": {"summary": own["alertname"]}} for own in labels]
        async with http.post(f"{address}/api/v2/alerts", json=body) as answer:
            assert answer.status == 200

    await post((LOW, "info", "pays"), (LOW, "critical", "loses"))
    for pod in ("pays", "loses"):
        await post((AT_TEMPERATURE, "warning", pod))
        await held_back(http, address, AT_TEMPERATURE, pod)
    await post((REGRESSED, "warning", "loses"), (REGRESSED, "warning", "pays"))
    await held_back(http, address, REGRESSED, "loses")
    assert "instance=pays" in await receivers.message(f"[1] {REGRESSED}")


def check_the_texts(bucket, pod, instance):
    context = r"Acceptance [\d.]+%.*\. By temperature: \[0\] [\d.]+% \[1\+\] [\d.]+%\..* Share of the draft .+ms\."
    assert re.fullmatch(context, bucket["annotations"]["context"])
    for alert, name in ((bucket, AT_TEMPERATURE), (pod, LOW)):
        assert alert["annotations"]["runbook_url"] == f"{RUNBOOKS}/{name}.md"
        description = alert["annotations"]["description"]
        assert description.startswith(f"demo on {instance} accepts ")
        value = float(description.partition("accepts ")[2].partition("%")[0])
        assert 20 < value < 50
        assert "less than acceptance_net_negative" in description
    assert "at temperature 1+" in bucket["annotations"]["description"]


async def every_rule_evaluates(http, url):
    async with http.get(f"{url}/api/v1/rules") as answer:
        groups = (await answer.json())["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == len(shipped())
    assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []


WITHOUT_DATA = {
    "pod:specdec_vllm_down:ended6m ",  # vLLM stays up
    # No pod of the model goes without speculation here.
    "model_quantile:specdec_tpot_seconds:avg no",
    "model_running:specdec_plain_step_seconds:rate5m ",
    # Nothing says how long plain decoding takes.
    "pod:specdec_speedup:fleet ",
    "pod:specdec_speedup:ratio ",
    "pod:specdec_speedup:upper ",
    "model_quantile:specdec_tpot:slowdown ",
}


async def every_recorded_series_has_data(http, url):
    silent = set()
    for rule in shipped():
        if "record" not in rule:
            continue
        labels = ",".join(f'{name}="{value}"' for name, value in rule.get("labels", {}).items())
        query = f"last_over_time({rule['record']}{{{labels}}}[5m])"
        async with http.get(f"{url}/api/v1/query", params={"query": query}) as answer:
            found = (await answer.json())["data"]["result"]
        if not found:
            silent.add(f"{rule['record']} {rule.get('labels', {}).get('speculates', '')}")
    assert silent == WITHOUT_DATA
