"""A real vLLM on this machine's CPU (``make test-lab``).

Starting one takes half a minute on a slow machine, so most tests share one, which has loaded the plug-in. Traffic ends
after a number of requests, and tests compare growth.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from lab.installation import ROOT, installed
from sidecar.commands.plugin import write_plugin
from tests.debian_servers import free_port
from tests.requests.plain_receiver import COUNTS
from tests.waiting import until

START_SECONDS = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.limit(900))


class Lab:
    """A vLLM server of the lab; it can be killed and restarted on the same port. ``arguments`` are those of lab/serve.

    With a ``folder`` it loads the plug-in, found ``copies`` times, each time with ``fault`` at the end of its text;
    ``socket`` is where a sidecar must listen.
    """

    def __init__(self, *arguments: str, folder: Path | None = None, copies: int = 1, fault: str = "") -> None:
        installed()  # or it says how to install it
        port = str(free_port())
        # It dies with the tests, even if they are killed.
        self._command = ["setpriv", "--pdeathsig", "KILL", str(ROOT / "lab/serve"), *arguments, "--port", port]
        self._environment = dict(os.environ)
        if folder is not None:
            self.socket = folder / "run" / "plugin.sock"
            plugins = [folder / f"plugin-{number}" for number in range(copies)]
            for plugin in plugins:
                write_plugin(plugin)
                with (plugin / "specdec_plugin.py").open("a") as file:
                    file.write(fault)
            self._environment["PYTHONPATH"] = os.pathsep.join(map(str, plugins))
            self._environment["SPECDEC_PLUGIN__SOCKET"] = str(self.socket)
        self.url = f"http://127.0.0.1:{port}"
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Starts it and waits until it responds; if it already runs, it may still be busy with what a test aborted."""
        if self._process is not None:
            await counters(self.url)
            return
        self._process = subprocess.Popen(  # noqa: ASYNC220 - it outlives the test's loop
            self._command,
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        async with aiohttp.ClientSession() as session, asyncio.timeout(START_SECONDS):
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(f"{self.url}/health") as response:
                        if response.status == 200:
                            return
                assert self._process.poll() is None, "vLLM ended while starting"
                await asyncio.sleep(0.5)

    def kill(self) -> None:
        """Kills all its processes at once, as when a pod dies."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


class Samples(dict[tuple[str, frozenset[tuple[str, str]]], float]):
    """A page's samples by name and labels."""

    def matching(self, name: str, **labels: str) -> list[float]:
        return [value for (sample, pairs), value in self.items() if sample == name and labels.items() <= set(pairs)]

    def value(self, name: str, **labels: str) -> float | None:
        values = self.matching(name, **labels)
        assert len(values) <= 1, (name, labels)
        return values[0] if values else None

    def sum(self, name: str, **labels: str) -> float:
        return sum(self.matching(name, **labels))

    def since(self, before: "Samples") -> "Samples":
        return Samples((key, value - before.get(key, 0)) for key, value in self.items())


async def read_page(url: str) -> Samples:
    """What a server's ``/metrics`` has."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
        assert response.status == 200
        text = await response.text()
    return Samples(
        ((sample.name, frozenset(sample.labels.items())), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    )


async def page_until(url: str, condition: Callable[[Samples], bool], seconds: float = 240) -> Samples:
    """The page once the condition holds."""
    page = Samples()

    async def holds() -> bool:
        nonlocal page
        with contextlib.suppress(aiohttp.ClientConnectorError):  # it is still starting
            page = await read_page(url)
        return bool(page) and condition(page)

    def shown() -> str:
        return str({key: value for key, value in page.items() if value and "_bucket" not in key[0]})

    await until(holds, seconds=seconds, pause=0.1, detail=shown)
    return page


async def idle(url: str) -> Samples:
    """vLLM's page once vLLM is idle: it counts a step shortly after its responses."""
    return await page_until(
        url, lambda page: not page.sum("vllm:num_requests_running") and not page.sum("vllm:num_requests_waiting")
    )


async def counters(url: str) -> tuple[int, ...]:
    """vLLM's three counters summed over its engines, once it has no request and they have come to rest."""
    last, counts = None, ()
    while not counts or counts != last:
        last, page = counts, await idle(url)
        counts = tuple(int(page.sum(f"vllm:spec_decode_num_{name}_total")) for name in COUNTS)
        await asyncio.sleep(0.5)
    return counts


@pytest.fixture
def lab(folder: Path) -> Iterator[Callable[..., Lab]]:
    """Makes lab servers, and kills them at the end, before ``folder`` goes, in which their plug-in may be."""
    servers: list[Lab] = []

    def make(*arguments: str, **plugin: Any) -> Lab:
        servers.append(Lab(*arguments, **plugin))
        return servers[-1]

    yield make
    for server in servers:
        server.kill()


@pytest.fixture(scope="session")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The server with the plug-in that tests share, one after the other; the first to await ``start`` starts it."""
    server = Lab("draft_model", folder=tmp_path_factory.mktemp("lab"))
    yield server
    server.kill()
