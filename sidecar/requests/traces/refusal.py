"""Why an export, or one span of it, is refused. Messages are fixed text and contain nothing that was sent."""

from collections.abc import Mapping
from typing import ClassVar, Final

from sidecar.errors import SpecDecError

# The HTTP status and gRPC's code for it, by the reason under which a refused export is counted.
REFUSALS: Final[Mapping[str, tuple[int, int]]] = {
    "malformed": (400, 3),  # INVALID_ARGUMENT: the body is not what its headers say
    "unsupported": (415, 3),  # a media type or a content encoding other than those of OTLP/HTTP
    "too_large": (413, 8),  # RESOURCE_EXHAUSTED: more bytes or more spans than the limits allow
    "timeout": (408, 4),  # DEADLINE_EXCEEDED: the body did not arrive in time, or broke off
    # UNAVAILABLE: too many exports at once. OpenTelemetry's exporter for Python did not retry 429 before 1.45.
    "overload": (503, 14),
}


class ExportRefused(SpecDecError):
    """A whole export is refused; ``reason`` is a key of ``REFUSALS``."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Inconsistent(SpecDecError):
    """One span whose times, counts or ids cannot be true. Only this span is refused."""

    reason: ClassVar[str] = "inconsistent"


DROP_REASONS: Final = frozenset({Inconsistent.reason, *REFUSALS})
"""Every reason that an ``OtlpReceiver`` gives its sink."""
