"""The simulated vLLM with faults on ``/metrics`` on demand, restarts, and access to its counters."""

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum
from pathlib import Path

from aiohttp import web

from sidecar.demo.options import SimulatorOptions
from sidecar.demo.server import SimulatedVllm

HUGE_CHUNKS = 800  # of 64 KiB
HTML = b"<!DOCTYPE html>\n<html><body><h1>Bad gateway</h1></body></html>\n"
FOREIGN = b"# HELP other_up Not vLLM.\n# TYPE other_up gauge\nother_up 1.0\n"


class FaultKind(StrEnum):
    """Each lasts until another is set."""

    NONE = "none"
    ERROR_500 = "error_500"
    TRUNCATED = "truncated"  # the page ends within a number, yet its framing is right
    CUT_OFF = "cut_off"  # the connection closes before the announced Content-Length is reached
    HTML = "html"  # a proxy's error page, with status 200
    FOREIGN = "foreign"  # a sound exposition without a vLLM family
    HUGE = "huge"  # the page, then comments of 50 MB
    REFUSE = "refuse"  # the connection closes without an answer
    HANG = "hang"  # no answer until the client goes away


class Faults:
    """The fault in force; ``set`` and ``clear`` act on the next request to ``/metrics``."""

    def __init__(self) -> None:
        self.current = FaultKind.NONE

    def set(self, kind: str) -> None:
        """Sets a fault."""
        self.current = FaultKind(kind)

    def clear(self) -> None:
        """Serves valid pages again."""
        self.current = FaultKind.NONE


Rendered = tuple[bytes, dict[str, str]]  # a page's body and headers


async def _error(_request: web.Request, _page: Rendered) -> web.StreamResponse:
    return web.Response(status=500, text="Internal Server Error")


def _within_a_number(body: bytes) -> int:
    """An offset, past the middle where it can be, at which a sample lacks its last digits yet still parses."""
    found = body.find(b".0\n", len(body) // 2)
    return found + 1 if found >= 0 else max(0, len(body) - 2)


async def _truncated(_request: web.Request, page: Rendered) -> web.StreamResponse:
    body, headers = page
    return web.Response(body=body[: _within_a_number(body)], headers=headers)


async def _cut_off(request: web.Request, page: Rendered) -> web.StreamResponse:
    body, headers = page
    response = web.StreamResponse(headers={**headers, "Content-Length": str(len(body))})
    await response.prepare(request)
    await response.write(body[: len(body) // 2])
    hang_up(request)
    return response


def _fixed(body: bytes, headers: dict[str, str] | None = None) -> Callable[..., Awaitable[web.StreamResponse]]:
    async def serve(_request: web.Request, page: Rendered) -> web.StreamResponse:
        return web.Response(body=body, headers={**page[1], **(headers or {})})

    return serve


async def _huge(request: web.Request, page: Rendered) -> web.StreamResponse:
    response = web.StreamResponse(headers=page[1])
    await response.prepare(request)
    await response.write(page[0])
    for _ in range(HUGE_CHUNKS):
        await response.write(b"# HELP vllm:x y\n" * 4096)
        # A reader on the same loop gets its turn even while the socket takes everything.
        await asyncio.sleep(0)
    return response


async def _refuse(request: web.Request, _page: Rendered) -> web.StreamResponse:
    hang_up(request)
    return web.Response()


async def _hang(_request: web.Request, _page: Rendered) -> web.StreamResponse:
    await asyncio.Event().wait()  # the handler is cancelled when the client or the server goes away
    raise AssertionError  # pragma: no cover - the event is never set


def hang_up(request: web.Request) -> None:
    """Close the connection; what was written before is still sent, the handler's response is not."""
    if request.transport is not None:
        request.transport.close()


_FAULTS: dict[FaultKind, Callable[[web.Request, Rendered], Awaitable[web.StreamResponse]]] = {
    FaultKind.ERROR_500: _error,
    FaultKind.TRUNCATED: _truncated,
    FaultKind.CUT_OFF: _cut_off,
    FaultKind.HTML: _fixed(HTML, {"Content-Type": "text/html"}),
    FaultKind.FOREIGN: _fixed(FOREIGN),
    FaultKind.HUGE: _huge,
    FaultKind.REFUSE: _refuse,
    FaultKind.HANG: _hang,
}


class FaultyVllm(SimulatedVllm):
    """A simulated vLLM whose page can be made to fail: ``faults`` says how."""

    def __init__(
        self, options: SimulatorOptions | None = None, *, port: int = 0, plugin_socket: Path | None = None
    ) -> None:
        self.faults = Faults()
        super().__init__(options, port=port, plugin_socket=plugin_socket, middlewares=[self._middleware()])

    def _middleware(self):
        @web.middleware
        async def order(request, handler):
            make = _FAULTS.get(self.faults.current)
            if make is None or request.path.rstrip("/") != "/metrics":
                return await handler(request)
            query = request.rel_url.raw_query_string if request.path == "/metrics/" else ""
            return await make(request, self.page.render(query))

        return order

    def counter(self, name: str) -> float:
        """The value of ``vllm:<name>_total`` without labels of its own."""
        labels = {"model_name": self.options.model_name, "engine": self.options.engine}
        return self.page.registry.get_sample_value(f"vllm:{name}_total", labels)

    async def restart(self) -> None:
        """Acts like a process that died and restarted: counters at 0, requests broken off, a new start time."""
        before = self.engine
        self.begin()
        self.engine.start()
        await before.stop()
