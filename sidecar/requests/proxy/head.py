"""Reads message heads strictly: collects them from a connection's bytes and finds what they say about framing.

llhttp (httptools) checks the grammar. What it leaves open and two readers could understand differently is checked
here: bare CR and LF, folded lines, and every combination of framing headers. Only then do regular expressions look for
headers; on lines known to be valid they find no less than llhttp does.
"""

import re
from typing import Final

import httptools
import msgspec

from sidecar.errors import Refusal

_END: Final = b"\r\n\r\n"
# Options of Connection that remove no header. The other end needs Host and Content-Length, whatever a client names.
_KEPT: Final = frozenset({b"close", b"keep-alive", b"upgrade", b"host", b"content-length", b""})
_HOST: Final = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=:\[\]%-]+")  # RFC 3986's host and port
_HEADER: Final = re.compile(rb"\r\n([^:\r\n]+):[ \t]*([^\r\n]*)")
_FRAMING: Final = re.compile(
    rb"\r\n(host|content-length|connection|transfer-encoding|upgrade|keep-alive|proxy-connection|te|trailer)"
    rb":([^\r\n]*)",
    re.IGNORECASE,
)
# Headers of one connection (RFC 9110, 7.6.1), and Trailer, because trailers are not forwarded.
_HOP_BY_HOP: Final = re.compile(
    rb"\r\n(?:connection|transfer-encoding|upgrade|keep-alive|proxy-connection|te|trailer):[^\r\n]*", re.IGNORECASE
)
_LENGTH: Final = re.compile(rb"(\r\ncontent-length:)[^\r\n]*", re.IGNORECASE)


class HeadReader:
    """Collects one head after another; every byte is looked at once, however the network cuts them."""

    __slots__ = ("_checked", "_held", "_limit", "_skip_empty_line", "_skipped")

    def __init__(self, limit: int, *, skip_empty_line: bool = False) -> None:
        self._limit = limit  # bytes
        self._held = bytearray()
        self._checked = 0  # of the held bytes: they hold no end of a head and no bare line end
        self._skip_empty_line = skip_empty_line  # one CRLF before a request is ignored (RFC 9112, 2.2)
        self._skipped = False

    @property
    def begun(self) -> bool:
        """Whether there is the beginning of a head."""
        return bool(self._held)

    def feed(self, data: bytes) -> tuple[bytes, bytes] | None:
        """The next head with its empty line, once it is complete, and the bytes after it. Raises ``Refusal``."""
        held = self._held
        if not held and not data.startswith(b"\r"):
            end = data.find(_END) + len(_END)  # the usual case: the whole head in one read
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
        """Forget what was collected."""
        self._held.clear()
        self._checked = 0
        self._skipped = False

    def _head(self, data: bytes, end: int) -> tuple[bytes, bytes]:
        if end > self._limit:
            raise Refusal("the head is too large", "headers_too_large")
        self.clear()
        return data[:end], data[end:]

    def _check(self, data: bytes) -> None:
        """Refuse early what can't become a head; a CR at the very end may still get its LF."""
        if len(self._held) > self._limit:
            raise Refusal("the head is too large", "headers_too_large")
        pairs = data.count(b"\r\n")
        if data.count(b"\n") != pairs or data.count(b"\r") - data.endswith(b"\r") != pairs:
            raise Refusal("line end other than CRLF")


class HeadFields(msgspec.Struct):
    """What a head says about framing, and which of its lines are not forwarded as they are."""

    length: int | None = None
    plain_length: bool = True  # Content-Length is written as the proxy would write it
    chunked: bool = False
    options: frozenset[bytes] = frozenset()  # of Connection, in lower case
    websocket: bool = False  # asks for, or agrees to, an upgrade to websocket
    hosts: int = 0
    hop_by_hop: bool = False  # there are headers of this connection

    def keep_alive(self, minor: int) -> bool:
        """Whether the sender of this head, of HTTP/1.``minor``, keeps its connection open."""
        return b"close" not in self.options and (minor == 1 or b"keep-alive" in self.options)


