"""The alerts that the direct push can evaluate: their rules' conditions, applied to the sidecar's own state."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from sidecar.alerting.past import Past
from sidecar.analysis.engine_state import EngineReport
from sidecar.analysis.latency import Latency, LatencyBaselines, gap_growth
from sidecar.analysis.limitation import Limitation
from sidecar.analysis.target_state import TargetReport
from sidecar.analysis.verdict import Evidence, Judgement, ModelJudgement, Verdict, VerdictThresholds, judge
from sidecar.engine.names import Gauge, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class PushThresholds:
    """The thresholds of the conditions; ``baselines`` are the configured latency quantiles."""

    verdicts: VerdictThresholds
    acceptance_p10: float
    latency_gap_growth: float
    kv_cache_usage: float
    baselines: LatencyBaselines


@dataclass(frozen=True, slots=True)
class Match:
    """One thing for which a condition holds: its labels, and the value that the alert quotes."""

    labels: Mapping[str, str]
    value: float


def with_hours(report: TargetReport, past: Past, limits: PushThresholds) -> TargetReport:
    """The report, with models of few requests judged over the last hour, as in the rules, or not at all."""
    engines = _by_model(report.engines)

    def longer(model: ModelJudgement) -> ModelJudgement:
        window = model.whole.evidence
        if model.whole.has_enough_data and _requests(engines[model.model_name]) >= limits.verdicts.min_requests:
            return model
        hour = past.hour(report.name, model.model_name) if window.draft_tokens > 0 else None
        whole = judge(replace(hour, speedup=window.speedup), limits.verdicts) if hour else Judgement(evidence=window)
        return replace(model, whole=whole)

    return replace(report, judgements=tuple(map(longer, report.judgements)))


Condition = Callable[[TargetReport, PushThresholds], Iterator[Match]]


def _judged(
    holds: Callable[[Judgement], bool], value: Callable[[Evidence], float], *, by_temperature: bool = False
) -> Condition:
    """A condition on the judgements on whole models, or on each of their temperatures."""

    def condition(report: TargetReport, _: PushThresholds) -> Iterator[Match]:
        for model in report.judgements:
            for temperature, one in model.temperatures.items() if by_temperature else [("", model.whole)]:
                if holds(one):
                    labels = {"model_name": model.model_name} | ({"temperature": temperature} if temperature else {})
                    yield Match(labels, value(one.evidence))

    return condition


def _is_low(judgement: Judgement) -> bool:
    return judgement.by_acceptance is Verdict.NET_NEGATIVE


def _is_slower(judgement: Judgement) -> bool:
    return judgement.by_speedup is Verdict.NET_NEGATIVE


def _acceptance(evidence: Evidence) -> float:
    return evidence.acceptance or 0.0


def _speedup(evidence: Evidence) -> float:
    return evidence.speedup.value if evidence.speedup is not None else 0.0


def _acceptance_p10_low(report: TargetReport, limits: PushThresholds) -> Iterator[Match]:
    judged = {model.model_name for model in report.judgements if model.whole.has_enough_data}
    for model in report.requests.models if report.requests else ():
        p10 = model.stats.tail.p10(report.last_scrape or 0.0, limits.verdicts.min_requests)
        if model.model_name in judged and p10 is not None and p10 < limits.acceptance_p10:
            yield Match({"model_name": model.model_name}, p10)


def _latency_gap_wide(report: TargetReport, limits: PushThresholds) -> Iterator[Match]:
    """Compares with the configured baseline; nothing matches without one."""
    by_model = _by_model(report.engines)
    for model in report.judgements:
        engines = by_model[model.model_name]
        widest = _widest(engines)
        if widest is None or not model.whole.has_enough_data or _requests(engines) < limits.verdicts.min_requests:
            continue
        growth = gap_growth(widest, limits.baselines.get(model.model_name, {}).get(Phase.TPOT, {}))
        if growth is not None and growth > limits.latency_gap_growth:
            yield Match({"model_name": model.model_name}, growth)


def _kv_cache_pressure(report: TargetReport, limits: PushThresholds) -> Iterator[Match]:
    for model, engines in _by_model(report.engines).items():
        peaks = [engine.kv_cache_peak for engine in engines if engine.kv_cache_peak is not None]
        if peaks and max(peaks) > limits.kv_cache_usage and sum(map(_waiting, engines)) > 0:
            yield Match({"model_name": model}, max(peaks))


def _down(*, seen: bool) -> Condition:
    """No poll of vLLM succeeds; ``seen``: one did before."""
    return lambda report, _: iter([Match({}, 0)] if not report.up and (report.last_scrape is not None) == seen else [])


def _coverage_low(report: TargetReport, _: PushThresholds) -> Iterator[Match]:
    coverages = {model.model_name: model.coverage for model in report.requests.models} if report.requests else {}
    for model in report.judgements:
        coverage = coverages.get(model.model_name)
        if model.whole.has_enough_data and coverage is not None and not model.is_covered:
            yield Match({"model_name": model.model_name}, coverage)


def _not_judged(report: TargetReport, _: PushThresholds) -> Iterator[Match]:
    """The V0 engine, whose counters are unusable."""
    models = {key.model_name for key, found in report.limitations.items() if Limitation.V0_COUNTERS in found}
    for model in sorted(models):
        yield Match({"model_name": model}, 1)


# The other rules need the past, other pods or the sidecar's own absence; only Prometheus can evaluate those.
CONDITIONS: Final[Mapping[str, Condition]] = MappingProxyType(
    {
        # A low acceptance is no loss if a measured speedup shows that speculation pays.
        "SpecDecodeAcceptanceLow": _judged(lambda one: _is_low(one) and _speedup(one.evidence) < 1, _acceptance),
        "SpecDecodeAcceptanceLow/info": _judged(lambda one: _is_low(one) and _speedup(one.evidence) >= 1, _acceptance),
        "SpecDecodeSlowerThanPlain": _judged(_is_slower, _speedup),
        "SpecDecodeSlowerThanPlainAtTemperature": _judged(_is_slower, _speedup, by_temperature=True),
        "SpecDecodeAcceptanceLowAtTemperature": _judged(_is_low, _acceptance, by_temperature=True),
        "SpecDecodeAcceptanceP10Low": _acceptance_p10_low,
        "SpecDecodeBreakEven": _judged(lambda one: one.by_acceptance is Verdict.BREAK_EVEN, _acceptance),
        "SpecDecodeLatencyGapWide": _latency_gap_wide,
        "SpecDecodeKVCachePressure": _kv_cache_pressure,
        "SpecDecodeVLLMDown": _down(seen=True),
        "SpecDecodeVLLMNeverUp": _down(seen=False),
        "SpecDecodeCoverageLow": _coverage_low,
        "SpecDecodeNotJudged": _not_judged,
    }
)


def context(report: TargetReport, model_name: str, past: Past, limits: PushThresholds) -> str:
    """A model's other numbers as text, as in the rules' annotation ``context``."""
    judged = {model.model_name: model for model in report.judgements}.get(model_name)
    engines = _by_model(report.engines).get(model_name, [])
    sentences = []
    if judged and judged.whole.evidence.acceptance is not None:
        low = _percent(limits.verdicts.net_negative)
        sentences.append(f"Acceptance {_percent(judged.whole.evidence.acceptance)}, a loss below {low}.")
    if judged and judged.whole.evidence.speedup is not None:
        times = judged.whole.evidence.speedup.value
        sentences.append(f"Against plain decoding at this load: {times:.2f} times as fast.")
    sentences += _past_sentences(report.name, model_name, past)
    evidence = {temperature: one.evidence for temperature, one in judged.temperatures.items()} if judged else {}
    if rates := {temperature: one.acceptance for temperature, one in evidence.items() if one.acceptance is not None}:
        shares = {temperature: evidence[temperature].share for temperature in rates}
        sentences += [f"By temperature: {_listed(rates)}.", f"Share of the draft tokens: {_listed(shares)}."]
    if worst := _widest(engines):
        found = " ".join(f"[{quantile:g}] {1000 * worst.quantiles[quantile]:.4g}ms" for quantile in (0.5, 0.99))
        sentences.append(f"Time per output token: {found}.")
    return " ".join(sentences)


def _past_sentences(target: str, model_name: str, past: Past) -> Iterator[str]:
    hour, day_before = past.hour(target, model_name), past.day_before(target, model_name)
    if hour and hour.acceptance is not None:
        yield f"Last hour: {_percent(hour.acceptance)}."
    if day_before and day_before.acceptance is not None:
        yield f"A day before: {_percent(day_before.acceptance)}."
    elif (hours := past.seconds(target, model_name) / 3600) < 24.5:
        yield f"A day before: unknown, this sidecar has counted for {hours:.1f} h."


def _listed(values: Mapping[str, float]) -> str:
    return " ".join(f"[{name}] {_percent(value)}" for name, value in values.items())


def _percent(value: float) -> str:
    return f"{100 * value:.4g}%"


def _widest(engines: Iterable[EngineReport]) -> Latency | None:
    """The time per output token of the engine whose gap is the widest."""
    found = [engine.latencies[Phase.TPOT] for engine in engines if Phase.TPOT in engine.latencies]
    return max(found, key=lambda latency: latency.gap_seconds, default=None)


def _requests(engines: Iterable[EngineReport]) -> float:
    """Requests that got their first token within the window, and those still running."""
    return sum(
        engine.latencies[Phase.TTFT].count + engine.gauges.get(Gauge.REQUESTS_RUNNING, 0)
        for engine in engines
        if Phase.TTFT in engine.latencies
    )


def _waiting(engine: EngineReport) -> float:
    """Requests that wait for capacity; vLLM before 0.20 does not say what a request waits for."""
    return engine.gauges.get(Gauge.WAITING_FOR_CAPACITY, engine.gauges.get(Gauge.REQUESTS_WAITING, 0))


def _by_model(engines: Iterable[EngineReport]) -> dict[str, list[EngineReport]]:
    found: dict[str, list[EngineReport]] = defaultdict(list)
    for engine in engines:
        found[engine.key.model_name].append(engine)
    return found
