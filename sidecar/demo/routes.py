"""The simulated vLLM's HTTP routes."""

import asyncio

import msgspec
from aiohttp import web

from sidecar.demo.driver import BrokenOff, Mailbox
from sidecar.demo.faults import FaultKind, answer, fault_body, hang_up, parse_fault
from sidecar.demo.generation import Generation
from sidecar.demo.inference_requests import BadRequest, parse_request
from sidecar.demo.replies import Reply, error_body
from sidecar.demo.simulation import Simulation

VERSION = "0.32.0"
JSON = "application/json"
SSE_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8"}


class Routes:
    """Handlers over one simulation. They rely on the server cancelling a handler whose client went away."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def add_to(self, app: web.Application) -> None:
        """Register every route."""
        app.add_routes(
            [
                web.post("/v1/chat/completions", self.chat),
                web.post("/v1/completions", self.completion),
                web.get("/v1/models", self.models),
                web.get("/version", self.version),
                web.get("/health", self.healthy),
                web.get("/ping", self.healthy),
                web.post("/ping", self.healthy),
                web.get("/metrics", self.metrics),
                web.get("/metrics/", self.mounted_metrics),
                web.get("/demo/fault", self.fault),
                web.post("/demo/fault", self.order_fault),
            ]
        )

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """``/v1/chat/completions``."""
        return await self._complete(request, chat=True)

    async def completion(self, request: web.Request) -> web.StreamResponse:
        """``/v1/completions``."""
        return await self._complete(request, chat=False)

    async def _complete(self, http: web.Request, *, chat: bool) -> web.StreamResponse:
        options = self._simulation.options
        try:
            request = parse_request(await http.read(), chat=chat, options=options)
        except web.HTTPRequestEntityTooLarge:
            return self._refusal(BadRequest("The request body is too large.", status=413))
        except BadRequest as error:
            return self._refusal(error)
        reply = Reply(request, options.model_name, chat=chat, exact=options.exact)
        driver = self._simulation.driver  # the one that a restart would stop
        mailbox, generations = driver.submit(request.prompts, request.sampling, request.n)
        try:
            if request.stream:
                return await self._stream(http, reply, mailbox, generations)
            unfinished = len(generations)
            while unfinished:
                unfinished -= sum(delta.reason is not None for delta in await mailbox.take())
            return web.Response(body=reply.whole(generations), content_type=JSON)
        except BrokenOff:
            hang_up(http)
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
                events += reply.event(delta, last=not unfinished)
            if response is None:
                response = web.StreamResponse(headers=SSE_HEADERS)
                await response.prepare(http)
            await response.write(events)
        if response is None:  # pragma: no cover - a request has at least one choice
            raise BrokenOff
        await response.write(reply.end(generations))
        return response

    def _refusal(self, error: BadRequest) -> web.Response:
        body = error_body(error, self._simulation.options.model_name)
        return web.Response(status=error.status, body=body, content_type=JSON)

    async def models(self, _request: web.Request) -> web.Response:
        """``/v1/models``: the one model."""
        options = self._simulation.options
        model = {
            "id": options.model_name,
            "object": "model",
            "created": int(self._simulation.page.started),
            "owned_by": "vllm",
            "root": options.model_name,
            "parent": None,
            "max_model_len": options.max_model_len,
            "permission": [],
        }
        body = msgspec.json.encode({"object": "list", "data": [model]})
        return web.Response(body=body, content_type=JSON)

    async def version(self, _request: web.Request) -> web.Response:
        """``/version``: of the vLLM that is simulated."""
        return web.Response(body=msgspec.json.encode({"version": VERSION}), content_type=JSON)

    async def healthy(self, _request: web.Request) -> web.Response:
        """``/health`` and ``/ping``: 200 and nothing else."""
        return web.Response()

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        """``/metrics``: the whole page, whatever the query."""
        await self._refresh_process()
        return await answer(request, self._simulation.faults.current, self._simulation.page.render())

    async def mounted_metrics(self, request: web.Request) -> web.StreamResponse:
        """``/metrics/``: restricted by ``name[]``."""
        await self._refresh_process()
        fault = self._simulation.faults.current
        # A fault's body is as it is described, not gzip of it.
        encodings = request.headers.getall("Accept-Encoding", []) if fault.kind is FaultKind.NONE else []
        page = self._simulation.page.render_mounted(
            request.rel_url.raw_query_string,
            ",".join(request.headers.getall("Accept", [])),
            ",".join(encodings),
        )
        return await answer(request, fault, page)

    async def _refresh_process(self) -> None:
        await asyncio.to_thread(self._simulation.page.process.refresh)

    async def fault(self, _request: web.Request) -> web.Response:
        """``GET /demo/fault``: the fault in force."""
        return web.json_response(fault_body(self._simulation.faults.current))

    async def order_fault(self, request: web.Request) -> web.Response:
        """``POST /demo/fault``: order one by ``kind`` (``none`` ends it) and its measures."""
        try:
            fault = parse_fault(await request.read())
        except msgspec.DecodeError as error:
            return web.json_response({"error": str(error)}, status=400)
        if fault.kind is FaultKind.RESTART:
            await self._simulation.restart()
        else:
            self._simulation.faults.current = fault
        return web.json_response(fault_body(self._simulation.faults.current))
