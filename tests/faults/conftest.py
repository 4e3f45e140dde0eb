"""A simulated vLLM with the middleware loaded, in the test's own loop, and clients that note how requests end."""

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
