"""What the server allows, the reasons for which it refuses, and the headers of its responses."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

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

    handshake_seconds: float = 10.0
    idle_seconds: float = 75.0  # to send a whole head
    shutdown_seconds: float = 2.0  # for running handlers when the server stops
    max_connections: int = 64  # open at once
    open_paths: Collection[str] = frozenset()  # paths that need no password


class Refusal(StrEnum):
    """Why a connection or a request was refused or cut short."""

    GAVE_WAY = "gave_way"  # the oldest, closed for a new connection
    NOT_ACCEPTED = "not_accepted"  # accepting paused, since the process has no descriptor left
    TLS = "tls"  # a handshake failed or took too long
    MALFORMED = "malformed"  # not HTTP
    UNAUTHORIZED = "unauthorized"  # no password, or a wrong one
    INTERNAL = "internal"  # the handler raised
