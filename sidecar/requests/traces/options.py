"""Limits and times of the traces receiver."""

from dataclasses import dataclass
from typing import Final

from sidecar.requests.traces.refusal import ExportRefused, Inconsistent


@dataclass(frozen=True, slots=True, kw_only=True)
class TracesOptions:
    """Times are in seconds; ``settings`` has those options that operators may change."""

    body_bytes: int = 4 * 1024 * 1024  # of one export, compressed and decompressed, else 413
    body_seconds: float = 10.0  # for one export's whole body to arrive, else 408
    max_inflight: int = 16  # exports that have arrived and wait or are being decoded; a further one gets 503
    max_spans: int = 10_000  # in one export, else 413; an OpenTelemetry Collector's batches have 8,192 by default
    max_connections: int = 64  # open at once
    header_seconds: float = 10.0  # for one request's head
    idle_seconds: float = 75.0  # a connection may stay open between exports
    retry_after_seconds: int = 1  # how long a refused sender is asked to wait
    recent_spans: int = 32_768  # remembered to drop repeated spans: about 5 MiB
    ahead_seconds: float = 60.0  # a span that ends further in the future is refused: its clock is not ours


DROP_REASONS: Final = frozenset(
    {Inconsistent.reason, ExportRefused.reason, *(refusal.reason for refusal in ExportRefused.__subclasses__())}
)
"""Every reason that an ``OtlpReceiver`` gives its sink."""
