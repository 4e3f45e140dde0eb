"""Every query of every panel against a real Prometheus that scrapes running sidecars."""

import asyncio
import json
import re
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from dashboard_tools import annotations, filled_in, queries

from sidecar.app import running
from sidecar.demo.options import SimulatorOptions
from sidecar.demo.server import SimulatedVllm
from sidecar.demo.traffic import MIXED, Phase, Traffic, TrafficOptions
from sidecar.settings import load_settings

# Queries without data in healthy traffic, by their panel and legend; each with its reason.
EMPTY = {
    ("What vLLM's page does not tell", ""): "the simulated vLLM's page tells everything",
}
# Legends that name a label which healthy series may lack.
OPTIONAL = {
    "target": "only where a sidecar has several targets",
    "model_name": "the series 'nowhere' stands for every model",
    "temperature": "the tests' own alerts have none",
}


@pytest.fixture
def sidecar(tmp_path, unused_tcp_port_factory):
    """A simulated vLLM, its sidecar, and traffic: ``async with sidecar(speculative_tokens) as (vllm, address)``."""

    @asynccontextmanager
    async def run(speculative_tokens, source):
        port = unused_tcp_port_factory()
        config = tmp_path / f"{speculative_tokens}.yaml"
        seconds = {"p50": 0.01, "p99": 0.02}
        baseline = {phase: seconds for phase in ("ttft", "itl", "tpot", "e2e", "queue")}
        config.write_text(json.dumps({"baseline": {"demo": baseline}}))
        simulated = SimulatorOptions(speed=4.0, num_speculative_tokens=speculative_tokens)
        async with SimulatedVllm(simulated) as vllm:
            environment = {
                "SPECDEC_LISTEN": "127.0.0.1:0",
                "SPECDEC_VLLM_URL": vllm.url,
                "SPECDEC_SCRAPE_INTERVAL": "250ms",
                "SPECDEC_SCRAPE_CPU_SHARE": "1",
                "SPECDEC_REQUESTS__SOURCE": source,
                "SPECDEC_PROXY__LISTEN": f"127.0.0.1:{port}",
                "SPECDEC_THRESHOLDS__ACCEPTANCE_BREAK_EVEN": "0.85",
            }
            async with running(load_settings(config, environment)) as address:
                through = f"http://127.0.0.1:{port}" if source == "proxy" else vllm.url
                options = TrafficOptions(through, phases=(Phase(120.0, MIXED),), concurrency=8)
                sending = asyncio.create_task(Traffic(options).run())
                try:
                    yield vllm, f"127.0.0.1:{address.port}"
                finally:
                    sending.cancel()
                    await asyncio.gather(sending, return_exceptions=True)

    return run


async def until(seconds, condition):
    """Waits for an empty answer; fails with the last one."""
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
async def test_every_query_has_data_and_says_what_its_panel_claims(pages, sidecar, prometheus):
    everything = [query for page in pages.values() for query in queries(page)]
    assert set(EMPTY) <= {(query.panel, query.legend) for query in everything}
    async with AsyncExitStack() as stack:
        _, plain = await stack.enter_async_context(sidecar(0, "none"))
        async with AsyncExitStack() as inner:
            vllm, speculating = await inner.enter_async_context(sidecar(3, "proxy"))
            server = await stack.enter_async_context(prometheus([plain, speculating]))
            await until(90, lambda: without_data(everything, server))
            await legends_name_labels(everything, server)
            await annotations_answer(pages, server)
            await says_what_it_claims(pages, server, speculating)
            await shows_what_is_down(pages, server, vllm)
        live = named(pages, "specdec-operator", "Is this page live?")
        await until(30, lambda: other_than(server, live, {0}))


async def without_data(everything, server):
    found = []
    for query in everything:
        ask = server.instant if query.instant else server.over_time
        if (query.panel, query.legend) not in EMPTY and not await ask(filled_in(query.expr)):
            found.append((query.panel, query.legend, query.expr))
    return found


