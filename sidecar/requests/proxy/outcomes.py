"""How exchanges end: outcomes, refusals and upstream errors, their counts, and the proxy's own error responses."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from typing import Final


class ExchangeOutcome(StrEnum):
    """How an exchange ended for the proxy; a 500 that was forwarded in full counts as completed."""

    COMPLETED = "completed"  # the whole response was written to the client's socket
    CLIENT_GONE = "client_gone"
    UPSTREAM_FAILED = "upstream_failed"  # no response, or an incomplete one
    REFUSED = "refused"  # the proxy ended it: the body broke a rule or a limit, or draining ended


# Why the proxy refuses a request or a connection, and the status that the client gets.
REFUSALS: Final[Mapping[str, int]] = {
    "bad_request": 400,  # invalid HTTP, or ambiguous framing
    "bad_method": 405,  # CONNECT
    "bad_version": 505,  # neither HTTP/1.0 nor HTTP/1.1
    "headers_too_large": 431,
    "headers_timeout": 408,
    "body_too_large": 413,
    "body_timeout": 408,
    "send_timeout": 408,  # the client read nothing of its response for too long; reset without a response
    "too_many_connections": 503,
    "tls": 400,  # the handshake failed or took too long; closed without a response
    "no_descriptors": 503,  # accepting paused: the process has no descriptor left; connections wait
    "evicted": 503,  # idle longest when another client connected at the limit; closed without a response
}
# How the upstream fails, and what the client gets if no response has begun.
UPSTREAM_ERRORS: Final[Mapping[str, tuple[int, str]]] = {
    "connect": (502, "the upstream server is not reachable"),  # refused, unreachable, or the name does not resolve
    "connect_timeout": (504, "the upstream server did not accept a connection in time"),
    "tls": (502, "the TLS handshake with the upstream server failed"),
    "closed": (502, "the upstream server closed the connection before it answered"),
    "interrupted": (502, "the upstream server closed the connection before it answered"),  # within a response
    "invalid": (502, "the upstream server sent an invalid response"),
}


@dataclass(slots=True)
class ProxyStats:
    """The proxy's counts. Mappings hold every known key, from 0. All except the numbers of connections only grow."""

    exchanges: int = 0  # requests whose head was accepted
    outcomes: dict[str, int] = field(default_factory=lambda: {str(outcome): 0 for outcome in ExchangeOutcome})
    refused: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REFUSALS, 0))
    upstream_errors: dict[str, int] = field(default_factory=lambda: dict.fromkeys(UPSTREAM_ERRORS, 0))
    retries: int = 0  # safe requests sent again because a pooled connection turned out to be closed
    observer_failures: int = 0
    client_connections: int = 0  # open now; this and the next two are set when the proxy is asked for its stats
    upstream_connections: int = 0  # open now, idle ones included
    upstream_idle: int = 0  # open and in the pool


def error_response(status: int, message: str, *, close: bool, head_only: bool = False) -> bytes:
    """A whole response with an error in OpenAI's format; ``head_only``, for HEAD, omits the body."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": message, "type": kind, "param": None, "code": status}
    body = json.dumps({"error": error}).encode()
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"Connection: {'close' if close else 'keep-alive'}\r\n\r\n"
    ).encode()
    return head if head_only else head + body
