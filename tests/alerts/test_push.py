"""The direct push: what each Alertmanager replica receives, and when."""

import asyncio
import contextlib
import json
from dataclasses import replace
from datetime import datetime

import aiohttp
import pytest
from aiohttp import web
from structlog.testing import CapturingLogger

from sidecar.alerting.push import Push
from sidecar.analysis.alerts import model_alerts
from sidecar.analysis.judgement import Verdict
from sidecar.log import StateLog
from sidecar.settings import load_settings
from sidecar.settings.groups import Thresholds
from tests.export import reports

WALL = 1_700_000_000.0


def of(verdict, rate):
    model = reports.model(name="m", engines=(), judgement=reports.judgement(verdict, rate))
    alerts = model_alerts(model, Thresholds(), has_dropped=False)
    return replace(reports.report(model), alerts=tuple(alerts))


LOW, FINE = of(Verdict.NET_NEGATIVE, 0.4), of(Verdict.NET_POSITIVE, 0.9)


class Replica:
    """An Alertmanager that keeps what it receives and answers with ``status``."""

    def __init__(self):
        self.status = 200
        self.posts = []
        self.paths = set()

    async def take(self, request):
        self.paths.add((request.method, request.path, request.content_type))
        self.posts.append(await request.json())
        return web.Response(status=self.status, headers={"Location": "/elsewhere"})

    def ends(self):
        return [at(post[0]["endsAt"]) for post in self.posts]


class Pushed:
    """A push whose report and clock the test sets.

    It does so by ``await pushed.evaluate(report, after=seconds)``.
    """

    def __init__(self, urls, **settings):
        environment = {
            "ALERTMANAGERS": json.dumps(urls),
            "PACE": "0",
            "INSTANCE": "pod-7",
        } | settings
        self.now, self.log, self.report, self.set_back = 1000.0, CapturingLogger(), FINE, 0.0
        self.name = urls[0].partition("://")[2]
        self.push = Push(
            lambda: self.report,
            load_settings(
                None, {f"SPECDEC_ALERTING__{name}": value for name, value in environment.items()}
            ).alerting,
            "http://pod-7:9911",
            StateLog(self.log),
            monotonic=lambda: self.now,
            wall=lambda: WALL + self.now - self.set_back,
        )

    async def evaluate(self, report, after=0, seconds=120):
        """``seconds`` may pass until Alertmanager answers."""
        self.now += after
        self.report = report
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=seconds)) as session:
            await self.push.evaluate(session)


@pytest.fixture
async def scene(served):
    async with contextlib.AsyncExitStack() as stack:

        async def make(*replicas, prefix="", **settings):
            takes = [getattr(replica, "take", replica) for replica in replicas]
            urls = [await stack.enter_async_context(served(take)) + prefix for take in takes]
            return Pushed(urls, **settings)

        yield make


def at(text):
    return datetime.fromisoformat(text).timestamp() - WALL


async def test_a_firing_alert_has_its_labels_texts_links_and_times(scene):
    replica, links = Replica(), {"RUNBOOKS": "https://r.example", "DASHBOARDS": "https://g.example"}
    pushed = await scene(replica, prefix="/am", LABELS='{"cluster": "eu"}', **links)
    await pushed.evaluate(LOW)
    assert replica.paths == {("POST", "/am/api/v2/alerts", "application/json")}
    ((alert,),) = replica.posts
    labels = {
        "alertname": "SpecDecodeAcceptanceLow",
        "severity": "warning",
        "scope": "model",
        "model_name": "m",
    }
    assert alert["labels"] == labels | {"source": "sidecar", "instance": "pod-7", "cluster": "eu"}
    annotations = alert["annotations"]
    dashboard = "https://g.example/d/specdec-operator?from=now-6h&to=now"

    assert annotations["context"].startswith(
        "Not measured; by the rule of thumb, speculation does not pay on average."
    )
    assert annotations["context"].endswith(
        "\nDetails: specdec-sidecar report --url http://pod-7:9911"
    )
    assert annotations["runbook_url"] == "https://r.example/SpecDecodeAcceptanceLow.md"
    variables = "var-cluster=eu&var-instance=pod-7&var-source=sidecar&var-model_name=m"
    assert annotations["dashboard_url"] == f"{dashboard}&{variables}"
    assert annotations["description"].startswith(
        "40% of the draft tokens of m on pod-7 are accepted"
    )
    assert (at(alert["startsAt"]), at(alert["endsAt"])) == (1000, 1000 + 240)


