"""One request and its response: from the moment a head is accepted until both sides are done with it."""

from sidecar.requests.proxy import response as responses
from sidecar.requests.proxy.context import ClientSide, Context
from sidecar.requests.proxy.framing import LAST_CHUNK, UntilCloseBody
from sidecar.requests.proxy.head import RequestHead, ResponseHead
from sidecar.requests.proxy.observe import ExchangeOutcome, Watch
from sidecar.requests.proxy.refusal import BodyTooLarge, MalformedMessage, Refusal, error_response
from sidecar.requests.proxy.request_body import RequestBody
from sidecar.requests.proxy.uplink import Uplink

# Methods that a server may execute twice without harm (RFC 9110, 9.2.1). PUT and DELETE are idempotent, yet left
# out: what an engine's own endpoints make of them is not the relay's to know.
_SAFE = frozenset({b"GET", b"HEAD", b"OPTIONS", b"TRACE"})

# What the client is told, by kind of upstream error.
_FAILURES = {
    "connect": (502, "the upstream server is not reachable"),
    "connect_timeout": (504, "the upstream server did not accept a connection in time"),
    "tls": (502, "no secure connection to the upstream server"),
    "closed": (502, "the upstream server closed the connection before it answered"),
    "interrupted": (502, "the upstream server closed the connection before it answered"),
    "invalid": (502, "the upstream server sent an invalid response"),
}


