import json

import pytest
from aiohttp import web

from sidecar.demo.options import SimulatorOptions
from tests.debian_servers import free_port
from tests.demo.faulty_vllm import FaultyVllm

NOWHERE = "http://127.0.0.1:1"


async def test_check_describes_a_vllm(finished):
    async with FaultyVllm() as vllm:
        code, out, err = await finished("check", SPECDEC_VLLM_URL=vllm.url)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "settings: valid (no file and the environment)",
        "request source: none; acceptance is not split by temperature",
        "",
        f"vllm: {vllm_address(out)}",
        "  vLLM: V1 engine, 0.30 or later",
        "  model demo, engine 0",
        "    speculative decoding: on; nothing drafted yet",
        "    KV cache: 65,536 tokens",
    ]


def vllm_address(out):
    return out.splitlines()[3].removeprefix("vllm: ")


async def test_check_says_what_cannot_be_known(finished):
    async with FaultyVllm(SimulatorOptions(num_speculative_tokens=0)) as vllm:
        code, out, _ = await finished("check", SPECDEC_VLLM_URL=vllm.url)
    assert code == 0
    assert "    unknown (no_speculation): There are no spec_decode counters" in out


@pytest.mark.parametrize(
    ("fault", "reason"), [("error_500", "status"), ("html", "not_an_exposition"), ("foreign", "no_vllm_metrics")]
)
async def test_check_says_why_there_is_no_page(finished, fault, reason):
    async with FaultyVllm() as vllm:
        vllm.faults.set(fault)
        code, out, _ = await finished("check", SPECDEC_VLLM_URL=vllm.url)
    assert code == 1
    assert f"  no usable page ({reason}): " in out


async def test_check_without_a_vllm(finished):
    code, out, _ = await finished("check", SPECDEC_VLLM_URL=NOWHERE)
    assert code == 1
    assert "  no usable page (unreachable): " in out
    assert "Is vLLM running" in out


async def test_check_says_what_to_change_in_the_url(finished):
    async with FaultyVllm() as vllm:
        _, under_v1, _ = await finished("check", SPECDEC_VLLM_URL=f"{vllm.url}/v1")
        _, with_tls, _ = await finished("check", SPECDEC_VLLM_URL=vllm.url.replace("http:", "https:"))
    assert "write the URL without it" in under_v1
    assert "does vLLM serve TLS there" in with_tls


@pytest.mark.parametrize("path", ["", "/wrong"])
async def test_check_asks_alertmanager_whether_it_would_take_alerts(finished, served, path):
    posts = []

    async def alertmanager(request):
        posts.append(await request.json())
        return web.Response(status=200 if request.path == "/api/v2/alerts" else 404)

    async with FaultyVllm() as vllm, served(alertmanager) as url:
        urls = json.dumps([url + path])
        code, out, _ = await finished("check", SPECDEC_VLLM_URL=vllm.url, SPECDEC_ALERTING__ALERTMANAGERS=urls)
    assert posts == [[]]
    assert f"Alertmanager: {url}{path}\n" in out
    assert (code, out.splitlines()[-1]) == (
        (1, "  rejected (status 404): alerting.alertmanagers takes base URLs, such as http://alertmanager:9093")
        if path
        else (0, "  accepts alerts")
    )


async def test_check_does_not_blame_the_url_if_alertmanager_is_down(finished):
    async with FaultyVllm() as vllm:
        urls = json.dumps([f"http://127.0.0.1:{free_port()}"])
        code, out, _ = await finished("check", SPECDEC_VLLM_URL=vllm.url, SPECDEC_ALERTING__ALERTMANAGERS=urls)
    assert code == 1
    assert out.splitlines()[-1] == ("  failed (ClientConnectorError): is Alertmanager up, and reachable from here?")
