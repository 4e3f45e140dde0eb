"""One engine on the page: acceptance, KV cache, latencies, load."""

from collections.abc import Mapping
from html import escape

from sidecar.analysis.acceptance import NO_DRAFTS
from sidecar.analysis.engine.latency import Latency, gap_growth
from sidecar.analysis.report import EngineReport
from sidecar.engine.names import Gauge, Phase
from sidecar.wording.numbers import by_position, percent
from sidecar.wording.numbers import latency as shown

_LOAD = {Gauge.REQUESTS_RUNNING: "running", Gauge.REQUESTS_WAITING: "waiting"}


def engine_section(engine: EngineReport, baselines: Mapping[str, Mapping[float, float]]) -> str:
    """Three panels. ``baselines`` are the model's baseline latencies in seconds, by phase and quantile."""
    acceptance = engine.acceptance or NO_DRAFTS
    length = f", {acceptance.length:.2f} tokens per draft" if acceptance.length else ""
    load = ", ".join(f"{engine.gauges[gauge]:.0f} {what}" for gauge, what in _LOAD.items() if gauge in engine.gauges)
    capacity = engine.kv_cache_capacity_tokens
    tokens = "" if capacity is None else f" of {capacity:,} tokens"
    return (
        f"<h2>{escape(engine.key.model_name)} <small>engine {escape(engine.key.engine)}</small></h2>"
        '<div class="panels">'
        f'<div class="panel"><h3>Acceptance rate, all requests</h3>{value(percent(acceptance.rate))}'
        f'{length}<div class="facts">{by_position(acceptance, "out of all drafts")}</div></div>'
        f'<div class="panel"><h3>KV-cache usage, peak</h3>{value(percent(engine.kv_cache_peak))}{tokens}'
        f'<div class="facts">{load}</div></div>'
        f'<div class="panel"><h3>Latency</h3>{_latencies(engine.latencies, baselines)}</div></div>'
    )


def value(text: str) -> str:
    """A panel's main number."""
    return f'<span class="value number">{text}</span>'


def _latencies(latencies: Mapping[Phase, Latency], baselines: Mapping[str, Mapping[float, float]]) -> str:
    if not latencies:
        return '<p class="facts">No requests in the window.</p>'
    rows = "".join(
        f"<tr><th>{phase.upper()}</th><td class=number>{_quantile(one, 0.5)}</td>"
        f"<td class=number>{_quantile(one, 0.95)}</td><td class=number>{_quantile(one, 0.99)}</td>"
        f"<td>{_gap(one, baselines.get(phase, {}))}</td></tr>"
        for phase, one in latencies.items()
    )
    return f"<table><tr><th></th><td>P50</td><td>P95</td><td>P99</td><td>P99 - P50</td></tr>{rows}</table>"


def _quantile(latency: Latency, quantile: float) -> str:
    """The quantile; in vLLM's first bucket, only the bucket's edge is known."""
    found, resolution = latency.quantiles[quantile], latency.resolution
    return escape(f"<{shown(resolution)}") if found < resolution else shown(found)


def _gap(latency: Latency, baseline: Mapping[float, float]) -> str:
    growth = gap_growth(latency, baseline)
    gap = _quantile(latency, 0.99) if latency.gap_seconds is None else shown(latency.gap_seconds)
    return f"<span class=number>{gap}</span>" + ("" if growth is None else f" ({growth:.1f} times the baseline)")
