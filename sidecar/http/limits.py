"""What the server allows, why it refuses connections and requests, and the headers of its responses."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

HEADERS: Final = {
    "Server": "specdec-sidecar",  # aiohttp's default reveals its version and Python's
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Sent with every response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardOptions:
    """Limits of a guarded server; times are seconds."""

    handshake_seconds: float = 10.0
    idle_seconds: float = 75.0  # to send a complete request head
    shutdown_seconds: float = 2.0  # for running handlers when the server stops
    max_connections: int = 64  # open at the same time
    open_paths: Collection[str] = frozenset()  # paths that need no password


class Refusal(StrEnum):
    """Why a connection or a request was refused or cut short."""

    GAVE_WAY = "gave_way"  # the oldest connection, closed to make room for a new one
    NOT_ACCEPTED = "not_accepted"  # accepting failed and pauses, for example because no file descriptor is left
    TLS = "tls"  # a handshake failed or took too long
    MALFORMED = "malformed"  # not HTTP
    UNAUTHORIZED = "unauthorized"  # no password, or a wrong one
    INTERNAL = "internal"  # the handler raised
