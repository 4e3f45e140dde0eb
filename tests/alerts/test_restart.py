"""A restart and an outage of Prometheus while alerts are pending and while they fire.

Prometheus and Alertmanager are the real ones; of the sidecars there are only the pages.
"""

import asyncio
import re
import time
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from tests.alerts.chain_tools import Receivers, alertmanager
from tests.alerts.pods import DASHBOARDS, RUNBOOKS
from tests.alerts.scene import RULES
from tests.debian_servers import running_prometheus, scraping

DOWN, ABSENT = "SpecDecodeVLLMDown", "SpecDecodeSidecarAbsent"
FASTER = 10  # times as fast as in production; at 20, a busy machine skips evaluations
FLAGS = (
    "--rules.alert.for-grace-period=1m",  # 10 min in production
    "--rules.alert.resend-delay=30s",
)
COLLAPSED, SLOWER = "SpecDecodeAcceptanceCollapsed", "SpecDecodeSlowerThanPlain"
LOOKBACK = "--query.lookback-delta=30s"  # 5 min in production


class Page:
    """What a sidecar shows of its vLLM, which has requests, and whether it shows anything."""

    def __init__(self):
        self.is_up, self.is_there = True, True

    async def answer(self, _):
        if not self.is_there:
            return web.Response(status=503)
        links = f'specdec_links_info{{runbooks="{RUNBOOKS}",dashboards="{DASHBOARDS}"}} 1'
        up, at = f"specdec_up {int(self.is_up)}", "specdec_last_scrape_timestamp_seconds 1"
        running = 'specdec_requests_running{model_name="m",engine="0"} 1' if self.is_up else ""
        build = 'specdec_build_info{version="1"} 1'
        return web.Response(text=f"{up}\n{at}\n{links}\n{running}\n{build}\n")


class Losing(Page):
    """What a sidecar shows of a pod that pages: ``samples`` besides those of each."""

    def __init__(self, model, samples):
        super().__init__()
        self._model, self._samples, self._began = model, samples, time.monotonic()

    async def answer(self, request):
        shown = (await super().answer(request)).text.replace('"m"', f'"{self._model}"')
        decoding = f'{{model_name="{self._model}",engine="0",running="1"}}'
        seconds = f"specdec_decode_seconds_total{decoding} {time.monotonic() - self._began}"
        own = [f'{name}{{model_name="{self._model}",{rest}' for name, rest in self._samples]
        return web.Response(text="\n".join([shown.strip(), seconds, *own, ""]))


def slower():
    return Losing(
        "slower",
        [
            ("specdec_model_acceptance_ratio", "} 0.6"),
            ("specdec_model_verdict", 'verdict="net_negative"} 1'),
            ("specdec_model_verdict_basis", 'basis="speedup"} 1'),
            ("specdec_engine_speedup_ratio", 'engine="0"} 0.8'),
        ],
    )


def collapsed():
    samples = [("specdec_model_acceptance_ratio", "} 0.01"), ("specdec_model_collapsed", "} 1")]
    return Losing("collapsed", samples)


def scaled(text):
    """A rule file in which every time is ``FASTER``."""

    def shorter(match):
        units = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
        parts = re.findall(r"(\d+)([dhms])", match[0])
        seconds = sum(int(number) * units[unit] for number, unit in parts)
        return f"{seconds * 1000 // FASTER}ms"

    return re.sub(r"(?<!\w)(?:\d+[dhms])+(?!\w)", shorter, text)


@asynccontextmanager
async def prometheus(http, directory, pages, alertmanager_url, flags=FLAGS):
    """Prometheus with the shipped rules, on what an earlier one left in the directory."""
    for name in ("recording.yaml", "alerts.yaml"):
        (directory / name).write_text(scaled((RULES / name).read_text()))

    config = scraping(*(page.removeprefix("http://") for page in pages), job="vllm")
    config["rule_files"] = ["recording.yaml", "alerts.yaml"]
    address = alertmanager_url.removeprefix("http://")
    config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [address]}]}]}
    async with running_prometheus(http, directory, config, flags=flags) as running:
        yield running


def known(pods):
    """A query for when the rules have seen that many pods serve: what is away after it is missed.

    Each group is evaluated at times of its own: one that counts pods may come before another.
    """
    return (
        f"count(pod:specdec_served:timestamp_seconds) == {pods}"
        f" and on () count(pod:specdec_up:max24h == 1) == {pods}"
    )


async def samples_at_first(running, name, metric, window, since):
    """How many samples of a page's metric the window had when the alert first fired ``since``."""
    alerts = f'ALERTS{{alertname="{name}", alertstate="firing"}}'
    at = f"timestamp({alerts}) >= {since}"
    [(_, began), *_] = await running.until(f"min_over_time(({at})[10m:1s])")
    query = f"max(count_over_time({metric}[{window}]))"
    found = await running.ask("query", query=query, time=began)
    return int(found[0]["value"][1]) if found else 0


