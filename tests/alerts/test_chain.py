"""From hot traffic to the notification, through real servers, and back."""

import asyncio
import re

import pytest

from sidecar.app import running
from sidecar.demo.options import SimulatorOptions
from sidecar.demo.server import SimulatedVllm
from tests.alerts.chain_tools import PATIENCE, Receivers, alertmanager, prometheus, pushing_to, settings_of, traffic
from tests.alerts.pods import DASHBOARDS, RUNBOOKS
from tests.alerts.scene import shipped

pytestmark = [pytest.mark.servers, pytest.mark.limit(600)]

COLD, MIXED, HOT = {0.0: 1}, {0.0: 7, 1.2: 3}, {1.2: 1}
LOW, AT_TEMPERATURE = "SpecDecodeAcceptanceLow", "SpecDecodeAcceptanceLowAtTemperature"


async def through_hot_traffic(vllm, receivers, http, alertmanager_url):
    """Cold, mixed, hot and cold traffic; returns the two alerts as they were delivered, and prints the times."""
    async with traffic(vllm, MIXED) as begun:
        bucket, arrival = await receivers.until(AT_TEMPERATURE, "firing")
        say(f"one temperature hot: notified after {arrival - begun:.1f} s")
        assert not [alert for alert, _ in receivers.alerts if alert["labels"]["alertname"] == LOW]
        text = await receivers.message("[1] demo: speculative decoding loses at one temperature")
        assert "of the draft tokens at temperature 1+, less than" in text
        assert f"Runbook: {RUNBOOKS}/{AT_TEMPERATURE}.md" in text
    async with traffic(vllm, HOT) as begun:
        pod, arrival = await receivers.until(LOW, "firing")
        say(f"all traffic hot: notified after {arrival - begun:.1f} s")
        page = await receivers.page("costs more than it gives")
        assert page["payload"]["severity"] == "critical"
        assert page["links"] == [{"href": f"{RUNBOOKS}/{LOW}.md", "text": "Runbook"}]
        say(page["payload"]["custom_details"]["alerts"])
        await held_back(http, alertmanager_url, AT_TEMPERATURE)
    async with traffic(vllm, COLD) as begun:
        for name in (LOW, AT_TEMPERATURE):
            _, arrival = await receivers.until(name, "resolved")
            say(f"all traffic cold: {name} resolved after {arrival - begun:.1f} s")
    return bucket, pod


def say(text):
    print(text, flush=True)  # noqa: T201 - the detection time is a result, shown with -s


async def held_back(http, url, name):
    """Waits until Alertmanager holds such an alert back."""
    async with asyncio.timeout(PATIENCE):
        while True:
            async with http.get(f"{url}/api/v2/alerts") as answer:
                alerts = await answer.json()
            if any(one["labels"]["alertname"] == name and one["status"]["inhibitedBy"] for one in alerts):
                return
            await asyncio.sleep(0.1)


@pytest.fixture
async def around(http, served, tmp_path):
    """A simulated vLLM with the plug-in, its socket, the receivers, and an Alertmanager that notifies them."""
    receivers, socket = Receivers(), tmp_path / "plugin.sock"
    async with (
        served(receivers.take) as url,
        alertmanager(http, tmp_path, url) as address,
        SimulatedVllm(SimulatorOptions(speed=4), plugin_socket=socket) as vllm,
    ):
        yield vllm, socket, receivers, address


async def test_hot_traffic_pages_through_prometheus_and_alertmanager(around, http, tmp_path):
    vllm, socket, receivers, address = around
    async with running(settings_of(vllm.url, socket)) as listening:
        page = f"http://127.0.0.1:{listening.port}"
        async with prometheus(http, tmp_path, page, address) as prometheus_url:
            bucket, pod = await through_hot_traffic(vllm, receivers, http, address)
            await every_rule_evaluates(http, prometheus_url)
    instance = page.removeprefix("http://")
    where = {"job": "vllm", "instance": instance, "model_name": "demo"}
    check(bucket, pod, where, instance)
    link = (
        f"{DASHBOARDS}/d/specdec-operator?from=now-6h&to=now&var-instance={instance.replace(':', '%3A')}&var-job=vllm"
    )
    assert pod["annotations"]["dashboard_url"] == f"{link}&var-model_name=demo"


@pytest.mark.slow
async def test_hot_traffic_pages_by_direct_push(around, http):
    vllm, socket, receivers, address = around
    async with running(settings_of(vllm.url, socket, **pushing_to(address))) as listening:
        bucket, pod = await through_hot_traffic(vllm, receivers, http, address)
        async with http.get(f"http://127.0.0.1:{listening.port}/metrics") as answer:
            page = await answer.text()
    counted = re.findall(r'specdec_alerts_sent_total\{alertmanager=".+",outcome="(\w+)"\} (\S+)', page)
    sent = {outcome: float(count) for outcome, count in counted}
    assert sent.pop("accepted") >= 4
    assert set(sent.values()) == {0}
    check(bucket, pod, {"source": "sidecar", "instance": "pod-7", "model_name": "demo"}, "pod-7")


def check(bucket, pod, where, instance):
    low = {"alertname": LOW, "severity": "critical", "scope": "model"}
    at = {"alertname": AT_TEMPERATURE, "severity": "warning", "scope": "temperature", "temperature": "1+"}
    assert (bucket["labels"], pod["labels"]) == (where | at, where | low)
    context = bucket["annotations"]["context"]
    assert re.match(r"Acceptance [\d.]+%", context)
    assert re.search(r"Acceptance by temperature: \[0\] [\d.]+% \[1\+\] [\d.]+%", context)
    for alert in (bucket, pod):
        description = alert["annotations"]["description"]
        assert description.startswith(f"demo on {instance} accepts ")
        assert 20 < float(description.partition("accepts ")[2].partition("%")[0]) < 50


async def every_rule_evaluates(http, url):
    async with http.get(f"{url}/api/v1/rules") as answer:
        groups = (await answer.json())["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == len(shipped())
    assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []
