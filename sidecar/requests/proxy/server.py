"""The proxy itself: listens, forwards everything to one upstream, and counts."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from sidecar.log import Log
from sidecar.requests.proxy.client import ClientConnection
from sidecar.requests.proxy.context import Context
from sidecar.requests.proxy.observer import ObserverFactory
from sidecar.requests.proxy.options import ProxyOptions, Upstream
from sidecar.requests.proxy.outcomes import Counters, ProxyStats
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
        upstream_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """``upstream_lost`` is called when the upstream has become unreachable."""
        self._options = options
        self._clients: set[ClientConnection] = set()
        self._idle: dict[ClientConnection, None] = {}
        self._log = log
        self._pool = Pool(upstream, options, clock, log, upstream_lost)
        self._context = Context(
            upstream, options, observe, clock, Counters(), self._pool, options.max_connections, asyncio.Event()
        )
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def stats(self) -> ProxyStats:
        """A snapshot of the counters."""
        return self._context.counters.snapshot(
            clients=len(self._clients), upstreams=self._pool.open_count, idle=self._pool.idle_count
        )

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen (port 0: any free one) and return the address. Raises ``OSError`` if it cannot bind.

        Raises the process's limit on open files if it is too low for ``max_connections``, and accepts fewer clients if
        it cannot.
        """
        self._context.max_clients = allow_descriptors(self._options.max_connections, self._log)
        self._server = await asyncio.get_running_loop().create_server(
            lambda: ClientConnection(self._context, self._clients, self._idle), host, port, backlog=_BACKLOG
        )
        for listener in self._server.sockets:
            notice_vanished_clients(listener, self._options.send_idle_seconds)
        self._tick()
        address = self._server.sockets[0].getsockname()
        return str(address[0]), int(address[1])

    async def drain(self, timeout: float) -> int:  # noqa: ASYNC109 - what is left at the timeout is cut and counted
        """Accept no more, close idle connections, let exchanges finish for ``timeout`` seconds, then cut them.

        Returns how many exchanges were cut. The proxy is closed afterwards.
        """
        self._context.draining = True
        if self._server is not None:
            self._server.close()
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

    def _tick(self) -> None:
        """Check every deadline."""
        # First, so that an unforeseen error below cannot stop the clock.
        self._timer = asyncio.get_running_loop().call_later(self._options.tick_seconds, self._tick)
        now = self._context.clock()
        for client in list(self._clients):
            if client.deadline <= now:
                client.expire()
            else:
                client.check(now)
        self._pool.tick()
