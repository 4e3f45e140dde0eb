"""Values that the direct push compares with a threshold each, as the rule of the same alert does.

A row of ``LIMITS`` is all that the push needs of such an alert. With Prometheus, the rules compare
these values, over longer times.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sidecar.analysis.engine.latency import gap_growth
from sidecar.analysis.facts import EngineFacts, ModelFacts
from sidecar.analysis.judgement import Judgement
from sidecar.engine.names import Phase
from sidecar.settings.baselines import PlainLatency
from sidecar.settings.groups import Thresholds


def _always(_: Judgement) -> bool:
    return True


def _is_judged(whole: Judgement) -> bool:
    return whole.judged is not None


def _is_judged_by_acceptance(whole: Judgement) -> bool:
    """Whether the acceptance rate tells anything with this method."""
    return whole.judged is not None and whole.evidence.is_ruled


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A model's value, and the threshold that it must not be past.

    ``alert`` is the rule in ``alerts/alerts.yaml``. ``value`` is None where it is unknown.
    ``is_past`` compares the value with the threshold. ``applies`` says of the judgement on the
    whole model whether the value counts.
    """

    alert: str
    value: Callable[[ModelFacts, Thresholds], float | None]
    threshold: Callable[[Thresholds], float]
    is_past: Callable[[float, float], bool]
    applies: Callable[[Judgement], bool] = _always


def limited_values(facts: ModelFacts, thresholds: Thresholds) -> dict[str, float]:
    """By alert, the values that are known at a poll."""
    values = {}
    for limit in LIMITS:
        value = limit.value(facts, thresholds)
        if value is not None:
            values[limit.alert] = value
    return values


def breaches(
    values: Mapping[str, float], whole: Judgement, thresholds: Thresholds
) -> dict[str, float]:
    """Those of ``limited_values`` that are past their thresholds, by alert."""
    past = {}
    for limit in LIMITS:
        value = values.get(limit.alert)
        if value is None or not limit.applies(whole):
            continue
        if limit.is_past(value, limit.threshold(thresholds)):
            past[limit.alert] = value
    return past


def _latency_gap_growth(facts: ModelFacts, thresholds: Thresholds) -> float | None:
    """P99 - P50 of the time per output token / the baseline's, where it has grown most.

    It is what that is at least: within one bucket of vLLM's, nothing is known of a gap. P99 of
    fewer than ``min_requests`` is just the slowest one.
    """
    baseline = facts.model.plain_latencies.get(Phase.TPOT)
    if baseline is None:
        return None
    growths = [_gap_growth(engine, baseline, thresholds.min_requests) for engine in facts.present]
    return _highest(growths)


def _gap_growth(engine: EngineFacts, baseline: PlainLatency, least: int) -> float | None:
    latency = engine.state.latency(Phase.TPOT)
    if latency is None or latency.count < least:
        return None
    return gap_growth(latency, baseline)


def _kv_cache_peak(facts: ModelFacts, _: Thresholds) -> float | None:
    """The fullest engine's of those where requests wait for capacity."""
    waiting = [engine.state for engine in facts.present if engine.state.waiting > 0]
    return _highest(state.kv_cache.peak(facts.at) for state in waiting)


def _highest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


LIMITS: Final = (
    Limit(
        alert="SpecDecodeAcceptanceP10Low",
        value=lambda facts, _: facts.acceptance_p10,
        threshold=lambda thresholds: thresholds.acceptance_p10,
        is_past=operator.lt,
        applies=_is_judged_by_acceptance,
    ),
    Limit(
        alert="SpecDecodeLatencyGapWide",
        value=_latency_gap_growth,
        threshold=lambda thresholds: thresholds.latency_gap_growth,
        is_past=operator.gt,
        applies=_is_judged,
    ),
    Limit(
        alert="SpecDecodeKVCachePressure",
        value=_kv_cache_peak,
        threshold=lambda thresholds: thresholds.kv_cache_usage,
        is_past=operator.gt,
    ),
)
