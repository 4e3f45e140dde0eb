"""Every rule and every query of the dashboards, on VictoriaMetrics and Prometheus side by side."""

import asyncio
import re
import shutil
import subprocess
from contextlib import asynccontextmanager
from io import BytesIO

import pytest

from tests.alerts.scene import shipped
from tests.dashboards.dashboard_tools import PAGES, annotations, filled_in, queries
from tests.dashboards.reading import EPOCH, MINUTES, NOW, backfill, firing, of_fleet, pod, sample
from tests.debian_servers import Prometheus, free_port, running_prometheus

STEP = 60  # seconds
# Of equal series one is taken, and the two need not take the same.
_ANY = re.compile(r"\b(?:topk|bottomk)\b")
# Prometheus extrapolates what grew to the ends of the window, VictoriaMetrics does not.
NEAR = 0.15
# What the rules record of the pods, and ``of_fleet`` says itself.
OF_A_FLEET = ("pod:specdec_speculates:bool", "pod:specdec_serves:bool")


@pytest.fixture
def samples():
    """An hour of pods that pay, lose, drop, die and are plain, with alerts that fire."""
    losing = pod("losing").bucket("0", 5, 0.8).bucket("1+", 5, 0.2).timed(0.8)
    losing.tpot(0.02, 0.05).baseline(0.02, 0.03).cache(0.95, 3)
    dead = pod("dead", ended=25).drafting(5, 0.7)
    down = pod("down").drafting(5, 0.7).failing(lambda poll: poll > 2 * (MINUTES - 25))
    pods = [losing, dead, down, pod("low").drafting(5, 0.3), pod("plain").generating(50)]
    found = list(of_fleet("eu", pods))
    found += firing(losing, "SlowerThanPlain", "critical", 15, scope="model_time")
    found += firing(losing, "MixedWorkload", "info", 15, sign="temperatures", scope="requests")
    found.append(
        sample(
            "ALERTS",
            {"alertname": "SpecDecodeNoSidecar", "alertstate": "firing", "severity": "warning"},
            1,
        )
    )
    return found


@asynccontextmanager
async def victoria_metrics(http, folder):
    if not shutil.which("victoria-metrics"):
        pytest.skip("victoria-metrics is missing: scripts/debian-tools victoria-metrics")
    address = f"127.0.0.1:{free_port()}"
    process = await asyncio.create_subprocess_exec(
        "victoria-metrics",
        f"-httpListenAddr={address}",
        f"-storageDataPath={folder / 'victoria-metrics'}",
        "-retentionPeriod=100y",
        "-search.latencyOffset=0s",
        "-search.maxStalenessInterval=5m",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not await _answers(http, f"http://{address}/health"):
            assert process.returncode is None
            await asyncio.sleep(0.1)
        yield f"http://{address}"
    finally:
        process.kill()
        await process.wait()


async def _answers(http, url):
    try:
        async with http.get(url) as answer:
            return answer.status == 200
    except OSError:
        return False


async def imported(http, url, lines):
    """Its timestamps are in milliseconds."""
    text = "\n".join(f"{line}000" for line in lines)
    async with http.post(f"{url}/api/v1/import/prometheus", data=BytesIO(text.encode())) as answer:
        assert answer.status == 204, await answer.text()
    async with http.get(f"{url}/internal/force_flush") as answer:
        assert answer.status == 200
    async with http.get(f"{url}/internal/resetRollupResultCache") as answer:
        assert answer.status == 200


async def recorded(http, url, server):
    """What the recording rules make of the hour, one after the other."""
    for rule in shipped():
        if rule.get("record") in {None, *OF_A_FLEET}:
            continue
        found = await server.ask(
            "query_range", query=rule["expr"], start=EPOCH, end=NOW, step=STEP, nocache=1
        )
        lines = [
            sample(
                rule["record"],
                {k: v for k, v in series["metric"].items() if k != "__name__"}
                | rule.get("labels", {}),
                value,
                (int(at) - EPOCH) // STEP,
            )
            for series in found
            for at, value in series["values"]
        ]
        if lines:
            await imported(http, url, lines)
        yield lines


def expressions():
    for rule in shipped():
        yield rule.get("record") or rule["alert"], rule["expr"]
    for page in PAGES.values():
        for query in queries(page):
            yield query.panel, filled_in(query.expr.replace("$__rate_interval", "5m"))
        for annotation in annotations(page):
            yield "annotation", filled_in(annotation)


async def found(server, expr):
    data = await server.ask("query", query=expr, time=NOW, nocache=1)
    return {
        frozenset((k, v) for k, v in series["metric"].items() if k != "__name__" and v): float(
            series["value"][1]
        )
        for series in data
    }


def differ(expr, one, other):
    """How two results differ, None if they do not."""
    if _ANY.search(expr):
        return None if len(one) == len(other) else (len(one), len(other))
    if one.keys() != other.keys():
        return sorted(map(sorted, one.keys() ^ other.keys()))
    far = {
        key: (one[key], other[key])
        for key in one
        if one[key] == one[key] and abs(one[key] - other[key]) > NEAR * max(abs(one[key]), 0.01)
    }
    return far or None


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.limit(900)
async def test_victoria_metrics_reads_every_rule_and_query_as_prometheus_does(
    http, tmp_path, samples
):
    everything = list(samples)
    async with victoria_metrics(http, tmp_path) as url:
        other = Prometheus(http, url)
        await imported(http, url, samples)
        async for lines in recorded(http, url, other):
            everything += lines
        backfill(tmp_path, everything)
        async with running_prometheus(http, tmp_path, {}) as prometheus:
            compared = [
                (name, expr, await found(prometheus, expr), await found(other, expr))
                for name, expr in expressions()
            ]

    differences = {
        (name, expr): difference
        for name, expr, one, another in compared
        if (difference := differ(expr, one, another))
    }
    assert sum(bool(one) for _, _, one, _ in compared) > len(compared) / 2
    assert differences == {}
