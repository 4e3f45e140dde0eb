"""The running sidecar with the proxy in front of a simulated vLLM: acceptance by temperature, end to end."""

import asyncio
from contextlib import asynccontextmanager

import aiohttp
import pytest

from sidecar.analysis.temperature import TemperatureBuckets
from sidecar.app import running
from sidecar.demo.options import SimulatorOptions
from sidecar.demo.traffic import Phase, TrafficOptions
from sidecar.settings import load_settings
from tests.demo.counted_traffic import CountedTraffic
from tests.demo.faulty_vllm import FaultyVllm

MIX = {0.0: 2, 0.2: 2, 0.6: 2, 1.0: 2, None: 1}
MARKER = "xyzzy-plugh-4711"


@pytest.fixture
def proxied(unused_tcp_port_factory):
    """A simulated vLLM, a sidecar that proxies it: gives the simulator, the sidecar's page and the proxy."""

    @asynccontextmanager
    async def start(ask_usage="false", **options):
        proxy = f"127.0.0.1:{unused_tcp_port_factory()}"
        async with FaultyVllm(SimulatorOptions(**options)) as vllm:
            environment = {
                "SPECDEC_VLLM_URL": vllm.url,
                "SPECDEC_LISTEN": "127.0.0.1:0",
                "SPECDEC_REQUESTS__SOURCE": "proxy",
                "SPECDEC_REQUESTS__ASK_USAGE": ask_usage,
                "SPECDEC_PROXY__LISTEN": proxy,
                "SPECDEC_SCRAPE_INTERVAL": "0.2s",
            }
            async with running(load_settings(None, environment)) as address:
                yield vllm, f"http://{address}", f"http://{proxy}"

    return start


class Page(dict):
    def sum(self, name, **labels):
        return sum(value for (sample, pairs), value in self.items() if sample == name and labels.items() <= set(pairs))


@pytest.fixture
def read(http, samples_of):
    async def until(url, condition=lambda _: True):
        async with asyncio.timeout(120):
            while True:
                async with http.get(f"{url}/metrics", headers={"Accept-Encoding": "identity"}) as response:
                    page = Page(samples_of(await response.text()))
                if condition(page):
                    return page
                await asyncio.sleep(0.05)

    return until


async def send(url, requests, **options):
    traffic = CountedTraffic(
        TrafficOptions(url, phases=(Phase(600, MIX),), max_requests=requests, max_tokens=60, **options)
    )
    summary = await traffic.run()
    assert summary.failed == 0
    return summary


async def test_exact_numbers_add_up_to_the_token_in_every_bucket(proxied, read):
    async with proxied(speed=4) as (vllm, ours, proxy):
        summary = await send(proxy, 80)
        page = await read(ours, lambda page: page.sum("specdec_requests_total", attribution="exact") >= 75)
        # What the simulator left without numbers (a request that drafted nothing) is not exact.
        exact = sum(sums.requests for sums in summary.acceptance.values())
        page = await read(ours, lambda page: page.sum("specdec_requests_total", attribution="exact") == exact)
        assert page.sum("specdec_draft_tokens_total", attribution="exact") == vllm.counter(
            "spec_decode_num_draft_tokens"
        )
    buckets = TemperatureBuckets()
    for temperature, sums in summary.acceptance.items():
        labels = {"temperature": buckets.label(temperature), "attribution": "exact"}
        assert page.sum("specdec_requests_total", **labels) == sums.requests
        assert page.sum("specdec_drafts_total", **labels) == sums.drafts
        assert page.sum("specdec_draft_tokens_total", **labels) == sums.draft_tokens
        assert page.sum("specdec_accepted_tokens_total", **labels) == sums.accepted_tokens
        assert page.sum("specdec_request_acceptance_ratio_count", **labels) == sums.requests


async def test_without_vllms_own_numbers_they_are_inferred(proxied, read):
    async with proxied(exact=False) as (vllm, ours, proxy):
        await send(proxy, 100)

        def settled(page):
            return page.sum("specdec_requests_total", attribution="inferred") >= 80

        page = await read(ours, settled)
        assert page.sum("specdec_requests_total", attribution="exact") == 0
        drafted = vllm.counter("spec_decode_num_draft_tokens")
        assert page.sum("specdec_draft_tokens_total") == pytest.approx(drafted, rel=0.2)
        cold, hot = (
            page.sum("specdec_accepted_tokens_total", temperature=label)
            / page.sum("specdec_draft_tokens_total", temperature=label)
            for label in ("0", "0.7-1")
        )
        # They are 0.95 and 0.45. How near it comes is shown on recordings; here one loop runs all parts, in fits.
        assert cold - hot > 0.25


