"""What presses on a model's requests: of each quantity, that of the engine where it is worst."""

from dataclasses import dataclass

from sidecar.analysis.engine.latency import Latency
from sidecar.analysis.report import ModelReport
from sidecar.engine.names import Gauge, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """Each is None where it is unknown.

    ``per_token`` is of the engine with the widest gap, ``first_token`` of that with the highest
    P99. ``running`` and ``waiting`` are requests of all engines.
    """

    kv_cache_peak: float | None = None  # usage within the window, 0 to 1
    per_token: Latency | None = None
    first_token: Latency | None = None
    running: float | None = None
    waiting: float | None = None


def pressure(model: ModelReport) -> Pressure:
    """As of the report."""
    engines = model.engines
    peaks = [engine.kv_cache_peak for engine in engines if engine.kv_cache_peak is not None]
    gauges = [engine.gauges for engine in engines if engine.gauges]
    per_token = _latencies(model, Phase.TPOT)
    first_token = _latencies(model, Phase.TTFT)

    return Pressure(
        kv_cache_peak=max(peaks, default=None),
        per_token=max(per_token, key=lambda one: one.gap_seconds or 0.0, default=None),
        first_token=max(first_token, key=lambda one: one.quantiles[0.99], default=None),
        running=sum(gauge.get(Gauge.REQUESTS_RUNNING, 0.0) for gauge in gauges) if gauges else None,
        waiting=sum(gauge.get(Gauge.REQUESTS_WAITING, 0.0) for gauge in gauges) if gauges else None,
    )


def _latencies(model: ModelReport, phase: Phase) -> list[Latency]:
    return [engine.latencies[phase] for engine in model.engines if phase in engine.latencies]
