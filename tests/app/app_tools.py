"""A sidecar's settings, requests to the simulated vLLM, and what tests read on the sidecar's page."""

import asyncio
from contextlib import asynccontextmanager

from sidecar.demo.traffic import MIXED, Traffic, TrafficOptions
from tests.debian_servers import free_port

UP = ("specdec_up", frozenset())


def sidecar_settings(url, **environment):
    """A sidecar that polls often, at an address that is known before it listens; any machine answers in a minute."""
    given = {
        "VLLM_URL": url,
        "LISTEN": f"127.0.0.1:{free_port()}",
        "SCRAPE_INTERVAL": "100ms",
        "SCRAPE_TIMEOUT": "60s",
        "SCRAPE_CPU_SHARE": "1",
    }
    return {f"SPECDEC_{name}": str(value) for name, value in (given | environment).items()}


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


def is_up(samples):
    return samples[UP] == 1


def total(samples, name, **labels):
    """The sum of a metric's samples."""
    return sum(value for (found, pairs), value in samples.items() if found == name and labels.items() <= set(pairs))
