"""Builds a model's part of the report, and the evidence it is judged by, from the states."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from sidecar.analysis.advice import advise
from sidecar.analysis.distributions import Ordered, quantile
from sidecar.analysis.engine.cache import CacheWindow
from sidecar.analysis.engine.engine_state import EngineState, gap_growth
from sidecar.analysis.engine.engines import Engines
from sidecar.analysis.evidence import NO_DRAFTS, Acceptance, Evidence, ModelEvidence, sum_windows
from sidecar.analysis.findings.catalog import find
from sidecar.analysis.findings.situation import Situation
from sidecar.analysis.model_state import ENGINE, STRUCTURED, ModelState
from sidecar.analysis.report import EngineReport, ModelReport, TemperatureReport
from sidecar.analysis.speed.model_speed import costs_by_load
from sidecar.analysis.speed.speedup import EngineSpeed
from sidecar.analysis.split.lives import Lives
from sidecar.analysis.split.plugin_state import NoSplit, NoSplitReason
from sidecar.analysis.split.strata import Difference, differences
from sidecar.analysis.split.tallies import group_reports
from sidecar.analysis.verdict import Judgement, ModelJudgement
from sidecar.engine.merge import OTHER
from sidecar.engine.names import Phase
from sidecar.requests.messages import Speculation, Table
from sidecar.settings.groups import Thresholds

_BINS: Final = 10
_SPREAD: Final = (0.1, 0.5, 0.9)
_TIMES: Final = (0.5, 0.95, 0.99)


def evidence(
    model: ModelState, engines: Engines, plugin: Lives, at: float, thresholds: Thresholds
) -> ModelEvidence:
    """The evidence on the model at ``at``, a good poll's time, from its engines on that page."""
    present = [state for state in engines.of(model.name) if state.seen_at == at]
    shown = [state for state in present if state.speculates]
    speed, speculation = _speed(model, shown, plugin), _speculation(shown, plugin)
    splits = bool(present) and _splits(model, plugin)
    short, hour = model.windows() if splits else ({}, {})
    peaks = (state.kv_cache.peak(at) for state in present if state.waiting > 0)
    whole = Evidence(
        window=_at_positions(sum_windows([state.window for state in shown]), short.values()),
        hour=_at_positions(sum_windows([state.hour for state in shown]), hour.values()),
        speedup=speed.speedup if speed is not None else None,
        costs=speed.costs if speed is not None else None,
        costs_by_load=costs_by_load(model.speed.loads.report(model.speed.curve)),
        speculation=speculation,
        is_data_parallel=any(
            state.key.engine != "0" or (plugin.configuration(state.key).data_parallel_size or 1) > 1
            for state in shown
        ),
    )
    return ModelEvidence(
        model_name=model.name,
        whole=whole,
        temperatures={
            label: Evidence(
                window=window,
                hour=hour[label],
                speedup=model.speed.temperature(label).speedup,
                speculation=speculation,
            )
            for label, window in short.items()
        },
        engines={
            state.key.engine: Evidence(
                window=state.window,
                hour=state.hour,
                speedup=_engine_speed(model, state, plugin).speedup,
                speculation=plugin.speculation(state.key),
            )
            for state in shown
        },
        acceptance_p10=model.acceptance_p10(at, thresholds.min_requests) if splits else None,
        latency_gap_growth=_gap_growth(
            present, model.plain_latencies.get(Phase.TPOT, {}), thresholds.min_requests
        ),
        kv_cache_peak=max((peak for peak in peaks if peak is not None), default=None),
    )


def _gap_growth(
    present: Iterable[EngineState], baseline: Mapping[float, float], least: int
) -> float | None:
    """See ``ModelEvidence``. P99 of fewer than ``least`` requests is just the slowest one."""
    measured = (state.latencies.get(Phase.TPOT) for state in present)
    growths = (
        gap_growth(latency, baseline) for latency in measured if latency and latency.count >= least
    )
    return max((growth for growth in growths if growth is not None), default=None)


