"""Each fault has its effect; all reads are bounded."""

import asyncio
import gzip

import aiohttp
import msgspec
import pytest

from tests.demo import faulty_vllm as faults
from tests.demo.faulty_vllm import FaultKind, FaultyVllm


@pytest.fixture
async def sim():
    async with FaultyVllm() as server:
        yield server


async def get(client, sim, path="/metrics", **arguments):
    async with client.get(sim.url + path, **arguments) as response:
        return response.status, response.headers, await response.read()


async def read_some(response, limit):
    """Up to ``limit`` bytes, then no more."""
    body = b""
    while len(body) < limit and (chunk := await response.content.read(limit - len(body))):
        body += chunk
    return body


async def test_slow_page_comes_late_but_whole(client, sim):
    sim.faults.set("slow", seconds=60)
    with pytest.raises(TimeoutError):
        await get(client, sim, timeout=aiohttp.ClientTimeout(total=0.2))
    sim.faults.set("slow", seconds=0.01)
    assert (await get(client, sim))[2].endswith(b"\n")


async def test_error_500(client, sim):
    sim.faults.set("error_500")
    assert (await get(client, sim))[0] == 500


@pytest.mark.parametrize("path", ["/metrics", "/metrics/", "/metrics/?name[]=vllm:num_requests_running"])
async def test_truncated_page_ends_within_a_line_yet_is_framed_well(client, sim, path):
    _, _, whole = await get(client, sim, path)
    sim.faults.set("truncated")
    status, headers, body = await get(client, sim, path)
    assert status == 200
    assert int(headers["Content-Length"]) == len(body) < len(whole)
    assert not body.endswith(b"\n")
    float(body.rsplit(b" ", 1)[1])  # what is left of the value is still a number


async def test_cut_off_page_ends_before_its_announced_length(client, sim):
    _, _, whole = await get(client, sim)
    sim.faults.set("cut_off")
    async with client.get(f"{sim.url}/metrics") as response:
        announced = int(response.headers["Content-Length"])
        start = await response.content.read(1000)
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
    assert start.startswith(whole[:15])
    # Numbers of the process differ in length from page to page by a few bytes.
    assert abs(announced - len(whole)) < 100


@pytest.mark.parametrize(
    ("kind", "body"), [("garbage", faults.GARBAGE), ("html", faults.HTML), ("foreign", faults.FOREIGN)]
)
async def test_other_bodies_than_a_page(client, sim, kind, body):
    sim.faults.set(kind)
    for path in ("/metrics", "/metrics/"):
        assert (await get(client, sim, path))[::2] == (200, body)


async def test_compressed_page_though_identity_was_asked(client, sim):
    sim.faults.set("compressed")
    _, headers, body = await get(client, sim, headers={"Accept-Encoding": "identity"}, auto_decompress=False)
    assert headers["Content-Encoding"] == "gzip"
    assert b"vllm:" in gzip.decompress(body)


async def test_drip_sends_single_bytes(client, sim):
    sim.faults.set("drip", seconds=0.001)
    async with client.get(f"{sim.url}/metrics") as response:
        assert await read_some(response, 20) == b"# HELP process_start"
        assert not response.content.at_eof()
    sim.faults.set("drip", seconds=3600)
    async with client.get(f"{sim.url}/metrics") as response:
        assert await response.content.read(100) == b"#"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await response.content.read(1)


async def test_huge_page_has_the_bytes_asked_for(client, sim):
    sim.faults.set("huge", bytes=3_000_000)
    async with client.get(f"{sim.url}/metrics") as response:
        body = await read_some(response, 5_000_000)
    assert 3_000_000 <= len(body) < 3_200_000
    assert max(map(len, body.splitlines())) < 5000  # it is the whole that is too long, not a line


async def test_many_series_are_distinct(client, sim):
    sim.faults.set("many_series", series=5_500)
    async with client.get(f"{sim.url}/metrics") as response:
        body = await read_some(response, 5_000_000)
    assert len({line for line in body.splitlines() if line.startswith(b"vllm:demo_series{")}) == 5_500


async def test_endless_line_goes_on_without_a_newline(client, sim):
    _, _, page = await get(client, sim)
    sim.faults.set("endless_line", bytes=10**10)
    async with client.get(f"{sim.url}/metrics") as response:
        body = await read_some(response, len(page) + 1_000_000)
        assert not response.content.at_eof()
    assert b"\n" not in body[-900_000:]


async def test_refused_connection_closes_without_an_answer(client, sim):
    sim.faults.set("refuse")
    with pytest.raises(aiohttp.ServerDisconnectedError):
        await get(client, sim)


async def test_hanging_server_never_answers(client, sim):
    sim.faults.set("hang")
    with pytest.raises(TimeoutError):
        await get(client, sim, timeout=aiohttp.ClientTimeout(total=0.2))


@pytest.mark.parametrize("kind", list(FaultKind))
async def test_faults_leave_the_traffic_alone_and_end_when_cleared(client, sim, kind):
    sim.faults.set(kind)
    body = {"prompt": "a", "max_tokens": 2}
    async with client.post(f"{sim.url}/v1/completions", json=body) as response:
        assert response.status == 200
    sim.faults.clear()
    status, _, page = await get(client, sim)
    assert status == 200
    assert b"vllm:generation_tokens_total" in page
    assert page.endswith(b"\n")


def test_unknown_fault_is_refused_by_the_object():
    with pytest.raises(msgspec.ValidationError):
        faults.Faults().set("unheard of")
