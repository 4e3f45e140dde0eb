"""The simulated vLLM as a process, with the middleware loaded: ``python -m benchmarks.faults.vllm PORT SPEED``.

Completions go through the middleware's ASGI class, as ``vllm serve --middleware`` has it; without a sidecar on its
socket that changes nothing. With a further argument ``inferred`` no reply has vLLM's numbers per request.
"""

import sys
from collections.abc import Awaitable, Callable

import uvloop
from aiohttp import web

from sidecar.commands.stopping import stop_on_signals
from sidecar.demo.inference_requests import parse_request
from sidecar.demo.options import SimulatorOptions
from sidecar.demo.replies import Reply
from sidecar.demo.server import SimulatedVllm
from sidecar.requests.middleware.asgi import ObserveRequests
from sidecar.requests.middleware.asking import Message, Receive, Scope, Send

_COMPLETIONS = "/v1/completions"


class ObservedVllm(SimulatedVllm):
    """A simulated vLLM whose completions the middleware observes."""

    def __init__(self, options: SimulatorOptions, *, port: int) -> None:
        self._asgi = ObserveRequests(self._complete)
        super().__init__(options, port=port, middlewares=[self._routed()])

    def _routed(self) -> Callable[..., Awaitable[web.StreamResponse]]:
        @web.middleware
        async def route(
            http: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            return await self._serve(http) if http.path == _COMPLETIONS else await handler(http)

        return route

    async def _serve(self, http: web.Request) -> web.StreamResponse:
        """The server's side of ASGI."""
        response = web.StreamResponse()

        async def receive() -> Message:
            return {"type": "http.request", "body": await http.read(), "more_body": False}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                for name, value in message["headers"]:
                    response.headers[name.decode()] = value.decode()
                await response.prepare(http)
            elif message["more_body"]:
                await response.write(message["body"])
            else:
                await response.write_eof(message["body"])

        scope = {"type": "http", "method": http.method, "path": http.path, "headers": list(http.raw_headers)}
        await self._asgi(scope, receive, send)
        return response

    async def _complete(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """The application's side."""
        request = parse_request((await receive())["body"], chat=False, options=self.options)
        reply = Reply(request, self.options.model_name, chat=False, exact=self.options.exact)
        driver = self.driver
        mailbox, generations = driver.submit(request.prompts, request.sampling, request.n)
        kind = b"text/event-stream; charset=utf-8" if request.stream else b"application/json"
        headers = [(b"content-type", kind)]
        head: Message = {"type": "http.response.start", "status": 200, "headers": headers}
        try:
            begun, unfinished = False, len(generations)
            while unfinished:
                deltas = await mailbox.take()
                unfinished -= sum(delta.reason is not None for delta in deltas)
                if request.stream:
                    if not begun:
                        await send(head)
                    begun = True
                    events = b"".join(map(reply.event, deltas))
                    await send({"type": "http.response.body", "body": events, "more_body": True})
            if request.stream:
                await send({"type": "http.response.body", "body": reply.end(generations), "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            else:
                body = reply.whole(generations)
                headers.append((b"content-length", b"%d" % len(body)))
                await send(head)
                await send({"type": "http.response.body", "body": body, "more_body": False})
        finally:
            driver.close(generations)


async def main(port: int, speed: float, *, exact: bool) -> None:
    stop = stop_on_signals()
    async with ObservedVllm(SimulatorOptions(speed=speed, exact=exact), port=port):
        await stop.wait()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), float(sys.argv[2]), exact="inferred" not in sys.argv))
