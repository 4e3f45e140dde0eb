"""What the relay says itself: refusals and failures, in the shape of OpenAI's errors."""

import json
from http import HTTPStatus
from typing import ClassVar

from sidecar.errors import SpecDecError


class MalformedMessage(SpecDecError):
    """Bytes that are not sound HTTP; the message is fixed text and holds nothing of them."""


class Refusal(SpecDecError):
    """A request that is answered by the relay instead of the upstream.

    ``reason`` is the key it is counted under, ``status`` what the client gets.
    """

    reason: ClassVar[str] = "bad_request"
    status: ClassVar[int] = 400


class BadMethod(Refusal):
    """CONNECT: the relay is no forward proxy."""

    reason = "bad_method"
    status = 405


class BadVersion(Refusal):
    """Neither HTTP/1.0 nor HTTP/1.1."""

    reason = "bad_version"
    status = 505


class HeadersTooLarge(Refusal):
    """The head is over its limit."""

    reason = "headers_too_large"
    status = 431


class HeadersTimeout(Refusal):
    """The head did not arrive whole in its time."""

    reason = "headers_timeout"
    status = 408


class BodyTooLarge(Refusal):
    """The body is, or says it is, over its limit."""

    reason = "body_too_large"
    status = 413


class BodyTimeout(Refusal):
    """The body stopped coming."""

    reason = "body_timeout"
    status = 408


class TooManyConnections(Refusal):
    """The relay holds as many connections as it may."""

    reason = "too_many_connections"
    status = 503


def error_response(status: int, message: str, *, close: bool, head_only: bool = False) -> bytes:
    """A whole HTTP/1.1 response; ``head_only`` (the answer to HEAD) leaves its body out."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": message, "type": kind, "param": None, "code": status}
    body = json.dumps({"error": error}).encode()
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"{'Connection: close' if close else 'Connection: keep-alive'}\r\n\r\n"
    ).encode()
    return head if head_only else head + body
