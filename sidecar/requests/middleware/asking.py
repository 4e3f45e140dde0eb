"""Serves one request, asking for usage on the client's behalf; see ``observe/usage.py``."""

from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

from sidecar.requests.observe.endpoint import Endpoint
from sidecar.requests.observe.usage import AskedStream, UsageAsker

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class AskingExchange:
    """One request to a completions endpoint, between the server and the application.

    ``sent`` is called with each message of the reply as the application sent it.
    """

    def __init__(self, asker: UsageAsker, endpoint: Endpoint, max_bytes: int, sent: Callable[[Message], None]) -> None:
        self.stream: AskedStream | None = None  # None: the request is not changed
        self._asker = asker
        self._endpoint = endpoint
        self._max_bytes = max_bytes
        self._sent = sent
        self._refused = False  # the changed request was refused

    async def serve(self, app: App, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request, changed or unchanged."""
        messages, body = await self._read(receive)
        with suppress(Exception):  # no exception of ours may reach the request
            self.stream = None if body is None else self._asker.ask(self._endpoint, body)
        stream = self.stream

        async def unchanged(message: Message) -> None:
            if stream is not None:
                _is_refused(stream, message)
            await send(message)
            self._sent(message)

        if stream is not None:
            before = dict(scope)
            changed, stream.body = stream.body, b""
            scope["headers"] = _with_length(scope["headers"], len(changed))
            asking: list[Message] = [{"type": "http.request", "body": changed, "more_body": False}]
            del changed, body  # a stream may last long

            async def without_usage(message: Message) -> None:
                await self._send(stream, message, messages, send)

            await app(scope, _replayed(asking, receive), without_usage)
            if not self._refused:
                return
            scope.clear()
            scope.update(before)
        await app(scope, _replayed(messages, receive), unchanged)

    async def _read(self, receive: Receive) -> tuple[list[Message], bytes | None]:
        """The messages with the request's body, and the body; None if it is too large or its client disconnected."""
        messages: list[Message] = []
        body = bytearray()
        while len(body) <= self._max_bytes:
            message = await receive()
            messages.append(message)
            piece = message.get("body", b"")
            if message.get("type") != "http.request" or not isinstance(piece, bytes):
                return messages, None
            body += piece
            if not message.get("more_body"):
                return messages, bytes(body)
        return messages, None

    async def _send(self, stream: AskedStream, message: Message, original: list[Message], send: Send) -> None:
        """Send a message of the reply without the usage; withhold a refusal, otherwise release ``original``."""
        kind = message.get("type")
        if kind == "http.response.start":
            self._refused = _is_refused(stream, message)
            if not self._refused:
                original.clear()
        if self._refused:
            return
        forwarded = body = message.get("body", b"")
        if kind == "http.response.body" and isinstance(body, bytes):
            forwarded = stream.forward(body, last=not message.get("more_body"))
        if forwarded == body:
            await send(message)
        elif forwarded or not message.get("more_body"):
            await send({**message, "body": forwarded})
        self._sent(message)


def _is_refused(stream: AskedStream, message: Message) -> bool:
    """Whether a message begins a reply to be discarded."""
    if message.get("type") != "http.response.start":
        return False
    headers = message.get("headers")
    with suppress(Exception):  # no exception of ours may reach the reply
        return stream.refused(message["status"], headers if isinstance(headers, list | tuple) else ())
    return False


def _replayed(messages: list[Message], receive: Receive) -> Receive:
    """A ``receive`` that returns ``messages`` first, emptying the list."""

    async def replayed() -> Message:
        return messages.pop(0) if messages else await receive()

    return replayed


def _with_length(headers: list[tuple[bytes, bytes]], length: int) -> list[tuple[bytes, bytes]]:
    """``headers`` for a body of ``length`` bytes; a chunked body has no length."""
    return [(name, b"%d" % length if name.lower() == b"content-length" else value) for name, value in headers]
