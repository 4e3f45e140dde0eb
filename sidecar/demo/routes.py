"""The simulated vLLM's HTTP routes."""

from typing import Final, Protocol

import msgspec
from aiohttp import web

from sidecar.demo.driver import BrokenOff, EngineDriver, Mailbox
from sidecar.demo.generation import Generation
from sidecar.demo.inference_requests import BadRequest, parse_request
from sidecar.demo.metrics_page import MetricsPage
from sidecar.demo.options import SimulatorOptions
from sidecar.demo.replies import Reply, error_body

_VERSION: Final = "0.32.0"
_JSON: Final = "application/json"
_SSE: Final = {"Content-Type": "text/event-stream; charset=utf-8"}


class Process(Protocol):
    """The simulated process; a restart replaces everything except its options."""

    options: SimulatorOptions
    started: float
    page: MetricsPage
    driver: EngineDriver


class Routes:
    """Handlers over one process; they rely on the server cancelling a handler whose client disconnects."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def add_to(self, app: web.Application) -> None:
        """Registers every route."""
        app.add_routes(
            [
                web.post("/v1/chat/completions", self._complete),
                web.post("/v1/completions", self._complete),
                web.get("/v1/models", self._models),
                web.get("/version", self._version),
                web.get("/health", self._health),
                web.get("/ping", self._health),
                web.post("/ping", self._health),
                web.get("/metrics", self._metrics),
                web.get("/metrics/", self._mounted_metrics),
            ]
        )

    async def _complete(self, http: web.Request) -> web.StreamResponse:
        options = self._process.options
        chat = "chat" in http.path
        try:
            request = parse_request(await http.read(), chat=chat, options=options)
        except web.HTTPRequestEntityTooLarge:
            return self._refusal(BadRequest("The request body is too large.", status=413))
        except BadRequest as error:
            return self._refusal(error)
        reply = Reply(request, options.model_name, chat=chat, exact=options.exact)
        driver = self._process.driver  # the one that a restart would stop
        mailbox, generations = driver.submit(request.prompts, request.sampling, request.n)
        try:
            if request.stream:
                return await self._stream(http, reply, mailbox, generations)
            unfinished = len(generations)
            while unfinished:
                unfinished -= sum(delta.reason is not None for delta in await mailbox.take())
            return web.Response(body=reply.whole(generations), content_type=_JSON)
        except BrokenOff:
            if http.transport is not None:
                http.transport.close()
            return web.Response()
        finally:
            driver.close(mailbox, generations)

    async def _stream(
        self, http: web.Request, reply: Reply, mailbox: Mailbox, generations: list[Generation]
    ) -> web.StreamResponse:
        response: web.StreamResponse | None = None
        unfinished = len(generations)
        while unfinished:
            events = b""
            for delta in await mailbox.take():
                unfinished -= delta.reason is not None
                events += reply.event(delta)
            if response is None:
                response = web.StreamResponse(headers=_SSE)
                await response.prepare(http)
            await response.write(events)
        if response is None:  # pragma: no cover - a request has at least one choice
            raise BrokenOff
        await response.write(reply.end(generations))
        return response

    def _refusal(self, error: BadRequest) -> web.Response:
        body = error_body(error, self._process.options.model_name)
        return web.Response(status=error.status, body=body, content_type=_JSON)

    async def _models(self, _request: web.Request) -> web.Response:
        options = self._process.options
        model = {
            "id": options.model_name,
            "object": "model",
            "created": int(self._process.started),
            "owned_by": "vllm",
            "root": options.model_name,
            "parent": None,
            "max_model_len": options.max_model_len,
            "permission": [],
        }
        return web.Response(body=msgspec.json.encode({"object": "list", "data": [model]}), content_type=_JSON)

    async def _version(self, _request: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode({"version": _VERSION}), content_type=_JSON)

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _metrics(self, _request: web.Request) -> web.Response:
        body, headers = self._process.page.render()
        return web.Response(body=body, headers=headers)

    async def _mounted_metrics(self, request: web.Request) -> web.Response:
        body, headers = self._process.page.render_mounted(
            request.rel_url.raw_query_string,
            ",".join(request.headers.getall("Accept", [])),
            ",".join(request.headers.getall("Accept-Encoding", [])),
        )
        return web.Response(body=body, headers=headers)
