"""The conditions that the direct push evaluates without Prometheus: a small table over the report's values."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from sidecar.analysis.engine.latency import Latency, gap_growth
from sidecar.analysis.report import EngineReport, ModelReport, Report
from sidecar.analysis.verdict import Judgement, Verdict
from sidecar.engine.names import Gauge, Phase
from sidecar.settings import Settings
from sidecar.wording.notes import model_notes


@dataclass(frozen=True, slots=True)
class Finding:
    """One case in which a rule's condition holds: its labels, the value that the alert quotes, and other numbers.

    ``rule`` is a key of ``load_rules``.
    """

    rule: str
    labels: Mapping[str, str]
    value: float = 0.0
    context: str = ""


def _low(judgement: Judgement, *, loses: bool) -> float | None:
    """The acceptance rate if it is low and the verdict in force is net negative or, without ``loses``, is not."""
    return judgement.acceptance if judgement.is_low and (judgement.verdict is Verdict.NET_NEGATIVE) == loses else None


def _slower(judgement: Judgement) -> float | None:
    speedup = judgement.evidence.speedup
    return speedup.value if speedup is not None and judgement.by_speedup is Verdict.NET_NEGATIVE else None


def _p10(model: ModelReport, settings: Settings) -> float | None:
    p10, judgement = model.acceptance_p10, model.judgement
    is_judged = judgement.acceptance is not None and judgement.evidence.is_ruled
    return p10 if p10 is not None and is_judged and p10 < settings.thresholds.acceptance_p10 else None


def _gap(model: ModelReport, settings: Settings) -> float | None:
    """How many times as wide the gap is as the baseline's, if above the threshold; None without a baseline."""
    worst, requests = _widest(model.engines), model.judgement.evidence.window.requests or 0
    if worst is None or model.judgement.acceptance is None or requests < settings.thresholds.min_requests:
        return None
    growth = gap_growth(worst, settings.baselines.get(model.model_name, {}).get(Phase.TPOT, {}))
    return growth if growth is not None and growth > settings.thresholds.latency_gap_growth else None


def _kv_cache(model: ModelReport, settings: Settings) -> float | None:
    """The peak, if high while requests wait for capacity; vLLM before 0.20 does not say what a request waits for."""
    peak = max((engine.kv_cache_peak or 0 for engine in model.engines), default=0)
    gauges = [engine.gauges for engine in model.engines]
    waiting = sum(one.get(Gauge.WAITING_FOR_CAPACITY, one.get(Gauge.REQUESTS_WAITING, 0)) for one in gauges)
    return peak if peak > settings.thresholds.kv_cache_usage and waiting > 0 else None


def _widest(engines: Iterable[EngineReport]) -> Latency | None:
    """The time per output token of the engine whose gap is the widest."""
    found = [engine.latencies[Phase.TPOT] for engine in engines if Phase.TPOT in engine.latencies]
    return max(found, key=lambda latency: latency.gap_seconds or 0.0, default=None)


def _table(model: ModelReport, settings: Settings) -> Iterator[tuple[str, Mapping[str, str], float | None]]:
    """Each rule with its additional labels and its value; None if its condition does not hold."""
    whole = model.judgement
    yield "SpecDecodeAcceptanceLow", {}, _low(whole, loses=True)
    yield "SpecDecodeAcceptanceLow/info", {}, _low(whole, loses=False)
    yield "SpecDecodeAcceptanceCollapsed", {}, whole.acceptance if whole.has_collapsed else None
    yield "SpecDecodeSlowerThanPlain", {}, _slower(whole)
    yield "SpecDecodeAcceptanceP10Low", {}, _p10(model, settings)
    yield "SpecDecodeLatencyGapWide", {}, _gap(model, settings)
    yield "SpecDecodeKVCachePressure", {}, _kv_cache(model, settings)
    for one in model.temperatures:
        labels = {"temperature": one.temperature}
        yield "SpecDecodeAcceptanceLowAtTemperature", labels, _low(one.judgement, loses=True)
        yield "SpecDecodeSlowerThanPlainAtTemperature", labels, _slower(one.judgement)


def of_models(report: Report, settings: Settings) -> Iterator[Finding]:
    """Every finding about a model or one of its temperatures."""
    for model in report.models:
        for rule, labels, value in _table(model, settings):
            if value is not None:
                yield Finding(rule, {"model_name": model.model_name, **labels}, value, _context(model, settings))


def of_vllm(report: Report) -> Iterator[Finding]:
    """A finding if vLLM does not respond: it did before, or never has."""
    if not report.scrape.up:
        yield Finding("SpecDecodeVLLMNeverUp" if report.scrape.last_scrape is None else "SpecDecodeVLLMDown", {})


def _context(model: ModelReport, settings: Settings) -> str:
    """A model's other numbers as lines of text, as in the rules' annotation ``context``."""
    judgement, limits, said = model.judgement, settings.thresholds, []
    if judgement.acceptance is not None:
        said.append(f"Acceptance rate {judgement.acceptance:.1%} (threshold {limits.acceptance_net_negative:.1%}).")
    if (speedup := judgement.evidence.speedup) is not None:
        what, low = "Speedup over decoding without speculation at this load", limits.speedup_net_negative
        said.append(f"{what}: {speedup.value:.2f} (threshold {low:.2f}).")
    rates = {one.temperature: one.judgement.acceptance for one in model.temperatures}
    if known := {temperature: rate for temperature, rate in rates.items() if rate is not None}:
        by_temperature = " ".join(f"[{name}] {rate:.1%}" for name, rate in known.items())
        shares = " ".join(
            f"[{one.temperature}] {one.window.share:.1%}" for one in model.temperatures if one.window.share
        )
        said.append(f"Acceptance rate by temperature: {by_temperature}; share of draft tokens {shares}.")
    if lower := [f"[{one.by} {one.group}] {one.window.rate or 0:.1%}" for one in model.groups if one.accepts_less]:
        said.append(f"Request groups with a lower acceptance rate: {' '.join(lower)}.")
    if worst := _widest(model.engines):
        found = " ".join(f"P{100 * quantile:g} {1000 * worst.quantiles[quantile]:.4g}ms" for quantile in (0.5, 0.99))
        said.append(f"Time per output token: {found}.")
    return "\n".join([*said, *model_notes(model)])