async def received_anew(http, url, names):
    """Waits until Alertmanager has received each of the alerts once more."""
    received = {}
    while True:
        async with http.get(f"{url}/api/v2/alerts") as answer:
            alerts = await answer.json()
        now = {
            alert["labels"]["alertname"]: alert["updatedAt"]
            for alert in alerts
            if alert["labels"]["alertname"] in names
        }
        received = received or now
        if received and all(received[name] != now[name] for name in names):
            return
        await asyncio.sleep(0.1)


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.limit(900)
async def test_a_restart_of_prometheus_neither_delays_nor_repeats_nor_resolves_an_alert(
    http, served, tmp_path
):
    """It is away for twenty seconds, which are minutes here.

    One alert has fired by then, and the other looks back on ten minutes; had they begun anew, what
    they look back on would have no gap.
    """
    receivers, crashed, silent = Receivers(), Page(), Page()
    async with (
        served(receivers.take) as receivers_url,
        served(crashed.answer) as first,
        served(silent.answer) as second,
        alertmanager(http, tmp_path, receivers_url) as alertmanager_url,
    ):

        def run():
            return prometheus(http, tmp_path, (first, second), alertmanager_url)

        async with run() as before:
            await before.until(known(2))
            crashed.is_up = False
            silent.is_there = False
            await before.until("count(specdec_up == 0 or up == 0) == 2")
            await receivers.until(DOWN, "firing", None)

        back = time.monotonic() + 20
        while time.monotonic() < back:
            await asyncio.sleep(0.1)

        since = time.time()
        async with run() as after:
            of_down = await samples_at_first(after, DOWN, "specdec_up", "20s", since)
            of_absent = await samples_at_first(after, ABSENT, "up", "60s", since)
            for name in (DOWN, ABSENT):
                await receivers.until(name, "firing", None)

        async with run():
            await received_anew(http, alertmanager_url, {DOWN, ABSENT})

    told = [(alert["labels"]["alertname"], alert["status"]) for alert in receivers.alerts]

    assert of_down < 16  # of twenty
    assert of_absent < 48  # of sixty
    assert set(told) == {(DOWN, "firing"), (ABSENT, "firing")}
    assert len(receivers.pages) == 1


async def evaluations_until_it_fires(running, name, since):
    """How often a group of the same interval was evaluated ``since`` until the alert fired."""
    page = f'ALERTS{{alertname="{name}", severity="critical", alertstate="firing"}}'
    at = f"timestamp({page}) >= {since}"
    [(_, began)] = await running.until(f"min_over_time(({at})[10m:1s])")
    milliseconds = round(1000 * (began - since))
    counted = f"sum(count_over_time(fleet:specdec_runbooks:any[{milliseconds}ms]))"
    [(_, evaluations)] = await running.instant(f"{counted} or vector(0)", at=began)
    return evaluations


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.limit(900)
async def test_after_an_outage_of_eleven_minutes_a_page_is_back_within_three_evaluations(
    http, served, tmp_path
):
    """Of its first scrape, with the same labels, so that it is the same page.

    Eleven minutes are 66 seconds here. They are longer than what an expression and a rate look back
    on, so that only what is counted over 25 minutes is left.
    """
    receivers, crashed = Receivers(), Page()
    firing = 'ALERTS{severity="critical", alertstate="firing"}'
    async with (
        served(receivers.take) as receivers_url,
        served(crashed.answer) as first,
        served(slower().answer) as second,
        served(collapsed().answer) as third,
        alertmanager(http, tmp_path, receivers_url) as alertmanager_url,
    ):

        def run():
            pages = first, second, third
            return prometheus(http, tmp_path, pages, alertmanager_url, (*FLAGS, LOOKBACK))

        async with run() as before:
            await before.until(known(3))
            crashed.is_up = False
            names = (DOWN, SLOWER, COLLAPSED)
            for name in names:
                await receivers.until(name, "firing", None)
            fired = await before.until(f"{firing} and on () (count({firing}) == {len(names)})")

        back = time.monotonic() + 66
        while time.monotonic() < back:
            await asyncio.sleep(0.1)

        async with run() as after:
            await after.until("count(specdec_up) == 3")  # discovery takes five seconds, at any pace
            since = time.time()
            evaluations = [await evaluations_until_it_fires(after, name, since) for name in names]
            fire_again = await after.until(f"{firing} and on () (count({firing}) == {len(names)})")

    assert max(evaluations) <= 3
    assert sorted(map(str, fire_again)) == sorted(map(str, fired))
