"""The direct push: what each Alertmanager replica receives, and when."""

import asyncio
import contextlib
import json
import socket
from dataclasses import replace
from datetime import datetime

import aiohttp
import pytest
from aiohttp import web

from sidecar import wiring
from sidecar.alerting.push import Push, PushOptions
from sidecar.alerting.rules import load_rules
from sidecar.export.collector import ExportOptions, OwnCounts, export_families
from sidecar.log import StateLog
from sidecar.settings import load_settings
from tests.alerts.alert_state import engine, make_limits, make_report

SHIPPED = load_rules()
REFUSED = "SpecDecodePushRefused"
# Alerts fire and end immediately, except the one on the push itself.
RULES = {name: rule if name == REFUSED else replace(rule, wait=0, keep=0) for name, rule in SHIPPED.items()}
WALL = 1_700_000_000.0


class Log:
    def __init__(self):
        self.lines = []

    def warning(self, event, **fields):
        self.lines.append(("warning", event, fields))

    def info(self, event, **fields):
        self.lines.append(("info", event, fields))


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


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
async def scene(served):
    """A push whose state and clock the test sets: ``await scene.evaluate(report, after=seconds)``."""

    class Scene:
        def __init__(self, urls, **options):
            self.clock, self.log, self.reports = Clock(), Log(), []
            self.set_back = 0.0  # the wall clock, in seconds
            known = {"alertmanagers": tuple(urls), "labels": {"instance": "pod-7"}, "runbooks": "https://r.example"}
            options = PushOptions(**known | {"limits": make_limits(), "rules": RULES} | options)
            self.name = urls[0].partition("://")[2]
            log = StateLog(self.log, self.clock)
            self.push = Push(lambda: self.reports, options, log, self.clock, self.wall)

        def wall(self):
            return WALL + self.clock.now - self.set_back

        async def evaluate(self, *reports, after=0):
            self.clock.now += after
            self.reports = reports
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session:
                await self.push.evaluate(session)

    async with contextlib.AsyncExitStack() as stack:

        async def make(*replicas, prefix="", **options):
            urls = [
                await stack.enter_async_context(served(getattr(replica, "take", replica))) + prefix
                for replica in replicas
            ]
            return Scene(urls, **options)

        yield make


LOW = make_report(engine(acceptance=0.4))
EVEN = make_report(engine(acceptance=0.6))
FINE = make_report(engine(acceptance=0.9))


def at(text):
    return datetime.fromisoformat(text).timestamp() - WALL


async def test_a_firing_alert_says_all_of_itself(scene):
    replica = Replica()
    pushed = await scene(replica, prefix="/am")
    await pushed.evaluate(LOW)
    assert [(method, path) for method, path, _ in replica.paths] == [("POST", "/am/api/v2/alerts")]
    ((alert,),) = replica.posts
    assert alert["labels"] == {
        "alertname": "SpecDecodeAcceptanceLow",
        "severity": "critical",
        "source": "sidecar",
        "instance": "pod-7",
        "model_name": "m",
    }
    assert alert["annotations"]["context"].startswith("Acceptance 40%, a loss below 50%. A day before: unknown, this")
    assert alert["annotations"]["runbook_url"] == "https://r.example/SpecDecodeAcceptanceLow.md"
    assert alert["annotations"]["description"].startswith("m on pod-7 accepts 40% of its draft tokens, less than")
    assert at(alert["startsAt"]) == 1000
    assert at(alert["endsAt"]) == 1000 + 4 * 60


async def test_a_replica_that_refuses_alerts_is_reported_to_the_others(scene):
    well, ill = Replica(), Replica()
    ill.status = 400
    pushed = await scene(well, ill)
    for _ in range(12):
        await pushed.evaluate(EVEN, after=60)
    refused = [alert for post in well.posts for alert in post if alert["labels"]["alertname"] == REFUSED]
    name = list(dict.fromkeys(name for name, _ in pushed.push.sent))[1]
    assert refused[0]["labels"]["alertmanager"] == name
    assert refused[0]["annotations"]["description"] == f"The sidecar pod-7 cannot deliver its alerts to {name}."
    ill.status = 200
    for _ in range(7):
        await pushed.evaluate(EVEN, after=60)
    refused = [alert for post in well.posts for alert in post if alert["labels"]["alertname"] == REFUSED]
    assert at(refused[-1]["endsAt"]) <= pushed.clock.now  # resolved


