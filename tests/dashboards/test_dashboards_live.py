"""Every query of every panel against a real Prometheus that scrapes running sidecars."""

import asyncio
import json
import re
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from sidecar.app import running
from sidecar.demo.options import SimulatorOptions
from sidecar.demo.traffic import MIXED, Phase, Traffic, TrafficOptions
from sidecar.settings import load_settings
from tests.dashboards.dashboard_tools import annotations, filled_in, queries
from tests.demo.faulty_vllm import FaultyVllm

# Queries without data in healthy traffic, by their panel and legend; each with its reason.
EMPTY = {
    ("What vLLM's page does not export", ""): "the simulated vLLM's page exports everything",
    ("Faults per second", "settings {{outcome}}"): "settings are reloaded only where there is a file to watch",
    (
        "Acceptance now less the past",
        "nothing was recorded that long ago: compare with a shorter time",
    ): "there is a past of a few seconds here",
    ("Alerts sent directly to Alertmanager", "{{alertmanager}} {{outcome}}"): "the direct push is off by default",
}
# Queries that have data only where the plain step times are known; they are tested with a baseline that has them.
SPEEDUP = {
    ("Speedup by temperature, against its thresholds", "{{temperature}} {{model_name}}"),
    ("Speedup by temperature, against its thresholds", "all {{model_name}}"),
    ("Request time saved against plain decoding", "{{temperature}} {{model_name}}"),
    ("Time per token by requests running", "plain, {{running}} {{model_name}}"),
    ("Acceptance, and what it takes to break even", "breaks even {{model_name}}"),
}
# Labels that the series here lack, by panel; each with its reason.
LACKING = {
    "cluster": "the tests' targets have no labels but Prometheus' own",
    "namespace": "the same",
    "pod": "the same",
    "target": "no sidecar here has several targets",
    "Alerts firing: temperature": "the tests' own alerts have none",
    "Alerts firing: model_name": "the tests' own alerts have none",
    "Alerts firing over time: temperature": "the tests' own alerts have none",
}


@pytest.fixture
def sidecar(tmp_path, unused_tcp_port_factory):
    """A simulated vLLM, its sidecar, and traffic: ``async with sidecar(speculative_tokens) as (vllm, address)``."""

    @asynccontextmanager
    async def run(speculative_tokens, source, **changes):
        port = unused_tcp_port_factory()
        config = tmp_path / f"{speculative_tokens}.yaml"
        seconds = {"p50": 0.01, "p99": 0.02}
        baseline = dict.fromkeys(("ttft", "itl", "tpot", "e2e", "queue"), seconds)
        config.write_text(json.dumps({"baseline": {"demo": baseline}}))
        simulated = SimulatorOptions(speed=4.0, num_speculative_tokens=speculative_tokens)
        async with FaultyVllm(simulated) as vllm:
            environment = {
                "SPECDEC_LISTEN": "127.0.0.1:0",
                "SPECDEC_VLLM_URL": vllm.url,
                "SPECDEC_SCRAPE_INTERVAL": "500ms",
                "SPECDEC_SCRAPE_CPU_SHARE": "1",
                "SPECDEC_REQUESTS__SOURCE": source,
                "SPECDEC_PROXY__LISTEN": f"127.0.0.1:{port}",
                "SPECDEC_THRESHOLDS__ACCEPTANCE_NET_NEGATIVE": "0.72",
                "SPECDEC_THRESHOLDS__ACCEPTANCE_BREAK_EVEN": "0.87",
                "SPECDEC_THRESHOLDS__MIN_BUCKET_SHARE": "0.02",
                **changes,
            }
            async with running(load_settings(config, environment)) as address:
                through = f"http://127.0.0.1:{port}" if source == "proxy" else vllm.url
                options = TrafficOptions(through, phases=(Phase(600.0, MIXED),), concurrency=3)
                sending = asyncio.create_task(Traffic(options).run())
                try:
                    yield vllm, f"127.0.0.1:{address.port}"
                finally:
                    sending.cancel()
                    await asyncio.gather(sending, return_exceptions=True)

    return run


