"""Why an export, or one span of it, is refused. Messages are fixed text and contain nothing that was sent."""

from typing import ClassVar

from sidecar.errors import SpecDecError


class ExportRefused(SpecDecError):
    """A whole export that is refused.

    ``reason`` is the key under which it is counted, ``status`` the HTTP status and ``code`` gRPC's code for it.
    """

    reason: ClassVar[str] = "malformed"
    status: ClassVar[int] = 400
    code: ClassVar[int] = 3  # INVALID_ARGUMENT


class Malformed(ExportRefused):
    """The body is not what its headers say."""


class Unsupported(ExportRefused):
    """A media type or a content encoding other than those of OTLP/HTTP."""

    reason = "unsupported"
    status = 415


class TooLarge(ExportRefused):
    """More bytes or more spans than the limits allow."""

    reason = "too_large"
    status = 413
    code = 8  # RESOURCE_EXHAUSTED

    def __init__(self, message: str = "too many spans in one export: lower the sender's batch size") -> None:
        super().__init__(message)


class BodyTimeout(ExportRefused):
    """The body did not arrive in time, or broke off."""

    reason = "timeout"
    status = 408
    code = 4  # DEADLINE_EXCEEDED


class Overloaded(ExportRefused):
    """Too many exports are being read at once; the sender is asked to retry.

    The status is 503, which exporters retry; OpenTelemetry's exporter for Python did not retry 429 before 1.45.
    """

    reason = "overload"
    status = 503
    code = 14  # UNAVAILABLE


class Inconsistent(SpecDecError):
    """One span whose times, counts or ids cannot be true. Only this span is refused."""

    reason: ClassVar[str] = "inconsistent"
