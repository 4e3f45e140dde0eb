"""A simulated vLLM with the middleware loaded, in the test's own loop, and clients that note how requests end."""

import asyncio

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.faults.clients import Clients
from benchmarks.faults.relay import Relay
from benchmarks.faults.vllm import ObservedVllm
from sidecar.demo.options import SimulatorOptions
from tests.debian_servers import free_port


@pytest.fixture
def socket(tmp_path, monkeypatch):
    path = str(tmp_path / "events.sock")
    monkeypatch.setenv("SPECDEC_MIDDLEWARE__SOCKET", path)
    return path


@pytest.fixture
async def vllm(socket):
    async with ObservedVllm(SimulatorOptions(speed=20.0), port=free_port()) as simulated:
        yield simulated


@pytest.fixture
async def link(vllm):
    async with Relay(int(vllm.url.rpartition(":")[2])) as relay:
        yield relay


@pytest.fixture
async def sending():
    """Starts clients of a URL; they are stopped in the end."""
    made = []

    def start(url):
        made.append(Clients(url, model="demo", number=3, max_tokens=12))
        made[-1].start()
        return made[-1]

    yield start
    for clients in made:
        await clients.stop()


@pytest.fixture
def counted(http):
    """The samples of a page with that name, summed; None if there is none or no page."""

    async def read(url, name):
        try:
            async with http.get(f"{url}/metrics") as response:
                text = await response.text()
        except aiohttp.ClientError:
            return None
        found = [
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name
        ]
        return sum(found) if found else None

    return read


@pytest.fixture
def until(counted):
    """Waits until the samples of a page with that name have that sum, or with ``least`` at least that one."""

    async def wait(url, name, value, *, least=False):
        async with asyncio.timeout(120):
            while (found := await counted(url, name)) != value and not (least and (found or 0) > value):
                await asyncio.sleep(0.02)

    return wait


async def ended(clients, number):
    """Waits until that many more of the clients' requests have ended."""
    wanted = len(clients.ended) + number
    async with asyncio.timeout(60):
        while len(clients.ended) < wanted:
            await asyncio.sleep(0.01)
