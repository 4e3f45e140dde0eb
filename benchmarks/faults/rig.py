"""Everything that a fault can hit, running: vLLM, the sidecar, Prometheus, Alertmanager, links and clients."""

import asyncio
import json
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import aiohttp

from benchmarks.faults.clients import Clients
from benchmarks.faults.programs import Program
from benchmarks.faults.relay import Relay

Source = Literal["proxy", "middleware"]
INTERVAL = 1.0  # seconds between two polls, and two scrapes by Prometheus
RESEND = 5.0  # seconds after which the sidecar sends a firing alert again; 60 by default
_ALERT = "SpecDecodeAcceptanceLowAtTemperature"  # fires all the time: requests at temperature 1 accept 45 %
PATIENCE = 90.0


@dataclass
class Rig:
    """The sidecar observes ``clients``; ``direct`` (with the proxy) bypass it, over the same link.

    ``vllm_link`` is between vLLM and everyone, ``page_link`` between Prometheus and the sidecar.
    """

    source: Source
    folder: Path
    programs: dict[str, Program]
    health: dict[str, str]  # by program: the address that shows that it runs
    clients: Clients
    direct: Clients | None
    vllm_link: Relay
    page_link: Relay
    prometheus_url: str
    http: aiohttp.ClientSession
    unreachable: list[tuple[float, float]] = field(default_factory=list)  # Unix seconds

    def lose_vllm(self) -> None:
        """Notes that vLLM cannot be scraped from now on."""
        self.unreachable.append((time.time(), math.inf))

    async def find_vllm(self) -> None:
        """Notes that it can be scraped again."""
        if self.unreachable:
            self.unreachable[-1] = (self.unreachable[-1][0], time.time())
        await self.vllm_link.listen()

    async def start(self, name: str) -> None:
        """Starts a program and waits until it answers."""
        self.programs[name].start()
        await self.programs[name].until_answers(self.health[name])
        if name == "vllm":
            await self.find_vllm()
        if name == "prometheus":  # it is ready some 5 s before it scrapes anything
            await self._until_scraped('up{job="prometheus"} == 1')

    def kill(self, name: str) -> None:
        """SIGKILL. The link to a dead vLLM refuses connections, as its machine would."""
        self.programs[name].kill()
        if name == "vllm":
            self.lose_vllm()
            self.vllm_link.cut()

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """What Prometheus answers at this moment."""
        async with self.http.get(f"{self.prometheus_url}/api/v1/query", params={"query": expression}) as response:
            answer = json.loads(await response.read())
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    async def recovered(self) -> float:
        """Waits until Prometheus has scraped a sidecar that is up; seconds that took. Raises TimeoutError."""
        return await self._until_scraped("specdec_up == 1")

    async def alerted(self) -> float:
        """Waits until Alertmanager has the alert; seconds that took. Raises TimeoutError."""
        since = time.monotonic()
        url = f"{self.health['alertmanager'].removesuffix('/-/ready')}/api/v2/alerts"
        async with asyncio.timeout(PATIENCE):
            while True:
                async with self.http.get(url) as response:
                    if any(alert["labels"]["alertname"] == _ALERT for alert in await response.json()):
                        return time.monotonic() - since
                await asyncio.sleep(0.1)

    async def names(self) -> set[str]:
        """The metrics that the sidecar exports, as of Prometheus' last scrape."""
        return {one["metric"]["__name__"] for one in await self.query('group by (__name__) ({job="sidecar"})')}

    async def complete(self, names: set[str]) -> float:
        """Waits until all these metrics are there; returns the seconds that took, infinity if it takes too long."""
        since = time.monotonic()
        while not names <= await self.names():
            if time.monotonic() > since + PATIENCE:
                return math.inf
            await asyncio.sleep(0.2)
        return time.monotonic() - since

    async def _until_scraped(self, condition: str) -> float:
        """Waits for a scrape later than now; seconds until it was."""
        now = time.time()
        expression = f"timestamp({condition.partition(' ')[0]}) >= {now} and {condition}"
        async with asyncio.timeout(PATIENCE):
            while not (found := await self.query(expression)):
                await asyncio.sleep(0.1)
        return float(found[0]["value"][1]) - now