async def test_every_known_label_set_starts_at_zero(proxied, read):
    async with proxied() as (_, ours, _proxy):
        page = await read(ours, lambda page: page.sum("specdec_up") == 1)
    for label in TemperatureBuckets().labels:
        for attribution in ("exact", "inferred"):
            key = {("model_name", "demo"), ("temperature", label), ("attribution", attribution)}
            assert page["specdec_draft_tokens_total", frozenset(key)] == 0
            assert page["specdec_request_acceptance_ratio_count", frozenset(key)] == 0
        key = {("model_name", "demo"), ("temperature", label), ("verdict", "insufficient_data")}
        assert page["specdec_verdict", frozenset(key)] == 1


async def test_errors_and_clients_that_leave_are_told_apart(proxied, read, http):
    async with proxied() as (_, ours, proxy):
        async with http.post(f"{proxy}/v1/completions", json={"model": "nobody", "prompt": "x"}) as response:
            assert response.status == 404
        body = {"model": "demo", "prompt": "x", "stream": True, "max_tokens": 5000, "ignore_eos": True}
        async with aiohttp.ClientSession() as session:
            response = await session.post(f"{proxy}/v1/completions", json=body)
            await response.content.readany()
            response.close()
        # Its outcome is counted with its attribution, which may have to wait for traffic that tells more.
        page = await read(ours, lambda page: page.sum("specdec_proxy_exchanges_total", outcome="client_gone") == 1)
        page = await read(ours, lambda page: page.sum("specdec_requests_total", outcome="error") == 1)
        assert page.sum("specdec_requests_total", outcome="error", attribution="none") == 1
        assert page.sum("specdec_request_events_total", source="proxy") == 2


async def test_no_text_gets_out(proxied, read, http, capfd):
    async with proxied() as (_, ours, proxy):
        for stream in (False, True):
            body = {"model": "demo", "messages": [{"role": "user", "content": MARKER}], "stream": stream}
            async with http.post(f"{proxy}/v1/chat/completions", json=body | {"max_tokens": 5}) as response:
                await response.read()
        await read(ours, lambda page: page.sum("specdec_request_events_total") == 2)
        for path in ("/metrics", "/api/v1/status", "/", "/content"):
            async with http.get(ours + path, headers={"Accept-Encoding": "identity"}) as response:
                assert MARKER not in await response.text()
    assert MARKER not in "".join(capfd.readouterr())


async def test_the_status_tells_the_same_as_the_metrics(proxied, read, http):
    async with proxied(speed=4) as (_, ours, proxy):
        await send(proxy, 30)
        page = await read(ours, lambda page: page.sum("specdec_requests_total") == 30)
        async with http.get(f"{ours}/api/v1/status", headers={"Accept-Encoding": "identity"}) as response:
            [model] = (await response.json())["targets"][0]["requests"]["models"]
    assert model["model_name"] == "demo"
    told = {label: work["draft_tokens"] for label, work in model["temperatures"].items()}
    assert told == {label: pytest.approx(page.sum("specdec_draft_tokens_total", temperature=label)) for label in told}


async def test_streams_whose_clients_do_not_ask_for_usage_count_all_the_same(proxied, read, http):
    """With the setting: the sidecar learns vLLM's version, asks, counts, and the client gets no usage."""
    body = {"model": "demo", "stream": True, "max_tokens": 30, "messages": [{"role": "user", "content": "hi"}]}
    async with proxied("true", speed=10, force_include_usage=False) as (vllm, ours, proxy):
        replies = []

        async def stream():
            async with http.post(f"{proxy}/v1/chat/completions", json=body) as response:
                replies.append(await response.read())

        async def settled():
            return await read(ours, lambda page: page.sum("specdec_requests_total") == len(replies))

        await stream()
        async with asyncio.timeout(60):
            while not (await settled()).sum("specdec_asked_usage_total", outcome="removed"):
                await stream()
        before, drafted = await settled(), vllm.counter("spec_decode_num_draft_tokens")
        await asyncio.gather(*(stream() for _ in range(20)))
        after, drafted = await settled(), vllm.counter("spec_decode_num_draft_tokens") - drafted
    removed, exact = (
        after.sum(name, **labels) - before.sum(name, **labels)
        for name, labels in (
            ("specdec_asked_usage_total", {"outcome": "removed"}),
            ("specdec_draft_tokens_total", {"attribution": "exact"}),
        )
    )
    assert (removed, exact) == (20, drafted)
    assert not any(b"usage" in reply for reply in replies)
    assert all(reply.split(b"\n\n")[-3].endswith(b',"system_fingerprint":"vllm-0.32.0-5df78fb7"}') for reply in replies)