async def until(seconds, condition):
    """Waits for an empty answer; fails with the last one."""
    missing = "no answer yet"
    try:
        async with asyncio.timeout(seconds):
            while missing := await condition():
                await asyncio.sleep(0.5)
    except TimeoutError:
        raise AssertionError(missing) from None


def named(pages, uid, panel, legend=None, **values):
    """The one query of a panel, or the one with that legend."""
    found = [query for query in queries(pages[uid]) if query.panel == panel and legend in (None, query.legend)]
    (query,) = found
    return filled_in(query.expr, **values)


@pytest.mark.servers
@pytest.mark.limit(600)
async def test_every_query_has_data_and_says_what_its_panel_claims(pages, sidecar, prometheus):
    everything = [query for page in pages.values() for query in queries(page)]
    assert set(EMPTY) | SPEEDUP <= {(query.panel, query.legend) for query in everything}
    everything = [query for query in everything if (query.panel, query.legend) not in SPEEDUP]
    async with AsyncExitStack() as stack:
        _, plain = await stack.enter_async_context(sidecar(0, "none"))
        async with AsyncExitStack() as inner:
            vllm, speculating = await inner.enter_async_context(sidecar(3, "proxy"))
            server = await stack.enter_async_context(prometheus([plain, speculating]))
            await until(300, lambda: without_data(everything, server))
            await says_what_it_claims(pages, server, speculating, plain)
            await labels_are_there(pages, server)
            await annotations_answer(pages, server)
            await shows_what_is_down(pages, server, vllm)
        live = named(pages, "specdec-operator", "Is this page live?")
        await until(120, lambda: other_than(server, live, {0}))


@pytest.mark.servers
async def test_a_baseline_fills_the_panels_of_the_speedup(pages, sidecar, prometheus):
    """Every load that the traffic can bring is covered, and so slow a plain step that speculation surely wins."""
    queried = [query for page in pages.values() for query in queries(page) if (query.panel, query.legend) in SPEEDUP]
    curve = {"running": [1, 64], "seconds": [0.5, 0.5], "errors": [0.001, 0.001]}
    plain = json.dumps({"demo": curve})
    async with sidecar(3, "proxy", SPECDEC_PLAIN_STEPS=plain) as (_, address), prometheus([address]) as server:
        await until(300, lambda: without_data(queried, server))
        (speedup,) = await server.instant(
            named(pages, "specdec-operator", "Speedup by temperature, against its thresholds", "all {{model_name}}")
        )
        assert speedup[1] > 1
        verdicts = await server.instant(
            named(pages, "specdec-operator", "Verdict by temperature: where, and since when")
        )
        assert {value for labels, value in verdicts if labels["temperature"] == "0"} == {1}


async def without_data(waiting, server):
    """The queries that still wait for data; those that have some leave the list."""
    for query in [*waiting]:
        ask = server.instant if query.instant else server.over_time
        if (query.panel, query.legend) in EMPTY or await ask(filled_in(query.expr)):
            waiting.remove(query)
    return [(query.panel, query.legend, query.expr) for query in waiting]


async def labels_are_there(pages, server):
    """A label that an aggregation dropped would leave a hole in every legend, and an empty column in a table."""
    for page in pages.values():
        for query in queries(page):
            ask = server.instant if query.instant else server.over_time
            series = await ask(filled_in(query.expr))
            if (query.panel, query.legend) in EMPTY.keys() | SPEEDUP:
                continue
            labels = {label for found, _ in series for label in found}
            wanted = {*re.findall(r"{{(\w+)}}", query.legend), *query.columns}
            lacking = {label for label in wanted - labels if not {label, f"{query.panel}: {label}"} & set(LACKING)}
            assert not lacking, (query, labels)


async def annotations_answer(pages, server):
    for page in pages.values():
        alerts, *restarts = annotations(page)
        names = {labels["alertname"] for labels, _ in await server.over_time(filled_in(alerts))}
        assert names == {"SpecDecodeAcceptanceLow", "SpecDecodeFleetWide"}  # one has an instance, the other has none
        for expr in restarts:
            assert await server.over_time(filled_in(expr)) == []  # a query, and nothing restarted


