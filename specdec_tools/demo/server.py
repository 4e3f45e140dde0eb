"""The simulated vLLM: its engine in real time, and an HTTP server for its metrics page."""

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from aiohttp import web

from sidecar.requests.plugin import install
from specdec_tools.demo.metrics_page import MetricsPage
from specdec_tools.demo.scheduler import (
    NewTokens,
    Request,
    RequestStatus,
    Scheduler,
    SimulatorOptions,
)

VERSION: Final = "0.32.0"

Outputs = asyncio.Queue[NewTokens | None]
"""One request's tokens; None: the engine stopped, and no more will come."""


class Engine:
    """Runs a scheduler as a task from ``start`` to ``stop`` and records its steps on ``page``."""

    def __init__(self, scheduler: Scheduler, page: MetricsPage, speed: float) -> None:
        self.scheduler = scheduler
        self._page = page
        self._speed = speed
        self._work = asyncio.Event()
        self._outputs: dict[str, Outputs] = {}  # by request id
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts stepping; needs a running loop."""
        self._task = asyncio.create_task(self._run(), name="simulated engine")

    async def stop(self) -> None:
        """Stops as if its process ended.

        Breaks off all requests in flight and closes the plug-in's connection.
        """
        task = self._task
        self._task = None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

        observer = getattr(self.scheduler, "_specdec", None)
        if observer is not None:
            observer.report.link.close()

    def submit(self, request: Request) -> Outputs:
        """Queues a request."""
        outputs = Outputs()
        self._outputs[request.request_id] = outputs
        self.scheduler.now = time.monotonic()
        self.scheduler.add_request(request)
        self._work.set()
        return outputs

    def close(self, request: Request) -> None:
        """Forgets a request; aborts it if it has not finished."""
        del self._outputs[request.request_id]
        if self._task is not None:  # a stopped engine counts nothing
            self.scheduler.finish_requests([request.request_id], RequestStatus.FINISHED_ABORTED)
            self._page.record_load(self.scheduler)

    async def _run(self) -> None:
        try:
            await self._step_for_ever()
        finally:
            for outputs in self._outputs.values():
                outputs.put_nowait(None)

    async def _step_for_ever(self) -> None:
        scheduler = self.scheduler
        deadline = time.monotonic()
        while True:
            scheduler.now = time.monotonic()
            output = scheduler.schedule()
            if not output.num_scheduled_tokens:
                self._work.clear()
                await self._work.wait()
                deadline = time.monotonic()
                continue

            # Each deadline follows from the last one, so that timer delays do not add up; a lag of
            # more than a step is not made up for.
            now = time.monotonic()
            step = scheduler.duration(output) / self._speed
            deadline = max(deadline, now - step) + step
            await asyncio.sleep(max(0.0, deadline - now))

            scheduler.now = time.monotonic()
            for report in scheduler.update_from_output(output, scheduler.execute(output)).values():
                self._page.record_step(report, scheduler)
                for tokens in report.outputs:
                    self._outputs[tokens.request_id].put_nowait(tokens)


class SimulatedVllm:
    """Serves on 127.0.0.1 inside ``async with``.

    With port 0 it serves on a free port, which is then part of ``url``. ``engine`` takes requests
    directly. It loads the plug-in, which sends to ``plugin_socket``, unless that is None.
    """

    def __init__(
        self,
        options: SimulatorOptions | None = None,
        *,
        port: int = 0,
        plugin_socket: Path | None = None,
    ) -> None:
        self.options = options or SimulatorOptions()
        self._port = port
        self._socket = plugin_socket
        self.begin()

        self.app = web.Application()
        self.app.add_routes(
            [web.get("/metrics", self._metrics), web.get("/metrics/", self._metrics)]
        )
        self._runner = web.AppRunner(
            self.app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0
        )

    def begin(self) -> None:
        """Begins as a new process, with counters at 0, a new start time and a new id."""
        scheduler = Scheduler
        server = None
        if self._socket is not None:
            server = os.urandom(8).hex()
            scheduler = _observed(self._socket, server)
        self.page = MetricsPage(self.options, started=time.time(), server=server)
        self.engine = Engine(scheduler(self.options), self.page, self.options.speed)

    async def restart(self, options: SimulatorOptions) -> None:
        """Ends the process, and begins another one with these options.

        That one is there first, so that whoever sends the next request finds it.
        """
        ending = self.engine
        self.options = options
        self.begin()
        self.engine.start()
        await ending.stop()

    @property
    def url(self) -> str:
        """``http://127.0.0.1:<port>``, without a trailing slash; only while it serves."""
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def __aenter__(self) -> Self:
        self.engine.start()
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.engine.stop()
        await self._runner.cleanup()

    async def _metrics(self, request: web.Request) -> web.Response:
        query = request.rel_url.raw_query_string if request.path.endswith("/") else ""
        body, headers = self.page.render(query)
        return web.Response(body=body, headers=headers)


def _observed(socket: Path, server: str) -> type[Scheduler]:
    """A scheduler class that the plug-in has wrapped, as it wraps vLLM's."""
    scheduler = type("Scheduler", (Scheduler,), {})
    install(scheduler, VERSION, str(socket), server)
    return scheduler