@dataclass(frozen=True, slots=True)
class Moment:
    """The time of the last good poll, whether it is fresh, and the thresholds in force."""

    at: float
    fresh: bool
    thresholds: Thresholds


def model_report(
    model: ModelState, engines: Engines, plugin: Lives, judged: ModelJudgement, moment: Moment
) -> ModelReport:
    """The model as of the last good poll; includes current values only if that poll is fresh."""
    at, fresh, min_requests = moment.at, moment.fresh, moment.thresholds.min_requests
    states = engines.of(model.name)
    shown = [state for state in states if fresh and state.seen_at == at]
    speed = _speed(model, [state for state in shown if state.speculates], plugin)
    splits, loads = _splits(model, plugin), model.speed.loads.report(model.speed.curve)

    found: Mapping[str, Mapping[str, Difference]] = {}
    if fresh and splits:
        found = {by: differences(cells.sums, min_requests) for by, cells in model.strata.items()}
    groups = group_reports(model.tallies, found, min_requests, fresh=fresh) if splits else ()

    no_split = None
    if not splits:
        no_split = plugin.withheld(model.name) or NoSplit(NoSplitReason.NOT_CONNECTED)

    whole, advice = judged.whole, None
    if whole.judged is not None:
        advice = advise(whole.evidence, whole.judged, moment.thresholds)

    report = ModelReport(
        model_name=model.name,
        engines=tuple(
            _engine_report(
                model,
                state,
                plugin,
                judged,
                moment,
                difference=found.get(ENGINE, {}).get(state.key.engine),
            )
            for state in states
        ),
        temperatures=tuple(_temperatures(model, judged, moment)) if splits else (),
        groups=tuple(groups),
        judgement=whole,
        speed=speed,
        loads=tuple(load for load in loads if load.tokens or load.plain_seconds is not None),
        acceptance_p10=model.acceptance_p10(at, min_requests) if splits and fresh else None,
        no_split=no_split,
        advice=advice,
        plain_cache=model.plain_cache,
        plain_steps=model.speed.curve,
        plain_latencies=model.plain_latencies,
        rejected=model.rejected if splits and fresh else {},
        breaches=judged.breaches,
    )
    if not fresh:
        return report

    situation = Situation(
        model=report,
        sampling=model.strata[Table.SAMPLING].sums if splits else {},
        forbidden=model.counts.sums.get(STRUCTURED, 0),
        thresholds=moment.thresholds,
    )
    return replace(report, findings=find(situation))


def _engine_report(
    model: ModelState,
    state: EngineState,
    plugin: Lives,
    judged: ModelJudgement,
    moment: Moment,
    *,
    difference: Difference | None,
) -> EngineReport:
    """The engine as of the last good poll.

    Includes current values only if the engine was on that poll's page and the poll is fresh.
    """
    latest = state.latest if moment.fresh and state.seen_at == moment.at else None
    window, hello = state.window if latest else NO_DRAFTS, plugin.hello(state.key)

    return EngineReport(
        key=state.key,
        counters=state.held.counters if state.held is not None else {},
        accepted_per_position=state.held.accepted_per_position if state.held is not None else (),
        kv_cache_usages=state.kv_cache.distribution.snapshot(),
        window_acceptances=state.window_acceptances.snapshot(),
        loads=state.loads.report() if state.is_reported or state.untimed is None else (),
        judgement=judged.engines.get(state.key.engine, Judgement()),
        gauges=latest.gauges if latest else {},
        kv_cache_peak=state.kv_cache.peak(moment.at) if latest else None,
        kv_cache_capacity_tokens=latest.kv_cache_capacity_tokens if latest else None,
        kv_cache_block_tokens=plugin.configuration(state.key).block_size or state.block_tokens,
        cache=state.cache if latest else CacheWindow(),
        latencies=state.latencies if latest else {},
        acceptance=window if window.draft_tokens > 0 else None,
        limitations=state.limitations if latest else frozenset(),
        speed=_engine_speed(model, state, plugin) if latest and state.speculates else None,
        speculation=hello.speculation if hello else None,
        configuration=plugin.configuration(state.key),
        difference=difference if latest else None,
        undrafted_tokens=state.undrafted_tokens if latest else 0.0,
        coverage=plugin.coverage(state.key) if latest else None,
    )