class Exchange:
    """Passes one request up and its response down; ends in exactly one ``ExchangeOutcome``."""

    __slots__ = ("_body", "_client", "_context", "_framing", "_heads", "_keep_alive", "_request", "_reusable",
                 "_tunnel", "_uplink", "_watch")  # fmt: skip

    def __init__(self, client: ClientSide, request: RequestHead, context: Context) -> None:
        self._client = client
        self._request = request
        self._context = context
        self._body = RequestBody(request, context.options.max_body_bytes)
        self._uplink = Uplink(self, context.pool)
        self._heads = responses.HeadReader()
        self._framing: responses.Framing | None = None  # from the final response head on
        self._keep_alive = False  # of the client's connection
        self._reusable = False  # the upstream's connection
        self._tunnel = False
        self._watch: Watch | None = None

    @property
    def takes_input(self) -> bool:
        """Whether the client's bytes belong to this exchange, not to a next request."""
        return self._tunnel or not self._body.done

    @property
    def awaits_body(self) -> bool:
        """Whether it is the client's turn: the body is incomplete, there is room for it, no response has begun."""
        return not self._body.done and self._framing is None and not self._uplink.blocked

    @property
    def blocked(self) -> bool:
        """Whether the client's bytes have to wait."""
        return self._uplink.blocked

    # -- the way up: called by the client's connection -------------------------------------------------------------

    def begin(self, data: bytes) -> bytes:
        """Start with the bytes after the head; those after the body come back.

        A first piece of body that breaks the framing is refused before the upstream hears of the request.
        """
        context, request, body = self._context, self._request, self._body
        context.counters.exchanges += 1
        watch = self._watch = Watch.make(context.observe, context.counters)
        if watch is not None:
            watch.request_head(request.method, request.target, request.headers)
        limit = context.options.max_body_bytes
        if limit is not None and (request.length or 0) > limit:
            self.stop(BodyTooLarge("the request's body is too large"))
            return b""
        payload = b""
        outgoing = request.head
        if data and not body.done:
            decoded = self._decode(data)
            if decoded is None:
                return b""
            payload, data = decoded, body.rest
            outgoing += body.framed(payload)
        repeatable = request.bodyless and request.method in _SAFE
        self._uplink.open(outgoing, complete=body.done, repeatable=repeatable)
        self._show(payload)
        return data

    def client_data(self, data: bytes) -> bytes:
        """More bytes of the body, or of the tunnel; those after the body come back."""
        if self._tunnel:
            self._uplink.send(data)
            return b""
        payload = self._decode(data)
        if payload is None:
            return b""
        outgoing = self._body.framed(payload)
        if outgoing:
            self._uplink.send(outgoing)
        self._show(payload)
        return self._body.rest

    def client_gone(self) -> None:
        """The client closed its connection: so the upstream's is closed, at once."""
        self._uplink.release(reuse=False)
        self._finish(ExchangeOutcome.COMPLETED if self._tunnel else ExchangeOutcome.CLIENT_GONE)

    def client_writable(self, *, writable: bool) -> None:
        """The client takes bytes again, or has too many unsent ones: the upstream is held back as long."""
        self._uplink.flow(wanted=writable)

    def stop(self, refusal: Refusal | None) -> None:
        """End it from the relay's side: with ``refusal`` where no response has begun, else by a cut."""
        self._uplink.release(reuse=False)
        self._finish(ExchangeOutcome.REFUSED)
        if refusal is None or self._framing is not None:
            if refusal is not None:
                self._context.counters.refused[refusal.reason] += 1
            self._cut()
        else:
            self._client.refuse(refusal, head_only=self._request.method == b"HEAD")

    def _show(self, payload: bytes) -> None:
        watch = self._watch
        if watch is not None:
            if payload:
                watch.request_body(payload)
            if self._body.done:
                watch.request_end()

    def _decode(self, data: bytes) -> bytes | None:
        """The payload; None where the body is refused, which ends the exchange."""
        try:
            return self._body.feed(data)
        except BodyTooLarge as refusal:
            self.stop(refusal)
        except MalformedMessage as fault:
            self.stop(Refusal(str(fault)))
        return None

    # -- the way down: called by the upstream's connection and the uplink ------------------------------------------

    def response_data(self, data: bytes) -> None:
        """See ``ResponseSink``."""
        try:
            if self._framing is not None:
                self._response_body(self._framing, data)
            elif self._tunnel:
                self._client.write(data)
            else:
                self._response_heads(data)
        except MalformedMessage:
            self._fail("invalid")

    def upstream_ended(self, *, orderly: bool) -> None:
        """See ``ResponseSink``."""
        framing = self._framing
        if self._tunnel:
            self._uplink.release(reuse=False)
            self._finish(ExchangeOutcome.COMPLETED)
            self._client.cut(reset=not orderly)
        elif framing is not None and isinstance(framing.body, UntilCloseBody) and orderly:
            self._reusable = False
            if framing.chunked:
                self._client.write(LAST_CHUNK)
            self._complete()
        elif self._heads.started:
            self._fail("interrupted")
        elif self._uplink.retry():
            self._context.counters.retries += 1
        else:
            self._fail("closed")

    def upstream_writable(self, *, writable: bool) -> None:
        """See ``ResponseSink``."""
        self._uplink.set_blocked(blocked=not writable)

    def uplink_attached(self) -> None:
        """See ``UplinkUser``."""
        if not self._client.is_writable():
            self._uplink.flow(wanted=False)

    def uplink_blocked_changed(self) -> None:
        """See ``UplinkUser``."""
        self._client.reading_changed()

    def connect_failed(self, kind: str) -> None:
        """See ``UplinkUser``."""
        self._fail(kind)

    def _response_heads(self, data: bytes) -> None:
        while (head := self._heads.feed(data)) is not None:
            data = self._heads.rest
            if head.status == 101:
                self._open_tunnel(head, data)
                return
            if head.status >= 200:
                self._final_head(head, data)
                return
            if self._request.minor == 1:
                self._client.write(responses.interim_head(head))

    def _final_head(self, head: ResponseHead, data: bytes) -> None:
        """Pass the head on together with what came of the body: one write, one wake-up of the client."""
        request = self._request
        framing = responses.frame(request, head)
        body = framing.body
        if data and not body.done:
            payload = body.feed(data)  # a fault here still becomes a 502
            rest = body.rest
        else:
            payload, rest = b"", data
        self._framing = framing
        alive = request.keep_alive and self._body.done and not framing.until_close
        self._keep_alive = alive and not self._context.draining
        self._reusable = head.keep_alive and not rest
        self._client.write(
            responses.final_head(request, head, framing, keep_alive=self._keep_alive) + framing.encode(payload)
        )
        if self._watch is not None:
            self._watch.response_head(head.status, head.headers)
            if payload:
                self._watch.response_body(payload)
        if body.done:
            self._complete()

    def _response_body(self, framing: responses.Framing, data: bytes) -> None:
        body = framing.body
        payload = body.feed(data)
        if body.done:
            self._client.write(framing.encode(payload))
        elif payload:
            self._client.write(b"%x\r\n%b\r\n" % (len(payload), payload) if framing.chunked else payload)
        if payload and self._watch is not None:
            self._watch.response_body(payload)
        if body.done:
            self._reusable = self._reusable and not body.rest
            self._complete()

    def _open_tunnel(self, head: ResponseHead, data: bytes) -> None:
        if not (self._request.websocket and head.websocket):
            raise MalformedMessage("101 without a websocket")
        self._tunnel = True
        self._client.write(responses.interim_head(head) + data)
        if self._watch is not None:
            self._watch.response_head(head.status, head.headers)
        self._client.reading_changed()

    # -- the end ---------------------------------------------------------------------------------------------------

    def _complete(self) -> None:
        self._uplink.release(reuse=self._reusable and self._body.done)
        self._finish(ExchangeOutcome.COMPLETED)
        self._client.exchange_done(keep_alive=self._keep_alive)

    def _fail(self, kind: str) -> None:
        self._context.counters.upstream_errors[kind] += 1
        self._uplink.release(reuse=False)
        self._finish(ExchangeOutcome.UPSTREAM_FAILED)
        if self._framing is not None:
            self._cut()
            return
        status, message = _FAILURES[kind]
        keep_alive = self._request.keep_alive and self._body.done and not self._context.draining
        head_only = self._request.method == b"HEAD"
        self._client.write(error_response(status, message, close=not keep_alive, head_only=head_only))
        self._client.exchange_done(keep_alive=keep_alive)

    def _cut(self) -> None:
        self._client.cut(reset=self._framing is not None and self._framing.until_close)

    def _finish(self, outcome: ExchangeOutcome) -> None:
        self._context.counters.outcomes[outcome] += 1
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.finished(outcome)
