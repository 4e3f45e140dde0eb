"""The simulated vLLM with faults on ``/metrics`` on demand, restarts, and access to its counters."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from enum import StrEnum
from typing import Annotated

import msgspec
from aiohttp import web

from sidecar.demo.options import SimulatorOptions
from sidecar.demo.server import SimulatedVllm

CHUNK_BYTES = 65_536
HTML = b"<!DOCTYPE html>\n<html><body><h1>Bad gateway</h1></body></html>\n"
GARBAGE = bytes(range(256)) * 64
FOREIGN = b"# HELP other_up Not vLLM.\n# TYPE other_up gauge\nother_up 1.0\n"


class FaultKind(StrEnum):
    """Each lasts until another is set."""

    NONE = "none"
    SLOW = "slow"  # the page comes after `seconds`
    ERROR_500 = "error_500"
    TRUNCATED = "truncated"  # the page ends within a number, yet its framing is right
    CUT_OFF = "cut_off"  # the connection closes before the announced Content-Length is reached
    GARBAGE = "garbage"  # binary data
    HTML = "html"  # a proxy's error page, with status 200
    COMPRESSED = "compressed"  # gzip without having been requested
    FOREIGN = "foreign"  # a sound exposition without a vLLM family
    DRIP = "drip"  # one byte every `seconds`
    HUGE = "huge"  # the page, then comments up to `bytes`
    MANY_SERIES = "many_series"  # the page, then a family of `series` series
    ENDLESS_LINE = "endless_line"  # the page, then a line of up to `bytes`
    REFUSE = "refuse"  # the connection closes without an answer
    HANG = "hang"  # no answer until the client goes away


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One fault and its parameters."""

    kind: FaultKind
    seconds: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 1.0
    bytes: Annotated[int, msgspec.Meta(ge=0, le=10**10)] = 50_000_000
    series: Annotated[int, msgspec.Meta(ge=0, le=10**8)] = 2_000_000


class Faults:
    """The fault in force; ``set`` and ``clear`` act on the next request to ``/metrics``."""

    def __init__(self) -> None:
        self.current = Fault(FaultKind.NONE)

    def set(self, kind: str, **measures: float) -> None:
        """Sets a fault. Raises msgspec.ValidationError for an unknown kind or a parameter out of its range."""
        self.current = msgspec.convert({"kind": kind, **measures}, Fault)

    def clear(self) -> None:
        """Serves valid pages again."""
        self.current = Fault(FaultKind.NONE)


Rendered = tuple[bytes, dict[str, str]]  # a page's body and headers


async def _slow(_request: web.Request, fault: Fault, page: Rendered) -> web.StreamResponse:
    await asyncio.sleep(fault.seconds)
    return web.Response(body=page[0], headers=page[1])


async def _error(_request: web.Request, _fault: Fault, _page: Rendered) -> web.StreamResponse:
    return web.Response(status=500, text="Internal Server Error")


