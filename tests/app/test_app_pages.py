"""The pages beside ``/metrics``, and how ``/metrics`` goes over HTTP."""

import asyncio
import json
import re

import pytest
from aiohttp import web

from tests.waiting import until


def _refuse(constant):
    raise AssertionError(f"JSON has no {constant}")


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "1e308"])
async def test_every_page_is_served_whatever_values_vllm_has(value, served, recorded, sidecar):
    """Three times over, so that there is growth."""
    polls = 0

    async def handler(_):
        nonlocal polls
        polls += 1
        number = value if polls % 2 else "1"
        return web.Response(
            body=re.sub(rb"(?m)^(vllm:[^#\n]*) \S+$", rb"\1 " + number.encode(), recorded("vllm-0.33.0.prom"))
        )

    async with served(handler) as url, sidecar(url, scrape_filtered="false") as page:
        for taken_in in range(1, 7):
            await until(lambda taken_in=taken_in: polls > taken_in)
            answers = [await page.get(path) for path in ("/api/v1/status", "/", "/metrics")]
            assert [answer.status for answer in answers] == [200] * 3
            json.loads(answers[0].body, parse_constant=_refuse)


async def test_before_vllm_is_up_the_pages_say_that_it_cannot_be_reached(sidecar, unused_tcp_port):
    async with sidecar(f"http://127.0.0.1:{unused_tcp_port}") as page:
        assert (await page.get("/-/healthy")).status == 200
        await page.until(lambda s: s["specdec_scrape_errors_total", frozenset({("reason", "unreachable")})] > 0)
        status = json.loads((await page.get("/api/v1/status")).body)
        assert (status["scrape"]["up"], status["scrape"]["last_scrape"], status["models"]) == (False, None, [])
        assert status["scrape"]["last_error"]["reason"] == "unreachable"
        assert b"Is vLLM running, and is this its address?" in (await page.get("/")).body
        assert (await page.get("/nothing")).status == 404


async def test_refused_requests_are_counted_by_reason(vllm, sidecar):
    async with sidecar(vllm.url) as page:
        host, _, port = page.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.1\r\nno colon\r\n\r\n")
        assert b" 400 " in await reader.readline()
        writer.close()
        refused = {dict(labels)["reason"]: n for (name, labels), n in (await page()).items() if "http_refused" in name}
        assert refused.pop("malformed") == 1
        others = ["gave_way", "not_accepted", "tls", "unauthorized", "internal"]
        assert refused == dict.fromkeys(others, 0)
