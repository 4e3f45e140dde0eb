"""Runs Debian's Prometheus: with the shipped rules on many copies of one page, or idle on its stored data."""

import asyncio
import contextlib
import json
import os
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from tests.debian_servers import free_port

RULES = Path(__file__).parents[2] / "alerts"


@asynccontextmanager
async def serving(body: Callable[[], bytes]) -> AsyncIterator[str]:
    """Serves a page at ``/metrics``; yields host and port."""

    async def page(_: web.Request) -> web.Response:
        return web.Response(body=body(), headers={"Content-Type": "text/plain; version=0.0.4"})

    app = web.Application()
    app.router.add_get("/metrics", page)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@dataclass(frozen=True, slots=True)
class Running:
    """A running Prometheus: its URL and process id."""

    url: str
    pid: int

    def cpu_seconds(self) -> float:
        """CPU time of the process so far; unlike wall time, it does not depend on other load."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def evaluating(directory: Path, address: str, pods: int, interval: str) -> AsyncIterator[Running]:
    """Scrapes one address as if it were ``pods`` pods, and evaluates the rules."""
    targets = [{"targets": [address], "labels": {"instance": f"pod-{number}:9911"}} for number in range(pods)]
    config = {
        "global": {"scrape_interval": interval, "evaluation_interval": "30s"},
        "rule_files": [str(RULES / "recording.yaml"), str(RULES / "alerts.yaml")],
        "scrape_configs": [{"job_name": "vllm", "static_configs": targets}],
    }
    async with _prometheus(directory, config) as running:
        yield running


@asynccontextmanager
async def at_rest(directory: Path) -> AsyncIterator[Running]:
    """Only answers queries about the data stored in the folder."""
    async with _prometheus(directory, {}) as running:
        yield running


@asynccontextmanager
async def _prometheus(directory: Path, config: dict[str, Any]) -> AsyncIterator[Running]:
    path = directory / "prometheus.json"
    path.write_text(json.dumps(config))
    url = f"http://127.0.0.1:{free_port()}"
    process = await asyncio.create_subprocess_exec(
        "prometheus",
        f"--config.file={path}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address={url.removeprefix('http://')}",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(300), aiohttp.ClientSession() as session:
            while not await _ready(session, url):
                await asyncio.sleep(0.1)
        yield Running(url, process.pid)
    finally:
        process.terminate()
        await process.wait()


async def groups(url: str) -> list[dict[str, Any]]:
    """The rule groups as Prometheus reports them; ``evaluationTime`` is the last evaluation's, in seconds."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/api/v1/rules") as answer:
        found: list[dict[str, Any]] = (await answer.json())["data"]["groups"]
    return found


async def cpu_cost(running: Running, session: aiohttp.ClientSession, expr: str, at: float, times: int) -> float:
    """CPU seconds of one evaluation at ``at`` (Unix seconds), minus those of a query that reads nothing.

    Each is the smallest of three means over ``times`` evaluations.
    """
    found = []
    for query in (expr, "vector(1)"):
        await count(session, running.url, query, at)  # loads the data into memory
        taken = []
        for _ in range(3):
            before = running.cpu_seconds()
            for _ in range(times):
                await count(session, running.url, query, at)
            taken.append(running.cpu_seconds() - before)
        found.append(min(taken) / times)
    return max(found[0] - found[1], 0.0)


async def count(session: aiohttp.ClientSession, url: str, expr: str, at: float) -> float:
    """The number of series that an expression returns at ``at``, in Unix seconds."""
    parameters = {"query": f"count({expr})", "time": f"{at:.3f}"}
    async with session.get(f"{url}/api/v1/query", params=parameters) as answer:
        found = (await answer.json())["data"]["result"]
    return float(found[0]["value"][1]) if found else 0.0


async def head_series(url: str) -> int:
    """The number of series in Prometheus' head block."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/api/v1/status/tsdb") as answer:
        return int((await answer.json())["data"]["headStats"]["numSeries"])


async def _ready(session: aiohttp.ClientSession, url: str) -> bool:
    with contextlib.suppress(OSError):
        async with session.get(f"{url}/-/ready") as answer:
            return answer.status == 200
    return False
