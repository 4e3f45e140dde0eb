"""The whole sidecar, running in the test's own loop."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from sidecar.app import running
from sidecar.demo.options import SimulatorOptions
from sidecar.settings import load_settings
from tests.demo.faulty_vllm import FaultyVllm


@pytest.fixture
def sidecar(http, samples_of):
    """Runs against a URL: ``async with sidecar(url, name=value, …) as page``.

    ``page()`` gives the samples of its ``/metrics``, ``page.get(path)`` an answer, ``page.until(condition)`` waits.
    """

    class Page:
        def __init__(self, url):
            self.url = url

        async def get(self, path, **headers):
            async with http.get(self.url + path, headers=headers) as response:
                response.body = await response.read()
                return response

        async def __call__(self):
            answer = await self.get("/metrics")
            assert answer.status == 200
            return samples_of(answer.body.decode())

        async def until(self, condition):
            async with asyncio.timeout(120):
                while not condition(samples := await self()):
                    await asyncio.sleep(0.01)
            return samples

    @asynccontextmanager
    async def run(url, config=None, **settings):
        environment = {
            "SPECDEC_LISTEN": "127.0.0.1:0",
            "SPECDEC_SCRAPE_INTERVAL": "100ms",
            "SPECDEC_SCRAPE_CPU_SHARE": "1",
        }
        if url is not None:
            environment["SPECDEC_VLLM_URL"] = url
        environment |= {f"SPECDEC_{name.upper()}": value for name, value in settings.items()}
        async with running(load_settings(config, environment)) as address:
            yield Page(f"http://127.0.0.1:{address.port}")

    return run


@pytest.fixture
def is_up():
    def up(samples):
        return samples["specdec_up", frozenset()] == 1

    return up


@pytest.fixture
async def vllm():
    """A simulated vLLM at many times the real one's speed."""
    async with FaultyVllm(SimulatorOptions(speed=50.0)) as simulated:
        yield simulated
