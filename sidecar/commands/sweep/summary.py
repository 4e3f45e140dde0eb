"""What a sweep tells: its metrics, and whether speculation pays, by level and by temperature."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from sidecar.analysis.acceptance import Acceptance
from sidecar.analysis.evidence import Estimate, Evidence
from sidecar.analysis.quantile import quantile
from sidecar.analysis.verdict import Judgement, Verdict, judge
from sidecar.commands.estimates import Interval, relative_change
from sidecar.commands.sweep.measured import Measured, together
from sidecar.commands.sweep.metrics import METRICS, Values, values
from sidecar.commands.sweep.results import LevelResult, SweepResult
from sidecar.commands.sweep.workload import Level, Load, alone
from sidecar.settings.groups import Thresholds

CONFIDENCE: Final = 0.95
ACTIONS: Final[Mapping[Verdict, str]] = {
    Verdict.NET_NEGATIVE: "stop: speculation costs more than it gives here",
    Verdict.BREAK_EVEN: "measure P99 under your own load before you decide",
    Verdict.NET_POSITIVE: "confirm under your own load, then ship",
}
_MEDIAN, _TAIL = METRICS["TPOT P50"], METRICS["TPOT P99"]
OTHERS_SERVED: Final = (
    "other clients were served: vLLM's counters have their drafts too. Measure without them, or start "
    "vLLM (from 0.29 on) with --per-request-spec-decode-metrics summary"
)
NOTHING_DRAFTED: Final = "nothing was drafted, in replies or in vLLM's counters: is speculation on?"


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelSummary:
    """One level: the metrics of the server, of a mix's temperatures, and of the baseline if there is one.

    ``acceptance_from``: from the ``replies`` themselves or from vLLM's ``counters``. ``other_requests`` is
    ``others`` in ``Measured``. ``changes`` are of TPOT's P99 at a mix's
    temperatures: in the mix / alone at that load - 1. ``speedup`` is the baseline's median TPOT over this server's:
    above 1 speculation is faster.
    """

    level: Level
    complete: bool
    other_requests: bool
    acceptance_from: Literal["replies", "counters", "none"]
    position_rates: tuple[float, ...]
    speculating: Values
    in_mix: Mapping[float, Values]
    changes: Mapping[float, Interval | None]
    baseline: Values | None
    speedup: Interval | None
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class TemperatureSummary:
    """One temperature alone, over all its loads; P10 to P90 are of single requests' acceptance.

    ``notes``: what to change, and up to which load it was faster.
    """

    temperature: float
    requests: int
    draft_tokens: float
    acceptance: float | None
    p10: float | None
    p50: float | None
    p90: float | None
    acceptance_from: Literal["replies", "counters", "none"]
    verdict: Verdict
    action: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What ``--json`` prints: seconds, ratios from 0 to 1. The first five are as in ``SweepResult``."""

    model: str | None
    max_tokens: int
    rounds: int
    complete: bool
    faults: Mapping[str, str]
    temperatures: tuple[TemperatureSummary, ...]
    levels: tuple[LevelSummary, ...]


def summarize(result: SweepResult, thresholds: Thresholds) -> Summary:
    """Judges every level, and every temperature that was measured alone."""
    measured = {one.level: one.speculating for one in result.levels}
    levels = tuple(summarize_level(one, measured, thresholds) for one in result.levels)
    by_temperature: dict[float, list[LevelSummary]] = {}
    for level in levels:
        if (temperature := level.level.workload.temperature) is not None:
            by_temperature.setdefault(temperature, []).append(level)
    return Summary(
        model=result.model,
        max_tokens=result.max_tokens,
        rounds=result.rounds,
        complete=result.complete,
        faults=result.faults,
        temperatures=tuple(
            summarize_temperature(one, found, together([measured[level.level] for level in found]), thresholds)
            for one, found in by_temperature.items()
        ),
        levels=levels,
    )


def summarize_level(found: LevelResult, measured: Mapping[Level, Measured], thresholds: Thresholds) -> LevelSummary:
    """Judged by the speedup if a baseline was measured, else by the acceptance."""
    level, ours, speedup = found.level, found.speculating, _speedup(found)
    inside = {} if level.workload.temperature is not None else {one: ours.of(one) for one, _ in level.workload.weights}
    return LevelSummary(
        level=level,
        complete=found.complete,
        other_requests=ours.others,
        acceptance_from=ours.source,
        position_rates=ours.acceptance.position_rates,
        speculating=values(ours),
        # Failed requests have no temperature.
        in_mix={one: {**values(part), "failed": None} for one, part in inside.items()},
        changes={one: _change(Level(alone(one), level.load), part, measured) for one, part in inside.items()},
        baseline=None if found.baseline is None else values(found.baseline),
        speedup=speedup,
        verdict=_judged(ours.acceptance, thresholds, speedup).verdict,
    )


