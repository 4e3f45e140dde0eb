"""Everything that a fault can hit, running: vLLM, the sidecar, Prometheus, Alertmanager, links and clients."""

import asyncio
import json
import math
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import aiohttp

from benchmarks.faults.clients import Clients
from benchmarks.faults.programs import Program
from benchmarks.faults.relay import Relay
from tests.debian_servers import free_port

Source = Literal["proxy", "middleware"]
INTERVAL = 1.0  # seconds between two polls, and two scrapes by Prometheus
RESEND = 5.0  # seconds after which the sidecar sends a firing alert again; 60 by default
_ALERT = "SpecDecodeAcceptanceLowAtTemperature"  # fires all the time: requests at temperature 1 accept 45 %
_PATIENCE = 90.0


@dataclass
class Rig:
    """``clients`` are observed by the sidecar; ``direct`` (with the proxy) do without it, over the same link.

    ``vllm_link`` is between vLLM and everyone, ``page_link`` between Prometheus and the sidecar.
    """

    source: Source
    folder: Path
    programs: dict[str, Program]
    health: dict[str, str]  # by program: the address that says that it runs
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
        """It can be, again."""
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
        """SIGKILL. The link to a dead vLLM refuses connections, as the machine that it runs on does."""
        self.programs[name].kill()
        if name == "vllm":
            self.lose_vllm()
            self.vllm_link.cut()

    async def query(self, expression: str) -> list[dict[str, object]]:
        """What Prometheus answers at this moment."""
        async with self.http.get(f"{self.prometheus_url}/api/v1/query", params={"query": expression}) as response:
            answer = json.loads(await response.read())
        result: list[dict[str, object]] = answer["data"]["result"]
        return result

    async def recovered(self) -> float:
        """Waits until Prometheus has scraped a sidecar that is up; seconds that took. Raises TimeoutError."""
        return await self._until_scraped("specdec_up == 1")

    async def alerted(self) -> float:
        """Waits until Alertmanager has the alert; seconds that took. Raises TimeoutError."""
        since = time.monotonic()
        url = f"{self.health['alertmanager'].removesuffix('/-/ready')}/api/v2/alerts"
        async with asyncio.timeout(_PATIENCE):
            while True:
                async with self.http.get(url) as response:
                    if any(alert["labels"]["alertname"] == _ALERT for alert in await response.json()):
                        return time.monotonic() - since
                await asyncio.sleep(0.1)

    async def _until_scraped(self, condition: str) -> float:
        since, wall = time.monotonic(), time.time()
        expression = f"timestamp({condition.partition(' ')[0]}) >= {wall} and {condition}"
        async with asyncio.timeout(_PATIENCE):
            while not await self.query(expression):
                await asyncio.sleep(0.1)
        return time.monotonic() - since


def _prometheus(folder: Path, page: int, alertmanager: int, own: int) -> Path:
    """Its configuration, with the ports of our page, of Alertmanager and of its own page."""
    config = {
        "global": {"scrape_interval": f"{INTERVAL:g}s", "scrape_timeout": f"{INTERVAL:g}s"},
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alertmanager}"]}]}]},
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
            for job, port in (("sidecar", page), ("prometheus", own))
        ],
    }
    path = folder / "prometheus.yaml"
    path.write_text(json.dumps(config))  # which is YAML
    return path


@asynccontextmanager
async def rig(
    folder: Path, source: Source, *, command: tuple[str, ...] = ("run",), prefix: tuple[str, ...] = ()
) -> AsyncIterator[Rig]:
    """All of it, warm: the sidecar is up in Prometheus, and its alert is at Alertmanager.

    ``command`` is the sidecar's, ``prefix`` what starts it.
    """
    ports = {name: free_port() for name in ("vllm", "sidecar", "proxy", "prometheus", "alertmanager")}
    at = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    async with AsyncExitStack() as stack:
        vllm_link = await stack.enter_async_context(Relay(ports["vllm"]))
        page_link = await stack.enter_async_context(Relay(ports["sidecar"]))
        link = f"http://127.0.0.1:{vllm_link.port}"
        socket = {"SPECDEC_MIDDLEWARE__SOCKET": str(folder / "events.sock")}
        environment = socket | {
            "SPECDEC_VLLM_URL": link,
            "SPECDEC_LISTEN": f"127.0.0.1:{ports['sidecar']}",
            "SPECDEC_REQUESTS__SOURCE": source,
            "SPECDEC_PROXY__LISTEN": f"127.0.0.1:{ports['proxy']}",
            "SPECDEC_SCRAPE_CPU_SHARE": "1",
            "SPECDEC_ALERTING__ALERTMANAGERS": json.dumps([at["alertmanager"]]),
            "SPECDEC_ALERTING__INTERVAL": "1s",
            "SPECDEC_ALERTING__PACE": "0",
            "SPECDEC_ALERTING__RESEND": f"{RESEND:g}s",
        }
        clock = (sys.executable, "-m", "benchmarks.faults.jumping")
        configuration = folder / "alertmanager.yaml"
        configuration.write_text(json.dumps({"route": {"receiver": "none"}, "receivers": [{"name": "none"}]}))
        programs = {
            "vllm": Program(folder / "vllm.log", *clock, "benchmarks.faults.vllm", str(ports["vllm"]), "1",
                            environment=socket),
            "sidecar": Program(folder / "sidecar.log", *prefix, *clock, "sidecar", *command, environment=environment),
            "prometheus": Program(
                folder / "prometheus.log",
                "prometheus",
                f"--config.file={_prometheus(folder, page_link.port, ports['alertmanager'], ports['prometheus'])}",
                f"--storage.tsdb.path={folder / 'prometheus'}",
                f"--web.listen-address=127.0.0.1:{ports['prometheus']}",
            ),
            "alertmanager": Program(
                folder / "alertmanager.log",
                "prometheus-alertmanager",
                f"--config.file={configuration}",
                f"--storage.path={folder / 'alertmanager'}",
                f"--web.listen-address=127.0.0.1:{ports['alertmanager']}",
                "--cluster.listen-address=",
            ),
        }  # fmt: skip
        for program in programs.values():
            stack.callback(program.kill)
        made = Rig(
            source=source,
            folder=folder,
            programs=programs,
            health={
                "vllm": f"{at['vllm']}/health",
                "sidecar": f"{at['sidecar']}/-/healthy",
                "prometheus": f"{at['prometheus']}/-/ready",
                "alertmanager": f"{at['alertmanager']}/-/ready",
            },
            clients=Clients(at["proxy"] if source == "proxy" else link, model="demo"),
            direct=Clients(link, model="demo") if source == "proxy" else None,
            vllm_link=vllm_link,
            page_link=page_link,
            prometheus_url=at["prometheus"],
            http=await stack.enter_async_context(aiohttp.ClientSession()),
        )
        for name in programs:
            await made.start(name)
        for clients in (made.clients, made.direct):
            if clients is not None:
                clients.start()
                stack.push_async_callback(clients.stop)
        await made.recovered()
        await made.alerted()
        yield made
