"""Summarizes measured levels: acceptance, speed, and whether speculation pays, by temperature and load."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

from sidecar.analysis.acceptance import Acceptance, together
from sidecar.analysis.evidence import Estimate, Evidence
from sidecar.analysis.quantile import quantile
from sidecar.analysis.verdict import Judgement, Verdict, judge
from sidecar.commands.estimates import Interval, batches, quantile_interval, relative_change
from sidecar.commands.sweep.level import Measured
from sidecar.commands.sweep.results import LevelResult, Quantiles, Speculation, Speed, TemperatureResult
from sidecar.commands.sweep.sample import Sample, acceptance
from sidecar.commands.sweep.workload import Load
from sidecar.settings.groups import Thresholds

CONFIDENCE: Final = 0.95
ACTIONS: Final[Mapping[Verdict, str]] = {
    Verdict.NET_NEGATIVE: "stop: speculation costs more than it gives here",
    Verdict.BREAK_EVEN: "measure P99 under your own load before you decide",
    Verdict.NET_POSITIVE: "confirm under your own load, then ship",
    Verdict.INSUFFICIENT_DATA: "too few draft tokens for a verdict; raise --requests",
}
NOTHING_DRAFTED: Final = "nothing was drafted, in replies or in vLLM's counters: is speculation on?"
_OTHERS: Final = 0.01  # share of drafted tokens by which counters and requests may differ


def level_result(measured: Measured, baseline: Measured | None, thresholds: Thresholds) -> LevelResult:
    """One level's numbers."""
    found, counted = speculation([measured]), measured.counted
    drafts_too = baseline is not None and speculation([baseline]).draft_tokens > 0
    speedup = None if baseline is None or drafts_too else _speedup(measured, baseline)
    differs = (
        counted is not None
        and found.source == "replies"
        and abs(counted.draft_tokens - found.draft_tokens) > _OTHERS * max(found.draft_tokens, 1)
    )
    return LevelResult(
        level=measured.level,
        complete=all(one is None or (one.complete and bool(one.samples)) for one in (measured, baseline)),
        speculation=found,
        other_requests=measured.others or (differs and measured.complete and not measured.failed),
        speed=_speed(measured),
        baseline=None if baseline is None else _speed(baseline),
        baseline_drafts=drafts_too,
        speedup=speedup,
        verdict=_judged(found, thresholds, speedup).verdict,
        samples=measured.samples,
        baseline_samples=() if baseline is None else baseline.samples,
    )


def temperature_result(
    levels: Sequence[LevelResult], measured: Sequence[Measured], thresholds: Thresholds
) -> TemperatureResult:
    """All levels of one temperature alone; there is at least one."""
    found = speculation(measured)
    judged = _judged(found, thresholds, None)
    by_speedup = _over_loads([one.verdict for one in levels if one.speedup is not None])
    verdict = by_speedup or judged.verdict
    advice = None if by_speedup is Verdict.NET_POSITIVE else judged.advice
    return TemperatureResult(
        temperature=levels[0].level.workload.temperature or 0.0,
        speculation=found,
        verdict=verdict,
        action=ACTIONS[verdict] if found.source != "none" else NOTHING_DRAFTED,
        notes=(*(() if advice is None else (advice,)), *_compared(levels)),
    )


def speculation(measured: Sequence[Measured]) -> Speculation:
    """VLLM's numbers for each request if replies have them, else its counters' growth."""
    samples = [one for part in measured for one in part.samples]
    source: Literal["replies", "counters"] = "replies"
    found = acceptance(samples)
    if found is None:
        counted = [part.counted for part in measured if part.counted is not None]
        found = together(counted) if counted and len(counted) == len(measured) else None
        source = "counters"
    if found is None or not found.draft_tokens:
        return Speculation(requests=len(samples))
    ratios = sorted(one.accepted_tokens / one.draft_tokens for one in samples if one.draft_tokens)
    return Speculation(
        source=source,
        requests=len(samples),
        drafts=found.drafts,
        draft_tokens=found.draft_tokens,
        accepted_tokens=found.accepted_tokens,
        acceptance=found.rate,
        length=found.length,
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


def quantiles(values: Sequence[float | None]) -> Quantiles:
    """P50, P95 and P99 of the known values."""
    known = sorted(value for value in values if value is not None)
    return Quantiles(*(quantile(known, share) for share in (0.5, 0.95, 0.99)))


def _speedup(measured: Measured, baseline: Measured) -> Interval | None:
    """The baseline's median TPOT over this one's, with its 95 % bounds."""
    ours, plain = (
        quantile_interval(tpots(one.samples), 0.5, cut(one.samples, one.level.load), CONFIDENCE)
        for one in (measured, baseline)
    )
    gain = relative_change(ours, plain)
    return None if gain is None else gain.moved(1.0)


def _judged(found: Speculation, thresholds: Thresholds, speedup: Interval | None) -> Judgement:
    """By the rules for live traffic, except those on volume: a sweep itself decides how much is drafted."""
    known = speedup is not None and speedup.error is not None
    counted = Acceptance(
        requests=found.requests,
        drafts=found.drafts,
        draft_tokens=found.draft_tokens,
        accepted_tokens=found.accepted_tokens,
        accepted_per_position=tuple(rate * found.drafts for rate in found.position_rates),
    )
    evidence = Evidence(
        window=counted,
        speedup=Estimate(speedup.value, (speedup.error or 0.0) / 2) if speedup is not None and known else None,
    )
    return judge(evidence, thresholds)


def _over_loads(verdicts: Sequence[Verdict]) -> Verdict | None:
    """The verdict that all loads agree on, else break-even; None without a load that was compared."""
    judged = {verdict for verdict in verdicts if verdict is not Verdict.INSUFFICIENT_DATA}
    if not verdicts or len(judged) > 1:
        return Verdict.BREAK_EVEN if judged else None
    return judged.pop() if judged else Verdict.INSUFFICIENT_DATA


def _compared(levels: Sequence[LevelResult]) -> Iterator[str]:
    """Up to which load speculation was faster than the baseline, in words."""
    speedups = {one.level.load: one.speedup for one in levels if one.speedup is not None}
    for closed in (True, False):
        known = {load: one for load, one in speedups.items() if (load.at_once is not None) == closed}
        if known:
            yield f"measured: {_paying(known)}"
    if any(one.error is None or abs(one.value - 1) <= one.error for one in speedups.values()):
        yield "not every speedup is beyond its error: raise --requests or --rounds"
    elif not speedups and any(one.baseline is not None for one in levels):
        yield "measured: nothing to compare"


def _paying(speedups: Mapping[Load, Interval]) -> str:
    """``speedups`` go from the lightest load to the heaviest."""
    faster: Load | None = None
    for load, speedup in speedups.items():
        if speedup.value <= 1:
            return f"not faster, even at {load}" if faster is None else f"faster up to {faster}, no longer at {load}"
        faster = load
    return f"faster at every load up to {faster}"


def _speed(measured: Measured) -> Speed:
    samples, seconds = measured.samples, measured.seconds
    return Speed(
        requests=len(samples),
        failed=measured.failed,
        ttft=quantiles([one.ttft for one in samples]),
        tpot=quantiles([one.tpot for one in samples]),
        tokens_per_second=sum(one.tokens or 0 for one in samples) / seconds if seconds > 0 else 0.0,
    )