def summarize_temperature(
    temperature: float, levels: Sequence[LevelSummary], measured: Measured, thresholds: Thresholds
) -> TemperatureSummary:
    """Judged by what its levels' speedups agree on, if there are any; ``measured`` are all of them together."""
    acceptance, source = measured.acceptance, measured.source
    ratios = sorted(one.accepted_tokens / one.draft_tokens for one in measured.samples if one.draft_tokens)
    by_acceptance = _judged(acceptance, thresholds, None)
    by_speedup = _over_loads([one.verdict for one in levels if one.speedup is not None])
    verdict = by_speedup or by_acceptance.verdict
    advice = None if by_speedup is Verdict.NET_POSITIVE else by_acceptance.advice
    return TemperatureSummary(
        temperature=temperature,
        requests=len(measured.samples),
        draft_tokens=acceptance.draft_tokens,
        acceptance=acceptance.rate,
        p10=quantile(ratios, 0.1),
        p50=quantile(ratios, 0.5),
        p90=quantile(ratios, 0.9),
        acceptance_from=source,
        verdict=verdict,
        action=_action(verdict, measured, levels if by_speedup else (), thresholds.min_requests),
        notes=(*(() if advice is None else (advice,)), *_compared(levels)),
    )


def _action(verdict: Verdict, measured: Measured, compared: Sequence[LevelSummary], needed: int) -> str:
    """``compared`` are the levels that were each judged by their speedup; without any, all were judged together."""
    if measured.samples and measured.source == "none":
        return OTHERS_SERVED if measured.counted is not None and measured.counted.draft_tokens else NOTHING_DRAFTED
    if verdict in ACTIONS:
        return ACTIONS[verdict]
    most = max((one.speculating["requests"] or 0 for one in compared), default=measured.acceptance.requests or 0)
    return f"{most:.0f} requests{' at a load' if compared else ''}, at least {needed} needed: raise --requests"


def _change(apart: Level, inside: Measured, measured: Mapping[Level, Measured]) -> Interval | None:
    """How much slower a mix's requests of one temperature are; None if it was not measured ``apart``."""
    if apart not in measured:
        return None
    before, after = (_TAIL.interval_at(apart.load, one, CONFIDENCE) for one in (measured[apart], inside))
    return relative_change(before, after)


def _speedup(found: LevelResult) -> Interval | None:
    if found.baseline is None:
        return None
    ours, plain = (
        _MEDIAN.interval_at(found.level.load, one, CONFIDENCE) for one in (found.speculating, found.baseline)
    )
    gain = relative_change(ours, plain)
    return None if gain is None else Interval(1 + gain.value, gain.error)


def _judged(counted: Acceptance, thresholds: Thresholds, speedup: Interval | None) -> Judgement:
    """By the rules for live traffic; of those on volume only ``min_requests``, as a sweep decides what is drafted."""
    known = speedup is not None and speedup.error is not None
    estimate = Estimate(speedup.value, (speedup.error or 0.0) / 2) if speedup is not None and known else None
    return judge(Evidence(window=counted, speedup=estimate), thresholds)


def _over_loads(verdicts: Sequence[Verdict]) -> Verdict | None:
    """The verdict that all loads agree on, else break-even; None without a load that was compared."""
    judged = {verdict for verdict in verdicts if verdict is not Verdict.INSUFFICIENT_DATA}
    if not verdicts or len(judged) > 1:
        return Verdict.BREAK_EVEN if judged else None
    return judged.pop() if judged else Verdict.INSUFFICIENT_DATA


def _compared(levels: Sequence[LevelSummary]) -> Iterator[str]:
    """Up to which load speculation was faster than the baseline, in words."""
    speedups = {one.level.load: one.speedup for one in levels if one.speedup is not None}
    for closed in (True, False):
        known = {load: one.value for load, one in speedups.items() if (load.at_once is not None) == closed}
        if known:
            yield f"measured: {_paying(known)}"
    if any(one.error is None or abs(one.value - 1) <= one.error for one in speedups.values()):
        yield "not every speedup is beyond its error: raise --requests or --rounds"
    elif not speedups and any(one.baseline is not None for one in levels):
        yield "measured: nothing to compare"


def _paying(speedups: Mapping[Load, float]) -> str:
    """``speedups`` go from the lightest load to the heaviest."""
    faster: Load | None = None
    for load, speedup in speedups.items():
        if speedup <= 1:
            return f"not faster, even at {load}" if faster is None else f"faster up to {faster}, no longer at {load}"
        faster = load
    return f"faster at every load up to {faster}"
