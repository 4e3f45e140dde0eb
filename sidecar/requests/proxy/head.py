"""Reads message heads strictly: collects them from a connection's bytes and determines their framing.

llhttp (httptools) parses them. This module checks what llhttp accepts although two parsers could disagree: bare CR and
LF, folded lines, and every combination of framing headers.
"""

import re
from typing import Final

import httptools
import msgspec

from sidecar.errors import Refusal

_END: Final = b"\r\n\r\n"
# Hop-by-hop headers (RFC 9110, 7.6.1), and Trailer, because trailers are not forwarded.
_HOP_BY_HOP: Final = frozenset(
    {b"connection", b"transfer-encoding", b"upgrade", b"keep-alive", b"proxy-connection", b"te", b"trailer"}
)
# Options of Connection that remove no header. The other end needs Host and Content-Length, whatever a client names.
_KEPT: Final = frozenset({b"close", b"keep-alive", b"upgrade", b"host", b"content-length", b""})
_MAX_HEADERS: Final = 200  # of a request
_MAX_OPTIONS: Final = 64  # of a request's Connection
_HOST: Final = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=:\[\]%-]+")  # RFC 3986's host and port
_LENGTH: Final = re.compile(rb"(\r\ncontent-length:)[^\r\n]*", re.IGNORECASE)


class HeadReader:
    """Collects one head after another; every byte is scanned only once, however the network splits them."""

    __slots__ = ("_checked", "_held", "_limit", "_skip_empty_line", "_skipped")

    def __init__(self, limit: int, *, skip_empty_line: bool = False) -> None:
        self._limit = limit  # bytes
        self._held = bytearray()
        self._checked = 0  # held bytes that contain neither the end of a head nor a bare line end
        self._skip_empty_line = skip_empty_line  # one CRLF before a request is ignored (RFC 9112, 2.2)
        self._skipped = False

    @property
    def begun(self) -> bool:
        """Whether a head has begun."""
        return bool(self._held)

    def feed(self, data: bytes) -> tuple[bytes, bytes] | None:
        """The next head with its empty line, once it is complete, and the bytes after it. Raises ``Refusal``."""
        held = self._held
        if not held and not data.startswith(b"\r"):
            end = data.find(_END) + len(_END)  # the common case: the whole head in one read
            if end >= len(_END):
                return self._head(data, end)
        held += data
        if self._skip_empty_line and not self._skipped and held.startswith(b"\r\n"):
            del held[:2]
            self._skipped = True
        end = held.find(_END, max(0, self._checked - len(_END))) + len(_END)
        if end >= len(_END):
            return self._head(bytes(held), end)
        self._check(bytes(held[self._checked :]))
        self._checked = len(held) - held.endswith(b"\r")
        return None

    def clear(self) -> None:
        """Discard what was collected."""
        self._held.clear()
        self._checked = 0
        self._skipped = False

    def _head(self, data: bytes, end: int) -> tuple[bytes, bytes]:
        if end > self._limit:
            raise Refusal("the head is too large", "headers_too_large")
        self.clear()
        return data[:end], data[end:]

    def _check(self, data: bytes) -> None:
        """Refuse early what cannot become a head; a CR at the very end may still get its LF."""
        if len(self._held) > self._limit:
            raise Refusal("the head is too large", "headers_too_large")
        pairs = data.count(b"\r\n")
        if data.count(b"\n") != pairs or data.count(b"\r") - data.endswith(b"\r") != pairs:
            raise Refusal("line end other than CRLF")


