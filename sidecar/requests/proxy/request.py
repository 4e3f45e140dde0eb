"""What the proxy forwards of a request: its head written anew wherever two readers could take it differently."""

import msgspec

from sidecar.errors import Refusal
from sidecar.requests.proxy.framing import Body, ChunkedDecoder, LengthDecoder
from sidecar.requests.proxy.head import HeadFields, first_line, forwarded_lines, framing_fields, headers

# Methods that a server may execute twice without harm (RFC 9110, 9.2.1). PUT and DELETE are idempotent yet not among
# them: what they do in an engine's own endpoints is not for the proxy to know.
_SAFE = frozenset({b"GET", b"HEAD", b"OPTIONS", b"TRACE"})


class RequestHead(msgspec.Struct):
    """A request head that is safe to forward."""

    method: bytes
    target: bytes
    received: bytes
    forwarded: bytes
    length: int | None  # of the body; None: there is none, or it is chunked
    chunked: bool
    minor: int  # HTTP/1.<minor>
    keep_alive: bool
    websocket: bool  # asks for a tunnel

    @property
    def repeatable(self) -> bool:
        """Whether it does no harm if the upstream gets the request twice."""
        return self.method in _SAFE and not self.chunked and not self.length

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Names and values as they were received."""
        return headers(self.received)

    def body(self) -> Body:
        """The body to come."""
        decoder = ChunkedDecoder() if self.chunked else LengthDecoder(self.length or 0)
        return Body(decoder, chunked=self.chunked)


def parse_request(head: bytes, authority: bytes) -> RequestHead:
    """Parse a head that ends in its empty line; ``authority`` is the Host for an HTTP/1.0 request without one.

    Raises ``Refusal``.
    """
    line = first_line(head, is_request=True)
    method, target, minor = _parse_line(line)
    fields = framing_fields(head)
    _check_fields(fields, minor)
    websocket = fields.websocket and method == b"GET" and minor == 1 and not fields.chunked and not fields.length
    return RequestHead(
        method=method,
        target=target,
        received=head,
        forwarded=b"%b %b HTTP/1.1%b%b%b%b\r\n\r\n"
        % (
            method,
            target,
            b"" if fields.hosts else b"\r\nHost: " + authority,
            forwarded_lines(head, len(line), fields),
            b"\r\nTransfer-Encoding: chunked" if fields.chunked else b"",
            b"\r\nConnection: Upgrade\r\nUpgrade: websocket" if websocket else b"",
        ),
        length=fields.length,
        chunked=fields.chunked,
        minor=minor,
        keep_alive=fields.keep_alive(minor),
        websocket=websocket,
    )


def _parse_line(line: bytes) -> tuple[bytes, bytes, int]:
    parts = line.split(b" ")
    if len(parts) != 3:
        raise Refusal("malformed request line")
    method, target, version = parts
    if version not in {b"HTTP/1.1", b"HTTP/1.0"}:
        raise Refusal("HTTP version is not supported", "bad_version")
    if method == b"CONNECT":
        raise Refusal("CONNECT is not supported", "bad_method")
    if not target.startswith(b"/") and (method, target) != (b"OPTIONS", b"*"):
        raise Refusal("request target must be a path")
    return method, target, int(version[-1:])


def _check_fields(fields: HeadFields, minor: int) -> None:
    if fields.hosts > 1 or (fields.hosts == 0 and minor == 1):
        raise Refusal("exactly one Host header is required")
    if fields.chunked and minor == 0:
        raise Refusal("Transfer-Encoding in HTTP/1.0")
