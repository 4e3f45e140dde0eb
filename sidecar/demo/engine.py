"""Drives the simulated scheduler in real time and delivers its tokens to the clients waiting for them."""

import asyncio
import time
from contextlib import suppress

from sidecar.demo.metrics_page import MetricsPage
from sidecar.demo.request import Request, RequestStatus
from sidecar.demo.scheduler import NewTokens, Scheduler

Outputs = asyncio.Queue[NewTokens | None]
"""One request's tokens; None: the engine stopped, and no more will come."""


class Engine:
    """Runs a scheduler as a task from ``start`` to ``stop`` and records its steps on ``page``."""

    def __init__(self, scheduler: Scheduler, page: MetricsPage, speed: float) -> None:
        self.scheduler = scheduler
        self._page = page
        self._speed = speed
        self._work = asyncio.Event()
        self._outputs: dict[Request, Outputs] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts stepping; needs a running loop."""
        self._task = asyncio.create_task(self._run(), name="simulated engine")

    async def stop(self) -> None:
        """Stops as if its process ended: breaks off all requests in flight and closes the plug-in's connection."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        observer = getattr(self.scheduler, "_specdec", None)
        if observer is not None and observer.socket is not None:
            observer.socket.close()

    def submit(self, request: Request) -> Outputs:
        """Queues a request."""
        outputs = self._outputs[request] = asyncio.Queue()
        self.scheduler.now = time.monotonic()
        self.scheduler.add_request(request)
        self._work.set()
        return outputs

    def close(self, request: Request) -> None:
        """Forgets a request; aborts it if it has not finished."""
        del self._outputs[request]
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
        scheduler, deadline = self.scheduler, time.monotonic()
        while True:
            scheduler.now = time.monotonic()
            output = scheduler.schedule()
            if not output.num_scheduled_tokens:
                self._work.clear()
                await self._work.wait()
                deadline = time.monotonic()
                continue
            # Each deadline follows from the last one, so that timer delays do not add up; a lag of more than a step
            # is not made up for.
            now, step = time.monotonic(), scheduler.duration(output) / self._speed
            deadline = max(deadline, now - step) + step
            await asyncio.sleep(max(0.0, deadline - now))
            scheduler.now = time.monotonic()
            for report in scheduler.update_from_output(output, scheduler.execute(output)).values():
                self._page.record_step(report, scheduler)
                for new in report.outputs:
                    self._outputs[new.request].put_nowait(new)