async def says_what_it_claims(pages, server, speculating, plain):
    """The thresholds are 0.72 and 0.87; acceptance is 0.95 at 0, 0.8 at 0.3, 0.6 at 0.7, 0.45 at 1 and 0.65 in all."""
    operator, fleet = "specdec-operator", "specdec-fleet"
    verdicts = "Verdict by temperature: where, and since when"
    expected = {"0": 1, "0-0.3": 2, "0.5-0.7": 3, "0.7-1": 3, "default": 3}

    async def wrong():
        found = {
            labels["temperature"]: value for labels, value in await server.instant(named(pages, operator, verdicts))
        }
        return {
            temperature: found.get(temperature)
            for temperature in expected
            if found.get(temperature) != expected[temperature]
        }

    await until(240, wrong)
    losing = await server.instant(named(pages, operator, "Where it loses"))
    assert {(labels["temperature"], value) for labels, value in losing} == {
        ("0.5-0.7", 1),
        ("0.7-1", 1),
        ("default", 1),
    }
    cold = await server.instant(named(pages, operator, "Where it loses", temperature="0|0-0.3"))
    assert [(labels["temperature"], value) for labels, value in cold] == [("nowhere", 0)]
    pays = named(pages, operator, "Does speculation pay?")
    assert await server.instant(pays) == [({}, 0)]
    # With a much lower threshold, which another one happens to be, in place of each of the two, and of both.
    for lowered, value in (("acceptance_net_negative", 1), ("acceptance_break_even", 1), ("acceptance_\\w+", 2)):
        assert await server.instant(re.sub(lowered, "min_bucket_share", pays)) == [({}, value)]
    assert await server.instant(named(pages, operator, "Does speculation pay?", instance="nobody")) == []
    assert await server.instant(named(pages, operator, "Is this page live?")) == [({}, 2)]
    assert await server.instant(named(pages, operator, "Is this page live?", instance="nobody")) == []
    for legend, value in (("pays above", 0.87), ("loses below", 0.72)):
        line = named(pages, operator, "Acceptance by temperature, against the thresholds", legend)
        assert await server.instant(line) == [({}, value)]
    for group, instance in (("speculating", speculating), ("not speculating", plain)):
        legend = f"{group} {{{{model_name}}}}"
        one = ({"model_name": "demo"}, 1)
        assert await server.instant(named(pages, fleet, "Pods in each group", legend)) == [one]
        for other in (speculating, plain):
            found = await server.instant(named(pages, fleet, "Pods in each group", legend, instance=other))
            assert found == ([one] if other == instance else [])
    for title, value in {
        "Pods known": 2,
        "Sidecars gone": 0,
        "vLLMs down": 0,
        "Pods drafting": 1,
        "Pods losing": 1,
    }.items():
        assert await server.instant(named(pages, fleet, title)) == [({}, value)], title
    for title in ("Pods drafting", "Pods losing"):  # none is 0, not a hole
        assert await server.instant(named(pages, fleet, title, instance=plain)) == [({}, 0)], title
    for title in ("CPU of the sidecar", "Memory of the sidecar"):
        instances = {labels["instance"] for labels, _ in await server.instant(named(pages, operator, title))}
        assert instances == {speculating, plain}, title  # and not every program that Prometheus scrapes
    acceptance = next(query for query in queries(pages[fleet]) if query.panel == "Worst buckets")
    buckets = sorted(await server.instant(filled_in(acceptance.expr)), key=lambda found: found[1])
    assert {labels["temperature"] for labels, _ in buckets[:2]} == {"0.7-1", "default"}
    assert {labels["instance"] for labels, _ in buckets} == {speculating}


async def shows_what_is_down(pages, server, vllm):
    live = named(pages, "specdec-operator", "Is this page live?")
    vllm.faults.set("error_500")
    await until(120, lambda: other_than(server, live, {1}))
    await until(120, lambda: other_than(server, named(pages, "specdec-fleet", "vLLMs down"), {1}))
    vllm.faults.clear()
    await until(120, lambda: other_than(server, live, {2}))


async def other_than(server, expr, values):
    """The answer to a query, unless it is that one."""
    found = await server.instant(expr)
    return [] if {value for _, value in found} == values else [found]
