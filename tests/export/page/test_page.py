"""The page at ``/`` as a user sees it, in a real browser."""

import asyncio
from contextlib import asynccontextmanager

import aiohttp
import pytest

from sidecar.app import running
from sidecar.demo.options import SimulatorOptions
from sidecar.demo.traffic import Phase, Traffic, TrafficOptions
from sidecar.settings import load_settings
from tests.demo.faulty_vllm import FaultyVllm

pytestmark = pytest.mark.servers

COLD = {0.0: 3, 0.2: 2}
HOT = {0.0: 3, 0.2: 1, 0.6: 2, 1.0: 4}
QUICK = {
    "SPECDEC_LISTEN": "127.0.0.1:0",
    "SPECDEC_SCRAPE_INTERVAL": "0.2s",
    "SPECDEC_SCRAPE_CPU_SHARE": "1",  # else one slow poll stretches the interval beyond what a test waits
    "SPECDEC_LATENCY_WINDOW": "10s",
    "SPECDEC_THRESHOLDS__MIN_REQUESTS": "3",
}


@asynccontextmanager
async def watched(port, mix, *, force_include_usage=True, **environment):
    """A simulated vLLM, traffic for it through the proxy where ``mix`` has any, and the sidecar's page."""
    async with FaultyVllm(SimulatorOptions(speed=3, force_include_usage=force_include_usage)) as vllm:
        environment = QUICK | {"SPECDEC_VLLM_URL": vllm.url} | environment
        target = vllm.url
        if environment.get("SPECDEC_REQUESTS__SOURCE") == "proxy":
            environment["SPECDEC_PROXY__LISTEN"] = f"127.0.0.1:{port}"
            target = f"http://127.0.0.1:{port}"
        async with (
            running(load_settings(None, environment)) as address,
            under_way(traffic(target, mix) if mix else asyncio.sleep(0)),
        ):
            yield vllm, f"http://{address}/"


@asynccontextmanager
async def under_way(sending):
    task = asyncio.create_task(sending)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def traffic(url, mix, **options):
    await Traffic(TrafficOptions(url, phases=(Phase(120, mix),), **options)).run()


PROXY = {"SPECDEC_REQUESTS__SOURCE": "proxy"}
TEXT = "document.getElementById('content').innerText"


async def test_healthy(browser, pictures, unused_tcp_port):
    async with watched(unused_tcp_port, COLD, **PROXY) as (_, url), browser() as tab:
        await tab.open(url)
        await tab.until(f"{TEXT}.includes('Speculation pays at every temperature that can be judged.')")
        await tab.until("document.querySelectorAll('.bucket.good .bar svg').length === 2")
        await tab.screenshot(pictures / "healthy.png")
        assert tab.complaints() == []
        assert {address.split("/")[2] for address in tab.requested()} == {url.split("/")[2]}


async def test_a_failing_bucket(browser, pictures, unused_tcp_port):
    async with watched(unused_tcp_port, HOT, **PROXY) as (_, url), browser() as tab:
        await tab.open(url, dark=True)
        await tab.until(f"{TEXT}.includes('Speculation loses at temperature 0.7-1')")
        await tab.until(f"!{TEXT}.includes('coverage no data')")
        losing = await tab.value("document.querySelector('.bucket.bad').innerText")
        assert "net negative" in losing
        assert "speculate fewer tokens" in losing
        assert "T default: requests without a temperature" in await tab.value(TEXT)
        await tab.screenshot(pictures / "failing.png")
        assert tab.complaints() == []


async def test_vllm_down_and_back_without_a_reload(browser, pictures, unused_tcp_port):
    async with watched(unused_tcp_port, COLD, **PROXY) as (vllm, url), browser() as tab:
        await tab.open(url)
        await tab.value("window.same = true")
        await tab.until(f"{TEXT}.includes('KV cache')")
        vllm.faults.set("error_500")
        # On a busy machine the last poll may be too old before the next one fails.
        await tab.until(f'{TEXT}.includes("status 500. Is this vLLM\'s own address")')
        assert "vLLM's metrics cannot be read." in await tab.value(TEXT)
        await tab.screenshot(pictures / "down.png")
        vllm.faults.clear()
        await tab.until(f"{TEXT}.includes('KV cache')")
        assert await tab.value("window.same") is True  # it is still the same document


async def test_no_request_source_says_what_to_set(browser, pictures, unused_tcp_port):
    async with watched(unused_tcp_port, COLD) as (_, url), browser() as tab:
        await tab.open(url)
        await tab.until(f"{TEXT}.includes('Speculation pays on average.')")
        assert "SPECDEC_REQUESTS__SOURCE" in await tab.value(TEXT)
        await tab.screenshot(pictures / "no-source.png")


async def test_phone(browser, pictures, unused_tcp_port):
    async with watched(unused_tcp_port, HOT, **PROXY) as (_, url), browser() as tab:
        await tab.open(url, width=390, height=844)
        await tab.until("document.querySelectorAll('.bucket').length >= 3")
        await tab.screenshot(pictures / "phone.png")
        assert await tab.value("document.documentElement.scrollWidth <= window.innerWidth")


async def test_a_sidecar_that_stops_dims_what_is_shown(browser, unused_tcp_port):
    async with browser() as tab:
        async with watched(unused_tcp_port, COLD) as (_, url):
            await tab.open(url)
            await tab.until(f"{TEXT}.includes('KV cache')")
        await tab.until("document.getElementById('content').classList.contains('stale')")


async def test_most_of_the_traffic_goes_past_the_proxy(browser, pictures, unused_tcp_port):
    async with (
        watched(unused_tcp_port, None, **PROXY) as (vllm, url),
        under_way(traffic(f"http://127.0.0.1:{unused_tcp_port}", {0.0: 1}, concurrency=1)),
        under_way(traffic(vllm.url, {1.0: 1}, concurrency=8)),
        browser() as tab,
    ):
        await tab.open(url)
        await tab.until(f"/In the [0-9]+% of the traffic that is seen, speculation pays/.test({TEXT})")
        await tab.until("document.querySelector('.answer.mute') !== null")
        assert "100% of attributed drafts" in await tab.value(TEXT)
        assert "Do clients bypass the proxy and use vLLM's own port?" in await tab.value(TEXT)
        await tab.screenshot(pictures / "part.png")


async def test_streams_without_usage_are_told_of(browser, pictures, unused_tcp_port):
    async with (
        watched(unused_tcp_port, None, force_include_usage=False, **PROXY) as (_, url),
        under_way(streams_without_usage(f"http://127.0.0.1:{unused_tcp_port}/v1/chat/completions")),
        browser() as tab,
    ):
        await tab.open(url)
        await tab.until(f"/over all requests; [0-9,]+ requests ended, none could be attributed/.test({TEXT})")
        shown = await tab.value(TEXT)
        assert "finished requests in the window were streams without usage" in shown
        assert "needs a request source" not in shown
        assert "reports nothing per request" not in shown
        await tab.screenshot(pictures / "without-usage.png")


async def streams_without_usage(url):
    """Chats one after the other, as clients stream them that ask for nothing more."""
    body = {"model": "demo", "messages": [{"role": "user", "content": "x"}], "temperature": 0.0, "stream": True}
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.post(url, json=body | {"max_tokens": 16}) as response:
                await response.read()
