"""Serves one request with usage asked for on the client's behalf; see ``observe/usage.py``."""

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
        self.stream: AskedStream | None = None  # None: the request is left alone
        self._asker = asker
        self._endpoint = endpoint
        self._max_bytes = max_bytes
        self._sent = sent

    async def serve(self, app: App, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request: asking, or as it is."""
        messages, body = await self._read(receive)
        if body is not None:
            self.stream = self._ask(body)
        if self.stream is not None:
            before = dict(scope)
            changed, self.stream.body = self.stream.body, b""
            scope["headers"] = _with_length(scope["headers"], len(changed))
            first = _FirstReply(self.stream, messages, send, self._sent)
            asking: list[Message] = [{"type": "http.request", "body": changed, "more_body": False}]
            del changed, body  # a stream may last long
            await app(scope, _replayed(asking, receive), first.send)
            if not first.refused:
                return
            scope.clear()
            scope.update(before)

        async def unchanged(message: Message) -> None:
            if self.stream is not None:
                _is_refused(self.stream, message)
            await send(message)
            self._sent(message)

        await app(scope, _replayed(messages, receive), unchanged)

    async def _read(self, receive: Receive) -> tuple[list[Message], bytes | None]:
        """The messages with the request's body, and the body; None if it is too large or its client has gone."""
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

    def _ask(self, body: bytes) -> AskedStream | None:
        with suppress(Exception):  # nothing of ours may reach the request
            return self._asker.ask(self._endpoint, body)
        return None


class _FirstReply:
    """The reply to the asking request: withheld if it is a refusal, else without the usage.

    Unless it is a refusal, the messages of the ``original`` request are released.
    """

    def __init__(
        self, stream: AskedStream, original: list[Message], send: Send, sent: Callable[[Message], None]
    ) -> None:
        self.refused = False
        self._stream = stream
        self._original = original
        self._send = send
        self._sent = sent

    async def send(self, message: Message) -> None:
        """A message of the application."""
        kind = message.get("type")
        if kind == "http.response.start":
            self.refused = _is_refused(self._stream, message)
            if not self.refused:
                self._original.clear()
        if self.refused:
            return
        forwarded = body = message.get("body", b"")
        if kind == "http.response.body" and isinstance(body, bytes):
            forwarded = self._stream.forward(body, last=not message.get("more_body"))
        if forwarded == body:
            await self._send(message)
        elif forwarded or not message.get("more_body"):
            await self._send({**message, "body": forwarded})
        self._sent(message)


def _is_refused(stream: AskedStream, message: Message) -> bool:
    """Whether a message begins a reply that is discarded."""
    if message.get("type") != "http.response.start":
        return False
    headers = message.get("headers")
    with suppress(Exception):  # nothing of ours may reach the reply
        return stream.refused(message["status"], headers if isinstance(headers, list | tuple) else ())
    return False


def _replayed(messages: list[Message], receive: Receive) -> Receive:
    """A ``receive`` that gives ``messages`` first, and empties them."""

    async def replayed() -> Message:
        return messages.pop(0) if messages else await receive()

    return replayed


def _with_length(headers: list[tuple[bytes, bytes]], length: int) -> list[tuple[bytes, bytes]]:
    """``headers`` for a body of ``length`` bytes; one in chunks has none."""
    return [(name, b"%d" % length if name.lower() == b"content-length" else value) for name, value in headers]
