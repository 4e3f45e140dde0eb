"""Runs Debian's servers for single tests, on free ports of this machine.

``scripts/debian-tools`` installs them.
"""

import asyncio
import json
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.waiting import START_SECONDS


def free_port() -> int:
    """A port that must be known in advance or survive a restart.

    Nobody else gets it while this process runs.

    A server can still listen on it: with SO_REUSEADDR, which servers set, it shares the address
    with a socket that does not listen.
    """
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    # after bind: before it, two could hold the same port
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port: int = held.getsockname()[1]
    held.detach()  # it stays open
    return port


@asynccontextmanager
async def ready_server(
    http: aiohttp.ClientSession, *command: str, port: int | None = None
) -> AsyncIterator[str]:
    """Runs a server that supports ``--web.listen-address``.

    Yields its URL once it reports that it is ready.
    """
    assert shutil.which(command[0]), f"{command[0]} is missing: scripts/debian-tools installs it"
    address = f"127.0.0.1:{port or free_port()}"
    process = await asyncio.create_subprocess_exec(
        *command,
        f"--web.listen-address={address}",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not await _ready(http, f"http://{address}"):
            assert process.returncode is None, command[0]
            await asyncio.sleep(0.05)
        yield f"http://{address}"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _ready(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(f"{url}/-/ready") as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


class Prometheus:
    """Queries a running Prometheus."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self.url = url
        self._http = http

    async def instant(
        self, expression: str, at: float | None = None
    ) -> list[tuple[dict[str, str], float]]:
        """The series at a time in Unix seconds, by default now: pairs of labels and value."""
        moment = {} if at is None else {"time": at}
        data = await self.ask("query", query=expression, **moment)
        return [(found["metric"], float(found["value"][1])) for found in data]

    async def until(
        self, expression: str, seconds: float = START_SECONDS
    ) -> list[tuple[dict[str, str], float]]:
        """Waits until the expression has series, and returns them; fails after ``seconds``."""
        deadline = time.monotonic() + seconds
        while not (series := await self.instant(expression)):
            assert time.monotonic() < deadline, f"after {seconds:g} s: no series for {expression}"
            await asyncio.sleep(0.1)
        return series

    async def ask(self, what: str, **parameters: object) -> Any:
        """The result of one call to its API; ``what`` is query or query_range."""
        given = {name: str(value) for name, value in parameters.items()}
        async with self._http.get(f"{self.url}/api/v1/{what}", params=given) as response:
            answer = json.loads(await response.read())
        assert answer["status"] == "success", (parameters["query"], answer)
        return answer["data"]["result"]


@asynccontextmanager
async def running_prometheus(
    http: aiohttp.ClientSession,
    directory: Path,
    config: dict[str, Any],
    port: int | None = None,
    flags: tuple[str, ...] = (),
) -> AsyncIterator[Prometheus]:
    """Runs Prometheus with ``config``, which sets the scrape interval.

    Its files are in ``directory``.
    """
    path = directory / "prometheus.yaml"
    path.write_text(json.dumps(config))  # JSON is YAML
    storage = directory / "prometheus"
    command = ("prometheus", f"--config.file={path}", f"--storage.tsdb.path={storage}", *flags)
    async with ready_server(http, *command, port=port) as url:
        yield Prometheus(http, url)


def scraping(*addresses: str, job: str = "specdec", interval: str = "1s") -> dict[str, Any]:
    """A configuration that scrapes pages at these addresses (``host:port``)."""
    return {
        "global": {"scrape_interval": interval, "scrape_timeout": interval},
        "scrape_configs": [{"job_name": job, "static_configs": [{"targets": list(addresses)}]}],
    }
