"""The running sidecar's own page: which requests it answers, until when, and how often it is rendered."""

import asyncio
from contextlib import AsyncExitStack

import aiohttp
import pytest

from sidecar.app import running
from sidecar.demo.options import SimulatorOptions
from sidecar.settings import load_settings
from tests.demo.faulty_vllm import FaultyVllm

REFUSED = ("specdec_http_refused_total", frozenset({("reason", "host")}))


async def test_a_host_that_may_be_a_strangers_gets_nothing(vllm, sidecar):
    async with sidecar(vllm.url, allowed_hosts='["specdec.example.com"]') as page:
        for path in ("/", "/metrics", "/api/v1/status", "/-/healthy", "/none"):
            assert (await page.get(path, Host="evil.example")).status == 421
        assert (await page.get("/", Host="specdec.example.com:80")).status == 200
        await page.until(lambda samples: samples[REFUSED] == 5)


async def test_the_own_page_answers_until_the_last_request_is_done(http, unused_tcp_port):
    async with FaultyVllm(SimulatorOptions(speed=2.0)) as vllm, AsyncExitStack() as stack:
        environment = {
            "SPECDEC_VLLM_URL": vllm.url,
            "SPECDEC_LISTEN": "127.0.0.1:0",
            "SPECDEC_REQUESTS__SOURCE": "proxy",
            "SPECDEC_PROXY__LISTEN": f"127.0.0.1:{unused_tcp_port}",
        }
        ours = f"http://{await stack.enter_async_context(running(load_settings(None, environment)))}"
        body = {"model": vllm.options.model_name, "prompt": "x", "max_tokens": 400, "stream": True, "ignore_eos": True}
        url = f"http://127.0.0.1:{unused_tcp_port}/v1/completions"
        async with http.post(url, json=body) as response:
            await response.content.readany()
            stopping = asyncio.create_task(stack.aclose())
            while not await refuses(http, url):  # so it drains
                assert not stopping.done()
                await asyncio.sleep(0.01)
            for path in ("/-/healthy", "/-/ready", "/metrics"):
                async with http.get(ours + path) as page:
                    assert page.status == 200
            assert not stopping.done()
            assert (await response.read()).endswith(b"data: [DONE]\n\n")
        await stopping
        with pytest.raises(aiohttp.ClientConnectionError):
            await http.get(f"{ours}/-/healthy")


async def refuses(http, url):
    """Whether no new connection is taken."""
    try:
        async with http.get(url, headers={"Connection": "close"}):
            return False
    except aiohttp.ClientConnectionError:
        return True
