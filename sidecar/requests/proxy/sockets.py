"""What the kernel is asked and told about sockets, and how many of them may be open."""

import resource
import select
import socket
import struct
from contextlib import suppress
from typing import Protocol

_RESET = struct.pack("ii", 1, 0)  # struct linger: on, for 0 seconds
_PROBE_SECONDS = 15
_PROBES = 4
_SPARE = 256  # descriptors for everything but clients and their upstream connections


def notice_silence(peer: socket.socket, seconds: float) -> None:
    """Have a connection without traffic fail where its other end has vanished for some ``seconds``.

    The kernel's own patience is two hours. An engine that is merely busy still answers these probes.
    """
    with suppress(OSError):  # a kernel that knows less, as a sandbox's may, is no reason not to serve
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, min(max(1, round(seconds)), 32_767))
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)


def notice_vanished_clients(listener: socket.socket, seconds: float) -> None:
    """The same for accepted sockets, which inherit it, and for bytes that nobody acknowledges for twice as long.

    The kernel sends those again for a quarter of an hour, and for as long a client that has lost its network would
    keep the engine generating.
    """
    notice_silence(listener, seconds)
    with suppress(OSError):  # as above
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, round(2 * seconds)) * 1000)


def has_left(peer: socket.socket) -> bool:
    """Whether the peer has closed its side or reset the connection, told without reading from it."""
    poll = select.poll()
    poll.register(peer.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))


def reset_on_close(peer: socket.socket) -> None:
    """Make the close to come a reset: what is unsent is dropped, and the peer sees a broken connection."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


class Log(Protocol):
    """The part of a structlog logger that is needed here."""

    def warning(self, event: str, **values: object) -> object:
        """Log something an operator should look at."""


def allow_descriptors(clients: int, log: Log) -> None:
    """Raise the soft limit on open files to what ``clients`` connections need, as far as the hard limit lets.

    Container runtimes and shells start processes with a soft limit of 1024, kept for programs that use ``select``.
    """
    wanted = 2 * clients + _SPARE  # each may have an upstream connection
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with suppress(OSError, ValueError):  # where a sandbox forbids it, the warning below is all there is
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit < wanted:
        log.warning("relay_few_descriptors", limit=limit, wanted=wanted)
