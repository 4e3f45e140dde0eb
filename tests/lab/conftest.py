"""A real vLLM on this machine's CPU (``make test-lab``).

Starting one takes half a minute on a slow machine, so most tests share one, which has loaded the
plug-in. Traffic ends after a number of requests, and tests compare growth.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiohttp
import pytest

from lab.installation import ROOT, installed
from specdec_tools.commands.plugin import write_plugin
from tests.app.app_tools import running_sidecar
from tests.debian_servers import free_port
from tests.demo.http_traffic import exchange
from tests.page import Page, Samples
from tests.requests.plain_receiver import COUNTS
from tests.waiting import until

START_SECONDS = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.limit(900))


class Lab:
    """A vLLM server of the lab; it can be killed and restarted on the same port.

    ``arguments`` are those of lab/serve.

    With a ``folder`` it loads the plug-in, found ``copies`` times, each time with ``fault`` at the
    end of its text; ``socket`` is where a sidecar must listen. ``environment`` has more variables.
    With a ``core`` it has only that one.
    """

    def __init__(
        self,
        *arguments: str,
        folder: Path | None = None,
        copies: int = 1,
        fault: str = "",
        environment: Mapping[str, str] = MappingProxyType({}),
        core: int | None = None,
    ) -> None:
        installed()  # or it says how to install it
        self._port = str(free_port())
        self._pinned = [] if core is None else ["taskset", "--cpu-list", str(core)]
        self.serve(*arguments)
        self._environment = {**os.environ, **environment}
        if folder is not None:
            self.socket = folder / "run" / "plugin.sock"
            plugins = [folder / f"plugin-{number}" for number in range(copies)]
            for plugin in plugins:
                write_plugin(plugin)
                with (plugin / "specdec_plugin.py").open("a") as file:
                    file.write(fault)
            self._environment["PYTHONPATH"] = os.pathsep.join(map(str, plugins))
            self._environment["SPECDEC_PLUGIN__SOCKET"] = str(self.socket)
        self.url = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def serve(self, *arguments: str) -> None:
        """Its arguments from the next start on."""
        # It dies with the tests, even if they are killed.
        self._command = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            *self._pinned,
            str(ROOT / "lab/serve"),
            *arguments,
            "--port",
            self._port,
        ]

    async def start(self) -> None:
        """Starts it and waits until it responds.

        If it already runs, it may still be busy with what a test aborted.
        """
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

        async def is_healthy() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, "vLLM ended while starting"
            with contextlib.suppress(aiohttp.ClientError):
                return (await Page(self.url).get("/health")).status == 200
            return False

        await until(is_healthy, seconds=START_SECONDS, pause=0.5)

    @property
    def session(self) -> int:
        """The id of the session of all its processes."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """Kills all its processes at once, as when a pod dies."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


async def page_until(page: Page, condition: Callable[[Samples], bool]) -> Samples:
    """Its samples once the condition holds.

    A real vLLM on a slow machine takes long for what they show.
    """
    return await page.until(condition, seconds=240, pause=0.1)


async def idle(url: str) -> Samples:
    """vLLM's page once vLLM is idle: it counts a step shortly after its responses."""

    def is_idle(page: Samples) -> bool:
        return not page.sum("vllm:num_requests_running") and not page.sum(
            "vllm:num_requests_waiting"
        )

    return await page_until(Page(url), is_idle)


async def counters(url: str) -> tuple[int, ...]:
    """vLLM's three counters summed over its engines.

    It waits until it has no request and they have come to rest.
    """
    last, counts = None, ()
    while not counts or counts != last:
        last, page = counts, await idle(url)
        counts = tuple(int(page.sum(f"vllm:spec_decode_num_{name}_total")) for name in COUNTS)
        await asyncio.sleep(0.5)
    return counts


def sidecar(vllm: Lab, **settings: str) -> AbstractAsyncContextManager[Page]:
    """A sidecar in this process, beside a server with the plug-in; gives its page.

    It reads the server each second.
    """
    return running_sidecar(vllm.socket, vllm.url, scrape_interval="1s", **settings)


async def settled(vllm: Lab, ours: Page) -> tuple[Samples, Samples]:
    """Both pages once vLLM has nothing to do and ours has all of it.

    That is, vLLM's counters and, by temperature, the plug-in's.

    An idle engine notices a new sidecar with its next step, so it is given one. Not for a server
    that a command of ours has asked: its requests are in vLLM's counters and in no temperature. So
    tests of the commands come last, in the order of their files' names.
    """
    body = {"model": "lab", "prompt": "draft", "max_tokens": 1, "temperature": 0}
    async with aiohttp.ClientSession() as http:
        await exchange(http, f"{vllm.url}/v1/completions", body)
    theirs = await idle(vllm.url)
    drafted, tokens = (
        theirs.value(f"vllm:{name}_tokens_total")
        for name in ("spec_decode_num_draft", "generation")
    )

    def has_all(page: Samples) -> bool:
        by_engine = (
            page.value(f"specdec_{name}_tokens_total") for name in ("engine_draft", "generation")
        )
        return page.sum("specdec_draft_tokens_total") == drafted and tuple(by_engine) == (
            drafted,
            tokens,
        )

    return theirs, await page_until(ours, has_all)


@pytest.fixture
def lab(folder: Path) -> Iterator[Callable[..., Lab]]:
    """Makes lab servers, and kills them at the end.

    It does so before ``folder`` goes, in which their plug-in may be.
    """
    servers: list[Lab] = []

    def make(*arguments: str, **plugin: Any) -> Lab:
        servers.append(Lab(*arguments, **plugin))
        return servers[-1]

    yield make
    for server in servers:
        server.kill()


@pytest.fixture(scope="session")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The server with the plug-in that tests share, one after the other.

    The first to await ``start`` starts it.
    """
    server = Lab("draft_model", folder=tmp_path_factory.mktemp("lab"))
    yield server
    server.kill()
