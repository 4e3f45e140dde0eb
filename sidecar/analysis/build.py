"""A model's part of the report: its values, the verdicts on it, and what is only shown.

What is only shown, such as distributions, is read from the state when a report is asked for: it
does not change between two good polls.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from sidecar.analysis.checklist.checklist import Checklist, checklist
from sidecar.analysis.distributions import quantile
from sidecar.analysis.engine.cache import CacheWindow
from sidecar.analysis.engine.engine_state import EngineState, Limitation
from sidecar.analysis.evidence import NO_DRAFTS
from sidecar.analysis.finer import Part
from sidecar.analysis.judgement import Judgement, ModelJudgement
from sidecar.analysis.model_state import ModelState
from sidecar.analysis.report import EngineReport, ModelReport, TemperatureReport
from sidecar.analysis.speed.estimate import Estimate, estimate
from sidecar.analysis.split.strata import ENGINE, Difference, marginal
from sidecar.analysis.split.tallies import group_reports
from sidecar.analysis.values import EngineValues, ModelValues
from sidecar.analysis.windows.recent import Ordered
from sidecar.engine.engine_key import EngineKey
from sidecar.findings.catalog import find
from sidecar.requests.keys import Table
from sidecar.settings.groups import Thresholds

_BINS: Final = 10
_SPREAD: Final = (0.1, 0.5, 0.9)
_TIMES: Final = (0.5, 0.95, 0.99)


def model_report(
    values: ModelValues,
    judged: ModelJudgement,
    model: ModelState,
    engines: Mapping[EngineKey, EngineState],
    thresholds: Thresholds,
) -> ModelReport:
    """The model as of the last good poll; ``model`` and ``engines`` are what it was read from."""
    least = thresholds.min_requests
    differences = model.groups.differences if values.is_told else {}
    groups = group_reports(model.tallies, differences, least, is_fresh=values.is_fresh)
    loads = model.speed.loads.report(model.speed.curve)

    report = ModelReport(
        model_name=values.name,
        engines=tuple(
            _engine(values, one, engines[one.key], judged, differences) for one in values.engines
        ),
        temperatures=tuple(_temperatures(values, judged, model, least)) if values.is_split else (),
        groups=tuple(groups) if values.is_split else (),
        judgement=judged.whole,
        speed=values.speed,
        estimate=_estimate(values),
        loads=tuple(load for load in loads if load.tokens or load.plain_tpot_seconds is not None),
        contexts=model.speed.contexts if values.is_fresh else {},
        no_split=values.no_split,
        advice=judged.advice,
        plain_cache=model.plain_cache,
        plain_steps=model.speed.curve,
        plain_latencies=model.plain_latencies,
        checklist=_checklist(values, model, engines, least) if values.is_plain else None,
    )
    if values.is_told:
        report = replace(
            report,
            acceptance_p10=model.acceptance_p10(values.at, least),
            overlong=model.overlong.found(len(values.present)),
            own=model.own,
            endings=model.endings.report,
            change=model.changes.report(values.at),
        )
    if not values.is_fresh:
        return report
    report = replace(
        report,
        sampling=marginal(Table.SAMPLING, model.groups.recent) if values.is_split else {},
        spreads=model.spreads,
        structured_undrafted=model.structured_undrafted,
    )
    return replace(report, findings=find(report, thresholds))


def _estimate(values: ModelValues) -> Estimate | None:
    """What the sizes of the models say, while no speedup is known."""
    if values.speed is None or values.speed.in_force is not None:
        return None
    views = [engine.plugin for engine in values.speculating if engine.plugin.speculation]
    if not views:
        return None
    plugin = views[0]  # the engines are configured alike
    return estimate(plugin.speculation, plugin.configuration, values.speed.steps)


def _checklist(
    values: ModelValues, model: ModelState, engines: Mapping[EngineKey, EngineState], least: int
) -> Checklist:
    traffic = model.traffic.traffic(least) if values.is_told else None
    loads = [engines[engine.key].polled_load.load for engine in values.present]
    hellos = [engine.plugin.confirmed for engine in values.present]
    hello = next(filter(None, hellos), None)  # the engines are configured alike
    return checklist(traffic, loads, least, hello)


def _engine(
    values: ModelValues,
    engine: EngineValues,
    state: EngineState,
    judged: ModelJudgement,
    differences: Mapping[str, Mapping[str, Difference]],
) -> EngineReport:
    plugin = engine.plugin
    held = state.held
    block_size = plugin.configuration.block_size
    report = EngineReport(
        key=engine.key,
        counters=held.counters if held is not None else {},
        accepted_per_position=held.accepted_per_position if held is not None else (),
        kv_cache_usages=state.kv_cache.distribution.snapshot(),
        window_acceptances=state.window_acceptances.snapshot(),
        loads=state.loads.report() if plugin.has_part or state.has_steps else (),
        judgement=judged.engines.get(engine.key.engine, Judgement()),
        gauges={},
        kv_cache_peak=None,
        kv_cache_capacity_tokens=None,
        kv_cache_block_tokens=state.block_tokens if block_size is None else block_size,
        cache=CacheWindow(),
        latencies={},
        acceptance=None,
        limitations=frozenset(),
        speed=engine.speed,
        speculation=plugin.speculation,
        configuration=plugin.configuration,
        vllm=plugin.vllm,
        said=plugin.said.speculation if plugin.said is not None else None,
        difference=None,
        undrafted_tokens=0.0,
        coverage=None,
        report_age=None,
    )
    if not engine.is_present or state.latest is None:
        return report

    window = engine.evidence.window
    return replace(
        report,
        gauges=state.latest.gauges,
        kv_cache_peak=state.kv_cache.peak(values.at),
        kv_cache_capacity_tokens=state.latest.kv_cache_capacity_tokens,
        cache=state.cache,
        latencies=state.latencies,
        acceptance=window if window.draft_tokens > 0 else None,
        limitations=_limitations(engine),
        difference=differences.get(ENGINE, {}).get(engine.key.engine),
        undrafted_tokens=state.undrafted_tokens,
        coverage=plugin.coverage,
        report_age=plugin.report_age,
        context_tokens=state.context(values.at),
    )


def _limitations(engine: EngineValues) -> frozenset[Limitation]:
    if engine.plugin.senders > 1:
        return engine.limitations | {Limitation.SEVERAL_SENDERS}
    return engine.limitations


def _temperatures(
    values: ModelValues, judged: ModelJudgement, model: ModelState, least: int
) -> Iterator[TemperatureReport]:
    parts = model.parts(least) if values.is_told else {}
    for by, label in model.tallies:
        if by is Table.TEMPERATURE:
            judgement = judged.temperatures.get(label, Judgement())
            yield _temperature(values, label, judgement, model, parts.get(label, ()))


def _temperature(
    values: ModelValues,
    label: str,
    judgement: Judgement,
    model: ModelState,
    parts: tuple[Part, ...],
) -> TemperatureReport:
    state = model.temperatures[label]
    speed = model.speed.temperature(label)
    report = TemperatureReport(
        temperature=label,
        tally=model.tallies[Table.TEMPERATURE, label].total,
        acceptances=state.acceptances.snapshot(),
        lengths=state.lengths.snapshot(),
        ttft=state.ttft.snapshot(),
        tpot=state.tpot.snapshot(),
        durations=state.durations.snapshot(),
        window=replace(NO_DRAFTS, share=0.0),
        acceptance_quantiles=dict.fromkeys(_SPREAD),
        acceptance_bins=(0,) * _BINS,
        ttft_quantiles=dict.fromkeys(_TIMES),
        tpot_quantiles=dict.fromkeys(_TIMES),
        judgement=judgement,
        speedup=None,
        held=None,
        saved_seconds=speed.saved if model.speed.curve is not None else None,
        lost_seconds=speed.lost if model.speed.curve is not None else None,
        endings={**state.endings} if values.is_split else None,
    )

    known = values.temperatures.get(label)
    if known is None:
        return report

    acceptances = state.recent_acceptances.ordered()
    return replace(
        report,
        window=known.window,
        acceptance_quantiles=_quantiles(state.recent_steady.ordered(), _SPREAD),
        acceptance_bins=_bins(acceptances),
        ttft_quantiles=_quantiles(state.recent_ttft.ordered(), _TIMES),
        tpot_quantiles=_quantiles(state.recent_tpot.ordered(), _TIMES),
        speedup=speed.speedup,
        held=speed.held,
        parts=parts,
    )


def _quantiles(values: Ordered, shares: Iterable[float]) -> dict[float, float | None]:
    return {share: quantile(values, share) for share in shares}


def _bins(acceptances: Ordered) -> tuple[int, ...]:
    bins = [0] * _BINS
    for acceptance, count in acceptances.counts:
        place = min(int(acceptance * _BINS), _BINS - 1)
        bins[place] += count
    return tuple(bins)