def _within_a_number(body: bytes) -> int:
    """An offset, past the middle where it can be, at which a sample lacks its last digits yet still parses."""
    found = body.find(b".0\n", len(body) // 2)
    return found + 1 if found >= 0 else max(0, len(body) - 2)


async def _truncated(_request: web.Request, _fault: Fault, page: Rendered) -> web.StreamResponse:
    body, headers = page
    return web.Response(body=body[: _within_a_number(body)], headers=headers)


async def _cut_off(request: web.Request, _fault: Fault, page: Rendered) -> web.StreamResponse:
    body, headers = page
    response = web.StreamResponse(headers={**headers, "Content-Length": str(len(body))})
    await response.prepare(request)
    await response.write(body[: len(body) // 2])
    hang_up(request)
    return response


def _fixed(body: bytes, headers: dict[str, str] | None = None) -> Callable[..., Awaitable[web.StreamResponse]]:
    async def serve(_request: web.Request, _fault: Fault, page: Rendered) -> web.StreamResponse:
        return web.Response(body=body, headers={**page[1], **(headers or {})})

    return serve


async def _compressed(_request: web.Request, _fault: Fault, page: Rendered) -> web.StreamResponse:
    return web.Response(body=gzip.compress(page[0]), headers={**page[1], "Content-Encoding": "gzip"})


async def _drip(request: web.Request, fault: Fault, page: Rendered) -> web.StreamResponse:
    async def drops() -> AsyncIterator[bytes]:
        for offset in range(len(page[0])):
            yield page[0][offset : offset + 1]
            await asyncio.sleep(fault.seconds)

    return await _stream(request, page[1], drops())


async def _huge(request: web.Request, fault: Fault, page: Rendered) -> web.StreamResponse:
    line = b"# " + b"x" * 1021 + b"\n"
    return await _stream(request, page[1], _repeated(page[0], line, fault.bytes))


async def _endless_line(request: web.Request, fault: Fault, page: Rendered) -> web.StreamResponse:
    return await _stream(request, page[1], _repeated(page[0], b"x" * 1024, fault.bytes))


async def _repeated(first: bytes, unit: bytes, total: int) -> AsyncIterator[bytes]:
    yield first
    chunk = unit * (CHUNK_BYTES // len(unit))
    for _ in range(max(0, total - len(first)) // len(chunk) + 1):
        yield chunk


async def _many_series(request: web.Request, fault: Fault, page: Rendered) -> web.StreamResponse:
    async def series() -> AsyncIterator[bytes]:
        yield page[0] + b"# HELP vllm:demo_series Too many.\n# TYPE vllm:demo_series gauge\n"
        for start in range(0, fault.series, 1000):
            numbers = range(start, min(start + 1000, fault.series))
            yield b"".join(b'vllm:demo_series{number="%d"} 1.0\n' % number for number in numbers)

    return await _stream(request, page[1], series())


async def _stream(request: web.Request, headers: dict[str, str], chunks: AsyncIterator[bytes]) -> web.StreamResponse:
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    async for chunk in chunks:
        await response.write(chunk)
        # A reader on the same loop gets its turn even while the socket takes everything.
        await asyncio.sleep(0)
    return response


async def _refuse(request: web.Request, _fault: Fault, _page: Rendered) -> web.StreamResponse:
    hang_up(request)
    return web.Response()


async def _hang(_request: web.Request, _fault: Fault, _page: Rendered) -> web.StreamResponse:
    await asyncio.Event().wait()  # the handler is cancelled when the client or the server goes away
    raise AssertionError  # pragma: no cover - the event is never set


def hang_up(request: web.Request) -> None:
    """Close the connection; what was written before is still sent, the handler's response is not."""
    if request.transport is not None:
        request.transport.close()


_FAULTS: dict[FaultKind, Callable[[web.Request, Fault, Rendered], Awaitable[web.StreamResponse]]] = {
    FaultKind.SLOW: _slow,
    FaultKind.ERROR_500: _error,
    FaultKind.TRUNCATED: _truncated,
    FaultKind.CUT_OFF: _cut_off,
    FaultKind.GARBAGE: _fixed(GARBAGE),
    FaultKind.HTML: _fixed(HTML, {"Content-Type": "text/html"}),
    FaultKind.COMPRESSED: _compressed,
    FaultKind.FOREIGN: _fixed(FOREIGN),
    FaultKind.DRIP: _drip,
    FaultKind.HUGE: _huge,
    FaultKind.MANY_SERIES: _many_series,
    FaultKind.ENDLESS_LINE: _endless_line,
    FaultKind.REFUSE: _refuse,
    FaultKind.HANG: _hang,
}


class FaultyVllm(SimulatedVllm):
    """A simulated vLLM whose page can be made to fail: ``faults`` says how."""

    def __init__(self, options: SimulatorOptions | None = None, *, port: int = 0) -> None:
        self.faults = Faults()
        super().__init__(options, port=port, middlewares=[self._middleware()])

    def _middleware(self):
        @web.middleware
        async def order(request, handler):
            fault = self.faults.current
            make = _FAULTS.get(fault.kind)
            if make is None or request.path.rstrip("/") != "/metrics":
                return await handler(request)
            query = request.rel_url.raw_query_string if request.path == "/metrics/" else ""
            return await make(request, fault, self.page.render(query))

        return order

    def counter(self, name: str) -> float:
        """The value of ``vllm:<name>_total`` without labels of its own."""
        labels = {"model_name": self.options.model_name, "engine": self.options.engine}
        return self.page.registry.get_sample_value(f"vllm:{name}_total", labels)

    async def restart(self) -> None:
        """Acts like a process that died and restarted: counters at 0, requests broken off, a new start time."""
        await self.driver.stop()
        self._begin()
        self.driver.start()
