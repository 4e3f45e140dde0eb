"""The simulated vLLM as an HTTP server."""

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from sidecar.demo.driver import EngineDriver
from sidecar.demo.engine import Engine
from sidecar.demo.metrics_page import MetricsPage
from sidecar.demo.options import SimulatorOptions
from sidecar.demo.routes import Routes

_SHUTDOWN: Final = 1.0  # seconds that requests in flight get at the end


@web.middleware
async def _client_may_leave(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Ignores a write that fails between a client's disconnect and the handler's cancellation."""
    try:
        return await handler(request)
    except ConnectionResetError:
        return web.Response()


class SimulatedVllm:
    """Serves on 127.0.0.1 inside ``async with``; port 0 picks a free one, which ``url`` then has.

    ``middlewares`` see every request first; tests use them to inject faults.
    """

    def __init__(
        self, options: SimulatorOptions | None = None, *, port: int = 0, middlewares: Sequence[Middleware] = ()
    ) -> None:
        self.options = options or SimulatorOptions()
        self._port = port
        self._begin()
        app = web.Application(
            client_max_size=self.options.max_body_bytes, middlewares=[*middlewares, _client_may_leave]
        )
        Routes(self).add_to(app)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=_SHUTDOWN)

    def _begin(self) -> None:
        """A new process: counters at 0 and a new start time."""
        self.started = time.time()
        self.engine = Engine(self.options)
        self.page = MetricsPage(self.options, started=self.started)
        self.driver = EngineDriver(self.engine, self.page, speed=self.options.speed)

    @property
    def url(self) -> str:
        """``http://127.0.0.1:<port>``, without a trailing slash. Raises RuntimeError while it is not serving."""
        if not self._runner.addresses:
            raise RuntimeError("the simulated vLLM is not running")
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def __aenter__(self) -> Self:
        self.driver.start()
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.driver.stop()
        await self._runner.cleanup()
