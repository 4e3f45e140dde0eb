"""The whole chain at the shipped times: ``python -m tests.alerts.chain_by_hand``, about 25 minutes.

A simulated vLLM, the sidecar as its proxy, Debian's Prometheus and Alertmanager with the shipped rules and
configuration. Prints when the page came after the first bad request, the page, and when it resolved after the traffic
recovered.
"""

import asyncio
import tempfile
from pathlib import Path

import aiohttp
from aiohttp import web

from sidecar.app import running
from sidecar.demo.options import SimulatorOptions
from sidecar.demo.server import SimulatedVllm
from sidecar.settings import load_settings
from tests.alerts.chain_tools import Receivers, alertmanager, prometheus, traffic
from tests.debian_servers import free_port

ALERT = "SpecDecodeAcceptanceLow"
COLD, HOT = {0.0: 1}, {0.0: 1, 1.2: 3}
HEALTHY = 400  # seconds before the first bad request
PATIENCE = 3600


async def main():
    receivers, port = Receivers(), free_port()
    app = web.Application()
    app.router.add_post("/{path}", receivers.take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url, proxy = f"http://127.0.0.1:{runner.addresses[0][1]}", f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as name:
        async with aiohttp.ClientSession() as http, SimulatedVllm(SimulatorOptions()) as vllm:
            environment = {
                "SPECDEC_VLLM_URL": vllm.url,
                "SPECDEC_LISTEN": "127.0.0.1:0",
                "SPECDEC_REQUESTS__SOURCE": "proxy",
                "SPECDEC_PROXY__LISTEN": f"127.0.0.1:{port}",
            }
            async with (
                running(load_settings(None, environment)) as listening,
                alertmanager(http, Path(name), url, times={}) as address,
                prometheus(http, Path(name), f"http://127.0.0.1:{listening.port}", address, change=str, interval="30s"),
            ):
                await follow(receivers, proxy)
    await runner.cleanup()


async def follow(receivers, proxy):
    async with traffic(proxy, COLD, PATIENCE, 2):
        await asyncio.sleep(HEALTHY)
    async with traffic(proxy, HOT, PATIENCE, 2) as begun:
        _, arrival = await receivers.until(ALERT, "firing", PATIENCE)
        page = await receivers.page("costs more than it gives")
        say(f"first bad request to the page: {arrival - begun:.0f} s")
        say(page["payload"]["summary"])
        say(page["payload"]["custom_details"]["alerts"])
    async with traffic(proxy, COLD, PATIENCE, 2) as begun:
        _, arrival = await receivers.until(ALERT, "resolved", PATIENCE)
        say(f"recovery to the resolution: {arrival - begun:.0f} s")


def say(text):
    print(text, flush=True)  # noqa: T201 - run by hand


if __name__ == "__main__":
    asyncio.run(main())