async def test_it_links_to_a_dashboard_only_if_there_is_one(scene):
    without, with_one = Replica(), Replica()
    await (await scene(without)).evaluate(EVEN)
    await (await scene(with_one, dashboards="https://g.example")).evaluate(EVEN)
    assert "dashboard_url" not in without.posts[0][0]["annotations"]
    link = (
        "https://g.example/d/specdec-operator?from=now-6h&to=now&var-instance=pod-7&var-source=sidecar&var-model_name=m"
    )
    assert with_one.posts[0][0]["annotations"]["dashboard_url"] == link


async def test_it_is_sent_again_only_after_the_resend_interval_and_then_resolved_once(scene):
    replica = Replica()
    pushed = await scene(replica)
    await pushed.evaluate(EVEN)
    await pushed.evaluate(EVEN, after=59)
    assert len(replica.posts) == 1
    await pushed.evaluate(EVEN, after=1)
    assert [at(post[0]["endsAt"]) for post in replica.posts] == [1240, 1300]
    await pushed.evaluate(FINE, after=15)
    await pushed.evaluate(FINE, after=15)
    assert len(replica.posts) == 3
    ended = replica.posts[-1][0]
    assert ended["labels"] == replica.posts[0][0]["labels"]
    assert (at(ended["startsAt"]), at(ended["endsAt"])) == (1000, 1075)


async def test_a_firing_alert_is_renewed_and_resolved_though_the_clock_was_set_back(scene):
    """Alertmanager rejects an alert whose start is after its end."""
    replica = Replica()
    pushed = await scene(replica)
    await pushed.evaluate(EVEN)
    pushed.set_back = 3600
    await pushed.evaluate(EVEN, after=60)
    pushed.set_back = 7200
    await pushed.evaluate(FINE, after=15)
    times = [(at(post[0]["startsAt"]), at(post[0]["endsAt"])) for post in replica.posts]
    assert times == [(1000, 1240), (-2540, -2300), (-6125, -6125)]


async def test_every_replica_is_notified_and_one_that_is_down_later(scene):
    well, ill = Replica(), Replica()
    ill.status = 503
    pushed = await scene(well, ill)
    await pushed.evaluate(EVEN)
    await pushed.evaluate(EVEN, after=14)  # backed off
    assert (len(well.posts), len(ill.posts)) == (1, 1)
    await pushed.evaluate(EVEN, after=1)
    assert (len(well.posts), len(ill.posts)) == (1, 2)
    await pushed.evaluate(EVEN, after=15)  # twice as long now
    assert len(ill.posts) == 2
    ill.status = 200
    await pushed.evaluate(EVEN, after=15)
    assert len(ill.posts) == 3
    kinds = [(kind, event) for kind, event, _ in pushed.log.lines]
    assert kinds == [("warning", "Alertmanager did not accept alerts"), ("info", "Alertmanager accepts alerts again")]
    assert sorted(pushed.push.sent.values()) == [0, 0, 0, 0, 0, 1, 1, 2]


async def test_a_replica_gets_no_end_of_an_alert_that_it_never_got(scene):
    replica = Replica()
    replica.status = 500
    pushed = await scene(replica)
    await pushed.evaluate(EVEN)
    replica.status = 200
    replica.posts.clear()
    await pushed.evaluate(FINE, after=60)
    assert not any(replica.posts)


async def test_a_wrong_url_shows_before_there_is_an_alert(scene):
    replica = Replica()
    replica.status = 404
    pushed = await scene(replica)
    await pushed.evaluate(FINE)
    assert pushed.log.lines == [
        ("warning", "Alertmanager did not accept alerts", {"reason": "status 404", "alertmanager": pushed.name})
    ]
    replica.status = 200
    for _ in range(3):
        await pushed.evaluate(FINE, after=60)
    assert replica.posts == [[], []]
    assert pushed.log.lines[-1][:2] == ("info", "Alertmanager accepts alerts again")
    assert sum(pushed.push.sent.values()) == 0


async def test_an_end_that_could_not_be_delivered_is_delivered_later(scene):
    replica = Replica()
    pushed = await scene(replica)
    await pushed.evaluate(EVEN)
    replica.status = 500
    await pushed.evaluate(FINE, after=15)
    replica.status = 200
    await pushed.evaluate(FINE, after=60)
    assert at(replica.posts[-1][0]["endsAt"]) == 1015


async def test_a_pause_never_grows_past_a_minute(scene):
    replica = Replica()
    replica.status = 500
    pushed = await scene(replica, interval=15)
    for _ in range(30):
        await pushed.evaluate(EVEN, after=60)
    assert len(replica.posts) == 30


