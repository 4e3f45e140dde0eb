"""The ASGI class that vLLM loads with ``--middleware`` to tell the sidecar about each request.

It passes every message on as it is, at once and unchanged; it only looks. Nothing of it can reach the traffic: its
own faults are caught, counted and end the observation of that one request. It needs msgspec, which vLLM has, and
nothing else besides the standard library.

    SPECDEC_MIDDLEWARE__SOCKET          the sidecar's socket (/run/specdec/events.sock)
    SPECDEC_MIDDLEWARE__MAX_BODY_BYTES  larger bodies are not decoded (1048576)
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, Final

from sidecar.requests.middleware.sender import EventSender
from sidecar.requests.middleware.wire import DROPPED_INTERNAL, begun
from sidecar.requests.observe.exchange import MAX_BODY_BYTES, ExchangeObserver
from sidecar.requests.observe.payload import endpoint_of
from sidecar.requests.observe.pieces import PIECE_BYTES, Discarded, Gatherer

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_EXTENSIONS: Final = frozenset({"http.response.trailers", "http.response.debug"})
DEFAULT_SOCKET: Final = "/run/specdec/events.sock"


class ObserveRequests:
    """Observes the requests of one API-server process; see the module."""

    def __init__(self, app: App) -> None:
        self.app = app
        self._path = os.environ.get("SPECDEC_MIDDLEWARE__SOCKET", "").strip() or DEFAULT_SOCKET
        limit = os.environ.get("SPECDEC_MIDDLEWARE__MAX_BODY_BYTES", "")
        self._max_body_bytes = int(limit) if limit.isdecimal() and limit.isascii() else MAX_BODY_BYTES
        self._sender: EventSender | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection's scope; websockets and lifespan pass straight through."""
        observation = self._begin(scope, receive)
        if observation is None:
            await self.app(scope, receive, send)
            if scope["type"] == "lifespan":
                self._close()  # the server is going down
            return
        try:
            await self.app(scope, observation.receive, observation.over(send))
        except Exception:
            observation.finish(failed=True)
            raise
        finally:
            observation.finish(failed=False)

    def _begin(self, scope: Scope, receive: Receive) -> "_Observation | None":
        if scope["type"] != "http":
            return None
        try:
            endpoint = endpoint_of(scope["method"], scope["path"])
            if endpoint is None:
                return None
            sender = self._sender_here()
            number = sender.next_number()
            exchange = ExchangeObserver(
                "", endpoint, scope["headers"], max_bytes=self._max_body_bytes, whole_events=True
            )
            sender.started(begun(number, endpoint, exchange.began))
            return _Observation(number, exchange, sender, receive)
        except Exception:  # noqa: BLE001 - nothing of ours may reach the request
            self._count_fault()
            return None

    def _sender_here(self) -> EventSender:
        """This event loop's sender; there is one loop a process."""
        loop = asyncio.get_running_loop()
        if self._sender is None or self._loop is not loop:
            self._sender = EventSender(self._path, loop)
            self._loop = loop
        return self._sender

    def _count_fault(self) -> None:
        with suppress(Exception):  # there is nothing left to count it with
            self._sender_here().dropped(DROPPED_INTERNAL, 1)

    def _close(self) -> None:
        with suppress(Exception):  # the server is going down
            if self._sender is not None:
                self._sender.close()


class _Observation:
    """One request, between the server and the application."""

    __slots__ = ("_exchange", "_faulty", "_finished", "_last", "_number", "_receive", "_sender")

    def __init__(self, number: int, exchange: ExchangeObserver, sender: EventSender, receive: Receive) -> None:
        self._number = number
        self._exchange = exchange
        self._sender = sender
        self._receive = receive
        self._last: Message | None = None  # of the reply's body
        self._faulty = False
        self._finished = False

    async def receive(self) -> Message:
        """The server's next message, as it is."""
        message = await self._receive()
        if not self._faulty:
            try:
                self._received(message)
            except Exception:  # noqa: BLE001 - nothing of ours may reach the request
                self._faulty = True
        return message

    def over(self, send: Send) -> Send:
        """A ``send`` that passes every message on as it is; no coroutine of ours stands between.

        It runs for each streamed chunk, so it does what ``Gatherer.feed`` does without the call, in a closure.
        """
        reply: Gatherer
        keep: Callable[[bytes], None]
        limit, gathered, begun = 0, 0, False

        def observed(message: Message) -> Awaitable[None]:
            nonlocal reply, keep, limit, gathered, begun
            try:
                if begun:
                    body = message["body"]
                    self._last = message
                    keep(body)
                    gathered += len(body) + PIECE_BYTES
                    if gathered > limit:
                        gathered = reply.settle(gathered)
                        limit = reply.limit
                elif message["type"] == "http.response.start":
                    reply = self._begin_reply(message)
                    keep, limit, begun = reply.pieces.append, reply.limit, True
            except Exception:  # noqa: BLE001 - nothing of ours may reach the request
                self._sent_other(message)
            return send(message)

        return observed

    def _received(self, message: Message) -> None:
        if message["type"] == "http.request":
            if message.get("more_body"):
                self._exchange.request_piece(message.get("body", b""))
            else:
                self._exchange.request_end(message.get("body", b""))
        elif message["type"] == "http.disconnect":
            self._note_end()
            self._exchange.client_gone()

    def _begin_reply(self, message: Message) -> Gatherer:
        headers = message.get("headers", ())
        if not isinstance(headers, list | tuple):
            raise TypeError("headers that may be gone once they are read")
        self._exchange.reply_head(message["status"], headers)
        return self._exchange.reply or Discarded()

    def _sent_other(self, message: Message) -> None:
        """A message that is not as most are: a last piece may leave its body out. Else it is a fault."""
        if message.get("type") == "http.response.body" and "body" not in message:
            self._last = message
        elif message.get("type") not in _EXTENSIONS:
            self._faulty = True

    def _note_end(self) -> None:
        if self._last is not None and not self._last.get("more_body"):
            self._exchange.reply_end()

    def finish(self, *, failed: bool) -> None:
        """The application is done with the request; ``failed``: by an exception. Only the first call counts."""
        if self._finished:
            return
        self._finished = True
        try:
            if self._faulty:
                self._sender.forgotten(self._number, DROPPED_INTERNAL)
                return
            self._note_end()
            self._sender.finished(self._exchange.finish_as_event(self._number, failed=failed))
            for fault in self._exchange.faults:
                self._sender.dropped(fault.value, 1)
        except Exception:  # noqa: BLE001 - nothing of ours may reach the request
            self._sender.forgotten(self._number, DROPPED_INTERNAL)
