"""Where a message's body begins and ends (RFC 9112, section 6): strict decoders, and the one encoder of chunks.

The proxy never forwards chunk framing. It decodes bodies and frames them again, so chunk extensions and trailers are
dropped here and two parsers cannot disagree on them.
"""

import re
from enum import Enum, auto

from sidecar.errors import Refusal
from sidecar.http.chunks import is_too_fine

_LAST_CHUNK = b"0\r\n\r\n"
_MAX_SIZE_LINE = 256  # bytes of a chunk's size with its extensions
_MAX_TRAILERS = 8192
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})\r\n")
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[\t\x20-\x7e\x80-\xff]*)?\r\n")
_TRAILER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*\r\n")


class Body:
    """A body passing through: decoded as its sender framed it, encoded for its receiver."""

    __slots__ = ("_decoder", "chunked", "done")

    def __init__(self, decoder: "LengthDecoder | UntilCloseDecoder | ChunkedDecoder", *, chunked: bool) -> None:
        self._decoder = decoder
        self.chunked = chunked  # towards the receiver
        self.done = decoder.done  # the whole body was decoded

    @property
    def rest(self) -> bytes:
        """The bytes after the body, once it is ``done``."""
        return self._decoder.rest

    @property
    def until_close(self) -> bool:
        """Whether only the end of the connection shows the receiver the end of the body."""
        return not self.chunked and not isinstance(self._decoder, LengthDecoder)

    def decode(self, data: bytes) -> bytes:
        """The payload in ``data``; must not be called once ``done``. Raises ``Refusal``."""
        payload = self._decoder.decode(data)
        self.done = self._decoder.done
        return payload

    def encode(self, payload: bytes) -> bytes:
        """The bytes for the receiver, given what ``decode`` returned last."""
        if not self.chunked:
            return payload
        data = b"%x\r\n%b\r\n" % (len(payload), payload) if payload else b""
        return data + _LAST_CHUNK if self.done else data

    def sender_closed(self) -> bool:
        """The sender closed its connection properly; returns whether that completes the body."""
        self.done = self.done or isinstance(self._decoder, UntilCloseDecoder)
        return self.done


class LengthDecoder:
    """A body of ``length`` bytes; one of 0 bytes is done from the start."""

    __slots__ = ("_left", "done", "rest")

    def __init__(self, length: int) -> None:
        self._left = length
        self.done = length == 0
        self.rest = b""

    def decode(self, data: bytes) -> bytes:
        """See ``Body``."""
        left = self._left
        if len(data) < left:
            self._left = left - len(data)
            return data
        self.done = True
        if len(data) > left:
            self.rest = data[left:]
            data = data[:left]
        return data


class UntilCloseDecoder:
    """A response body that ends with the connection."""

    __slots__ = ("done", "rest")

    def __init__(self) -> None:
        self.done = False
        self.rest = b""

    def decode(self, data: bytes) -> bytes:
        """See ``Body``."""
        return data


class _At(Enum):
    SIZE = auto()
    DATA = auto()
    DATA_END = auto()
    TRAILERS = auto()


class ChunkedDecoder:
    """A chunked body. Sizes must be plain hexadecimal and lines must end in CRLF.

    ``bounded``: many small chunks are refused, because each costs as much as a large one.
    """

    __slots__ = ("_at", "_bounded", "_bytes", "_chunks", "_held", "_left", "_trailers", "done", "rest")

    def __init__(self, *, bounded: bool = False) -> None:
        self.done = False
        self.rest = b""
        self._bounded = bounded
        self._chunks = 0
        self._bytes = 0  # in all chunks so far
        self._at = _At.SIZE
        self._held = b""  # an incomplete line
        self._left = 0
        self._trailers = 0

    def decode(self, data: bytes) -> bytes:
        """See ``Body``; the payloads of several chunks come back as one."""
        if self._held:
            data, self._held = self._held + data, b""
        payload: list[bytes] = []
        at = self._whole_chunks(data, payload) if self._at is _At.SIZE else 0
        if at < len(data):
            self._decode(data, at, payload)
        return payload[0] if len(payload) == 1 else b"".join(payload)

    def _whole_chunks(self, data: bytes, payload: list[bytes]) -> int:
        """Take the chunks that are complete, as those of a streaming server are; returns where the rest begins."""
        at = 0
        while (size := _SIZE.match(data, at)) is not None:
            start = size.end()
            end = start + int(size[1], 16)
            if end == start or data[end : end + 2] != b"\r\n":
                break
            self._count(end - start)
            payload.append(data[start:end])
            at = end + 2
        return at

    def _decode(self, data: bytes, at: int, payload: list[bytes]) -> None:
        """Everything else: what is cut, has extensions, or ends the body."""
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

    def _line(self, line: bytes) -> None:
        if self._at is _At.SIZE:
            size = _SIZE_LINE.fullmatch(line)
            if size is None or len(line) > _MAX_SIZE_LINE:
                raise Refusal("bad chunk size")
            self._left = int(size[1], 16)
            self._at = _At.DATA if self._left else _At.TRAILERS
            if self._left:
                self._count(self._left)
        elif self._at is _At.DATA_END:
            if line != b"\r\n":
                raise Refusal("chunk longer than its size")
            self._at = _At.SIZE
        elif line == b"\r\n":
            self.done = True
        else:
            self._trailers += len(line)
            if self._trailers > _MAX_TRAILERS or _TRAILER.fullmatch(line) is None:
                raise Refusal("bad trailer")

    def _count(self, size: int) -> None:
        self._chunks += 1
        self._bytes += size
        if self._bounded and is_too_fine(self._chunks, self._bytes):
            raise Refusal("chunks are too small")

    def _hold(self, line: bytes) -> None:
        limit = {_At.SIZE: _MAX_SIZE_LINE, _At.DATA_END: 1}.get(self._at, _MAX_TRAILERS)
        if len(line) > limit or (self._at is _At.DATA_END and line != b"\r"):
            raise Refusal("bad chunk framing")
        self._held = line
