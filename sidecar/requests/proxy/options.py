"""The proxy's limits and times, and the one address to which it forwards."""

from dataclasses import dataclass
from ssl import SSLContext


@dataclass(frozen=True, slots=True)
class Upstream:
    """The only address to which requests are forwarded; nothing in a request can change it.

    With an ``ssl`` context the connection uses TLS and the certificate must be valid for ``host``.
    """

    host: str
    port: int
    ssl: SSLContext | None = None

    @property
    def authority(self) -> bytes:
        """``host:port`` as in a ``Host`` header: for HTTP/1.0 clients, which may send none."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}".encode("ascii")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyOptions:
    """Limits and times; times are in seconds. Nothing limits how long a response may take."""

    max_connections: int = 4096  # of clients, each of which may need one to the upstream; further ones get 503
    max_header_bytes: int = 65_536  # of a request head, else 431
    max_body_bytes: int | None = None  # of a request body, else 413; None: the upstream decides
    awaited_body_bytes: int = 16_384  # a request body up to this size is received whole before the upstream gets it
    header_seconds: float = 30.0  # from a head's first byte to its last, else 408
    body_idle_seconds: float = 60.0  # between two reads of a request body, else 408
    min_body_rate: float = 500.0  # bytes per second that a request body must average, else 408
    send_idle_seconds: float = 60.0  # for which a client may read nothing of its response, like nginx's send_timeout
    idle_seconds: float = 75.0  # between requests
    # After a refusal, for the client to read it before the connection is closed; while draining, between requests.
    linger_seconds: float = 2.0
    connect_seconds: float = 5.0  # to connect to the upstream, else 504
    pool_size: int = 256  # idle upstream connections kept
    pool_warm: int = 4  # idle upstream connections opened ahead of demand
    pool_idle_seconds: float = 3.0  # an upstream connection is kept: below uvicorn's 5 s, so the proxy closes first
    pool_fresh_seconds: float = 20.0  # the same for a connection that has not carried a request yet
    buffer_bytes: int = 16_384  # unsent bytes in one direction at which reading from the other side pauses
    read_bytes: int = 32_768  # taken from a connection in one read; so much may be unsent on top of buffer_bytes
    tick_seconds: float = 0.5  # between two checks of all deadlines
