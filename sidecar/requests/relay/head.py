"""Reads message heads strictly and writes the ones that are passed on.

llhttp (httptools) checks the grammar. On top of it stands what it leaves open and what two readers could take
differently: bare CR and LF, folded lines, versions, the target's form, Host, and every combination of framing
headers. A head is never forwarded as it came: the first line and the framing are written anew from what was
understood of them, and other header lines, each checked, are put between.
"""

import re
from dataclasses import dataclass

import httptools

from sidecar.requests.relay.refusal import BadMethod, BadVersion, MalformedMessage, Refusal

HeaderList = list[tuple[bytes, bytes]]

END = b"\r\n\r\n"

# Headers that belong to one connection (RFC 9110, 7.6.1), and Trailer, because trailers are not passed on.
_HOP_BY_HOP = frozenset({b"keep-alive", b"proxy-connection", b"te", b"trailer"})
_FRAMING = frozenset({b"connection", b"content-length", b"transfer-encoding", b"upgrade", b"host"})
_SPECIAL = _HOP_BY_HOP | _FRAMING
# Options of Connection that name no header to drop. Host and Content-Length are needed at the other end, whatever
# a client names.
_NOT_DROPPED = frozenset({b"close", b"keep-alive", b"upgrade", b"host", b"content-length", b""})
_HOST = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=:\[\]%-]+")  # RFC 3986's host and port
_HEADER = re.compile(rb"([^:\r\n]+):[ \t]*([^\r\n]*)\r\n")
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?")


class _Completion:
    """What llhttp is asked to report of a head: only that it is complete, for its text is at hand."""

    __slots__ = ("complete",)

    def __init__(self) -> None:
        self.complete = False

    def on_headers_complete(self) -> None:
        self.complete = True


@dataclass(slots=True)
class _Fields:
    """What a head's headers say: ``lines`` (without CRLF) go on, the rest decides about the framing."""

    headers: HeaderList
    lines: list[bytes]
    length: int | None = None
    chunked: bool = False
    options: frozenset[bytes] = frozenset()  # of Connection, in lower case
    websocket: bool = False
    hosts: int = 0


@dataclass(slots=True)
class RequestHead:
    """A request that is safe to forward. ``headers`` is all that came, ``head`` what goes to the upstream."""

    method: bytes
    target: bytes
    headers: HeaderList
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


@dataclass(slots=True)
class ResponseHead:
    """A response's head; ``lines`` are the headers to pass on, of framing only Content-Length."""

    status: int
    reason: bytes
    headers: HeaderList
    lines: list[bytes]
    length: int | None
    chunked: bool
    keep_alive: bool
    websocket: bool


def parse_request(head: bytes, authority: bytes) -> RequestHead:
    """Read a head that ends in its empty line. ``authority`` is the Host for an HTTP/1.0 request without one.

    Raises ``Refusal``: a 400, 405 or 505.
    """
    completion = _Completion()
    try:
        lines = _check(httptools.HttpRequestParser(completion), completion, head)
        method, target, version = _read_request_line(lines[0])
        fields = _read(head, lines)
        minor = int(version[-1:])
        _check_request_fields(fields, minor)
    except MalformedMessage as fault:
        raise Refusal(str(fault)) from None
    out = [b"%b %b HTTP/1.1" % (method, target)]
    if not fields.hosts:
        out.append(b"Host: " + authority)
    out += fields.lines
    if fields.chunked:
        out.append(b"Transfer-Encoding: chunked")
    bodyless = not fields.chunked and not fields.length
    websocket = fields.websocket and method == b"GET" and minor == 1 and bodyless
    if websocket:
        out += (b"Connection: Upgrade", b"Upgrade: websocket")
    return RequestHead(
        method=method,
        target=target,
        headers=fields.headers,
        head=b"\r\n".join((*out, b"", b"")),
        length=fields.length,
        chunked=fields.chunked,
        minor=minor,
        keep_alive=_keeps_alive(minor, fields.options),
        websocket=websocket,
    )


def parse_response(head: bytes) -> ResponseHead:
    """Read an upstream's head that ends in its empty line. Raises ``MalformedMessage``."""
    completion = _Completion()
    lines = _check(httptools.HttpResponseParser(completion), completion, head)
    status_line = _STATUS_LINE.fullmatch(lines[0])
    if status_line is None:
        raise MalformedMessage("bad status line")
    fields = _read(head, lines)
    minor = int(status_line[1])
    if fields.chunked and minor == 0:
        raise MalformedMessage("Transfer-Encoding in HTTP/1.0")
    return ResponseHead(
        status=int(status_line[2]),
        reason=status_line[3] or b"",
        headers=fields.headers,
        lines=fields.lines,
        length=fields.length,
        chunked=fields.chunked,
        keep_alive=minor == 1 and _keeps_alive(minor, fields.options),
        websocket=fields.websocket,
    )


def has_bare_line_end(head: bytes | bytearray) -> bool:
    """Whether a CR or LF stands alone (a CR at the very end may still get its LF)."""
    pairs = head.count(b"\r\n")
    return head.count(b"\n") != pairs or head.count(b"\r") - head.endswith(b"\r") != pairs


def _check(
    parser: httptools.HttpRequestParser | httptools.HttpResponseParser, completion: _Completion, head: bytes
) -> list[bytes]:
    """Check the grammar and return the lines; without bare line ends and folding, they are what llhttp saw too."""
    lines = head.split(b"\r\n")
    ends = len(lines) - 1
    if head.count(b"\n") != ends or head.count(b"\r") != ends:
        raise MalformedMessage("line end other than CRLF")
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        pass  # llhttp stops here because other bytes may follow; the head itself is complete
    except httptools.HttpParserError:
        raise MalformedMessage("malformed message head") from None
    if not completion.complete:
        raise MalformedMessage("malformed message head")
    return lines


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


def _read(head: bytes, lines: list[bytes]) -> _Fields:
    start = len(lines[0]) + 2
    headers: HeaderList = _HEADER.findall(head, start)
    kept = lines[1:-2]  # after the first line, before the empty one
    if len(headers) != len(kept):
        raise MalformedMessage("malformed message head")
    fields = _Fields(headers, kept)
    partial = False
    for index, (name, value) in enumerate(headers):
        key = name.lower()
        if key not in _SPECIAL:
            continue
        if key == b"host":
            _read_host(fields, value.strip())
        elif key == b"content-length":
            kept[index] = b"%b: %d" % (name, _read_length(fields, value.strip()))
        else:
            _read_connection(fields, key, value.strip())
            kept[index] = b""
            partial = True
    if fields.chunked and fields.length is not None:
        raise MalformedMessage("both Content-Length and Transfer-Encoding")
    if partial:
        dropped = fields.options - _NOT_DROPPED
        fields.lines = [line for line in kept if line and line.partition(b":")[0].lower() not in dropped]
        fields.websocket = fields.websocket and b"upgrade" in fields.options
    return fields


def _read_host(fields: _Fields, value: bytes) -> None:
    if _HOST.fullmatch(value) is None:
        raise MalformedMessage("bad Host header")
    fields.hosts += 1


def _read_length(fields: _Fields, value: bytes) -> int:
    if fields.length is not None or not value.isdigit() or len(value) > 18:
        raise MalformedMessage("bad or repeated Content-Length")
    fields.length = int(value)
    return fields.length


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
