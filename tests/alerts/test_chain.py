"""From hot traffic to the notification through real servers, and back.

It goes by Prometheus and by the sidecar's own push.
"""

import asyncio

import pytest

from sidecar.app import running
from specdec_tools.demo.scheduler import SimulatorOptions
from specdec_tools.demo.server import SimulatedVllm
from tests.alerts.chain_tools import (
    Receivers,
    alertmanager,
    first,
    prometheus,
    settings_of,
    unused,
)
from tests.alerts.pods import RUNBOOKS
from tests.alerts.scene import shipped
from tests.app.app_tools import traffic

COLD, MIXED, HOT = {0.0: 1}, {0.0: 7, 1.2: 3}, {1.2: 1}
LOW, AT_TEMPERATURE = "SpecDecodeAcceptanceLow", "SpecDecodeAcceptanceLowAtTemperature"
TRAFFIC = {"concurrency": 6, "min_tokens": 16, "max_tokens": 64}
SOURCES = (None, "sidecar")  # a label of what the sidecar sends itself


def test_each_time_that_is_shortened_is_one_of_the_rules():
    """Else a rule that has changed waits for minutes in the tests, and says nothing meanwhile."""
    assert unused() == []


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.limit(1200)  # each change of side waits for two minutes of requests
async def test_hot_traffic_pages_through_prometheus_and_by_direct_push(
    http, served, tmp_path, socket_path
):
    receivers = Receivers()
    async with (
        served(receivers.take) as url,
        alertmanager(http, tmp_path, url) as address,
        SimulatedVllm(SimulatorOptions(speed=4), plugin_socket=socket_path) as vllm,
        running(settings_of(vllm.url, socket_path, address)) as listening,
        prometheus(http, tmp_path, f"http://127.0.0.1:{listening.port}", address) as prometheus_url,
    ):
        await through_hot_traffic(vllm, receivers, http, address)
        await every_rule_evaluates(http, prometheus_url)


async def through_hot_traffic(vllm, receivers, http, alertmanager_url):
    """Mixed, hot and cold traffic.

    The scenes and the push's own tests check labels and texts of single alerts.
    """

    async def notified(name, status="firing"):
        for source in SOURCES:
            await receivers.until(name, status, source)

    async with traffic(vllm, MIXED, **TRAFFIC):
        await notified(AT_TEMPERATURE)
        assert not [alert for alert in receivers.alerts if alert["labels"]["alertname"] == LOW]
        title = "demo: low acceptance rate at T 1+"
        text = (await first(receivers.messages, lambda message: title in message["title"]))["text"]
        assert "of the draft tokens at temperature 1+ (threshold acceptance_net_negative; " in text
        assert f"Runbook: {RUNBOOKS}/{AT_TEMPERATURE}.md" in text
    async with traffic(vllm, HOT, **TRAFFIC):
        await notified(LOW)
        page = await first(
            receivers.pages,
            lambda page: "demo: low acceptance rate since" in str(page["payload"].get("summary")),
        )
        assert page["payload"]["severity"] == "critical"
        assert page["links"] == [{"href": f"{RUNBOOKS}/{LOW}.md", "text": "Runbook"}]
        await held_back(http, alertmanager_url, AT_TEMPERATURE)
    async with traffic(vllm, COLD, **TRAFFIC):
        await notified(LOW, "resolved")
        # Alertmanager notifies nobody of one that ends while it is still held back.
        await ended(http, alertmanager_url, AT_TEMPERATURE)


async def held_back(http, url, name):
    """Waits until Alertmanager holds such an alert back."""
    while not any(alert["status"]["inhibitedBy"] for alert in await active(http, url, name)):
        await asyncio.sleep(0.1)


async def ended(http, url, name):
    """Waits until Alertmanager has no such alert any more."""
    while await active(http, url, name):
        await asyncio.sleep(0.1)


async def active(http, url, name):
    """The alerts of this name that Alertmanager has."""
    async with http.get(f"{url}/api/v2/alerts") as answer:
        alerts = await answer.json()
    return [alert for alert in alerts if alert["labels"]["alertname"] == name]


async def every_rule_evaluates(http, url):
    async with http.get(f"{url}/api/v1/rules") as answer:
        groups = (await answer.json())["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == len(shipped())
    assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []
