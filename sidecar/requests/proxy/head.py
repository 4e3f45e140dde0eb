"""Reads message heads strictly and writes the ones that are passed on.

llhttp (httptools) checks the grammar. On top of it stands what it leaves open and what two readers could take
differently: bare CR and LF, folded lines, versions, the target's form, Host, and every combination of framing
headers. Only then are headers looked for by regular expressions, which on lines that are known to be sound can't
see less than llhttp did. The first line and the framing are written anew wherever they could be read in two ways.
"""

import re
from collections.abc import Collection, Iterator

import httptools
import msgspec

from sidecar.requests.proxy.refusal import BadMethod, BadVersion, MalformedMessage, Refusal

END = b"\r\n\r\n"

# Options of Connection that name no header to drop. Host and Content-Length are needed at the other end, whatever
# a client names.
_NOT_DROPPED = frozenset({b"close", b"keep-alive", b"upgrade", b"host", b"content-length", b""})
_HOST = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=:\[\]%-]+")  # RFC 3986's host and port
_HEADER = re.compile(rb"\r\n([^:\r\n]+):[ \t]*([^\r\n]*)")
_FRAMING = re.compile(
    rb"\r\n(host|content-length|connection|transfer-encoding|upgrade|keep-alive|proxy-connection|te|trailer)"
    rb":([^\r\n]*)",
    re.IGNORECASE,
)
# Headers that belong to one connection (RFC 9110, 7.6.1), and Trailer, because trailers are not passed on.
_HOP_BY_HOP = re.compile(
    rb"\r\n(?:connection|transfer-encoding|upgrade|keep-alive|proxy-connection|te|trailer):[^\r\n]*", re.IGNORECASE
)
_LENGTH = re.compile(rb"(\r\ncontent-length:)[^\r\n]*", re.IGNORECASE)
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?")


class HeaderLines(Collection[tuple[bytes, bytes]]):
    """The headers of a sound head as they came, taken apart when somebody looks at them."""

    __slots__ = ("_head",)

    def __init__(self, head: bytes) -> None:
        self._head = head

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        """Names and values, in order."""
        return iter(_HEADER.findall(self._head))

    def __len__(self) -> int:
        """How many there are."""
        return self._head.count(b"\r\n") - 2  # less the first line and the empty one

    def __contains__(self, header: object) -> bool:
        """Whether this name and value are among them."""
        return header in _HEADER.findall(self._head)


class _Completion:
    """What llhttp is asked to report of a head: only that it is complete, for its text is at hand."""

    __slots__ = ("complete",)

    def __init__(self) -> None:
        self.complete = False

    def on_headers_complete(self) -> None:
        self.complete = True


class _Fields(msgspec.Struct):
    """What a head's headers say that decides about the framing, and what of them has to change on the way."""

    length: int | None = None
    plain_length: bool = True  # written as this relay would write it
    chunked: bool = False
    options: frozenset[bytes] = frozenset()  # of Connection, in lower case
    websocket: bool = False
    hosts: int = 0
    hop_by_hop: bool = False  # there are headers of this connection only


class RequestHead(msgspec.Struct):
    """A request that is safe to forward. ``headers`` is all that came, ``head`` what goes to the upstream."""

    method: bytes
    target: bytes
    headers: HeaderLines
    head: bytes
    length: int | None  # of the body; None: there is none, or it is chunked
    chunked: bool
    minor: int  # HTTP/1.<minor>
    keep_alive: bool
    websocket: bool  # asks for a tunnel

    @property
    def bodyless(self) -> bool:
        """Whether the head is the whole request."""
        return not self.chunked and not self.length


class ResponseHead(msgspec.Struct):
    """A response's head; ``lines`` are the headers to pass on, each after its CRLF, of framing only Content-Length."""

    status: int
    reason: bytes
    headers: HeaderLines
    lines: bytes
    length: int | None
    chunked: bool
    keep_alive: bool
    websocket: bool


def parse_request(head: bytes, authority: bytes) -> RequestHead:
    """Read a head that ends in its empty line. ``authority`` is the Host for an HTTP/1.0 request without one.

    Raises ``Refusal``: a 400, 405 or 505.
    """
    try:
        line = _check(head, is_request=True)
        method, target, version = _read_request_line(line)
        fields = _read(head)
        minor = int(version[-1:])
        _check_request_fields(fields, minor)
    except MalformedMessage as fault:
        raise Refusal(str(fault)) from None
    bodyless = not fields.chunked and not fields.length
    websocket = fields.websocket and method == b"GET" and minor == 1 and bodyless
    return RequestHead(
        method=method,
        target=target,
        headers=HeaderLines(head),
        head=b"%b %b HTTP/1.1%b%b%b%b\r\n\r\n"
        % (
            method,
            target,
            b"" if fields.hosts else b"\r\nHost: " + authority,
            _lines(head, len(line), fields),
            b"\r\nTransfer-Encoding: chunked" if fields.chunked else b"",
            b"\r\nConnection: Upgrade\r\nUpgrade: websocket" if websocket else b"",
        ),
        length=fields.length,
        chunked=fields.chunked,
        minor=minor,
        keep_alive=_keeps_alive(minor, fields.options),
        websocket=websocket,
    )


