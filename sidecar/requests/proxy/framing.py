"""Where a message's body ends: strict decoders that turn framed bytes into payload (RFC 9112, section 6).

A decoder takes the bytes as they come. ``feed`` returns the payload in them, ``done`` says that the body is
complete, and ``rest`` then holds the bytes after it. The relay never forwards a sender's chunk framing; it frames
the payload anew, so chunk extensions and trailers end here, and no two readers can disagree on them.
"""

import re
from enum import Enum, auto
from typing import Protocol

from sidecar.requests.proxy.refusal import MalformedMessage

LAST_CHUNK = b"0\r\n\r\n"

_MAX_SIZE_LINE = 256  # a chunk's size with its extensions
_MAX_TRAILERS = 8192
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})\r\n")
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[\t\x20-\x7e\x80-\xff]*)?\r\n")
_TRAILER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*\r\n")


def chunk(payload: bytes) -> bytes:
    """One chunk; ``payload`` must not be empty, for that would end the body."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


class Body(Protocol):
    """A decoder; see the module's docstring."""

    done: bool
    rest: bytes

    def feed(self, data: bytes) -> bytes:
        """The payload in ``data``; not to be called once ``done``. Raises ``MalformedMessage``."""


class LengthBody:
    """A body of ``length`` bytes; 0 is done from the start."""

    __slots__ = ("_left", "done", "rest")

    def __init__(self, length: int) -> None:
        self._left = length
        self.done = length == 0
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        """Everything up to the length."""
        left = self._left
        if len(data) < left:
            self._left = left - len(data)
            return data
        self.done = True
        if len(data) > left:
            self.rest = data[left:]
            data = data[:left]
        return data


class UntilCloseBody:
    """A response that ends where the connection does."""

    __slots__ = ("done", "rest")

    def __init__(self) -> None:
        self.done = False
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        """All of it."""
        return data


class _At(Enum):
    SIZE = auto()
    DATA = auto()
    DATA_END = auto()
    TRAILERS = auto()


class ChunkedBody:
    """A chunked body. Sizes are plain hexadecimal and lines end in CRLF, nothing else is let through."""

    __slots__ = ("_at", "_held", "_left", "_trailers", "done", "rest")

    def __init__(self) -> None:
        self.done = False
        self.rest = b""
        self._at = _At.SIZE
        self._held = b""  # the beginning of a line whose end has not come yet
        self._left = 0
        self._trailers = 0

    def feed(self, data: bytes) -> bytes:
        """The chunks' payload; several chunks in one piece come back as one."""
        if self._at is _At.SIZE and not self._held:
            # What a streaming server sends: one write, one chunk.
            size = _SIZE.match(data)
            if size is not None:
                start = size.end()
                end = start + int(size[1], 16)
                if end > start and len(data) == end + 2 and data.endswith(b"\r\n"):
                    return data[start:end]
        return self._decode(self._held + data if self._held else data)

    def _decode(self, data: bytes) -> bytes:
        self._held = b""
        payload: list[bytes] = []
        at = 0
        while at < len(data) and not self.done:
            if self._at is _At.DATA:
                piece = data[at : at + self._left]
                payload.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if not self._left:
                    self._at = _At.DATA_END
                continue
            end = data.find(b"\n", at) + 1
            if not end:
                self._hold(data[at:])
                break
            self._line(data[at:end])
            at = end
        if self.done:
            self.rest = data[at:]
        return payload[0] if len(payload) == 1 else b"".join(payload)

    def _line(self, line: bytes) -> None:
        if self._at is _At.SIZE:
            size = _SIZE_LINE.fullmatch(line)
            if size is None or len(line) > _MAX_SIZE_LINE:
                raise MalformedMessage("bad chunk size")
            self._left = int(size[1], 16)
            self._at = _At.DATA if self._left else _At.TRAILERS
        elif self._at is _At.DATA_END:
            if line != b"\r\n":
                raise MalformedMessage("chunk longer than its size")
            self._at = _At.SIZE
        elif line == b"\r\n":
            self.done = True
        else:
            self._trailers += len(line)
            if self._trailers > _MAX_TRAILERS or _TRAILER.fullmatch(line) is None:
                raise MalformedMessage("bad trailer")

    def _hold(self, line: bytes) -> None:
        limit = {_At.SIZE: _MAX_SIZE_LINE, _At.DATA_END: 1}.get(self._at, _MAX_TRAILERS)
        if len(line) > limit or (self._at is _At.DATA_END and line != b"\r"):
            raise MalformedMessage("bad chunk framing")
        self._held = line
