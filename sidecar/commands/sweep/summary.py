"""The summary of a sweep: its metrics, and whether speculation pays, level by level."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from sidecar.analysis.advice import advise
from sidecar.analysis.evidence import Estimate, Evidence
from sidecar.analysis.verdict import Judgement, Verdict, judge
from sidecar.commands.estimates import Interval, relative_change
from sidecar.commands.sweep.measured import LevelResult, Measured, SweepResult
from sidecar.commands.sweep.metrics import METRICS, Values, values
from sidecar.commands.sweep.workload import Level, alone
from sidecar.settings.groups import Thresholds
from sidecar.wording.notes import advice_sentences, judgement_note

CONFIDENCE: Final = 0.95
ACTIONS: Final[Mapping[Verdict, str]] = {
    Verdict.NET_NEGATIVE: "stop: speculation costs more than it saves here",
    Verdict.BREAK_EVEN: "measure P99 under your own load before you decide",
    Verdict.NET_POSITIVE: "confirm under your own load, then ship",
}
_MEDIAN, _TAIL = METRICS["TPOT P50"], METRICS["TPOT P99"]
OTHERS_SERVED: Final = (
    "vLLM served other clients, and its counters include their drafts. Measure without them, or start "
    "vLLM (0.29 or later) with --per-request-spec-decode-metrics summary"
)
NOTHING_DRAFTED: Final = "neither the replies nor vLLM's counters show any drafts: is speculation on?"


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelSummary:
    """One level: the metrics of the server, of a mix's temperatures, and of the baseline if there is one.

    ``acceptance_from`` is the source: the ``replies`` themselves or vLLM's ``counters``. ``other_requests`` is
    ``others`` in ``Measured``. ``changes`` are of TPOT P99 at a mix's temperatures: in the mix / alone at that
    load - 1. ``speedup`` is the baseline's median TPOT / this server's: above 1, speculation is faster. ``action``
    follows from the verdict, ``advice`` is on the number of tokens.
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
    action: str
    advice: str | None


def summarize(result: SweepResult, thresholds: Thresholds) -> tuple[LevelSummary, ...]:
    """Judges every level."""
    measured = {one.level: one.speculating for one in result.levels}
    return tuple(_summarized(one, measured, thresholds) for one in result.levels)


def _summarized(found: LevelResult, measured: Mapping[Level, Measured], thresholds: Thresholds) -> LevelSummary:
    """Judges by the rules for live traffic: by the speedup if a baseline was measured, else by the acceptance.

    Of the volume thresholds only ``min_requests`` applies, since the sweep itself decides how much is drafted.
    """
    level, ours, speedup = found.level, found.speculating, _speedup(found)
    known = None if speedup is None or speedup.error is None else Estimate(speedup.value, speedup.error / 2)
    judged = judge(Evidence(window=ours.acceptance, speedup=known), thresholds)
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
        verdict=judged.verdict,
        action=_action(judged.verdict, ours, thresholds.min_requests),
        advice=_advice(judged, thresholds),
    )


def _advice(judgement: Judgement, thresholds: Thresholds) -> str | None:
    if judgement.judged is None or judgement.by_speedup is Verdict.NET_POSITIVE:
        return None
    advice = advise(judgement.evidence, judgement.judged, thresholds)
    return advice_sentences(advice) or judgement_note(judgement) or None


def _action(verdict: Verdict, measured: Measured, needed: int) -> str:
    if measured.samples and measured.source == "none":
        return OTHERS_SERVED if measured.counted is not None and measured.counted.draft_tokens else NOTHING_DRAFTED
    return ACTIONS.get(verdict, f"at least {needed} requests are needed: raise --requests")


def _change(apart: Level, inside: Measured, measured: Mapping[Level, Measured]) -> Interval | None:
    """How much slower requests of one temperature are in a mix; None if it was not also measured ``apart``."""
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