async def test_an_alertmanager_that_hangs_or_is_away_is_a_failure_without_credentials_in_the_log(scene):
    async def hang(_):
        await asyncio.Event().wait()

    pushed = await scene(hang)
    away = type(pushed)(["http://user:secret@127.0.0.1:9/x"])
    await pushed.evaluate(EVEN)
    await away.evaluate(EVEN)
    for one in (pushed, away):
        assert sum(one.push.sent.values()) == 1
        assert [outcome for (_, outcome), count in one.push.sent.items() if count] == ["failed"]
    assert "secret" not in str(away.log.lines)
    assert "127.0.0.1:9" in str(away.log.lines)
    assert "secret" not in str(list(away.push.sent))


async def test_a_redirect_is_not_followed(scene):
    replica = Replica()
    replica.status = 302
    pushed = await scene(replica)
    await pushed.evaluate(EVEN)
    assert len(replica.posts) == 1
    assert ("GET", "/elsewhere", "application/octet-stream") not in replica.paths


async def test_many_alerts_come_in_several_requests(scene):
    replica = Replica()
    pushed = await scene(replica, per_target=True)
    await pushed.evaluate(*(make_report(engine(acceptance=0.6), name=f"target-{number}") for number in range(100)))
    assert [len(post) for post in replica.posts] == [64, 36]
    assert len({alert["labels"]["target"] for post in replica.posts for alert in post}) == 100


async def test_alerts_past_the_bound_are_counted(scene):
    replica = Replica()
    pushed = await scene(replica, per_target=True)
    await pushed.evaluate(*(make_report(engine(acceptance=0.6), name=f"target-{number}") for number in range(1001)))
    assert sum(map(len, replica.posts)) == 1000
    assert [count for (_, outcome), count in pushed.push.sent.items() if outcome == "dropped"] == [1]


async def test_run_evaluates_until_it_is_cancelled(scene, eventually):
    replica = Replica()
    pushed = await scene(replica, interval=0.01, resend=0.02)
    pushed.reports = [EVEN]
    task = asyncio.create_task(pushed.push.run())
    await eventually(lambda: len(replica.posts) >= 1)
    pushed.clock.now += 1
    await eventually(lambda: len(replica.posts) >= 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert all(kind == "application/json" for _, _, kind in replica.paths)


async def test_nothing_that_blocks_is_called(scene, no_blocking):
    replica = Replica()
    pushed = await scene(replica)
    await pushed.evaluate(EVEN)
    assert len(replica.posts) == 1


def test_what_was_sent_is_exported():
    sent = {("am:9093", "accepted"): 3, ("am:9093", "failed"): 0}
    families = export_families([], OwnCounts(alerts_sent=sent), ExportOptions())
    (family,) = (one for one in families if one.metric.name == "specdec_alerts_sent_total")
    assert dict(zip(family.labels, family.values, strict=True)) == sent


def test_settings_become_options():
    environment = {
        "SPECDEC_ALERTING__ALERTMANAGERS": json.dumps(["http://a:9093/", "http://u:p@b:9093"]),
        "SPECDEC_ALERTING__INSTANCE": "pod-7",
        "SPECDEC_ALERTING__LABELS": json.dumps({"cluster": "eu", "pod": "vllm-0", "instance": "never"}),
        "SPECDEC_ALERTING__RUNBOOKS": "https://r.example/x",
        "SPECDEC_ALERTING__DASHBOARDS": "https://g.example/",
        "SPECDEC_THRESHOLDS__KV_CACHE_USAGE": "0.8",
        "SPECDEC_BASELINE": json.dumps({"m": {"tpot": {"p50": 0.02, "p99": 0.04}}}),
    }
    options = wiring.push(load_settings(None, environment), None)
    assert options.alertmanagers == ("http://a:9093", "http://u:p@b:9093")
    assert options.labels == {"instance": "pod-7", "cluster": "eu", "pod": "vllm-0"}
    assert options.runbooks == "https://r.example/x"
    assert options.dashboards == "https://g.example"
    assert options.limits.kv_cache_usage == 0.8
    assert options.limits.baselines == {"m": {"tpot": {0.5: 0.02, 0.99: 0.04}}}
    assert wiring.push(load_settings(None, {}), None).alertmanagers == ()
    assert wiring.push(load_settings(None, {}), None).labels["instance"]


@pytest.mark.parametrize(("listen", "links"), [("127.0.0.1:99", "http://127.0.0.1:99/runbooks"), ("0.0.0.0:99", None)])
def test_without_an_address_it_links_to_the_sidecars_own_runbooks(listen, links):
    runbooks = wiring.push(load_settings(None, {"SPECDEC_LISTEN": listen}), None).runbooks
    own = f"http://{socket.gethostbyname(socket.gethostname())}:99/runbooks"
    assert runbooks == (links or own)
