"""A request's body on its way through: the client's framing off, the upstream's on, within its limit."""

from sidecar.requests.proxy.framing import LAST_CHUNK, Body, ChunkedBody, LengthBody, chunk
from sidecar.requests.proxy.head import RequestHead
from sidecar.requests.proxy.refusal import BodyTooLarge


class RequestBody:
    """Decodes strictly and frames anew."""

    __slots__ = ("_body", "_bytes", "_chunked", "_limit", "done")

    def __init__(self, request: RequestHead, limit: int | None) -> None:
        self._body: Body = ChunkedBody() if request.chunked else LengthBody(request.length or 0)
        self._chunked = request.chunked
        self._limit = limit
        self._bytes = 0
        self.done = self._body.done  # whether the body is complete

    @property
    def rest(self) -> bytes:
        """What came after the body."""
        return self._body.rest

    def feed(self, data: bytes) -> bytes:
        """The payload in ``data``. Raises ``MalformedMessage`` or ``BodyTooLarge``."""
        payload = self._body.feed(data)
        self.done = self._body.done
        self._bytes += len(payload)
        if self._limit is not None and self._bytes > self._limit:
            raise BodyTooLarge("the request's body is too large")
        return payload

    def framed(self, payload: bytes) -> bytes:
        """What the upstream gets for the payload that ``feed`` returned last."""
        if not self._chunked:
            return payload
        data = chunk(payload) if payload else b""
        return data + LAST_CHUNK if self.done else data
