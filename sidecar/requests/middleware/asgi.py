"""The ASGI class that vLLM loads with ``--middleware`` to tell the sidecar about each request.

It passes every message on unchanged and at once, and then looks at it. Nothing that fails here can reach the traffic:
it is caught and counted, and ends the observation of that one request. Besides the standard library it needs msgspec,
which vLLM has.

    SPECDEC_MIDDLEWARE__SOCKET          the sidecar's socket (/run/specdec/events.sock)
    SPECDEC_MIDDLEWARE__MAX_BODY_BYTES  larger bodies are not decoded (1048576)
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from itertools import count
from typing import Any, Final

from sidecar.requests.middleware.sender import EventSender
from sidecar.requests.middleware.wire import DROPPED_INTERNAL
from sidecar.requests.observe.endpoint import endpoint_of
from sidecar.requests.observe.exchange_observer import MAX_BODY_BYTES, ExchangeObserver
from sidecar.requests.record import RequestRecord, aborted

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

DEFAULT_SOCKET: Final = "/run/specdec/events.sock"


class ObserveRequests:
    """Observes the requests of one API-server process; see the module."""

    def __init__(self, app: App) -> None:
        self.app = app
        self._path = os.environ.get("SPECDEC_MIDDLEWARE__SOCKET", "").strip() or DEFAULT_SOCKET
        limit = os.environ.get("SPECDEC_MIDDLEWARE__MAX_BODY_BYTES", "")
        self._max_body_bytes = int(limit) if limit.isdecimal() and limit.isascii() else MAX_BODY_BYTES
        self._numbers = count()
        self._sender: EventSender | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one scope; websockets and lifespan pass straight through."""
        observation = self._begin(scope)
        if observation is None:
            await self.app(scope, receive, send)
            if scope["type"] == "lifespan":
                self._close()
            return

        async def observed_receive() -> Message:
            message = await receive()
            observation.look(observation.received, message)
            return message

        async def observed_send(message: Message) -> None:
            await send(message)
            observation.look(observation.sent, message)

        try:
            await self.app(scope, observed_receive, observed_send)
        except Exception:
            observation.finish(failed=True)
            raise
        finally:
            observation.finish(failed=False)

    def _begin(self, scope: Scope) -> "_Observation | None":
        """The observation of a request that generates tokens; None for all else, and if the sidecar is far behind."""
        if scope["type"] != "http":
            return None
        try:
            endpoint = endpoint_of(scope["method"], scope["path"])
            if endpoint is None:
                return None
            sender = self._sender_here()
            exchange = ExchangeObserver(
                f"{next(self._numbers):x}", endpoint, scope["headers"], max_bytes=self._max_body_bytes
            )
            return _Observation(exchange, sender) if sender.started(exchange.start) else None
        except Exception:  # noqa: BLE001 - nothing of ours may reach the request
            with suppress(Exception):
                self._sender_here().dropped(DROPPED_INTERNAL, 1)
            return None

    def _sender_here(self) -> EventSender:
        """The process's sender, made where its event loop runs."""
        if self._sender is None:
            self._sender = EventSender(self._path, asyncio.get_running_loop())
        return self._sender

    def _close(self) -> None:
        """Send the last events: the server is going down."""
        with suppress(Exception):
            if self._sender is not None:
                self._sender.close()


class _Observation:
    """One request, between the server and the application."""

    __slots__ = ("_exchange", "_failed", "_finished", "_sender")

    def __init__(self, exchange: ExchangeObserver, sender: EventSender) -> None:
        self._exchange = exchange
        self._sender = sender
        self._failed = False
        self._finished = False

    def look(self, at: Callable[[Message], None], message: Message) -> None:
        """Look at a message; once that fails, at no other."""
        if self._failed:
            return
        try:
            at(message)
        except Exception:  # noqa: BLE001 - nothing of ours may reach the request
            self._failed = True

    def received(self, message: Message) -> None:
        """A message from the server: the request's body, or that the client has gone."""
        if message["type"] == "http.disconnect":
            self._exchange.client_gone()
        elif message.get("more_body"):
            self._exchange.request_piece(message.get("body", b""))
        else:
            self._exchange.request_end(message.get("body", b""))

    def sent(self, message: Message) -> None:
        """A message from the application: the reply."""
        if message["type"] == "http.response.body":
            self._exchange.reply_piece(message.get("body", b""))
            if not message.get("more_body"):
                self._exchange.reply_end()
        elif message["type"] == "http.response.start":
            self._exchange.reply_head(message["status"], message.get("headers", ()))

    def finish(self, *, failed: bool) -> None:
        """The application is done with the request; ``failed``: by an exception. Only the first call counts."""
        if self._finished:
            return
        self._finished = True
        with suppress(Exception):  # nothing of ours may reach the request
            self._sender.finished(self._record(failed=failed))
            for fault in self._exchange.faults:
                self._sender.dropped(fault, 1)

    def _record(self, *, failed: bool) -> RequestRecord:
        with suppress(Exception):
            if not self._failed:
                return self._exchange.finish(failed=failed)
        self._sender.dropped(DROPPED_INTERNAL, 1)
        return aborted(self._exchange.start, time.time())
