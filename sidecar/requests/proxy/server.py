"""The proxy itself: listens, forwards everything to one upstream, and counts."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from sidecar.http.access import Access
from sidecar.http.listener import Listener
from sidecar.log import Log
from sidecar.requests.proxy.client import ClientConnection
from sidecar.requests.proxy.context import Context
from sidecar.requests.proxy.observer import ObserverFactory
from sidecar.requests.proxy.options import ProxyOptions, Upstream
from sidecar.requests.proxy.outcomes import ProxyStats
from sidecar.requests.proxy.sockets import allow_descriptors, notice_vanished_clients
from sidecar.requests.proxy.upstream import Pool

_BACKLOG = 1024


class ProxyServer:
    """A streaming reverse proxy on the running event loop, uvloop's or asyncio's own.

    Messages are forwarded unchanged, except that connection-level headers are removed and chunks are framed again,
    without trailers and extensions. No header is added: the upstream sees the client's Host, and X-Forwarded-For only
    if the client sent one. ``clock`` is monotonic, in seconds.
    """

    def __init__(
        self,
        upstream: Upstream,
        options: ProxyOptions,
        observe: ObserverFactory,
        clock: Callable[[], float],
        log: Log,
        *,
        access: Access | None = None,
        upstream_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """``access`` asks clients for TLS; ``upstream_lost`` is called when the upstream has become unreachable."""
        self._options = options
        self._clients: set[ClientConnection] = set()
        self._idle: dict[ClientConnection, None] = {}
        self._log = log
        self._pool = Pool(upstream, options, clock, log, upstream_lost)
        self._context = Context(
            upstream, options, observe, clock, ProxyStats(), self._pool, options.max_connections, asyncio.Event()
        )
        self._listener = Listener(self._client, access, options.header_seconds, self._refuse, log)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def stats(self) -> ProxyStats:
        """The present counters; the mappings continue to count."""
        return replace(
            self._context.counters,
            client_connections=len(self._clients),
            upstream_connections=len(self._pool.open),
            upstream_idle=len(self._pool.idle),
        )

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen (port 0: any free one) and return the address. Raises ``OSError`` if it cannot bind.

        If the process's limit on open files is too low for ``max_connections``, it is raised; if that is not possible,
        fewer clients are accepted.
        """
        self._context.max_clients = allow_descriptors(self._options.max_connections, self._log)
        address = await self._listener.start(
            host, port, _BACKLOG, lambda listener: notice_vanished_clients(listener, self._options.send_idle_seconds)
        )
        self._tick()
        return address

    async def drain(self, timeout: float) -> int:  # noqa: ASYNC109 - what is left at the timeout is cut and counted
        """Stop accepting, close idle connections, let exchanges finish for ``timeout`` seconds, then cut them.

        Returns how many exchanges were cut. The proxy is closed afterwards.
        """
        self._context.draining = True
        self._listener.close()
        self._pool.close()
        for client in list(self._clients):
            client.drain()
        if self._clients:
            self._context.no_clients.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._context.no_clients.wait(), timeout)
        cut = [client for client in self._clients if client.busy]
        if self._clients:
            for client in list(self._clients):
                client.kill()
            await self._context.no_clients.wait()
        if self._timer is not None:
            self._timer.cancel()
        return len(cut)

    def _client(self) -> ClientConnection:
        return ClientConnection(self._context, self._clients, self._idle)

    def _refuse(self, reason: str) -> None:
        self._context.counters.refused[reason] += 1

    def _tick(self) -> None:
        """Check every deadline."""
        # First, so that an unexpected error below cannot stop the clock.
        self._timer = asyncio.get_running_loop().call_later(self._options.tick_seconds, self._tick)
        now = self._context.clock()
        for client in list(self._clients):
            if client.deadline <= now:
                client.expire()
            else:
                client.check(now)
        self._pool.tick()
