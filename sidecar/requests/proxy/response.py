"""What the proxy forwards of a response: its head, and its body framed for this client."""

import re

import msgspec

from sidecar.errors import Refusal
from sidecar.requests.proxy.framing import Body, ChunkedDecoder, LengthDecoder, UntilCloseDecoder
from sidecar.requests.proxy.head import parse_head, without_length
from sidecar.requests.proxy.request import RequestHead

MAX_HEAD_BYTES = 262_144  # far more than any server sends

_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?")


class ResponseHead(msgspec.Struct):
    """An upstream's response head; ``lines`` are the headers to forward, each after its CRLF."""

    status: int
    reason: bytes
    headers: list[tuple[bytes, bytes]]
    lines: bytes
    length: int | None
    chunked: bool
    keep_alive: bool
    websocket: bool


def parse_response(data: bytes) -> ResponseHead:
    """Parse a head that ends in its empty line. Raises ``Refusal``."""
    head = parse_head(data, is_request=False)
    status_line = _STATUS_LINE.fullmatch(head.first_line)
    if status_line is None:
        raise Refusal("bad status line")
    minor = int(status_line[1])
    if head.chunked and minor == 0:
        raise Refusal("Transfer-Encoding in HTTP/1.0")
    return ResponseHead(
        status=int(status_line[2]),
        reason=status_line[3] or b"",
        headers=head.headers,
        lines=head.forwarded_lines(),
        length=head.length,
        chunked=head.chunked,
        keep_alive=minor == 1 and head.keep_alive(minor),
        websocket=head.websocket,
    )


def response_body(request: RequestHead, response: ResponseHead) -> Body:
    """The body that follows (RFC 9112, 6.3); an HTTP/1.0 client gets no chunks."""
    if request.method == b"HEAD" or response.status in {204, 304}:
        return Body(LengthDecoder(0), chunked=False)
    if response.length is not None:
        return Body(LengthDecoder(response.length), chunked=False)
    return Body(ChunkedDecoder() if response.chunked else UntilCloseDecoder(), chunked=request.minor == 1)


def final_head(request: RequestHead, response: ResponseHead, body: Body, *, keep_alive: bool) -> bytes:
    """The head for the client; ``keep_alive``: whether its connection stays open."""
    lines = response.lines
    if response.status == 204:
        lines = without_length(lines)
    # Responses to HEAD and 304 may have the framing headers of a response to GET.
    bodyless = request.method == b"HEAD" or response.status == 304
    if body.chunked or (bodyless and response.chunked and request.minor == 1):
        lines += b"\r\nTransfer-Encoding: chunked"
    if not keep_alive:
        lines += b"\r\nConnection: close"
    elif request.minor == 0:
        lines += b"\r\nConnection: keep-alive"
    return _head(response, lines)


def interim_head(response: ResponseHead) -> bytes:
    """A 1xx for the client; a 101 opens the tunnel."""
    lines = without_length(response.lines)
    if response.status == 101:
        lines += b"\r\nConnection: Upgrade\r\nUpgrade: websocket"
    return _head(response, lines)


def _head(response: ResponseHead, lines: bytes) -> bytes:
    return b"HTTP/1.1 %d %b%b\r\n\r\n" % (response.status, response.reason, lines)