async def test_without_addresses_it_links_to_its_own_runbooks_and_to_no_dashboard(scene):
    replica = Replica()
    await (await scene(replica)).evaluate(LOW)
    annotations = replica.posts[0][0]["annotations"]
    assert annotations["runbook_url"] == "http://pod-7:9911/runbooks/SpecDecodeAcceptanceLow.md"
    assert "dashboard_url" not in annotations


@pytest.mark.parametrize(("interval", "life"), [("15s", 240), ("2m", 480)])
async def test_it_is_sent_at_every_interval_and_resolved_at_once(scene, interval, life):
    """With an end that outlives a few lost sendings; resolved under the same labels."""
    replica = Replica()
    pushed = await scene(replica, INTERVAL=interval)
    for report in (LOW, LOW, FINE, FINE):
        await pushed.evaluate(report, after=15)
    assert replica.ends() == [1015 + life, 1030 + life, 1045, 1045]
    ended = replica.posts[-1][0]
    assert ended["labels"] == replica.posts[0][0]["labels"]
    assert at(ended["startsAt"]) == 1015


async def test_a_firing_alert_is_renewed_and_resolved_though_the_clock_was_set_back(scene):
    """Alertmanager rejects an alert whose start is after its end."""
    replica = Replica()
    pushed = await scene(replica)
    await pushed.evaluate(LOW)
    pushed.set_back = 3600
    await pushed.evaluate(LOW, after=60)
    pushed.set_back = 7200
    await pushed.evaluate(FINE, after=15)
    times = [(at(post[0]["startsAt"]), at(post[0]["endsAt"])) for post in replica.posts]
    assert times == [(1000, 1240), (-2540, -2300), (-6125, -6125)]


async def test_every_replica_is_notified_and_one_that_is_down_later(scene):
    """It costs one log line, and one when it is back."""
    well, ill = Replica(), Replica()
    pushed = await scene(well, ill)
    for ill.status in (503, 503, 200):
        await pushed.evaluate(LOW, after=15)
    assert len(well.posts) == len(ill.posts) == 3
    assert sorted(pushed.push.sent.values()) == [0, 0, 0, 1, 2, 3]
    logged = [(call.method_name, *call.args) for call in pushed.log.calls]
    assert logged == [
        ("warning", "Alertmanager did not accept alerts"),
        ("info", "Alertmanager accepts alerts again"),
    ]


@pytest.mark.parametrize("status", [404, 302])
async def test_a_wrong_url_shows_before_there_is_an_alert_and_a_redirect_is_not_followed(
    status, scene
):
    replica = Replica()
    replica.status = status
    pushed = await scene(replica, PACE="1")
    await pushed.evaluate(FINE)
    [call] = pushed.log.calls
    assert (call.method_name, call.args) == ("warning", ("Alertmanager did not accept alerts",))
    assert call.kwargs == {"reason": f"status {status}", "alertmanager": pushed.name}
    replica.status = 200
    await pushed.evaluate(FINE, after=15)
    assert replica.posts == [[], []]
    assert len(pushed.log.calls) == 2
    assert replica.paths == {("POST", "/api/v2/alerts", "application/json")}
    assert sum(pushed.push.sent.values()) == 0


async def test_an_alertmanager_that_hangs_or_is_away_is_a_failure_without_credentials_in_the_log(
    scene,
):
    async def hang(_):
        await asyncio.Event().wait()

    away = Pushed(["http://user:secret@127.0.0.1:9/x"])
    for pushed in (await scene(hang), away):
        await pushed.evaluate(LOW, seconds=0.5)
        assert [outcome for (_, outcome), count in pushed.push.sent.items() if count] == ["failed"]
    assert "secret" not in f"{away.log.calls}{list(away.push.sent)}"
    assert "127.0.0.1:9" in str(away.log.calls)