async def legends_name_labels(everything, server):
    """A label that an aggregation dropped would leave a hole in every legend."""
    for query in everything:
        ask = server.instant if query.instant else server.over_time
        labels = {label for found, _ in await ask(filled_in(query.expr)) for label in found}
        missing = set(re.findall(r"{{(\w+)}}", query.legend)) - labels - set(OPTIONAL)
        assert not missing or (query.panel, query.legend) in EMPTY, (query, labels)


async def annotations_answer(pages, server):
    for page in pages.values():
        alerts, *restarts = annotations(page)
        names = {labels["alertname"] for labels, _ in await server.over_time(filled_in(alerts))}
        assert names == {"SpecDecodeAcceptanceLow", "SpecDecodeFleetWide"}  # one has an instance, the other has none
        for expr in restarts:
            assert await server.over_time(filled_in(expr)) == []  # a query, and nothing restarted


async def says_what_it_claims(pages, server, speculating):
    """With the thresholds 0.5 and 0.85, acceptance is about 0.95 at 0, 0.8 at 0.3, 0.6 at 0.7 and 0.45 at 1."""
    operator, fleet = "specdec-operator", "specdec-fleet"
    verdicts = "Verdict by temperature: where, and since when"
    expected = {"0": 1, "0-0.3": 2, "0.5-0.7": 2, "0.7-1": 3, "default": 3}
    found = {labels["temperature"]: value for labels, value in await server.instant(named(pages, operator, verdicts))}
    assert {temperature: found[temperature] for temperature in expected} == expected
    losing = await server.instant(named(pages, operator, "Where it loses"))
    assert {(labels["temperature"], value) for labels, value in losing} == {("0.7-1", 1), ("default", 1)}
    cold = await server.instant(named(pages, operator, "Where it loses", temperature="0|0-0.3"))
    assert [(labels["temperature"], value) for labels, value in cold] == [("nowhere", 0)]
    assert await server.instant(named(pages, operator, "Does speculation pay?")) == [({}, 1)]
    assert await server.instant(named(pages, operator, "Does speculation pay?", instance="nobody")) == []
    assert await server.instant(named(pages, operator, "Is this page live?")) == [({}, 2)]
    assert await server.instant(named(pages, operator, "Is this page live?", instance="nobody")) == []
    line = named(pages, operator, "Acceptance by temperature, against the thresholds", "pays above")
    assert await server.instant(line) == [({}, 0.85)]
    for group in ("speculating", "not speculating"):
        legend = f"{group} {{{{model_name}}}}"
        assert await server.instant(named(pages, fleet, "Pods in each group", legend)) == [({"model_name": "demo"}, 1)]
    for title, value in {"Pods known": 2, "Sidecars gone": 0, "vLLMs down": 0, "Pods drafting": 1, "Pods losing": 0}.items():
        assert await server.instant(named(pages, fleet, title)) == [({}, value)], title
    acceptance = [query for query in queries(pages[fleet]) if query.panel == "Worst buckets"][0]
    buckets = sorted(await server.instant(filled_in(acceptance.expr)), key=lambda found: found[1])
    assert {labels["temperature"] for labels, _ in buckets[:2]} == {"0.7-1", "default"}
    assert {labels["instance"] for labels, _ in buckets} == {speculating}


async def shows_what_is_down(pages, server, vllm):
    live = named(pages, "specdec-operator", "Is this page live?")
    vllm.faults.set("error_500")
    await until(30, lambda: other_than(server, live, {1}))
    await until(30, lambda: other_than(server, named(pages, "specdec-fleet", "vLLMs down"), {1}))
    vllm.faults.clear()
    await until(30, lambda: other_than(server, live, {2}))


async def other_than(server, expr, values):
    """The answer to a query, unless it is that one."""
    found = await server.instant(expr)
    return [] if {value for _, value in found} == values else [found]