def parse_response(head: bytes) -> ResponseHead:
    """Read an upstream's head that ends in its empty line. Raises ``MalformedMessage``."""
    line = _check(head, is_request=False)
    status_line = _STATUS_LINE.fullmatch(line)
    if status_line is None:
        raise MalformedMessage("bad status line")
    fields = _read(head)
    minor = int(status_line[1])
    if fields.chunked and minor == 0:
        raise MalformedMessage("Transfer-Encoding in HTTP/1.0")
    return ResponseHead(
        status=int(status_line[2]),
        reason=status_line[3] or b"",
        headers=HeaderLines(head),
        lines=_lines(head, len(line), fields),
        length=fields.length,
        chunked=fields.chunked,
        keep_alive=minor == 1 and _keeps_alive(minor, fields.options),
        websocket=fields.websocket,
    )


def has_bare_line_end(head: bytes | bytearray) -> bool:
    """Whether a CR or LF stands alone (a CR at the very end may still get its LF)."""
    pairs = head.count(b"\r\n")
    return head.count(b"\n") != pairs or head.count(b"\r") - head.endswith(b"\r") != pairs


def without_length(lines: bytes) -> bytes:
    """Header lines less Content-Length."""
    return _LENGTH.sub(b"", lines)


def _check(head: bytes, *, is_request: bool) -> bytes:
    """Check the grammar and return the first line.

    From here on every line ends in CRLF, and each but the first and the empty one is a name, a colon and a value:
    llhttp takes no folded lines.
    """
    completion = _Completion()
    parser = httptools.HttpRequestParser(completion) if is_request else httptools.HttpResponseParser(completion)
    ends = head.count(b"\r\n")
    if head.count(b"\n") != ends or head.count(b"\r") != ends:
        raise MalformedMessage("line end other than CRLF")
    if head.find(END) != len(head) - len(END):
        raise MalformedMessage("more or less than one message head")
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        pass  # llhttp stops here because other bytes may follow; the head itself is complete
    except httptools.HttpParserError:
        raise MalformedMessage("malformed message head") from None
    if not completion.complete:
        raise MalformedMessage("malformed message head")
    return head[: head.find(b"\r\n")]


def _read_request_line(line: bytes) -> tuple[bytes, bytes, bytes]:
    parts = line.split(b" ")
    if len(parts) != 3:
        raise MalformedMessage("malformed request line")
    method, target, version = parts
    if version not in {b"HTTP/1.1", b"HTTP/1.0"}:
        raise BadVersion("HTTP version is not supported")
    if method == b"CONNECT":
        raise BadMethod("CONNECT is not supported")
    if not target.startswith(b"/") and (method, target) != (b"OPTIONS", b"*"):
        raise MalformedMessage("request target must be a path")
    return method, target, version


def _check_request_fields(fields: _Fields, minor: int) -> None:
    if fields.hosts > 1 or (fields.hosts == 0 and minor == 1):
        raise MalformedMessage("exactly one Host header is needed")
    if fields.chunked and minor == 0:
        raise MalformedMessage("Transfer-Encoding in HTTP/1.0")


def _read(head: bytes) -> _Fields:
    fields = _Fields()
    for name, value in _FRAMING.findall(head):
        key = name.lower()
        if key == b"host":
            _read_host(fields, value.strip())
        elif key == b"content-length":
            _read_length(fields, value)
        else:
            fields.hop_by_hop = True
            _read_connection(fields, key, value.strip())
    if fields.chunked and fields.length is not None:
        raise MalformedMessage("both Content-Length and Transfer-Encoding")
    fields.websocket = fields.websocket and b"upgrade" in fields.options
    return fields


def _lines(head: bytes, start: int, fields: _Fields) -> bytes:
    """The header lines to pass on, each after its CRLF; ``start`` is where the first line ends."""
    lines = head[start : -len(END)]
    if not fields.plain_length:
        lines = _LENGTH.sub(rb"\1 %d" % (fields.length or 0), lines)
    if fields.hop_by_hop:
        lines = _HOP_BY_HOP.sub(b"", lines)
        dropped = fields.options - _NOT_DROPPED
        if dropped:
            kept = [line for line in lines.split(b"\r\n")[1:] if line.partition(b":")[0].lower() not in dropped]
            lines = b"".join([b"\r\n" + line for line in kept])
    return lines


def _read_host(fields: _Fields, value: bytes) -> None:
    if _HOST.fullmatch(value) is None:
        raise MalformedMessage("bad Host header")
    fields.hosts += 1


def _read_length(fields: _Fields, raw: bytes) -> None:
    value = raw.strip()
    if fields.length is not None or not value.isdigit() or len(value) > 18:
        raise MalformedMessage("bad or repeated Content-Length")
    fields.length = int(value)
    fields.plain_length = raw == b" %d" % fields.length


def _read_connection(fields: _Fields, key: bytes, value: bytes) -> None:
    if key == b"transfer-encoding":
        if fields.chunked or value.lower() != b"chunked":
            raise MalformedMessage("Transfer-Encoding other than chunked")
        fields.chunked = True
    elif key == b"connection":
        fields.options |= {option.strip() for option in value.lower().split(b",")}
    elif key == b"upgrade":
        # Only websockets get a tunnel: others, h2c above all, are left out, as RFC 9110 (7.8) allows.
        fields.websocket = value.lower() == b"websocket"


def _keeps_alive(minor: int, options: frozenset[bytes]) -> bool:
    return b"close" not in options and (minor == 1 or b"keep-alive" in options)
