"""The simulated vLLM as an HTTP server."""

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from sidecar.demo.driver import BrokenOff, EngineDriver, Mailbox
from sidecar.demo.engine import Engine
from sidecar.demo.generation import Generation
from sidecar.demo.inference_requests import BadRequest, parse_request
from sidecar.demo.metrics_page import MetricsPage
from sidecar.demo.options import SimulatorOptions
from sidecar.demo.replies import Reply, error_body

_SHUTDOWN: Final = 1.0  # seconds that requests in flight get at the end
_VERSION: Final = "0.32.0"
_SSE: Final = {"Content-Type": "text/event-stream; charset=utf-8"}


@web.middleware
async def _client_may_leave(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Ignores a write that fails between a client's disconnect and the handler's cancellation."""
    try:
        return await handler(request)
    except ConnectionResetError:
        return web.Response()


class SimulatedVllm:
    """Serves on 127.0.0.1 inside ``async with``; port 0 picks a free one, which ``url`` then has.

    ``middlewares`` see every request first; tests use them to inject faults. A handler whose client disconnects is
    cancelled.
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
        app.add_routes(
            [
                web.post("/v1/chat/completions", self._completions),
                web.post("/v1/completions", self._completions),
                web.get("/v1/models", self._models),
                web.get("/version", self._version),
                web.get("/health", self._health),
                web.get("/ping", self._health),
                web.post("/ping", self._health),
                web.get("/metrics", self._metrics),
                web.get("/metrics/", self._metrics),
            ]
        )
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

    async def _completions(self, http: web.Request) -> web.StreamResponse:
        chat = "chat" in http.path
        try:
            request = parse_request(await http.read(), chat=chat, options=self.options)
        except web.HTTPRequestEntityTooLarge:
            return self._refusal(BadRequest("The request body is too large.", status=413))
        except BadRequest as error:
            return self._refusal(error)
        reply = Reply(request, self.options.model_name, chat=chat, exact=self.options.exact)
        driver = self.driver  # the one that a restart would stop
        mailbox, generations = driver.submit(request.prompts, request.sampling, request.n)
        try:
            if request.stream:
                return await _stream(http, reply, mailbox, generations)
            unfinished = len(generations)
            while unfinished:
                unfinished -= sum(delta.reason is not None for delta in await mailbox.take())
            return _json(reply.whole(generations))
        except BrokenOff:
            if http.transport is not None:
                http.transport.close()
            return web.Response()
        finally:
            driver.close(generations)

    def _refusal(self, error: BadRequest) -> web.Response:
        return _json(error_body(error, self.options.model_name), error.status)

    async def _models(self, _request: web.Request) -> web.Response:
        model = {
            "id": self.options.model_name,
            "object": "model",
            "created": int(self.started),
            "owned_by": "vllm",
            "root": self.options.model_name,
            "parent": None,
            "max_model_len": self.options.max_model_len,
            "permission": [],
        }
        return _json(msgspec.json.encode({"object": "list", "data": [model]}))

    async def _version(self, _request: web.Request) -> web.Response:
        return _json(msgspec.json.encode({"version": _VERSION}))

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _metrics(self, request: web.Request) -> web.Response:
        query = request.rel_url.raw_query_string if request.path.endswith("/") else ""
        body, headers = self.page.render(query)
        return web.Response(body=body, headers=headers)


def _json(body: bytes, status: int = 200) -> web.Response:
    return web.Response(status=status, body=body, content_type="application/json")


async def _stream(
    http: web.Request, reply: Reply, mailbox: Mailbox, generations: Sequence[Generation]
) -> web.StreamResponse:
    response = web.StreamResponse(headers=_SSE)
    unfinished = len(generations)
    while unfinished:
        events = b""
        for delta in await mailbox.take():
            unfinished -= delta.reason is not None
            events += reply.event(delta)
        if not response.prepared:
            await response.prepare(http)
        await response.write(events)
    await response.write(reply.end(generations))
    return response
