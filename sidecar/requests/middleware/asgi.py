"""The ASGI class that vLLM loads with ``--middleware`` to report each request to the sidecar.

It forwards every message immediately, and then reads it; it changes none unless it is configured to ask for usage. No
exception here can reach the traffic: it is caught and counted, and ends the observation of that one request. Besides
the standard library it needs msgspec, which vLLM depends on.

    SPECDEC_MIDDLEWARE__SOCKET          the sidecar's socket (/run/specdec/events.sock)
    SPECDEC_MIDDLEWARE__MAX_BODY_BYTES  larger bodies are not decoded (1048576)
    SPECDEC_REQUESTS__ASK_USAGE         true: ask vLLM for the usage of streams whose clients did not, and remove it
                                        from their replies; any: also with vLLM versions that were not tried (false)
"""

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from itertools import count
from typing import Final

from sidecar.requests.middleware.asking import App, AskingExchange, Message, Receive, Scope, Send
from sidecar.requests.middleware.sender import EventSender
from sidecar.requests.middleware.wire import DROPPED_INTERNAL
from sidecar.requests.observe.endpoint import endpoint_of
from sidecar.requests.observe.exchange_observer import MAX_BODY_BYTES, ExchangeObserver
from sidecar.requests.observe.usage import AskUsage, UsageAsker
from sidecar.requests.record import RequestRecord, aborted

DEFAULT_SOCKET: Final = "/run/specdec/events.sock"


class ObserveRequests:
    """Observes the requests of one API-server process; see the module."""

    def __init__(self, app: App) -> None:
        self.app = app
        self._path = os.environ.get("SPECDEC_MIDDLEWARE__SOCKET", "").strip() or DEFAULT_SOCKET
        limit = os.environ.get("SPECDEC_MIDDLEWARE__MAX_BODY_BYTES", "")
        self._max_body_bytes = int(limit) if limit.isdecimal() and limit.isascii() else MAX_BODY_BYTES
        self._asker = _asker(os.environ.get("SPECDEC_REQUESTS__ASK_USAGE", ""), self._max_body_bytes)
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

        def sent(message: Message) -> None:
            observation.look(observation.sent, message)

        async def observed_send(message: Message) -> None:
            await send(message)
            sent(message)

        try:
            if self._asker.might_ask(observation.endpoint, scope["headers"]):
                exchange = AskingExchange(self._asker, observation.endpoint, self._max_body_bytes, sent)
                observation.asking = exchange
                await exchange.serve(self.app, scope, observed_receive, send)
            else:
                await self.app(scope, observed_receive, observed_send)
        except Exception:
            observation.finish(failed=True)
            raise
        finally:
            observation.finish(failed=False)

    def _begin(self, scope: Scope) -> "_Observation | None":
        """The observation of a request that generates tokens; None for any other, or if the sidecar is behind."""
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
        """The process's sender, created on its event loop."""
        if self._sender is None:
            self._sender = EventSender(self._path, asyncio.get_running_loop())
        return self._sender

    def _close(self) -> None:
        """Send the last events: the server is shutting down."""
        with suppress(Exception):
            if self._sender is not None:
                self._sender.close()


def _asker(setting: str, max_bytes: int) -> UsageAsker:
    """The asker for this process's vLLM."""
    mode, version = AskUsage.NEVER, None
    with suppress(ValueError):
        mode = AskUsage(setting.strip().lower())
    with suppress(metadata.PackageNotFoundError):
        version = metadata.version("vllm")
    return UsageAsker(mode, max_bytes=max_bytes, version=version)


class _Observation:
    """One request, between the server and the application; ``asking`` if usage may be requested for it."""

    def __init__(self, exchange: ExchangeObserver, sender: EventSender) -> None:
        self.endpoint = exchange.endpoint
        self.asking: AskingExchange | None = None
        self._exchange = exchange
        self._sender = sender
        self._failed = False
        self._finished = False

    def look(self, at: Callable[[Message], None], message: Message) -> None:
        """Observe a message; if that fails, observe no more."""
        if self._failed:
            return
        try:
            at(message)
        except Exception:  # noqa: BLE001 - nothing of ours may reach the request
            self._failed = True

    def received(self, message: Message) -> None:
        """A message from the server: the request's body, or the client's disconnect."""
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
        """The application has finished the request; ``failed``: with an exception. Only the first call counts."""
        if self._finished:
            return
        self._finished = True
        with suppress(Exception):  # no exception of ours may reach the request
            self._sender.finished(self._record(failed=failed))
            for fault in self._exchange.faults:
                self._sender.dropped(fault, 1)

    def _record(self, *, failed: bool) -> RequestRecord:
        with suppress(Exception):
            if not self._failed:
                stream = self.asking and self.asking.stream
                return self._exchange.finish(failed=failed, asked_usage=stream.outcome if stream else None)
        self._sender.dropped(DROPPED_INTERNAL, 1)
        return aborted(self._exchange.start, time.time())
