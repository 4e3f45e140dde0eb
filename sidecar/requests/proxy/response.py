"""A response on its way through: the upstream's bytes in, the client's bytes out, and nothing but that."""

import msgspec

from sidecar.requests.proxy.framing import LAST_CHUNK, Body, ChunkedBody, LengthBody, UntilCloseBody
from sidecar.requests.proxy.head import END, RequestHead, ResponseHead, parse_response, without_length
from sidecar.requests.proxy.refusal import MalformedMessage

_MAX_HEAD_BYTES = 262_144  # of an upstream's head; far more than any server sends


class Framing(msgspec.Struct):
    """How a response's body comes, and how it goes on."""

    body: Body
    chunked: bool  # towards the client
    until_close: bool  # towards the client: the end of the connection is the end of the body

    def encode(self, payload: bytes) -> bytes:
        """What the client gets for the payload that ``body`` returned last, with the end where that was it."""
        if not self.chunked:
            return payload
        data = b"%x\r\n%b\r\n" % (len(payload), payload) if payload else b""
        return data + LAST_CHUNK if self.body.done else data


class HeadReader:
    """Collects response heads: interim ones (1xx), then the final one or a 101."""

    __slots__ = ("_held", "rest", "started")

    def __init__(self) -> None:
        self.started = False  # whether any byte of a response has come
        self.rest = b""  # what came after the head that ``feed`` returned
        self._held = b""

    def feed(self, data: bytes) -> ResponseHead | None:
        """The next head, if it is complete; to be fed ``rest`` for the one after. Raises ``MalformedMessage``."""
        self.started = True
        if self._held:
            data = self._held + data
        end = data.find(END) + len(END)
        if end < len(END):
            if len(data) > _MAX_HEAD_BYTES:
                raise MalformedMessage("response head too large")
            self._held = data
            return None
        self._held = b""
        self.rest = data[end:]
        return parse_response(data[:end])


def frame(request: RequestHead, response: ResponseHead) -> Framing:
    """The body's framing (RFC 9112, 6.3), by the request's method and version and the response's head."""
    if request.method == b"HEAD" or response.status in {204, 304}:
        return Framing(LengthBody(0), chunked=False, until_close=False)
    if response.length is not None:
        return Framing(LengthBody(response.length), chunked=False, until_close=False)
    body: Body = ChunkedBody() if response.chunked else UntilCloseBody()
    # An HTTP/1.0 client knows no chunks.
    return Framing(body, chunked=request.minor == 1, until_close=request.minor == 0)


def final_head(request: RequestHead, response: ResponseHead, framing: Framing, *, keep_alive: bool) -> bytes:
    """The head for the client; ``keep_alive``: whether its connection lives on."""
    lines = response.lines
    if response.status == 204:
        lines = without_length(lines)
    # What a GET would have had, the answer to HEAD, and a 304, may say.
    bodyless = request.method == b"HEAD" or response.status == 304
    if framing.chunked or (bodyless and response.chunked and request.minor == 1):
        lines += b"\r\nTransfer-Encoding: chunked"
    if not keep_alive:
        lines += b"\r\nConnection: close"
    elif request.minor == 0:
        lines += b"\r\nConnection: keep-alive"
    return _head(response, lines)


def interim_head(response: ResponseHead) -> bytes:
    """A 1xx for the client; a 101 that opens a tunnel says so."""
    lines = without_length(response.lines)
    if response.status == 101:
        lines += b"\r\nConnection: Upgrade\r\nUpgrade: websocket"
    return _head(response, lines)


def _head(response: ResponseHead, lines: bytes) -> bytes:
    return b"HTTP/1.1 %d %b%b\r\n\r\n" % (response.status, response.reason, lines)
