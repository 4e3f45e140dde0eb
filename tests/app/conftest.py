"""The whole sidecar, running in the test's own loop."""

from contextlib import asynccontextmanager

import pytest

from sidecar.app import running
from sidecar.demo.options import SimulatorOptions
from sidecar.settings import load_settings
from tests.app.app_tools import sidecar_settings
from tests.demo.faulty_vllm import FaultyVllm
from tests.waiting import SECONDS, until


class Page:
    """The pages of a running sidecar; calling it gives the samples of its ``/metrics``."""

    def __init__(self, url, http, samples_of):
        self.url, self._http, self._samples_of = url, http, samples_of

    async def get(self, path, **headers):
        async with self._http.get(self.url + path, headers=headers) as response:
            response.body = await response.read()
            return response

    async def __call__(self):
        answer = await self.get("/metrics")
        assert answer.status == 200
        return self._samples_of(answer.body.decode())

    async def until(self, read, expected=True, seconds=SECONDS):
        """Waits until ``read(samples)`` is what is expected; returns the samples."""
        samples = {}

        async def current():
            nonlocal samples
            samples = await self()
            return read(samples)

        def page():
            return {f"{name}{dict(pairs)}": value for (name, pairs), value in samples.items() if value}

        await until(current, expected, seconds=seconds, detail=lambda: f"; samples above 0: {page()}")
        return samples


@pytest.fixture
def sidecar(http, samples_of, socket_path):
    """Runs against a URL: ``async with sidecar(url, name=value, …) as page``, a ``Page``."""

    @asynccontextmanager
    async def run(url, *, reloader=None, **settings):
        environment = {name.upper(): value for name, value in settings.items()}
        given = sidecar_settings(url, LISTEN="127.0.0.1:0", PLUGIN__SOCKET=socket_path, **environment)
        loaded = load_settings(None, given)
        async with running(loaded, reloader=reloader and reloader(loaded)) as address:
            yield Page(f"http://127.0.0.1:{address.port}", http, samples_of)

    return run


@pytest.fixture
async def vllm(socket_path):
    """A simulated vLLM at many times the real one's speed, observed by the plug-in."""
    async with FaultyVllm(SimulatorOptions(speed=50.0), plugin_socket=socket_path) as simulated:
        yield simulated
