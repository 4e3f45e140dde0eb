"""GETs from one server over one persistent connection."""

import asyncio
import base64
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from yarl import URL

from sidecar.engine.http_response import Response
from sidecar.errors import (
    Interrupted,
    NotAnswered,
    ScrapeError,
    TimedOut,
    TlsRefused,
    Unreachable,
)
from sidecar.tls import client_context, connection_fault

# Text format, uncompressed: compressing would cost vLLM CPU time.
_HEADERS: Final = (
    "User-Agent: specdec-sidecar",
    "Accept: text/plain;version=0.0.4",
    "Accept-Encoding: identity",
)
_ALERT: Final = "_ALERT_"  # in OpenSSL's names for the alerts with which a server refuses TLS
_NEXT_ADDRESS: Final = 0.25  # seconds until the next of a host's addresses is tried as well


class Fetcher:
    """GETs from one server. Call ``close`` at the end."""

    def __init__(
        self,
        base_url: str,
        *,
        timeout: float = 5.0,
        page_bytes: int = 8 * 1024 * 1024,
        tls: Callable[[], ssl.SSLContext | bool] | ssl.SSLContext | bool = True,
        is_persistent: bool = True,
    ) -> None:
        """``timeout`` is the limit in seconds for a whole exchange.

        ``tls`` is as in ``Scrape.tls``, or a function that gives it for each connection. With
        ``is_persistent`` off, each GET has a connection of its own, so that each may reach another
        server behind the same address.
        """
        self._base = base_url
        self._timeout = timeout
        self._page_bytes = page_bytes
        self._tls = tls
        self._is_persistent = is_persistent
        self._connection: _Connection | None = None  # waits for the next request
        self._closing: set[_Connection] = set()

    async def get(self, path: str) -> bytes:
        """The body at ``path``, which is sent as it is, without escaping.

        Raises:
            Unreachable: no connection.
            TimedOut: the body was not complete in time.
            TlsRefused: a new TLS connection was refused, or closed without an answer.
            BadStatus: a status other than 200; redirects are not followed, as they could lead
                anywhere.
            Interrupted: the response was cut off or was not valid HTTP; ``NotAnswered`` if none of
                it arrived.
            PageTooLarge: more bytes than the limit; the rest is not read.
        """
        try:
            async with asyncio.timeout(self._timeout):
                return await self._get(URL(self._base + path, encoded=True))
        except TimeoutError as error:
            raise TimedOut(f"incomplete after {self._timeout:g} s") from error
        except (OSError, ValueError) as error:
            raise Unreachable(_reason(error)) from error

    async def close(self) -> None:
        """Closes the connection."""
        if self._connection is not None:
            self._drop(self._connection)
            self._connection = None
        await asyncio.gather(*(connection.lost.wait() for connection in self._closing))

    async def _get(self, url: URL) -> bytes:
        self._closing = {one for one in self._closing if not one.lost.is_set()}
        kept = self._connection
        self._connection = None
        if kept is not None and kept.is_open:
            with suppress(NotAnswered):  # the server has closed it in the meantime
                return await self._ask(kept, url)

        connection = await self._connected(url)
        try:
            return await self._ask(connection, url)
        except NotAnswered as error:
            # With TLS 1.3, a server checks the client's certificate after the client's handshake.
            if url.scheme == "https":
                raise TlsRefused("the TLS connection was closed without an answer") from error
            raise

    async def _ask(self, connection: "_Connection", url: URL) -> bytes:
        try:
            response = await connection.ask(_request(url), self._page_bytes)
        except BaseException:
            self._drop(connection)
            raise

        if response.is_last or not self._is_persistent:
            self._drop(connection)
        else:
            self._connection = connection

        return response.body

    def _drop(self, connection: "_Connection") -> None:
        connection.abort()
        self._closing.add(connection)

    async def _connected(self, url: URL) -> "_Connection":
        if url.raw_host is None or url.port is None:
            raise ValueError("the URL has no host")

        tls = None
        if url.scheme == "https":
            tls = await asyncio.to_thread(self._context)  # it may read files

        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                _Connection,
                url.raw_host,
                url.port,
                ssl=tls,
                happy_eyeballs_delay=_NEXT_ADDRESS,
            )
        except (ConnectionResetError, ssl.SSLEOFError) as error:
            if tls is not None:
                raise TlsRefused("the connection was closed in the TLS handshake") from error
            raise
        except ssl.SSLError as error:
            if _ALERT in (error.reason or ""):
                raise TlsRefused(f"the server refused TLS: {error.reason}") from error
            raise
        return connection

    def _context(self) -> ssl.SSLContext:
        """The TLS context for the next connection."""
        given = self._tls() if callable(self._tls) else self._tls
        if not isinstance(given, bool):
            return given

        context = client_context(tls=given)
        if not callable(self._tls):
            self._tls = context  # the system's certificates are read once
        return context


class _Connection(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()  # set once the connection is closed
        self._transport: asyncio.Transport | None = None
        self._response: Response | None = None
        self._ended: asyncio.Future[Response] | None = None  # the response, once it is complete

    @property
    def is_open(self) -> bool:
        """Whether a request can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    async def ask(self, request: bytes, most_bytes: int) -> Response:
        """The response to a request.

        Raises what ``Response`` raises, and ``NotAnswered``.
        """
        self._response = Response(most_bytes)
        self._ended = asyncio.get_running_loop().create_future()
        if self._transport is None:
            raise NotAnswered("the connection is closed")
        self._transport.write(request)
        return await self._ended

    def abort(self) -> None:
        """Closes the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is established."""
        if isinstance(transport, asyncio.Transport):
            self._transport = transport

    def data_received(self, data: bytes) -> None:
        """The server has sent something, which it must not do between two requests."""
        response = self._response
        if response is None:
            self.abort()
            return

        try:
            response.feed(data)
        except ScrapeError as error:
            self._fail(error)
            return

        if response.is_complete:
            self._succeed(response)

    def eof_received(self) -> None:
        """The server sends nothing more; the connection closes."""
        self._close(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._close(exc)
        self._transport = None
        self.lost.set()

    def _close(self, error: Exception | None) -> None:
        response = self._response
        if response is None:
            return

        if not response.has_begun:
            self._fail(NotAnswered("the connection was closed without an answer"))
            return

        try:
            if error is not None:
                raise Interrupted(_reason(error))
            response.feed_end()
        except ScrapeError as problem:
            self._fail(problem)
            return

        self._succeed(response)

    def _succeed(self, response: Response) -> None:
        self._response = None
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(response)

    def _fail(self, error: ScrapeError) -> None:
        self._response = None
        self.abort()
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)


def _request(url: URL) -> bytes:
    lines = [f"GET {url.raw_path_qs} HTTP/1.1", f"Host: {url.host_port_subcomponent}", *_HEADERS]
    if url.user is not None:
        credentials = f"{url.user}:{url.password or ''}".encode()
        lines.append(f"Authorization: Basic {base64.b64encode(credentials).decode()}")
    return "".join(f"{line}\r\n" for line in [*lines, ""]).encode("ascii")


def _reason(error: Exception) -> str:
    """The cause without any addresses, which may contain credentials."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return connection_fault(error)
    cause = error.strerror if isinstance(error, OSError) else None
    return f"{type(error).__name__}: {cause}" if cause else type(error).__name__
