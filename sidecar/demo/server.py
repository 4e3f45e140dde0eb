"""The simulated vLLM: an HTTP server for its metrics page, and an ``engine`` that takes requests directly."""

import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from aiohttp import web

from sidecar.demo.engine import Engine
from sidecar.demo.metrics_page import MetricsPage
from sidecar.demo.options import SimulatorOptions
from sidecar.demo.scheduler import Scheduler
from sidecar.requests.plugin import install

VERSION: Final = "0.32.0"


class SimulatedVllm:
    """Serves on 127.0.0.1 inside ``async with``; with port 0, on a free port, which is then part of ``url``.

    It loads the plug-in, which sends to ``plugin_socket``, unless that is None.
    """

    def __init__(
        self, options: SimulatorOptions | None = None, *, port: int = 0, plugin_socket: Path | None = None
    ) -> None:
        self.options = options or SimulatorOptions()
        self._port = port
        self._scheduler = Scheduler if plugin_socket is None else observed(plugin_socket)
        self.begin()
        self.app = web.Application()
        self.app.add_routes([web.get("/metrics", self._metrics), web.get("/metrics/", self._metrics)])
        self._runner = web.AppRunner(self.app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)

    def begin(self) -> None:
        """Begins as a new process, with counters at 0 and a new start time."""
        self.page = MetricsPage(self.options, started=time.time())
        self.engine = Engine(self._scheduler(self.options), self.page, self.options.speed)

    @property
    def url(self) -> str:
        """``http://127.0.0.1:<port>``, without a trailing slash; only while it serves."""
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def __aenter__(self) -> Self:
        self.engine.start()
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.engine.stop()
        await self._runner.cleanup()

    async def _metrics(self, request: web.Request) -> web.Response:
        body, headers = self.page.render(request.rel_url.raw_query_string if request.path.endswith("/") else "")
        return web.Response(body=body, headers=headers)


def observed(socket: Path) -> type[Scheduler]:
    """A scheduler class that the plug-in has wrapped, as it wraps vLLM's."""
    scheduler = type("Scheduler", (Scheduler,), {})
    install(scheduler, VERSION, str(socket))
    return scheduler
