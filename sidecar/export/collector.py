"""From the state to samples: every page gets new families; nothing is kept or mutated."""

import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from sidecar import __version__, errors
from sidecar.analysis.attribution.result import Attribution
from sidecar.analysis.engine_state import EngineReport
from sidecar.analysis.latency import LatencyBaselines
from sidecar.analysis.request_state import ModelRequests, RequestReport
from sidecar.analysis.target_state import TargetReport
from sidecar.analysis.verdict import Basis, Verdict
from sidecar.engine.merge import OTHER
from sidecar.engine.names import Counter, Gauge
from sidecar.export import metrics
from sidecar.export.families import Families, Family

if TYPE_CHECKING:  # importing it would cost memory without a proxy
    from sidecar.requests.proxy.outcomes import ProxyStats

COUNTERS: Final = {
    Counter.DRAFTS: metrics.ENGINE_DRAFTS,
    Counter.DRAFT_TOKENS: metrics.ENGINE_DRAFT_TOKENS,
    Counter.ACCEPTED_TOKENS: metrics.ENGINE_ACCEPTED_TOKENS,
    Counter.FIRST_TOKENS: metrics.ENGINE_REQUESTS,
    Counter.GENERATION_TOKENS: metrics.GENERATION_TOKENS,
    Counter.PROMPT_TOKENS: metrics.PROMPT_TOKENS,
    Counter.PREEMPTIONS: metrics.PREEMPTIONS,
    Counter.PREFIX_CACHE_QUERIES: metrics.PREFIX_CACHE_QUERIES,
    Counter.PREFIX_CACHE_HITS: metrics.PREFIX_CACHE_HITS,
}
GAUGES: Final = {
    Gauge.REQUESTS_RUNNING: metrics.REQUESTS_RUNNING,
    Gauge.REQUESTS_WAITING: metrics.REQUESTS_WAITING,
    Gauge.WAITING_FOR_CAPACITY: metrics.WAITING_FOR_CAPACITY,
    Gauge.KV_CACHE_USAGE: metrics.KV_CACHE_USAGE,
    Gauge.LIFETIME_ACCEPTANCE: metrics.ENGINE_LIFETIME_ACCEPTANCE,
}


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What the page shows of the settings: ``thresholds`` by name; ``per_target`` adds the label ``target``.

    ``runbooks`` and ``dashboards`` are the addresses that alerts link to, empty if not configured.
    ``plain_steps_at`` is when plain step times were measured, Unix seconds by model.
    """

    thresholds: Mapping[str, float] = field(default_factory=dict)
    baselines: LatencyBaselines = field(default_factory=dict)
    plain_steps_at: Mapping[str, float] = field(default_factory=dict)
    max_positions: int = 16
    per_target: bool = False
    runbooks: str = ""
    dashboards: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCounts:
    """What the sidecar counts about itself.

    ``failures`` are by part of the program, ``reloads`` of the settings by outcome, ``http_refusals`` of our own pages
    by reason, ``alerts_sent`` by Alertmanager and outcome; ``proxy`` is None without the proxy. ``loop_stall`` is in
    seconds.
    """

    failures: Mapping[str, int] = field(default_factory=dict)
    reloads: Mapping[str, int] = field(default_factory=dict)
    http_refusals: Mapping[str, int] = field(default_factory=dict)
    proxy: "ProxyStats | None" = None
    alerts_sent: Mapping[tuple[str, str], int] = field(default_factory=dict)
    loop_stall: float | None = None


def export_families(reports: Iterable[TargetReport], counts: OwnCounts, options: ExportOptions) -> list[Family]:
    """Every sample of the page except those of the process (``process_*``)."""
    general = Families()
    _add_own(general, counts)
    general.add(metrics.LINKS, 1, options.runbooks, options.dashboards)
    for name, value in options.thresholds.items():
        general.add(metrics.THRESHOLD, value, name)
    for model, phases in options.baselines.items():
        for phase, quantiles in phases.items():
            for quantile, seconds in quantiles.items():
                general.add(metrics.LATENCY_BASELINE, seconds, model, phase, str(quantile))
    for model, at in options.plain_steps_at.items():
        general.add(metrics.BASELINE_TIMESTAMP, at, model)
    families = Families(("target",) if options.per_target else ())
    for report in reports:
        families.scope = (report.name,) if options.per_target else ()
        _add_target(families, report, options)
    return [*general.all(), *families.all()]


def _add_own(families: Families, counts: OwnCounts) -> None:
    families.add(metrics.BUILD_INFO, 1, __version__, platform.python_version())
    families.add_each(metrics.INTERNAL_ERRORS, counts.failures)
    families.add_each(metrics.HTTP_REFUSED, counts.http_refusals)
    families.add(metrics.LOOP_STALL, counts.loop_stall)
    families.add_each(metrics.SETTINGS_RELOADS, counts.reloads)
    if (proxy := counts.proxy) is not None:
        families.add_each(metrics.PROXY_EXCHANGES, proxy.outcomes)
        families.add_each(metrics.PROXY_REFUSED, proxy.refused)
        families.add_each(metrics.PROXY_UPSTREAM_ERRORS, proxy.upstream_errors)
        families.add(metrics.PROXY_RETRIES, proxy.retries)
        families.add(metrics.PROXY_OBSERVER_FAILURES, proxy.observer_failures)
        families.add(metrics.PROXY_CONNECTIONS, proxy.client_connections, "client")
        families.add(metrics.PROXY_CONNECTIONS, proxy.upstream_connections, "upstream")
    for (alertmanager, outcome), count in counts.alerts_sent.items():
        families.add(metrics.ALERTS_SENT, count, alertmanager, outcome)


def _add_target(families: Families, report: TargetReport, options: ExportOptions) -> None:
    families.add(metrics.UP, report.up)
    families.add(metrics.LAST_SCRAPE, report.last_scrape)
    families.add(metrics.SCRAPE_DURATION, report.duration if report.up else None)
    families.add(metrics.SCRAPE_INTERVAL, report.interval)
    families.add_each(metrics.SCRAPE_ERRORS, {reason: report.errors.get(reason, 0) for reason in _scrape_reasons()})
    families.add(metrics.MALFORMED_LINES, report.malformed_lines)
    families.add(metrics.VLLM_RESTARTS, report.restarts)
    families.add(metrics.VLLM_INFO, 1 if report.up else None, report.version)
    for engine in report.engines:
        _add_engine(families, engine, options.max_positions)
        for limitation in sorted(report.limitations.get(engine.key, ())):
            families.add(metrics.ENGINE_LIMITATION, 1, *engine.key, limitation)
    if report.requests is not None:
        _add_requests(families, report.requests, options.max_positions)
        if report.up:
            _add_quality(families, report.requests, report.last_scrape or 0.0, options)
    _add_speed(families, report)
    for judged in report.judgements:
        for temperature, judgement in judged.temperatures.items():
            for verdict in Verdict:
                families.add(metrics.VERDICT, verdict is judgement.verdict, judged.model_name, temperature, verdict)
            for basis in Basis:
                families.add(metrics.VERDICT_BASIS, basis is judgement.basis, judged.model_name, temperature, basis)
    if report.requests is not None:
        families.add(metrics.LABEL_OVERFLOW, report.requests.overflowed_models, "model_name")
    families.add(metrics.LABEL_OVERFLOW, report.overflowed_engines, "engine")
    families.add(metrics.LABEL_OVERFLOW, report.overflowed_positions, "position")


def _add_quality(families: Families, report: RequestReport, now: float, options: ExportOptions) -> None:
    for model in report.models:
        families.add(metrics.COVERAGE, model.coverage, model.model_name)
        families.add(metrics.RESIDUAL, model.residual, model.model_name)
        if model.model_name != OTHER.model_name:  # a mixture of models
            p10 = model.stats.tail.p10(now, int(options.thresholds.get("min_requests", 0)))
            families.add(metrics.REQUEST_ACCEPTANCE_P10, p10, model.model_name)


def _add_speed(families: Families, report: TargetReport) -> None:
    for key, loads in report.loads.items():
        for running, load in loads.items():
            families.add(metrics.DECODE_SECONDS, load.seconds, *key, running)
            families.add(metrics.DECODE_STEPS, load.steps, *key, running)
            families.add(metrics.DECODE_TOKENS, load.tokens, *key, running)
    for key, engine in report.engine_speeds.items():
        if engine.speedup is not None:
            families.add(metrics.ENGINE_SPEEDUP, engine.speedup.ratio, *key)
            families.add(metrics.ENGINE_SPEEDUP_ERROR, engine.speedup.error, *key)
            families.add(metrics.BREAK_EVEN_ACCEPTANCE, engine.break_even_acceptance, *key)
    for model, speed in report.speeds.items():
        for running, seconds in speed.plain_seconds.items():
            families.add(metrics.PLAIN_STEP, seconds, model, running, str(speed.reference))
        for temperature, of_bucket in speed.temperatures.items():
            ratio = of_bucket.speedup.ratio if of_bucket.speedup is not None else None
            families.add(metrics.SPEEDUP, ratio, model, temperature)
    for model, balance in report.balances.items():
        for temperature, found in balance.items():
            families.add(metrics.TIME_SAVED, found.saved_seconds, model, temperature)
            families.add(metrics.TIME_LOST, found.lost_seconds, model, temperature)


def _scrape_reasons() -> list[str]:
    """Every reason why a poll can fail, so that each is exported from 0 on."""
    classes = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.ScrapeError)]
    return sorted({one.reason for one in classes} - {"scrape", "page"})  # these two are base classes


def _add_engine(families: Families, engine: EngineReport, max_positions: int) -> None:
    for counter, metric in COUNTERS.items():
        families.add(metric, engine.counters.get(counter), *engine.key)
    families.add_positions(
        metrics.ENGINE_ACCEPTED_PER_POSITION, engine.accepted_per_position, max_positions, *engine.key
    )
    for gauge, metric in GAUGES.items():
        families.add(metric, engine.gauges.get(gauge), *engine.key)
    families.add(metrics.KV_CACHE_PEAK, engine.kv_cache_peak, *engine.key)
    families.add(metrics.KV_CACHE_CAPACITY, engine.kv_cache_capacity_tokens, *engine.key)
    if engine.kv_cache_usages.count:  # only then does vLLM export its usage
        families.add_histogram(metrics.KV_CACHE_SAMPLED, engine.kv_cache_usages, *engine.key)
    if Counter.DRAFT_TOKENS in engine.counters:
        families.add_histogram(metrics.ENGINE_WINDOW_ACCEPTANCE, engine.window_acceptances, *engine.key)
    for phase, latency in engine.latencies.items():
        for quantile, seconds in latency.quantiles.items():
            families.add(metrics.ENGINE_LATENCY, seconds, *engine.key, phase, str(quantile))
        families.add(metrics.ENGINE_LATENCY_GAP, latency.gap_seconds, *engine.key, phase)
        families.add(metrics.ENGINE_LATENCY_GAP_RATIO, latency.gap_ratio, *engine.key, phase)


def _add_requests(families: Families, report: RequestReport, max_positions: int) -> None:
    families.add(metrics.REQUEST_EVENTS, report.events, report.source)
    for reason, count in sorted(report.dropped.items()):
        families.add(metrics.REQUEST_EVENTS_DROPPED, count, report.source, reason)
    for outcome, count in report.asked_usage.items():
        families.add(metrics.ASKED_USAGE, count, outcome)
    for model in report.models:
        _add_model(families, model, max_positions)


def _add_model(families: Families, model: ModelRequests, max_positions: int) -> None:
    for (temperature, attribution, outcome), count in model.stats.requests.items():
        families.add(metrics.REQUESTS, count, model.model_name, temperature, attribution, outcome)
    for (temperature, attribution), totals in model.stats.totals.items():
        labels = (model.model_name, temperature, attribution)
        families.add(metrics.DRAFTS, totals.drafts, *labels)
        families.add(metrics.DRAFT_TOKENS, totals.draft_tokens, *labels)
        families.add(metrics.ACCEPTED_TOKENS, totals.accepted_tokens, *labels)
        if model.model_name == OTHER.model_name:
            continue  # a mixture of models: its histograms would say little and cost as many series as a model's
        families.add_histogram(metrics.REQUEST_ACCEPTANCE, totals.acceptance, *labels)
        families.add_histogram(metrics.REQUEST_ACCEPTANCE_LENGTH, totals.length, *labels)
        if attribution is Attribution.EXACT:
            families.add_positions(metrics.ACCEPTED_PER_POSITION, totals.accepted_per_position, max_positions, *labels)
    for temperature, latencies in model.stats.latencies.items() if model.model_name != OTHER.model_name else ():
        families.add_histogram(metrics.REQUEST_TTFT, latencies.ttft, model.model_name, temperature)
        families.add_histogram(metrics.REQUEST_TPOT, latencies.tpot, model.model_name, temperature)
        families.add_histogram(metrics.REQUEST_DURATION, latencies.duration, model.model_name, temperature)