class _Completion:
    """llhttp's callbacks; of a head it only has to say that it is complete."""

    __slots__ = ("complete",)

    def __init__(self) -> None:
        self.complete = False

    def on_headers_complete(self) -> None:
        self.complete = True


def first_line(head: bytes, *, is_request: bool) -> bytes:
    """Check the grammar of a head that ends in its empty line. Raises ``Refusal``.

    From here on every line ends in CRLF, and each but the first and the empty one is a name, a colon and a value:
    llhttp accepts no folded lines.
    """
    completion = _Completion()
    parser = httptools.HttpRequestParser(completion) if is_request else httptools.HttpResponseParser(completion)
    lines = head.count(b"\r\n")
    if head.count(b"\n") != lines or head.count(b"\r") != lines:
        raise Refusal("line end other than CRLF")
    if head.find(_END) != len(head) - len(_END):
        raise Refusal("more or less than one message head")
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        pass  # llhttp stops because other bytes may follow; the head itself is complete
    except httptools.HttpParserError:
        raise Refusal("malformed message head") from None
    if not completion.complete:
        raise Refusal("malformed message head")
    return head[: head.find(b"\r\n")]


def headers(head: bytes) -> list[tuple[bytes, bytes]]:
    """Names and values of a checked head, in order, as they were sent."""
    return _HEADER.findall(head)


def framing_fields(head: bytes) -> HeadFields:
    """What a checked head says about framing. Raises ``Refusal`` if two readers could take it differently."""
    fields = HeadFields()
    options: list[bytes] = []
    for name, raw in _FRAMING.findall(head):
        key, value = name.lower(), raw.strip()
        if key == b"host":
            _read_host(fields, value)
        elif key == b"content-length":
            _read_length(fields, raw)
        else:
            fields.hop_by_hop = True
            if key == b"transfer-encoding":
                if fields.chunked or value.lower() != b"chunked":
                    raise Refusal("Transfer-Encoding other than chunked")
                fields.chunked = True
            elif key == b"connection":
                options += value.lower().split(b",")
            elif key == b"upgrade":
                # Only websockets get a tunnel; other upgrades, h2c above all, are ignored (RFC 9110, 7.8).
                fields.websocket = value.lower() == b"websocket"
    if fields.chunked and fields.length is not None:
        raise Refusal("both Content-Length and Transfer-Encoding")
    if options:
        fields.options = frozenset([option.strip() for option in options])
    fields.websocket = fields.websocket and b"upgrade" in fields.options
    return fields


def forwarded_lines(head: bytes, start: int, fields: HeadFields) -> bytes:
    """The header lines to forward, each after its CRLF; ``start`` is where the first line ends.

    Of the framing headers only Content-Length is among them.
    """
    lines = head[start : -len(_END)]
    if not fields.plain_length:
        lines = _LENGTH.sub(rb"\1 %d" % (fields.length or 0), lines)
    if fields.hop_by_hop:
        lines = _HOP_BY_HOP.sub(b"", lines)
        dropped = fields.options - _KEPT
        if dropped:
            kept = [line for line in lines.split(b"\r\n")[1:] if line.partition(b":")[0].lower() not in dropped]
            lines = b"".join([b"\r\n" + line for line in kept])
    return lines


def without_length(lines: bytes) -> bytes:
    """Header lines less Content-Length."""
    return _LENGTH.sub(b"", lines)


def _read_host(fields: HeadFields, value: bytes) -> None:
    if _HOST.fullmatch(value) is None:
        raise Refusal("bad Host header")
    fields.hosts += 1


def _read_length(fields: HeadFields, raw: bytes) -> None:
    value = raw.strip()
    if fields.length is not None or not value.isdigit() or len(value) > 18:
        raise Refusal("bad or repeated Content-Length")
    fields.length = int(value)
    fields.plain_length = raw == b" %d" % fields.length
