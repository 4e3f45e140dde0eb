"""A sidecar beside a vLLM, its settings, and requests to the simulated vLLM."""

import asyncio
from contextlib import asynccontextmanager

from sidecar.app import running
from sidecar.settings import load_settings
from specdec_tools.demo.traffic import MIXED, Traffic, TrafficOptions
from tests.debian_servers import free_port
from tests.page import Page


def sidecar_settings(url, **environment):
    """A sidecar that polls often, at an address that is known before it listens.

    Any machine answers in a minute.
    """
    given = {
        "VLLM_URL": url,
        "LISTEN": f"127.0.0.1:{free_port()}",
        "SCRAPE_INTERVAL": "100ms",
        "SCRAPE_TIMEOUT": "60s",
        "SCRAPE_CPU_SHARE": "1",
    }
    return {f"SPECDEC_{name}": str(value) for name, value in (given | environment).items()}


@asynccontextmanager
async def running_sidecar(socket, url, *, recorder=None, reloader=None, **settings):
    """The whole sidecar, running in the caller's loop: gives its ``Page``."""
    own = {"PLUGIN__SOCKET": socket, "LISTEN": "127.0.0.1:0"} | {
        name.upper(): value for name, value in settings.items()
    }
    loaded = load_settings(None, sidecar_settings(url, **own))
    async with running(loaded, recorder, reloader and reloader(loaded)) as address:
        yield Page(f"http://{address}")


async def work(vllm, requests=3, *, mix=None, **options):
    """Sends requests that draft."""
    asked = {"mixes": (mix or {0.0: 1},), "min_tokens": 40, "max_tokens": 60}
    await Traffic(vllm, TrafficOptions(max_requests=requests, **asked | options)).run()


@asynccontextmanager
async def traffic(vllm, mix=MIXED, **options):
    """Requests of one mix of temperatures until the block ends."""
    asked = TrafficOptions(mixes=(mix,), max_requests=10**9, **options)
    sending = asyncio.create_task(Traffic(vllm, asked).run())
    try:
        yield
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
