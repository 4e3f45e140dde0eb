"""Socket options, socket state from the kernel, and the limit on open files."""

import resource
import select
import socket
import struct
from contextlib import suppress

from sidecar.log import Log

_RESET = struct.pack("ii", 1, 0)  # struct linger: on, for 0 seconds
_PROBE_SECONDS = 15
_PROBES = 4
_SPARE = 256  # descriptors for everything except client and upstream connections; half of all if the limit is low


def notice_silence(peer: socket.socket, seconds: float) -> None:
    """Let an idle connection fail if its other end has been unreachable for about ``seconds``.

    The kernel's default is two hours. An engine that is merely busy still answers these probes.
    """
    with suppress(OSError):  # a sandbox's kernel may support fewer options; serving must not fail for that
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, min(max(1, round(seconds)), 32_767))
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)


def notice_vanished_clients(listener: socket.socket, seconds: float) -> None:
    """The same for accepted sockets, which inherit it, and for bytes that stay unacknowledged for twice as long.

    The kernel retransmits for a quarter of an hour, and a client that has lost its network would keep the engine
    generating for that long.
    """
    notice_silence(listener, seconds)
    with suppress(OSError):  # see above
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, round(2 * seconds)) * 1000)


def has_left(peer: socket.socket) -> bool:
    """Whether the peer has closed its side or reset the connection; does not read from it."""
    poll = select.poll()
    poll.register(peer.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))


def reset_on_close(peer: socket.socket) -> None:
    """Turn the next close into a reset: unsent bytes are dropped, and the peer sees a broken connection."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def allow_descriptors(clients: int, log: Log) -> int:
    """Raise the soft limit on open files to what ``clients`` connections need, as far as the hard limit allows.

    Returns how many clients fit, at least 1: without that bound, connections to the upstream would fail first.

    Container runtimes and shells start processes with a soft limit of 1024, for programs that use ``select``.
    """
    wanted = 2 * clients + _SPARE  # each may need an upstream connection
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return clients
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with suppress(OSError, ValueError):  # a sandbox may forbid it; then only the warning below remains
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit >= wanted:
        return clients
    fitting = max(1, (limit - min(_SPARE, limit // 2)) // 2)
    log.warning("limit on open files is too low for max_connections", limit=limit, needed=wanted, accepted=fitting)
    return min(clients, fitting)
