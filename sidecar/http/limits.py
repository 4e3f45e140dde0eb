"""What the server allows, the reasons for which it refuses, and the headers of its responses."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sidecar.http.hosts import ANY

HEADERS: Final = {
    "Server": "specdec-sidecar",  # aiohttp's own has its version and Python's
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Of every response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardOptions:
    """Limits of a guarded server; times are seconds."""

    header_seconds: float = 10.0  # for a handshake, and for the first head
    idle_seconds: float = 75.0  # to read a response and send the next head
    shutdown_seconds: float = 2.0  # for running handlers when the server stops
    max_connections: int = 64  # open at once, without loopback's
    max_per_address: int = 16  # open at once from one address, loopback included
    allowed_hosts: Collection[str] = frozenset({ANY})  # names besides those that ``hosts.is_ours`` knows
    open_paths: Collection[str] = frozenset()  # paths that need no password


class Refusal(StrEnum):
    """Why a connection or a request was refused or cut short."""

    TOO_MANY_CONNECTIONS = "too_many_connections"  # closed at once: no open connection is idle
    GAVE_WAY = "gave_way"  # idle the longest, and closed for a new connection
    TIMEOUT = "timeout"  # cut at a deadline; closing an idle connection is not counted
    MALFORMED = "malformed"  # not HTTP, or with a body, which no page takes
    INTERNAL = "internal"  # the handler raised
    HOST = "host"  # the request names a host that is not ours
    NO_DESCRIPTORS = "no_descriptors"  # accepting paused, since the process has no descriptor left
    TLS = "tls"  # a handshake failed or took too long
    UNAUTHORIZED = "unauthorized"  # no password, or a wrong one
    TOO_MANY_PASSWORDS = "too_many_passwords"  # too many to check at the same time


WITH_ACCESS: Final = frozenset({Refusal.TLS, Refusal.UNAUTHORIZED, Refusal.TOO_MANY_PASSWORDS})
"""Those that only a web configuration file brings."""
