"""Summarizes measured levels: acceptance, speed, and whether speculation pays, by temperature and load."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

import msgspec

from sidecar.analysis.acceptance import over_engines
from sidecar.analysis.quantile import quantile
from sidecar.analysis.verdict import Estimate, Evidence, Judgement, Verdict, VerdictThresholds, judge
from sidecar.commands.estimates import Interval, batches, quantile_interval, relative_change
from sidecar.commands.sweep.level import Measured
from sidecar.commands.sweep.options import Load
from sidecar.commands.sweep.results import LevelSummary, Quantiles, Source, Speculation, Speed, TemperatureSummary
from sidecar.commands.sweep.sample import Sample, acceptance

CONFIDENCE: Final = 0.95
ACTIONS: Final[Mapping[Verdict, str]] = {
    Verdict.NET_NEGATIVE: "stop: speculation costs more than it gives here",
    Verdict.BREAK_EVEN: "measure P99 under your own load before you decide",
    Verdict.NET_POSITIVE: "confirm under your own load, then ship",
    Verdict.INSUFFICIENT_DATA: "too few draft tokens for a verdict; raise --requests",
}
NOTHING_DRAFTED: Final = "nothing was drafted, in replies or in vLLM's counters: is speculation on?"
_OTHERS: Final = 0.01  # share of drafted tokens by which counters and requests may differ


def level_summary(measured: Measured, baseline: Measured | None, thresholds: VerdictThresholds) -> LevelSummary:
    """One level's numbers."""
    speed = _speed(measured)
    other = None if baseline is None else _speed(baseline)
    drafts_too = baseline is not None and speculation([baseline]).draft_tokens > 0
    compared = None if drafts_too else other
    found = speculation([measured])
    counted = None if measured.counted is None else measured.counted.draft_tokens
    mixed = (
        counted is not None
        and found.attribution == "exact"
        and abs(counted - found.draft_tokens) > _OTHERS * max(found.draft_tokens, 1)
    )
    gain = None if compared is None or baseline is None else _gain(measured, baseline)
    load, workload = measured.level.load, measured.level.workload
    return LevelSummary(
        **msgspec.structs.asdict(found),
        temperature=workload.temperature,
        mix=None if workload.temperature is not None else {f"{one:g}": weight for one, weight in workload.weights},
        at_once=load.at_once,
        rate=load.rate,
        share=load.share,
        complete=all(one is None or (one.complete and bool(one.samples)) for one in (measured, baseline)),
        counted_draft_tokens=counted,
        other_requests=measured.others or (mixed and measured.complete and not measured.failed),
        speed=speed,
        baseline_drafts=drafts_too,
        baseline=other,
        speedup=None if gain is None else 1 + gain.value,
        speedup_error=None if gain is None else gain.error,
        speedup_p99=_quotient(compared.tpot.p99, speed.tpot.p99) if compared else None,
        throughput_ratio=_quotient(speed.tokens_per_second, compared.tokens_per_second) if compared else None,
        verdict=_judged(found, thresholds, gain).verdict,
        samples=measured.samples,
        baseline_samples=() if baseline is None else baseline.samples,
    )


def temperature_summary(
    levels: Sequence[LevelSummary], measured: Sequence[Measured], thresholds: VerdictThresholds
) -> TemperatureSummary:
    """All levels of one temperature alone; there is at least one."""
    found = speculation(measured)
    judged = _judged(found, thresholds, None)
    by_speedup = _over_loads([one.verdict for one in levels if one.speedup is not None])
    verdict = by_speedup or judged.verdict
    pays_up_to, stops_at = _paying([(one.at_once, one.speedup) for one in levels])
    pays_up_to_rate, stops_at_rate = _paying([(one.rate, one.speedup) for one in levels])
    return TemperatureSummary(
        **msgspec.structs.asdict(found),
        temperature=levels[0].temperature or 0.0,
        verdict=verdict,
        action=ACTIONS[verdict] if found.attribution != "none" else NOTHING_DRAFTED,
        advice=None if by_speedup is Verdict.NET_POSITIVE else judged.advice,
        pays_up_to=pays_up_to,
        stops_at=stops_at,
        pays_up_to_rate=pays_up_to_rate,
        stops_at_rate=stops_at_rate,
    )


