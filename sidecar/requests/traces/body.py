"""An export's body: read within its limits of size and time, and decompressed within the same size."""

import asyncio
import zlib
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from sidecar.http.chunks import is_too_fine
from sidecar.requests.traces.refusal import ExportRefused

_TOO_LARGE: Final = "the export is over its size limit"
_BODIES: Final = 4
_MEMBERS: Final = 16  # gzip members in a body; senders write one, and each costs a copy of all that follow it
_GZIP: Final = 31  # zlib's wbits for gzip's framing


class BodyReader:
    """Reads bodies of at most ``limit`` bytes, each within ``seconds``.

    Together they hold at most the bytes of ``_BODIES`` such bodies: past that, the one that has been arriving longest
    is refused, so that slow ones never block the others.
    """

    def __init__(self, limit: int, seconds: float) -> None:
        self._limit = limit
        self._seconds = seconds
        self._sizes: dict[asyncio.Timeout, int] = {}  # of what has arrived, oldest first

    async def read(self, request: web.Request) -> bytes:
        """The body as sent.

        Raises:
            ExportRefused: too_large, also if announced as such; timeout; overload, if others needed the memory;
                malformed, if its chunks are not framed as HTTP requires, where aiohttp's C parser does not let that
                run into the time limit, or many and small, which the proxy refuses too.
        """
        if not request.body_exists:  # aiohttp's empty stream is one object for all, and chunks of it never end
            return b""
        if (request.content_length or 0) > self._limit:
            raise ExportRefused("too_large", _TOO_LARGE)
        deadline = asyncio.timeout(self._seconds)
        self._sizes[deadline] = 0
        try:
            async with deadline:
                return await self._read(request, deadline)
        except (TimeoutError, ConnectionError) as error:
            if deadline not in self._sizes:
                raise ExportRefused("overload", "the body arrives too slowly while many others arrive") from error
            raise ExportRefused("timeout", "the body did not arrive in time") from error
        except (web.RequestPayloadError, HttpProcessingError) as error:
            raise ExportRefused("malformed", "the body's framing is broken") from error
        finally:
            self._sizes.pop(deadline, None)

    async def _read(self, request: web.Request, deadline: asyncio.Timeout) -> bytes:
        body, chunks = bytearray(), 0
        async for piece, ends_chunk in request.content.iter_chunks():
            body += piece
            chunks += ends_chunk
            if is_too_fine(chunks, len(body)):
                raise ExportRefused("malformed", "the body's chunks are too small")
            if len(body) > self._limit:
                raise ExportRefused("too_large", _TOO_LARGE)
            if deadline in self._sizes:  # otherwise it was refused, and ends immediately
                self._sizes[deadline] = len(body)
            if sum(self._sizes.values()) > _BODIES * self._limit:
                longest = next(iter(self._sizes))
                del self._sizes[longest]
                longest.reschedule(asyncio.get_running_loop().time())
        return bytes(body)


def gunzipped(body: bytes, limit: int) -> bytes:
    """The decompressed body; gzip may have several members.

    Raises:
        ExportRefused: too_large, over ``limit`` bytes, of which no more is ever held, or over ``_MEMBERS`` members;
            malformed, if it is not gzip or cut short.
    """
    plain = bytearray()
    for _ in range(_MEMBERS):
        if not body:
            return bytes(plain)
        member = zlib.decompressobj(_GZIP)
        try:
            plain += member.decompress(body, limit + 1 - len(plain))
        except zlib.error as error:
            raise ExportRefused("malformed", "the body is not gzip") from error
        if len(plain) > limit:
            raise ExportRefused("too_large", _TOO_LARGE)
        if not member.eof:
            raise ExportRefused("malformed", "the gzip body is cut short")
        body = member.unused_data
    if body:
        raise ExportRefused("too_large", "the export has too many gzip members")
    return bytes(plain)
