"""One request and its response, from an accepted head until both sides are done."""

from sidecar.errors import Refusal
from sidecar.requests.observe.usage import AskedStream
from sidecar.requests.proxy import response as responses
from sidecar.requests.proxy.context import ClientSide, Context
from sidecar.requests.proxy.framing import Body
from sidecar.requests.proxy.head import HeadReader, with_length
from sidecar.requests.proxy.observer import GuardedObserver
from sidecar.requests.proxy.outcomes import UPSTREAM_ERRORS, ExchangeOutcome, error_response
from sidecar.requests.proxy.request import RequestHead
from sidecar.requests.proxy.uplink import Uplink


class Exchange:
    """Forwards one request and its response; ends in exactly one ``ExchangeOutcome``."""

    __slots__ = (
        "_asked", "_client", "_context", "_heads", "_keep_alive", "_observer", "_original", "_request",
        "_request_body", "_response_body", "_reusable", "_tunnel", "_uplink", "_waiting", "received",
    )  # fmt: skip

    def __init__(self, client: ClientSide, request: RequestHead, context: Context) -> None:
        self._client = client
        self._context = context
        self._request = request
        self._request_body = request.body()
        self.received = 0  # bytes of the request's payload
        self._uplink = Uplink(self, context.pool)
        self._waiting = bytearray()  # payload held until enough of it has arrived for the upstream
        self._heads: HeadReader | None = None  # from the first byte of a response to its final head
        self._response_body: Body | None = None  # from the final response head on
        self._keep_alive = False  # of the client connection
        self._reusable = False  # the upstream connection
        self._tunnel = False
        self._observer = GuardedObserver(context.counters)
        self._asked: AskedStream | None = None  # the request was changed to ask for usage
        self._original = b""  # the client's own request, until vLLM has accepted the changed one

    @property
    def takes_input(self) -> bool:
        """Whether the client's bytes belong to this exchange rather than the next request."""
        return self._tunnel or not self._request_body.done

    @property
    def awaits_body(self) -> bool:
        """Whether it is the client's turn: the body is incomplete, can be sent, and no response has begun."""
        return not self._request_body.done and self._response_body is None and not self._uplink.blocked

    @property
    def blocked(self) -> bool:
        """Whether the client's bytes have to wait."""
        return self._uplink.blocked

    # -- the request: called by the client connection --------------------------------------------------------------

    def begin(self, data: bytes) -> bytes:
        """Start with the bytes after the head; those after the body are returned.

        A body refused in its first bytes never reaches the upstream.
        """
        request, body, limit = self._request, self._request_body, self._context.options.max_body_bytes
        self._context.counters.exchanges += 1
        self._observer.begin(self._context.observe, request.method, request.target, request.headers)
        if limit is not None and (request.length or 0) > limit:
            self.stop(_too_large())
            return b""
        payload = b""
        if data and not body.done:
            decoded = self._decode(data)
            if decoded is None:
                return b""
            payload, data = decoded, body.rest
        self._take(payload)
        return data

    def client_data(self, data: bytes) -> bytes:
        """More bytes of the body, or of the tunnel; those after the body are returned."""
        if self._tunnel:
            self._uplink.send(data)
            return b""
        payload = self._decode(data)
        if payload is None:
            return b""
        self._take(payload)
        return self._request_body.rest

    def client_gone(self) -> None:
        """The client closed its connection, so the upstream connection is closed immediately."""
        self._uplink.release(reuse=False)
        self._finish(ExchangeOutcome.COMPLETED if self._tunnel else ExchangeOutcome.CLIENT_GONE)

    def client_writable(self, *, writable: bool) -> None:
        """The client accepts bytes again, or too many are unsent and the upstream has to wait."""
        self._uplink.flow(wanted=writable)

    def stop(self, refusal: Refusal | None) -> None:
        """End it from the proxy's side: with ``refusal`` if no response has begun, else by cutting it off."""
        self._uplink.release(reuse=False)
        self._finish(ExchangeOutcome.REFUSED)
        if refusal is None or self._response_body is not None:
            if refusal is not None:
                self._context.counters.refused[refusal.reason] += 1
            self._cut()
        else:
            self._client.refuse(refusal, head_only=self._request.method == b"HEAD")

    def _decode(self, data: bytes) -> bytes | None:
        """The payload; None if the body is refused, which ends the exchange."""
        limit = self._context.options.max_body_bytes
        try:
            payload = self._request_body.decode(data)
            self.received += len(payload)
            if limit is not None and self.received > limit:
                raise _too_large()
        except Refusal as refusal:
            self.stop(refusal)
            return None
        return payload

    def _take(self, payload: bytes) -> None:
        self._send(payload)
        self._observer.request_piece(payload)
        if self._request_body.done:
            self._observer.request_end()

    def _send(self, payload: bytes) -> None:
        request, body = self._request, self._request_body
        if self._uplink.opened:
            if outgoing := body.encode(payload):
                self._uplink.send(outgoing)
            return
        self._waiting += payload
        if not body.done and (
            len(self._waiting) < self._observer.ask_bytes
            or request.can_wait(self.received, self._context.options.awaited_body_bytes)
        ):
            return
        whole, self._waiting = bytes(self._waiting), bytearray()
        self._asked = self._observer.ask(whole) if body.done else None
        outgoing = request.forwarded + body.encode(whole)
        if self._asked is not None:
            self._original = outgoing
            changed, self._asked.body = self._asked.body, b""
            outgoing = with_length(request.forwarded, len(changed)) + body.encode(changed)
        self._open(outgoing)

    def _open(self, outgoing: bytes) -> None:
        self._uplink.open(outgoing, complete=self._request_body.done, repeatable=self._request.repeatable)
        if self._uplink.blocked:
            self._client.reading_changed()

    # -- the response: called by the upstream connection and the uplink --------------------------------------------

    def response_data(self, data: bytes) -> None:
        """See ``UpstreamUser``."""
        try:
            if self._response_body is not None:
                self._body_data(self._response_body, data)
            elif self._tunnel:
                self._client.write(data)
            else:
                self._head_data(data)
        except Refusal:
            self.fail("invalid")

    def upstream_ended(self, *, orderly: bool) -> None:
        """See ``UpstreamUser``."""
        body = self._response_body
        if self._tunnel:
            self._uplink.release(reuse=False)
            self._finish(ExchangeOutcome.COMPLETED)
            self._client.cut(reset=not orderly)
        elif body is not None and orderly and body.sender_closed():
            self._reusable = False
            self._client.write(body.encode(self._forwarded(b"", done=True)))
            self._complete()
        elif self._heads is not None:
            self.fail("interrupted")
        elif self._uplink.retry():
            self._context.counters.retries += 1
        else:
            self.fail("closed")

    def upstream_writable(self, *, writable: bool) -> None:
        """See ``UpstreamUser``."""
        self._uplink.blocked = not writable
        self._client.reading_changed()

    def uplink_connected(self) -> None:
        """See ``UpstreamUser``."""
        if not self._client.is_writable():
            self._uplink.flow(wanted=False)
        self._client.reading_changed()

    def _head_data(self, data: bytes) -> None:
        reader = self._heads
        if reader is None:
            reader = self._heads = HeadReader(responses.MAX_HEAD_BYTES)
        while (found := reader.feed(data)) is not None:
            head, data = responses.parse_response(found[0]), found[1]
            if head.status == 101:
                self._open_tunnel(head, data)
                return
            if head.status >= 200:
                self._final_head(head, data)
                return
            if self._request.minor == 1:
                self._client.write(responses.interim_head(head))

    def _final_head(self, head: responses.ResponseHead, data: bytes) -> None:
        """Forward the head together with the body bytes received so far: one write, one wake-up of the client."""
        original, self._original = self._original, b""
        if self._asked is not None and self._asked.refused(head.status, head.headers):
            self._repeat(original)
            return
        request = self._request
        body = responses.response_body(request, head)
        payload, rest = b"", data
        if data and not body.done:
            payload, rest = body.decode(data), body.rest  # a fault here still becomes a 502
        self._response_body = body
        alive = request.keep_alive and self._request_body.done and not body.until_close
        self._keep_alive = alive and not self._context.draining
        self._reusable = head.keep_alive and not rest
        self._client.write(
            responses.final_head(request, head, body, keep_alive=self._keep_alive)
            + body.encode(self._forwarded(payload, done=body.done))
        )
        self._observer.reply_head(head.status, head.headers)
        self._observer.reply_piece(payload)
        if body.done:
            self._complete()

    def _body_data(self, body: Body, data: bytes) -> None:
        payload = body.decode(data)
        forwarded = self._forwarded(payload, done=body.done)
        if forwarded or body.done:
            self._client.write(body.encode(forwarded))
        self._observer.reply_piece(payload)
        if body.done:
            self._reusable = self._reusable and not body.rest
            self._complete()

    def _forwarded(self, payload: bytes, *, done: bool) -> bytes:
        """The part of the reply's payload to send to the client now."""
        return payload if self._asked is None else self._asked.forward(payload, last=done)

    def _repeat(self, original: bytes) -> None:
        """Send the client's own request in place of the changed one."""
        self._uplink.release(reuse=False)
        self._uplink = Uplink(self, self._context.pool)
        self._heads = None
        self._open(original)

    def _open_tunnel(self, head: responses.ResponseHead, data: bytes) -> None:
        if not (self._request.websocket and head.websocket):
            raise Refusal("101 without a websocket")
        self._tunnel = True
        self._client.write(responses.interim_head(head) + data)
        self._observer.reply_head(head.status, head.headers)
        self._client.reading_changed()

    # -- the end ---------------------------------------------------------------------------------------------------

    def _complete(self) -> None:
        self._uplink.release(reuse=self._reusable and self._request_body.done)
        self._finish(ExchangeOutcome.COMPLETED)
        self._client.exchange_done(keep_alive=self._keep_alive)

    def fail(self, kind: str) -> None:
        """See ``UpstreamUser``."""
        self._context.counters.upstream_errors[kind] += 1
        self._uplink.release(reuse=False)
        self._finish(ExchangeOutcome.UPSTREAM_FAILED)
        if self._response_body is not None:
            self._cut()
            return
        status, message = UPSTREAM_ERRORS[kind]
        request = self._request
        keep_alive = request.keep_alive and self._request_body.done and not self._context.draining
        head_only = request.method == b"HEAD"
        self._client.write(error_response(status, message, close=not keep_alive, head_only=head_only))
        self._client.exchange_done(keep_alive=keep_alive)

    def _cut(self) -> None:
        if self._response_body is not None and self._asked is not None and (rest := self._asked.rest()):
            self._client.write(self._response_body.encode(rest))
        self._client.cut(reset=self._response_body is not None and self._response_body.until_close)

    def _finish(self, outcome: ExchangeOutcome) -> None:
        self._context.counters.outcomes[outcome] += 1
        self._observer.finished(outcome)


def _too_large() -> Refusal:
    return Refusal("the request's body is too large", "body_too_large")
