"""One HTTP/1.1 response, read from bytes as they arrive, with a limit on each of its parts.

vLLM sends a head, and the page as one chunk or with a content length. Whatever else HTTP allows is
limited here, so that no server can occupy the sidecar with framing: interim responses, header
lines, chunks, trailers, and what comes after the end. Grammar: RFC 9112.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from sidecar.errors import BadStatus, Interrupted, PageTooLarge
from sidecar.log import redacted

_HEAD_BYTES: Final = 64 * 1024
_INTERIM: Final = 8  # responses with a status of 1xx, before the real one
_CHUNK_LINE_BYTES: Final = 1024  # a chunk's size with its extensions
_CHUNKS: Final = 10_000  # proxies send chunks of 4 KiB and more
_TRAILER_BYTES: Final = 8 * 1024
_LOCATION_CHARACTERS: Final = 200

_STATUS_LINE: Final = re.compile(rb"HTTP/1\.(?P<minor>[01]) (?P<status>[0-9]{3})(?: .*)?")
_CHUNK_SIZE: Final = re.compile(rb"(?P<size>[0-9a-fA-F]{1,15})[ \t]*(?:;.*)?", re.DOTALL)
_LENGTH: Final = re.compile(rb"[0-9]{1,15}")
_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e]")
_END: Final = b"\r\n"


class Response:
    """The response to one GET.

    ``body`` is its content once ``is_complete``. ``is_last``: the connection cannot be used again.
    """

    def __init__(self, most_bytes: int) -> None:
        """``most_bytes`` bounds the body."""
        self.is_complete = False
        self.is_last = False
        self._most_bytes = most_bytes
        self._received = bytearray()  # what has not been taken yet
        self._content = bytearray()
        self._left = 0  # bytes of the body, or of a chunk, that are still to come
        self._interim = 0
        self._chunks = 0
        # Takes the next part from what was received; returns whether it was there.
        self._next: Callable[[], bool] = self._take_head

    @property
    def body(self) -> bytes:
        """The content, as it was sent."""
        return bytes(self._content)

    @property
    def has_begun(self) -> bool:
        """Whether anything has arrived."""
        return bool(self._received) or self._next != self._take_head or self._interim > 0

    def feed(self, data: bytes) -> None:
        """Takes in what the server has sent.

        Raises:
            BadStatus: a status other than 200.
            Interrupted: it is not valid HTTP, or exceeds a limit of its framing.
            PageTooLarge: the body exceeds the limit.
        """
        self._received += data
        while not self.is_complete and self._next():
            pass
        if self.is_complete and self._received:
            self.is_last = True  # nobody has asked for more

    def feed_end(self) -> None:
        """Ends the response: the server has closed the connection.

        Raises:
            Interrupted: the response is not complete.
        """
        if self._next == self._take_to_end:
            self.is_complete = True
        if not self.is_complete:
            raise Interrupted("the connection was closed before the end of the response")

    def _take_head(self) -> bool:
        end = self._received.find(2 * _END)
        if end < 0:
            _within(len(self._received), _HEAD_BYTES, "head")
            return False

        _within(end, _HEAD_BYTES, "head")
        status_line, *lines = bytes(self._received[:end]).split(_END)
        del self._received[: end + 2 * len(_END)]

        match = _STATUS_LINE.fullmatch(status_line)
        if match is None:
            raise Interrupted("the response is not HTTP")

        headers = _headers(lines)
        status = int(match["status"])
        if 100 <= status < 200 and status != 101:  # 101 switches protocols
            self._interim += 1
            _within(self._interim, _INTERIM, "interim responses")
            return True

        if status != 200:
            raise BadStatus(status, _location(headers) if 300 <= status < 400 else "")

        is_closed = b"close" in headers.get(b"connection", b"").lower()
        self.is_last = is_closed or match["minor"] == b"0"
        self._expect_body(headers)
        return True

    def _expect_body(self, headers: Mapping[bytes, bytes]) -> None:
        coding = headers.get(b"transfer-encoding", b"").lower()
        length = headers.get(b"content-length")

        if coding == b"chunked":
            self._next = self._take_chunk_line
        elif coding:
            raise Interrupted("an unknown transfer coding")
        elif length is None:
            self.is_last = True
            self._next = self._take_to_end
        elif _LENGTH.fullmatch(length) is None:
            raise Interrupted("an invalid content length")
        else:
            self._left = int(length)
            self._bound(self._left)
            self._next = self._take_content

    def _take_content(self) -> bool:
        self._take(self._left)
        self.is_complete = self._left == 0
        return False

    def _take_to_end(self) -> bool:
        self._take(len(self._received))
        return False

    def _take_chunk_line(self) -> bool:
        end = self._received.find(_END, 0, _CHUNK_LINE_BYTES)
        if end < 0:
            _within(len(self._received), _CHUNK_LINE_BYTES - 1, "chunk extension")
            return False

        match = _CHUNK_SIZE.fullmatch(self._received[:end])
        if match is None:
            raise Interrupted("an invalid chunk")

        del self._received[: end + len(_END)]
        self._chunks += 1
        _within(self._chunks, _CHUNKS, "chunks")
        self._left = int(match["size"], 16)
        self._bound(self._left)
        self._next = self._take_chunk if self._left else self._take_trailers
        return True

    def _take_chunk(self) -> bool:
        self._take(self._left)
        if self._left or len(self._received) < len(_END):
            return False
        if not self._received.startswith(_END):
            raise Interrupted("an invalid chunk")
        del self._received[: len(_END)]
        self._next = self._take_chunk_line
        return True

    def _take_trailers(self) -> bool:
        end = 0 if self._received.startswith(_END) else self._received.find(2 * _END)
        if end < 0:
            _within(len(self._received), _TRAILER_BYTES, "trailers")
            return False

        _within(end, _TRAILER_BYTES, "trailers")
        ending = 2 * len(_END) if end else len(_END)
        del self._received[: end + ending]
        self.is_complete = True
        return False

    def _take(self, most: int) -> None:
        """Moves up to ``most`` bytes from what was received to the content."""
        taken = min(most, len(self._received))
        self._bound(taken)
        self._content += self._received[:taken]
        del self._received[:taken]
        self._left -= min(taken, self._left)

    def _bound(self, more: int) -> None:
        if len(self._content) + more > self._most_bytes:
            raise PageTooLarge(f"more than {self._most_bytes} bytes")


def _within(size: int, limit: int, what: str) -> None:
    if size > limit:
        raise Interrupted(f"the response exceeds the limit on its {what}")


def _headers(lines: list[bytes]) -> Mapping[bytes, bytes]:
    """The header fields by lower-case name; the values of repeated ones are joined by commas."""
    headers: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name.strip():
            raise Interrupted("an invalid header line")
        key = name.strip().lower()
        values = [headers[key]] if key in headers else []
        headers[key] = b", ".join([*values, value.strip()])
    return headers


def _location(headers: Mapping[bytes, bytes]) -> str:
    """Where a redirect points, for people to read: without credentials, query and line breaks."""
    text = headers.get(b"location", b"").decode("latin-1")
    return redacted(_UNPRINTABLE.sub("?", text[:_LOCATION_CHARACTERS]))
