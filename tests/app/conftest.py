from functools import partial

import pytest

from specdec_tools.demo.scheduler import SimulatorOptions
from tests.app.app_tools import running_sidecar
from tests.demo.http_vllm import HttpVllm


@pytest.fixture
def sidecar(socket_path):
    """Runs against a URL: ``async with sidecar(url, name=value, …) as page``, a ``Page``."""
    return partial(running_sidecar, socket_path)


@pytest.fixture
async def vllm(socket_path):
    """A simulated vLLM at many times the real one's speed, observed by the plug-in."""
    async with HttpVllm(SimulatorOptions(speed=50.0), plugin_socket=socket_path) as simulated:
        yield simulated
