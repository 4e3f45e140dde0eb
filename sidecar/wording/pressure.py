"""What presses on a model's requests: the KV cache, the latency gap, the first token, the queue."""

from collections.abc import Mapping
from typing import NamedTuple

from sidecar.analysis.engine.latency import Latency, gap_growth
from sidecar.analysis.history import Quantity
from sidecar.analysis.report import ModelReport
from sidecar.engine.names import Gauge, Phase
from sidecar.wording.numbers import latency, percent
from sidecar.wording.tables import shown_quantiles


class Pressure(NamedTuple):
    """A number with its name, and what it is to be read with."""

    name: str
    number: str
    beside: str
    quantity: Quantity  # of which the last hour is known


def pressures(model: ModelReport) -> list[Pressure]:
    """Each of the engine where it is worst; those that are not known are left out."""
    return [*_kv_cache(model), *_gap(model), *_first_token(model), *_queue(model)]


def gap_text(measured: Latency, baseline: Mapping[float, float]) -> str:
    """P99 - P50, and how it has grown against the ``baseline`` by quantile, if there is one."""
    growth = gap_growth(measured, baseline)
    if measured.gap_seconds is None:
        gap = shown_quantiles(measured, latency)[-1]
    else:
        gap = latency(measured.gap_seconds)
    return gap if growth is None else f"{gap} ({growth:.1f} times the baseline)"


def _gap(model: ModelReport) -> list[Pressure]:
    found = _latencies(model, Phase.TPOT)
    if not found:
        return []
    worst = max(found, key=lambda one: one.gap_seconds or 0.0)
    half, _, most = shown_quantiles(worst, latency)
    gap = gap_text(worst, model.plain_latencies.get(Phase.TPOT, {}))
    return [Pressure("P99 - P50 per token", gap, f"{half} to {most}, by bucket", Quantity.GAP)]


def _first_token(model: ModelReport) -> list[Pressure]:
    found = _latencies(model, Phase.TTFT)
    if not found:
        return []
    worst = max(found, key=lambda one: one.quantiles[0.99])
    half, _, most = shown_quantiles(worst, latency)
    return [Pressure("First token, P99", most, f"P50 {half}, by bucket", Quantity.FIRST_TOKEN)]


def _latencies(model: ModelReport, phase: Phase) -> list[Latency]:
    return [engine.latencies[phase] for engine in model.engines if phase in engine.latencies]


def _kv_cache(model: ModelReport) -> list[Pressure]:
    peaks = [engine.kv_cache_peak for engine in model.engines if engine.kv_cache_peak is not None]
    if not peaks:
        return []
    capacity = model.kv_cache_capacity_tokens
    tokens = "" if capacity is None else f"of {capacity:,} tokens"
    return [Pressure("KV cache, peak", percent(max(peaks)), tokens, Quantity.KV_CACHE)]


def _queue(model: ModelReport) -> list[Pressure]:
    gauges = [engine.gauges for engine in model.engines if engine.gauges]
    if not gauges:
        return []
    running = sum(each.get(Gauge.REQUESTS_RUNNING, 0.0) for each in gauges)
    waiting = sum(each.get(Gauge.REQUESTS_WAITING, 0.0) for each in gauges)
    return [Pressure("Waiting", f"{waiting:,.0f}", f"{running:,.0f} running", Quantity.WAITING)]
