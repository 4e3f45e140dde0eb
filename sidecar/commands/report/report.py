"""The contents of a report, whatever its source; unknown values are None."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds at the median and at P99; a ``_below`` is an upper bound, if nothing better is known."""

    p50: float | None = None
    p99: float | None = None
    p50_below: float | None = None
    p99_below: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One temperature bucket; ratios 0 to 1.

    ``share`` is the part of all attributed draft tokens, ``speedup`` plain time per token / actual. ``attribution`` is
    exact or inferred, "exact, inferred" if there are requests of both kinds.
    """

    temperature: str
    verdict: str
    advice: str | None
    requests: int
    draft_tokens: float
    share: float | None
    acceptance: float | None
    p10: float | None
    p50: float | None
    p90: float | None
    attribution: str | None
    ttft: Times
    tpot: Times
    speedup: float | None


def row(temperature: str, bucket: Mapping[str, Any]) -> Row:
    """From a temperature of ``/api/v1/status``."""
    copied = ("verdict", "advice", "requests", "draft_tokens", "share", "acceptance", "p10", "p50", "p90")
    return Row(
        temperature=temperature,
        **{name: bucket[name] for name in (*copied, "attribution")},
        ttft=Times(**bucket["ttft"]),
        tpot=Times(**bucket["tpot"]),
        speedup=bucket["speed"]["speedup"],
    )


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine by vLLM's own counters and histograms."""

    name: str
    acceptance: float | None
    ttft: Times
    tpot: Times


@dataclass(frozen=True, slots=True)
class ModelTable:
    """One model's buckets that have requests; ``coverage`` and ``residual`` as exported.

    ``answer`` says in words whether speculation pays, in milliseconds if plain decoding was measured.
    """

    name: str
    coverage: float | None
    residual: float | None
    rows: tuple[Row, ...]
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """A whole report. ``period`` is the time that its numbers cover; ``notes`` are its caveats."""

    origin: str
    period: str
    models: tuple[ModelTable, ...]
    engines: tuple[Engine, ...]
    thresholds: Mapping[str, float]
    notes: tuple[str, ...]
