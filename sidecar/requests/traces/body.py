"""An export's body: read within its limits of size and time, and decompressed within the same size."""

import asyncio
import zlib
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from sidecar.requests.traces.refusal import BodyTimeout, Malformed, TooLarge

_TOO_LARGE: Final = "the export is over its size limit"
_MEMBERS: Final = 16  # of gzip in a body; senders write one, and each costs a copy of all that follow it
_GZIP: Final = 31  # zlib's wbits for gzip's framing


async def read_body(request: web.Request, limit: int, seconds: float) -> bytes:
    """The body as sent.

    Raises:
        TooLarge: over ``limit`` bytes, or announced as such.
        BodyTimeout: not there within ``seconds``, or broken off.
        Malformed: its chunks are not framed as HTTP asks; with its C parser aiohttp lets that run into the time limit.
    """
    if (request.content_length or 0) > limit:
        raise TooLarge(_TOO_LARGE)
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for piece in request.content.iter_any():
                body += piece
                if len(body) > limit:
                    raise TooLarge(_TOO_LARGE)
    except (TimeoutError, ConnectionError) as error:
        raise BodyTimeout("the body did not arrive in time") from error
    except (web.RequestPayloadError, HttpProcessingError) as error:
        raise Malformed("the body's framing is broken") from error
    return bytes(body)


def gunzipped(body: bytes, limit: int) -> bytes:
    """The decompressed body; gzip may have several members.

    Raises:
        TooLarge: over ``limit`` bytes, of which no more is ever held, or over ``_MEMBERS`` members.
        Malformed: not gzip, or cut short.
    """
    plain = bytearray()
    for _ in range(_MEMBERS):
        if not body:
            return bytes(plain)
        member = zlib.decompressobj(_GZIP)
        try:
            plain += member.decompress(body, limit + 1 - len(plain))
        except zlib.error as error:
            raise Malformed("the body is not gzip") from error
        if len(plain) > limit:
            raise TooLarge(_TOO_LARGE)
        if not member.eof:
            raise Malformed("the gzip body is cut short")
        body = member.unused_data
    if body:
        raise TooLarge("the export has too many gzip members")
    return bytes(plain)
