"""Every query of every panel against a real Prometheus that scrapes running sidecars."""

import asyncio
import json
import math
import re
import time
from contextlib import asynccontextmanager

import pytest

from sidecar.app import running
from sidecar.settings import load_settings
from specdec_tools.demo.scheduler import SimulatorOptions
from specdec_tools.demo.server import SimulatedVllm
from tests.alerts.scene import shipped
from tests.app.app_tools import sidecar_settings, traffic
from tests.dashboards.dashboard_tools import PAGES, annotations, filled_in, panels, queries
from tests.debian_servers import free_port, running_prometheus, scraping

# Queries without data in healthy traffic, by their panel and legend, or by a legend in any panel;
# each with its reason.
EMPTY = {
    ("", "does not pay below, by rule of thumb"): "there is a measured break-even",
    ("", "pays above, by rule of thumb"): "there is a measured break-even",
    ("", "rule of thumb"): "there is a measured break-even",
    ("", "breaks even at, highest of the pods"): "one pod has a break-even",
    ("", "too low below"): "there is a measured break-even",
    ("", "vLLM of {{who}}"): "each vLLM is up",
    ("", "sidecar {{who}}"): "each sidecar is up",
    ("vLLM restarts in the last hour", "{{who}}"): "no vLLM has restarted",
    ("What vLLM does not export", ""): "the simulated vLLM exports everything",
    (
        "Errors per second",
        "settings {{outcome}}",
    ): "settings are reloaded only where there is a file to watch",
    (
        "Acceptance now minus the past",
        "no data from that long ago: compare with a shorter time",
    ): "there is a past of a few seconds here",
    (
        "Alerts sent directly to Alertmanager",
        "{{alertmanager}} {{outcome}}",
    ): "the direct push is off by default",
    (
        "Acceptance above break-even, by model",
        "{{model_name}} {{namespace}} {{cluster}}, mean of its pods, by rule of thumb",
    ): "a baseline judges here",
}
# Labels that the series here lack, by panel; each with its reason.
LACKING = {
    "cluster": "the tests' sidecars have no labels but Prometheus' own",
    "namespace": "the same",
    "pod": "the same",
    "missing": "no pod is missing here",
    "unmeasured": "each pod here has a baseline",
    "part": "no model here loses on some of its pods",
    "at": "the tests' own alerts have neither temperature nor engine",
}


RULES = """
groups:
- name: test
  interval: 1s
  rules:
  - {alert: SpecDecodeAcceptanceLow, expr: specdec_up == 1, labels: {severity: critical}}
  - {alert: SpecDecodeFleetWide, expr: count(specdec_up) > 0, labels: {severity: warning}}
"""


@asynccontextmanager
async def sidecar(folder, speculative_tokens):
    """A simulated vLLM, its sidecar, and traffic; yields the sidecar's address."""
    socket = folder / f"{speculative_tokens}.sock"
    baseline = {
        name: {"p50": 0.01, "p99": 0.02} for name in ("ttft", "itl", "tpot", "e2e", "queue")
    }
    # So slow a plain step that speculation surely wins, by every load that the traffic can bring.
    curve = {
        "running": [1, 64],
        "seconds": [0.5, 0.5],
        "context": 1000.0,
        "contexts": [1.0, 100_000.0],
        "context_seconds": [0.0, 0.0],
        "prefill_seconds": 0.0,
        "drift": 0.002,
    }
    # Steps so long that the time per output token leaves vLLM's first bucket, in which no gap is
    # known.
    simulated = SimulatorOptions(
        speed=4.0,
        step_seconds=0.08,
        num_speculative_tokens=speculative_tokens,
        loop_share=0.5,
        empty_share=0.05,
    )
    async with SimulatedVllm(
        simulated, plugin_socket=socket if speculative_tokens else None
    ) as vllm:
        environment = sidecar_settings(
            vllm.url,
            LISTEN="127.0.0.1:0",
            PLUGIN__SOCKET=socket,
            SCRAPE_INTERVAL="2s",  # after twice that, a busy machine's late poll would show
            BASELINE=json.dumps({"demo": baseline}),
            PLAIN_STEPS=json.dumps({"demo": curve}),
            PLAIN_CACHE=json.dumps(
                {"demo": {"hit_ratio": 0.8, "capacity_tokens": 90_000, "preemptions_ratio": 0.0}}
            ),
            THRESHOLDS__ACCEPTANCE_NET_NEGATIVE=0.6,
            THRESHOLDS__MIN_BUCKET_SHARE=0.02,
        )
        async with (
            running(load_settings(None, environment)) as address,
            traffic(vllm, concurrency=3),
        ):
            yield f"127.0.0.1:{address.port}"


