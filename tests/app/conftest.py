"""The whole sidecar, running in the test's own loop."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from sidecar.app import running
from sidecar.demo.options import SimulatorOptions
from sidecar.settings import load_settings
from tests.app.app_tools import sidecar_settings
from tests.demo.faulty_vllm import FaultyVllm


@pytest.fixture
def sidecar(http, samples_of, socket_path):
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
            while not condition(samples := await self()):
                await asyncio.sleep(0.01)
            return samples

    @asynccontextmanager
    async def run(url, *, reloader=None, **settings):
        environment = {name.upper(): value for name, value in settings.items()}
        given = sidecar_settings(url, LISTEN="127.0.0.1:0", PLUGIN__SOCKET=socket_path, **environment)
        loaded = load_settings(None, given)
        async with running(loaded, reloader=reloader and reloader(loaded)) as address:
            yield Page(f"http://127.0.0.1:{address.port}")

    return run


@pytest.fixture
async def vllm(socket_path):
    """A simulated vLLM at many times the real one's speed, observed by the plug-in."""
    async with FaultyVllm(SimulatorOptions(speed=50.0), plugin_socket=socket_path) as simulated:
        yield simulated
