"""The ``traces`` source: vLLM's own OpenTelemetry spans, received over OTLP/HTTP."""

from sidecar.requests.traces.options import TracesOptions
from sidecar.requests.traces.receiver import TracesReceiver, TracesStats

__all__ = ["TracesOptions", "TracesReceiver", "TracesStats"]