def _temperatures(
    model: ModelState, judged: ModelJudgement, moment: Moment
) -> Iterable[TemperatureReport]:
    windows = model.windows()[0] if moment.fresh else {}
    has_baseline = model.speed.curve is not None

    for label in (name for by, name in model.tallies if by is Table.TEMPERATURE):
        state = model.temperatures[label]
        judgement, window = judged.temperatures.get(label, Judgement()), windows.get(label)
        speed = model.speed.temperature(label)
        acceptances, ttft, tpot = (
            recent.ordered() if window is not None else Ordered(())
            for recent in (state.recent_acceptances, state.recent_ttft, state.recent_tpot)
        )

        yield TemperatureReport(
            temperature=label,
            tally=model.tallies[Table.TEMPERATURE, label].total,
            acceptances=state.acceptances.snapshot(),
            lengths=state.lengths.snapshot(),
            ttft=state.ttft.snapshot(),
            tpot=state.tpot.snapshot(),
            durations=state.durations.snapshot(),
            window=window or replace(NO_DRAFTS, share=0.0),
            acceptance_quantiles={share: quantile(acceptances, share) for share in _SPREAD},
            acceptance_bins=_bins(acceptances),
            ttft_quantiles={share: quantile(ttft, share) for share in _TIMES},
            tpot_quantiles={share: quantile(tpot, share) for share in _TIMES},
            judgement=judgement,
            speedup=speed.speedup if window is not None else None,
            saved_seconds=speed.saved if has_baseline else None,
            lost_seconds=speed.lost if has_baseline else None,
        )


def _bins(acceptances: Ordered) -> tuple[int, ...]:
    bins = [0] * _BINS
    for acceptance, count in acceptances.counts:
        bins[min(int(acceptance * _BINS), _BINS - 1)] += count
    return tuple(bins)


def _splits(model: ModelState, plugin: Lives) -> bool:
    """Whether the model is split with the plug-in's data."""
    return bool(plugin.counting(model.name)) and plugin.withheld(model.name) is None


def _speculation(shown: Iterable[EngineState], plugin: Lives) -> Speculation | None:
    """How the model's engines draft; all of them are configured alike."""
    known = (plugin.speculation(state.key) for state in shown)
    return next((speculation for speculation in known if speculation is not None), None)


def _speed(model: ModelState, speculating: list[EngineState], plugin: Lives) -> EngineSpeed | None:
    """The speed of all speculating engines together; None if there are none, and for ``other``."""
    if not speculating or model.name == OTHER.model_name:
        return None
    speed = model.speed.whole or EngineSpeed(withheld=speculating[0].idle)
    return _honest(speed, _speculation(speculating, plugin))


def _engine_speed(model: ModelState, state: EngineState, plugin: Lives) -> EngineSpeed:
    speed = model.speed.engine(state.key) or EngineSpeed(withheld=state.idle)
    return _honest(speed, plugin.speculation(state.key))


def _honest(speed: EngineSpeed, speculation: Speculation | None) -> EngineSpeed:
    """Removes the break-even acceptance rate if vLLM counts draft tokens that it never verified."""
    adaptive = speculation is not None and speculation.adaptive_verification
    return replace(speed, break_even_acceptance=None) if adaptive else speed


def _at_positions(window: Acceptance, temperatures: Iterable[Acceptance]) -> Acceptance:
    """The window with the plug-in's counts by position, including the tokens drafted at each."""
    split = sum_windows(list(temperatures))
    if not any(split.drafted_per_position):
        return window
    return replace(
        window,
        accepted_per_position=split.accepted_per_position,
        drafted_per_position=split.drafted_per_position,
    )