@asynccontextmanager
async def prometheus(http, folder, *addresses):
    """Scrapes them as the job ``specdec``, each within 4 s.

    It scrapes other programs, too: itself, and one that is gone.
    """
    (folder / "rules.yml").write_text(RULES)
    groups = [
        {
            "name": "recorded",
            "interval": "2s",
            "rules": [rule for rule in shipped() if "record" in rule],
        }
    ]
    (folder / "recording.yml").write_text(json.dumps({"groups": groups}))
    port = free_port()
    others = scraping(f"127.0.0.1:{port}", "127.0.0.1:1", job="others", interval="4s")
    config = scraping(*addresses, interval="4s") | {"rule_files": ["rules.yml", "recording.yml"]}
    config["scrape_configs"] += others["scrape_configs"]
    async with running_prometheus(http, folder, config, port) as running:
        yield running


async def instant(server, expression):
    """The series that have a number now: pairs of labels and value."""
    return [
        (labels, value)
        for labels, value in await server.instant(expression)
        if not math.isnan(value)
    ]


async def over_time(server, expression, seconds=20):
    """The series that had a number recently: pairs of labels and latest value."""
    now = time.time()
    data = await server.ask("query_range", query=expression, start=now - seconds, end=now, step=1)
    numbers = [
        (series["metric"], [value for _, value in series["values"] if value != "NaN"])
        for series in data
    ]
    return [(labels, float(values[-1])) for labels, values in numbers if values]


async def until(seconds, claims, *arguments):
    """Waits until all assertions in ``claims`` hold.

    A scrape that a busy machine misses changes figures for a moment.

    Raises:
        AssertionError: the claim that does not hold after ``seconds``.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            return await claims(*arguments)
        except AssertionError:
            if time.monotonic() > end:
                raise
        await asyncio.sleep(0.5)


@pytest.mark.slow
@pytest.mark.servers
async def test_every_query_has_data_and_every_label_of_its_legend(http, folder):
    everything = [query for page in PAGES.values() for query in queries(page)]
    assert set(EMPTY) <= {
        (panel, query.legend) for query in everything for panel in ("", query.panel)
    }
    async with (
        sidecar(folder, 0) as plain,
        sidecar(folder, 3) as speculating,
        prometheus(http, folder, plain, speculating) as server,
    ):
        await until(90, all_have_data, everything, server)  # rates need several scrapes, each 4 s
        await until(10, of_sidecars_alone, server, {plain, speculating})
        await until(10, labels_are_there, server)
        await until(10, annotations_answer, server)


def is_empty(query):
    return {(query.panel, query.legend), ("", query.legend)} & set(EMPTY)


async def answer(server, query):
    """The series that a panel shows for a query."""
    return await (instant if query.instant else over_time)(server, filled_in(query.expr))


async def all_have_data(waiting, server):
    """Queries that have data leave the list."""
    for query in [*waiting]:
        if is_empty(query) or await answer(server, query):
            waiting.remove(query)
    assert [(query.panel, query.legend, query.expr) for query in waiting] == []


async def labels_are_there(server):
    """A label that an aggregation dropped would leave a hole in every legend.

    One that it kept is a table's column.
    """
    columns = {
        (uid, panel["title"]): set(panel["transformations"][-1]["options"].get("indexByName", ()))
        for uid, page in PAGES.items()
        for panel in panels(page)
        if panel["type"] == "table"
    }
    for uid, query in ((uid, query) for uid, page in PAGES.items() for query in queries(page)):
        if is_empty(query):
            continue
        labels = {label for series, _ in await answer(server, query) for label in series}
        assert labels <= (columns.get((uid, query.panel)) or labels), query
        wanted = set(re.findall(r"{{(\w+)}}", query.legend))
        lacking = {
            label
            for label in wanted - labels
            if not {label, f"{query.panel}: {label}"} & set(LACKING)
        }
        assert not lacking, (query, labels)


async def annotations_answer(server):
    for page in PAGES.values():
        alerts, *changes = annotations(page)
        names = {labels["alertname"] for labels, _ in await over_time(server, filled_in(alerts))}
        # One has an instance, the other has none.
        assert names == {"SpecDecodeAcceptanceLow", "SpecDecodeFleetWide"}
        for expr in changes:
            assert await over_time(server, filled_in(expr)) == []  # a query, and nothing changed


async def of_sidecars_alone(server, addresses):
    """And not of every program that Prometheus scrapes."""
    for query in queries(PAGES["specdec-operator"]):
        if query.panel in {"Sidecar CPU", "Sidecar memory"}:
            assert {labels["instance"] for labels, _ in await answer(server, query)} == addresses, (
                query.panel
            )
