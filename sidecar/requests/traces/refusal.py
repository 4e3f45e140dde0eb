"""Why an export, or one span of it, is not taken. Messages are fixed text and hold nothing of what was sent."""

from typing import ClassVar

from sidecar.errors import SpecDecError


class ExportRefused(SpecDecError):
    """A whole export that is not taken.

    ``reason`` is the key it is counted under, ``status`` the HTTP status and ``code`` gRPC's code for it.
    """

    reason: ClassVar[str] = "malformed"
    status: ClassVar[int] = 400
    code: ClassVar[int] = 3  # INVALID_ARGUMENT


class Malformed(ExportRefused):
    """The body is not what its headers say."""


class Unsupported(ExportRefused):
    """A media type or a content encoding that is not spoken here."""

    reason = "unsupported"
    status = 415


class TooLarge(ExportRefused):
    """More bytes or more spans than the limits allow."""

    reason = "too_large"
    status = 413
    code = 8  # RESOURCE_EXHAUSTED


class BodyTimeout(ExportRefused):
    """The body did not arrive in its time, or broke off."""

    reason = "timeout"
    status = 408
    code = 4  # DEADLINE_EXCEEDED


class Overloaded(ExportRefused):
    """Too many exports are in work, or the sink is full; the sender is told to come again.

    The status is 503 for both: exporters retry it, while OpenTelemetry's for Python retried no 429 before 1.45.
    """

    reason = "overload"
    status = 503
    code = 14  # UNAVAILABLE


class Inconsistent(SpecDecError):
    """One span whose times, counts or ids can't be true. It alone is refused."""

    reason: ClassVar[str] = "inconsistent"