def speculation(measured: Sequence[Measured]) -> Speculation:
    """VLLM's numbers for each request if replies have them, else its counters' growth."""
    samples = [one for part in measured for one in part.samples]
    attribution: Source = "exact"
    found = acceptance(samples)
    if found is None:
        counted = [part.counted for part in measured if part.counted is not None]
        found = over_engines(counted) if counted and len(counted) == len(measured) else None
        attribution = "counters"
    if found is None or not found.draft_tokens:
        return Speculation(attribution="none", requests=len(samples))
    ratios = sorted(one.accepted_tokens / one.draft_tokens for one in samples if one.draft_tokens)
    return Speculation(
        attribution=attribution,
        requests=len(samples),
        drafts=found.drafts,
        draft_tokens=found.draft_tokens,
        accepted_tokens=found.accepted_tokens,
        acceptance=found.rate,
        acceptance_length=found.length,
        p10=quantile(ratios, 0.1),
        p50=quantile(ratios, 0.5),
        p90=quantile(ratios, 0.9),
        position_rates=found.position_rates,
    )


def cut(samples: Sequence[Sample], load: Load) -> int | None:
    """The number of batches of a level's samples; in an open loop rate x mean duration are in flight (Little's law)."""
    if not samples:
        return None
    in_flight = load.at_once or (load.rate or 0.0) * sum(one.duration for one in samples) / len(samples)
    return batches(len(samples), in_flight)


def tpots(samples: Sequence[Sample]) -> list[float]:
    """The known values, in the order of the requests' ends."""
    return [one.tpot for one in samples if one.tpot is not None]


def _gain(measured: Measured, baseline: Measured) -> Interval | None:
    """The baseline's median TPOT over this one's, less 1, with its 95 % bounds."""
    ours, plain = (
        quantile_interval(tpots(one.samples), 0.5, cut(one.samples, one.level.load), CONFIDENCE)
        for one in (measured, baseline)
    )
    return relative_change(ours, plain)


def _judged(found: Speculation, thresholds: VerdictThresholds, gain: Interval | None) -> Judgement:
    """By the rules for live traffic, except those on volume: a sweep itself decides how much is drafted."""
    evidence = Evidence(
        requests=found.requests,
        drafts=found.drafts,
        draft_tokens=found.draft_tokens,
        accepted_tokens=found.accepted_tokens,
        acceptance=found.acceptance,
        position_rates=found.position_rates,
        speedup=None if gain is None or gain.error is None else Estimate(1 + gain.value, gain.error / 2),
    )
    return judge(evidence, replace(thresholds, min_drafts_per_second=0.0, min_share=0.0))


def _over_loads(verdicts: Sequence[Verdict]) -> Verdict | None:
    """The verdict that all loads agree on, else break-even; None without a load that was compared."""
    judged = {verdict for verdict in verdicts if verdict is not Verdict.INSUFFICIENT_DATA}
    if not verdicts or len(judged) > 1:
        return Verdict.BREAK_EVEN if judged else None
    return judged.pop() if judged else Verdict.INSUFFICIENT_DATA


_Load = TypeVar("_Load", int, float)


def _paying(speedups: Sequence[tuple[_Load | None, float | None]]) -> tuple[_Load | None, _Load | None]:
    """The heaviest load up to which speculation is faster, and the lightest at which it is not."""
    known = [(load, speedup) for load, speedup in speedups if load is not None and speedup is not None]
    stops_at = next((load for load, speedup in known if speedup <= 1), None)
    return max((load for load, _ in known if stops_at is None or load < stops_at), default=None), stops_at


def _speed(measured: Measured) -> Speed:
    samples = measured.samples
    return Speed(
        requests=len(samples),
        failed=measured.failed,
        ttft=quantiles([one.ttft for one in samples]),
        tpot=quantiles([one.tpot for one in samples]),
        duration=quantiles([one.duration for one in samples]),
        tokens_per_second=sum(one.tokens or 0 for one in samples) / measured.seconds if measured.seconds > 0 else 0.0,
        requests_per_second=len(samples) / measured.seconds if measured.seconds > 0 else 0.0,
    )


def quantiles(values: Sequence[float | None]) -> Quantiles:
    """P50, P95 and P99 of the known values."""
    known = sorted(value for value in values if value is not None)
    return Quantiles(*(quantile(known, share) for share in (0.5, 0.95, 0.99)))


def _quotient(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None
