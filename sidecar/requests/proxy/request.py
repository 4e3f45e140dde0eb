"""What the proxy forwards of a request: its head, normalized wherever two parsers could disagree."""

import msgspec

from sidecar.errors import Refusal
from sidecar.requests.proxy.framing import Body, ChunkedDecoder, LengthDecoder
from sidecar.requests.proxy.head import Head, parse_head

# Methods that a server may execute twice without harm (RFC 9110, 9.2.1). PUT and DELETE are idempotent, but not among
# them: the proxy cannot know what they do in an engine's own endpoints.
_SAFE = frozenset({b"GET", b"HEAD", b"OPTIONS", b"TRACE"})


class RequestHead(msgspec.Struct):
    """A request head that is safe to forward."""

    method: bytes
    target: bytes
    headers: list[tuple[bytes, bytes]]
    forwarded: bytes  # what the upstream gets
    length: int | None  # of the body; None: there is none, or it is chunked
    chunked: bool
    minor: int  # HTTP/1.<minor>
    keep_alive: bool
    websocket: bool  # requests a tunnel

    @property
    def repeatable(self) -> bool:
        """Whether the upstream may safely get the request twice."""
        return self.method in _SAFE and not self.chunked and not self.length

    def can_wait(self, received: int, most: int) -> bool:
        """Whether to hold the request back, since only ``received`` bytes of its body have arrived.

        A body of at most ``most`` bytes is awaited whole, a larger one until it begins, so a client that sends nothing
        holds no connection to the upstream. A client that expects "100 Continue" waits for the upstream itself.
        """
        if not most or any(name.lower() == b"expect" for name, _ in self.headers):
            return False
        return received < self.length if self.length is not None and self.length <= most else received == 0

    def body(self) -> Body:
        """The body that follows."""
        decoder = ChunkedDecoder(bounded=True) if self.chunked else LengthDecoder(self.length or 0)
        return Body(decoder, chunked=self.chunked)


def parse_request(data: bytes, authority: bytes) -> RequestHead:
    """Parse a head that ends in its empty line; ``authority`` is the Host for an HTTP/1.0 request without one.

    Raises ``Refusal``.
    """
    head = parse_head(data, is_request=True)
    method, target, minor = _parse_line(head.first_line)
    _check_fields(head, minor)
    websocket = head.websocket and method == b"GET" and minor == 1 and not head.chunked and not head.length
    return RequestHead(
        method=method,
        target=target,
        headers=head.headers,
        forwarded=b"%b %b HTTP/1.1%b%b%b%b\r\n\r\n"
        % (
            method,
            target,
            b"" if head.hosts else b"\r\nHost: " + authority,
            head.forwarded_lines(),
            b"\r\nTransfer-Encoding: chunked" if head.chunked else b"",
            b"\r\nConnection: Upgrade\r\nUpgrade: websocket" if websocket else b"",
        ),
        length=head.length,
        chunked=head.chunked,
        minor=minor,
        keep_alive=head.keep_alive(minor),
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


def _check_fields(head: Head, minor: int) -> None:
    if head.hosts > 1 or (head.hosts == 0 and minor == 1):
        raise Refusal("exactly one Host header is required")
    if head.chunked and minor == 0:
        raise Refusal("Transfer-Encoding in HTTP/1.0")
