"""An export's body: read within its limits of size and time, and decompressed within the same size."""

import asyncio
import zlib
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from sidecar.requests.traces.refusal import BodyTimeout, Malformed, TooLarge, Unsupported

_STEP: Final = 262_144  # bytes decompressed before others get their turn: about 1 ms
_GZIP: Final = 31  # zlib's wbits for gzip's framing
_IDENTITY: Final = ("", "identity")


async def read_body(request: web.Request, limit: int, seconds: float) -> bytes:
    """The body as sent.

    Raises:
        TooLarge: over ``limit`` bytes, or announced as such.
        BodyTimeout: not there within ``seconds``, or broken off.
        Malformed: its chunks are not framed as HTTP asks; with its C parser aiohttp only lets that run into the time.
    """
    if (request.content_length or 0) > limit:
        raise TooLarge("the export is over its size limit")
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for piece in request.content.iter_any():
                body += piece
                if len(body) > limit:
                    raise TooLarge("the export is over its size limit")
    except (TimeoutError, ConnectionError) as error:
        raise BodyTimeout("the body did not arrive in its time") from error
    except (web.RequestPayloadError, HttpProcessingError) as error:
        raise Malformed("the body's framing is broken") from error
    return bytes(body)


def check_encoding(encoding: str) -> None:
    """Refuses a ``Content-Encoding`` before anything is read.

    Raises:
        Unsupported: neither gzip nor identity.
    """
    if encoding not in (*_IDENTITY, "gzip"):
        raise Unsupported("the content encoding must be gzip or identity")


async def decompressed(body: bytes, encoding: str, limit: int) -> bytes:
    """The body without its ``encoding``; gzip may have several members.

    Raises:
        TooLarge: over ``limit`` bytes; no more than that is ever held.
        Malformed: not gzip, or cut short.
    """
    if encoding in _IDENTITY:
        return body
    plain = bytearray()
    while body:
        member = zlib.decompressobj(_GZIP)
        while not member.eof:
            plain += _inflate(member, body)
            if len(plain) > limit:
                raise TooLarge("the decompressed export is over its size limit")
            body = member.unused_data if member.eof else member.unconsumed_tail
            await asyncio.sleep(0)
    return bytes(plain)


def _inflate(member: "zlib._Decompress", body: bytes) -> bytes:
    try:
        piece = member.decompress(body, _STEP)
    except zlib.error as error:
        raise Malformed("the body is not gzip") from error
    if not piece and not member.eof and not member.unconsumed_tail:
        raise Malformed("the gzip body is cut short")
    return piece