class Head(msgspec.Struct):
    """A valid head: its first line, its headers, and the framing that they determine."""

    first_line: bytes
    headers: list[tuple[bytes, bytes]]  # names and values, as they were sent
    received: bytes
    length: int | None = None  # of the body, from Content-Length
    chunked: bool = False
    options: frozenset[bytes] = frozenset()  # of Connection, in lower case
    websocket: bool = False  # requests or accepts an upgrade to websocket
    hosts: int = 0
    hop_by_hop: bool = False  # some headers apply to this connection only

    def keep_alive(self, minor: int) -> bool:
        """Whether the sender of this head, of HTTP/1.``minor``, keeps its connection open."""
        return b"close" not in self.options and (minor == 1 or b"keep-alive" in self.options)

    def forwarded_lines(self) -> bytes:
        """The header lines to forward, each after its CRLF; of the framing headers only Content-Length is left."""
        lines = self.received[len(self.first_line) : -len(_END)]
        if self.hop_by_hop:
            dropped = _HOP_BY_HOP | (self.options - _KEPT)
            kept = [line for line in lines.split(b"\r\n")[1:] if line.partition(b":")[0].lower() not in dropped]
            lines = b"".join([b"\r\n" + line for line in kept])
        length = self.length
        if length is not None and (b"\r\nContent-Length: %d\r\n" % length) not in self.received:
            lines = _LENGTH.sub(rb"\1 %d" % length, lines)  # in the form that every parser accepts
        return lines


class _Parsed:
    """llhttp's callbacks."""

    __slots__ = ("complete", "headers")

    def __init__(self) -> None:
        self.complete = False
        self.headers: list[tuple[bytes, bytes]] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.complete = True


def parse_head(data: bytes, *, is_request: bool) -> Head:
    """Parse a head that ends in its empty line. Raises ``Refusal``.

    Every line ends in CRLF, and each except the first and the empty one is a header: llhttp accepts no folded lines.
    """
    lines = data.count(b"\r\n")
    if data.count(b"\n") != lines or data.count(b"\r") != lines:
        raise Refusal("line end other than CRLF")
    if is_request and lines - 2 > _MAX_HEADERS:
        raise Refusal("too many headers", "headers_too_large")
    if data.find(_END) != len(data) - len(_END):
        raise Refusal("more or less than one message head")
    parsed = _Parsed()
    parser = httptools.HttpRequestParser(parsed) if is_request else httptools.HttpResponseParser(parsed)
    try:
        parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        pass  # llhttp stops because other bytes may follow; the head itself is complete
    except httptools.HttpParserError:
        raise Refusal("malformed message head") from None
    if not parsed.complete or len(parsed.headers) != lines - 2:
        raise Refusal("malformed message head")
    head = Head(data[: data.find(b"\r\n")], parsed.headers, data)
    _read_framing(head)
    if is_request and len(head.options) > _MAX_OPTIONS:
        raise Refusal("too many options in Connection", "headers_too_large")
    return head


def without_length(lines: bytes) -> bytes:
    """Header lines without Content-Length."""
    return _LENGTH.sub(b"", lines)


def with_length(lines: bytes, length: int) -> bytes:
    """Header lines with another Content-Length, if they have one."""
    return _LENGTH.sub(rb"\1 %d" % length, lines)


def _read_framing(head: Head) -> None:
    """Refuse what two parsers could interpret differently."""
    options: list[bytes] = []
    for name, value in head.headers:
        key = name.lower()
        if key == b"host":
            if _HOST.fullmatch(value) is None:
                raise Refusal("bad Host header")
            head.hosts += 1
        elif key == b"content-length":
            if head.length is not None or not value.isdigit() or len(value) > 18:
                raise Refusal("bad or repeated Content-Length")
            head.length = int(value)
        elif key in _HOP_BY_HOP:
            head.hop_by_hop = True
            _read_hop_by_hop(head, key, value.lower(), options)
    if head.chunked and head.length is not None:
        raise Refusal("both Content-Length and Transfer-Encoding")
    if options:
        head.options = frozenset([option.strip() for option in options])
    head.websocket = head.websocket and b"upgrade" in head.options


def _read_hop_by_hop(head: Head, key: bytes, value: bytes, options: list[bytes]) -> None:
    if key == b"transfer-encoding":
        if head.chunked or value != b"chunked":
            raise Refusal("Transfer-Encoding other than chunked")
        head.chunked = True
    elif key == b"connection":
        options += value.split(b",")
    elif key == b"upgrade":
        # Only websockets get a tunnel; other upgrades, h2c above all, are ignored (RFC 9110, 7.8).
        head.websocket = value == b"websocket"
