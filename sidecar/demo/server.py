"""The simulated vLLM as an HTTP server."""

from types import TracebackType
from typing import Self

from aiohttp import web
from aiohttp.typedefs import Handler

from sidecar.demo.engine import Engine
from sidecar.demo.faults import Faults
from sidecar.demo.metrics_page import MetricsPage
from sidecar.demo.options import SimulatorOptions
from sidecar.demo.routes import Routes
from sidecar.demo.simulation import Simulation

SHUTDOWN_SECONDS = 1.0  # requests still running at the end get no longer than this


@web.middleware
async def _client_may_leave(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Takes a write between a client's going and the handler's being cancelled for no error."""
    try:
        return await handler(request)
    except ConnectionResetError:
        return web.Response()


class SimulatedVllm:
    """Serves on 127.0.0.1 between ``async with``'s two ends; port 0 takes a free one, which ``url`` then names."""

    def __init__(self, options: SimulatorOptions | None = None, *, port: int = 0) -> None:
        self.options = options or SimulatorOptions()
        self._simulation = Simulation(self.options)
        self._port = port
        app = web.Application(client_max_size=self.options.max_body_bytes, middlewares=[_client_may_leave])
        Routes(self._simulation).add_to(app)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN_SECONDS)

    @property
    def url(self) -> str:
        """``http://127.0.0.1:<port>``, without a slash at its end. Raises RuntimeError while it is not served."""
        if not self._runner.addresses:
            raise RuntimeError("the simulated vLLM is not running")
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    @property
    def faults(self) -> Faults:
        """To order faults from; they outlive a restart."""
        return self._simulation.faults

    @property
    def engine(self) -> Engine:
        """The engine of the present life."""
        return self._simulation.engine

    @property
    def page(self) -> MetricsPage:
        """The metrics of the present life."""
        return self._simulation.page

    async def restart(self) -> None:
        """Counters at 0, requests in flight broken off, a new start time; the port stays open throughout."""
        await self._simulation.restart()

    async def __aenter__(self) -> Self:
        self._simulation.driver.start()
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._simulation.driver.stop()
        await self._runner.cleanup()
