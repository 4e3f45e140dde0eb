"""What measured levels mean: acceptance, speed, and whether speculation pays, by temperature and load."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from sidecar.analysis.request_stats import RecentWork, SlidingWork, quantile
from sidecar.analysis.verdict import Verdict, VerdictThresholds, judge
from sidecar.commands.sweep.counters import Counted
from sidecar.commands.sweep.level import Measured
from sidecar.commands.sweep.options import Level

Source = Literal["exact", "counters", "none"]

ACTIONS: Final[Mapping[Verdict, str]] = {
    Verdict.NET_NEGATIVE: "stop: speculation costs more than it gives here",
    Verdict.BREAK_EVEN: "measure P99 under your own load before you decide",
    Verdict.NET_POSITIVE: "confirm under your own load, then ship",
    Verdict.INSUFFICIENT_DATA: "too little was drafted to tell; ask for more --requests",
}
NOTHING_DRAFTED: Final = "nothing was drafted, in replies or in vLLM's counters: is speculation on?"
_NO_WORK: Final = SlidingWork(math.inf).read(0.0)
_OTHERS: Final = 0.01  # share of drafted tokens by which counters and requests may differ


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Seconds, or None where nothing was measured."""

    p50: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class Speed:
    """One level on one server; ``tpot`` is the time for each output token after the first."""

    requests: int
    failed: int
    ttft: Quantiles
    tpot: Quantiles
    duration: Quantiles
    tokens_per_second: float
    requests_per_second: float


@dataclass(frozen=True, slots=True)
class Speculation:
    """Where the numbers come from, and the numbers; ``work.acceptance`` is accepted / drafted tokens."""

    source: Source
    work: RecentWork


@dataclass(frozen=True, slots=True)
class LevelSummary:
    """One level, with the baseline's speed where there is one.

    ``speedup`` is the baseline's TPOT at the median divided by this one's, ``speedup_p99`` the same at P99,
    ``throughput_ratio`` this one's tokens a second divided by the baseline's: above 1 speculation is the faster.
    ``counted`` are vLLM's own draft tokens meanwhile; ``others``: they hold other people's requests too.
    ``baseline_drafts``: the baseline speculates as well; the two say nothing about speculation and aren't compared.
    """

    level: Level
    speculation: Speculation
    speed: Speed
    baseline: Speed | None
    speedup: float | None
    speedup_p99: float | None
    throughput_ratio: float | None
    counted: float | None
    others: bool
    baseline_drafts: bool
    complete: bool


@dataclass(frozen=True, slots=True)
class TemperatureSummary:
    """One temperature over all its loads.

    ``pays_up_to`` is the heaviest load measured at which speculation is faster than the baseline, with all lighter
    ones; ``stops_at`` the lightest at which it is not. Both None where there is no baseline or no such load.
    """

    temperature: float
    speculation: Speculation
    verdict: Verdict
    action: str
    advice: str | None
    pays_up_to: int | None
    stops_at: int | None


def level_summary(measured: Measured, baseline: Measured | None) -> LevelSummary:
    """One level's numbers."""
    speed = _speed(measured)
    other = None if baseline is None else _speed(baseline)
    drafts_too = baseline is not None and _speculation([baseline]).work.draft_tokens > 0
    compared = None if drafts_too else other
    found = _speculation([measured])
    counted = None if measured.counted is None else measured.counted.draft_tokens
    drafted = found.work.draft_tokens
    mixed = counted is not None and found.source == "exact" and abs(counted - drafted) > _OTHERS * max(drafted, 1)
    return LevelSummary(
        measured.level,
        found,
        speed,
        other,
        _quotient(compared.tpot.p50, speed.tpot.p50) if compared else None,
        _quotient(compared.tpot.p99, speed.tpot.p99) if compared else None,
        _quotient(speed.tokens_per_second, compared.tokens_per_second) if compared else None,
        counted,
        measured.others or (mixed and measured.complete and not measured.failed),
        drafts_too,
        all(one is None or (one.complete and one.requests) for one in (measured, baseline)),
    )


def temperature_summary(
    levels: Sequence[LevelSummary], measured: Sequence[Measured], thresholds: VerdictThresholds
) -> TemperatureSummary:
    """All the levels of one temperature, of which there is at least one."""
    found = _speculation(measured)
    work = found.work
    # A sweep says how much it drafts: the volume that live traffic needs does not apply, the number of requests does.
    bounds = replace(thresholds, min_drafts_per_second=0.0, min_share=0.0)
    judged = judge(work.evidence(work.draft_tokens), bounds)
    known = [(summary.level.at_once, summary.speedup) for summary in levels if summary.speedup is not None]
    stops_at = next((at_once for at_once, speedup in known if speedup <= 1), None)
    pays = [at_once for at_once, _ in known if stops_at is None or at_once < stops_at]
    return TemperatureSummary(
        levels[0].level.temperature,
        found,
        judged.verdict,
        ACTIONS[judged.verdict] if found.source != "none" else NOTHING_DRAFTED,
        judged.advice,
        max(pays, default=None),
        stops_at,
    )


def _speculation(measured: Sequence[Measured]) -> Speculation:
    """Vllm's numbers for each request where replies carry them, else its counters' growth."""
    if any(one.exact for one in measured):
        window = SlidingWork(math.inf, most=1 + sum(len(one.requests) for one in measured))
        for one in measured:
            for request in one.requests:
                window.add(request, 0.0)
        return Speculation("exact", window.read(0.0))
    counted = [one.counted for one in measured if one.counted is not None]
    completed = sum(len(one.requests) for one in measured)
    if len(counted) < len(measured) or not any(one.draft_tokens for one in counted):
        return Speculation("none", replace(_NO_WORK, requests=completed))
    return Speculation("counters", _counted_work(counted, completed))


def _counted_work(counted: Sequence[Counted], completed: int) -> RecentWork:
    drafts = sum(one.drafts for one in counted)
    draft_tokens = sum(one.draft_tokens for one in counted)
    accepted = sum(one.accepted_tokens for one in counted)
    positions = [sum(column) for column in zip(*(one.positions for one in counted), strict=False)]
    return replace(
        _NO_WORK,
        requests=completed,
        drafts=drafts,
        draft_tokens=draft_tokens,
        accepted_tokens=accepted,
        acceptance=min(accepted / draft_tokens, 1.0),
        positions=tuple(tokens / drafts for tokens in positions) if drafts else (),
    )


def _speed(measured: Measured) -> Speed:
    requests = measured.requests
    return Speed(
        len(requests),
        measured.failed,
        _quantiles([request.ttft for request in requests]),
        _quantiles([request.tpot for request in requests]),
        _quantiles([request.duration for request in requests]),
        measured.completion_tokens / measured.seconds if measured.seconds > 0 else 0.0,
        len(requests) / measured.seconds if measured.seconds > 0 else 0.0,
    )


def _quantiles(values: Sequence[float | None]) -> Quantiles:
    known = sorted(value for value in values if value is not None)
    return Quantiles(quantile(known, 0.5), quantile(known, 0.95), quantile(known, 0.99))


def _quotient(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None
