"""GETs vLLM's pages, with limits on size and time and one error class per kind of failure."""

import asyncio
import ssl

import aiohttp
from yarl import URL

from sidecar.errors import BadStatus, Interrupted, PageTooLarge, TimedOut, Unreachable

# Text format, uncompressed: compressing would cost vLLM CPU time.
_HEADERS = {"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "identity"}


class Fetcher:
    """GETs from one vLLM server over one persistent connection."""

    def __init__(
        self,
        base_url: str,
        *,
        timeout: float = 5.0,
        page_bytes: int = 8 * 1024 * 1024,
        tls: ssl.SSLContext | bool = True,
    ) -> None:
        """Needs a running event loop. ``timeout`` is the limit in seconds for a whole exchange."""
        self._base = base_url
        self._timeout = timeout
        self._page_bytes = page_bytes
        self._tls = tls
        self._session = aiohttp.ClientSession(
            headers=_HEADERS,
            auto_decompress=False,
            connector=aiohttp.TCPConnector(limit=1),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
        )

    async def get(self, path: str) -> bytes:
        """The body at ``path``, which is sent as it is, without escaping.

        Raises:
            Unreachable: no connection.
            TimedOut: the body was not complete in time.
            BadStatus: a status other than 200; redirects are not followed, as they could lead anywhere.
            Interrupted: the response was cut off or was not valid HTTP.
            PageTooLarge: more bytes than the limit; the rest is not read.
        """
        try:
            async with asyncio.timeout(self._timeout):
                return await self._get(path)
        except TimeoutError as error:
            raise TimedOut(f"incomplete after {self._timeout:g} s") from error
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientPayloadError, aiohttp.ClientResponseError) as error:
            raise Interrupted(type(error).__name__) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unreachable(_reason(error)) from error

    async def close(self) -> None:
        """Closes the connection."""
        await self._session.close()

    async def _get(self, path: str) -> bytes:
        url = URL(self._base + path, encoded=True)
        async with self._session.get(url, ssl=self._tls, allow_redirects=False) as response:
            if response.status != 200:
                raise BadStatus(f"status {response.status}")
            body = await read_at_most(response, self._page_bytes)
        if body is None:
            raise PageTooLarge(f"more than {self._page_bytes} bytes")
        return body


async def read_at_most(response: aiohttp.ClientResponse, most: int) -> bytes | None:
    """The whole body; if it exceeds ``most`` bytes, closes the connection and returns None.

    aiohttp's own ``content.read(most)`` returns after the first chunk.
    """
    pieces: list[bytes] = []
    received = 0
    async for piece in response.content.iter_any():
        received += len(piece)
        if received > most:
            response.close()
            return None
        pieces.append(piece)
    return b"".join(pieces)


def _reason(error: Exception) -> str:
    """The cause without any addresses, which may contain credentials."""
    cause = error.strerror if isinstance(error, OSError) else None
    return f"{type(error).__name__}: {cause}" if cause else type(error).__name__
