"""The simulated vLLM with faults on ``/metrics`` on demand, restarts, and access to its counters."""

import asyncio

from aiohttp import web

from sidecar.demo.server import SimulatedVllm

HTML = b"<!DOCTYPE html>\n<html><body><h1>Bad gateway</h1></body></html>\n"
FOREIGN = b"# HELP other_up Not vLLM.\n# TYPE other_up gauge\nother_up 1.0\n"


class FaultyVllm(SimulatedVllm):
    """``fault`` says how its page fails from now on.

    error_500; html: a proxy's error page, with status 200; foreign: a sound exposition without a vLLM family; hang: no
    answer until the client goes away; or None.
    """

    def __init__(self, *arguments, **options):
        self.fault = None
        super().__init__(*arguments, **options)
        self.app.middlewares.append(self._failing)

    @web.middleware
    async def _failing(self, request, handler):
        match self.fault:
            case "error_500":
                return web.Response(status=500, text="Internal Server Error")
            case "html":
                return web.Response(body=HTML, content_type="text/html")
            case "foreign":
                return web.Response(body=FOREIGN, content_type="text/plain")
            case "hang":
                await asyncio.Event().wait()
        return await handler(request)

    def value(self, name, **labels):
        """The value of the sample ``vllm:<name>``."""
        own = {"model_name": self.options.model_name, "engine": self.options.engine}
        return self.page.registry.get_sample_value(f"vllm:{name}", own | labels)

    def counter(self, name, **labels):
        """The value of ``vllm:<name>_total``."""
        return self.value(f"{name}_total", **labels)

    async def restart(self):
        """Acts like a process that died and restarted: counters at 0, requests broken off, a new start time."""
        before = self.engine
        self.begin()
        self.engine.start()
        await before.stop()
