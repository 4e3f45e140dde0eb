"""What an operator may set of the relay, and the one place it forwards to."""

from dataclasses import dataclass
from ssl import SSLContext


@dataclass(frozen=True, slots=True)
class Upstream:
    """The only address requests go to; nothing in a request can change it.

    With an ``ssl`` context the connection is TLS and ``host`` is the name that is checked.
    """

    host: str
    port: int
    ssl: SSLContext | None = None

    @property
    def authority(self) -> bytes:
        """``host:port`` as a ``Host`` header has it: for HTTP/1.0 clients, which may send none."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}".encode("ascii")


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayOptions:
    """Limits and times of the relay; times are seconds. No option limits how long a response may take."""

    max_connections: int = 4096  # clients at once; more get 503. Each may take a second file descriptor upstream
    max_header_bytes: int = 65_536  # of one request's head, else 431
    max_body_bytes: int | None = None  # of one request, else 413; None: the upstream decides
    header_seconds: float = 30.0  # from a head's first byte to its last, else 408
    body_idle_seconds: float = 60.0  # between two pieces of a request's body, else 408
    send_idle_seconds: float = 60.0  # a client may take none of the bytes that wait for it, as nginx's send_timeout
    idle_seconds: float = 75.0  # a connection may stay open between requests
    linger_seconds: float = 2.0  # after a refusal: time for the client to read it before the connection is cut
    connect_seconds: float = 5.0  # to reach the upstream, else 504
    pool_size: int = 256  # idle upstream connections kept at most
    pool_warm: int = 4  # idle upstream connections dialled ahead
    pool_idle_seconds: float = 3.0  # below uvicorn's keep-alive of 5 s, so that the relay closes first
    pool_fresh_seconds: float = 20.0  # the same for a connection that has carried no request yet
    buffer_bytes: int = 65_536  # unsent bytes in one direction at which its sender is paused
    tick_seconds: float = 0.5  # how often deadlines are looked at
