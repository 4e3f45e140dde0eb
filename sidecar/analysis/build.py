"""Builds, from the facts of a poll, the evidence on a model and its part of the report."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from sidecar.analysis.checklist.checklist import Checklist, checklist
from sidecar.analysis.distributions import quantile
from sidecar.analysis.engine.cache import CacheWindow
from sidecar.analysis.engine.engine_state import Limitation
from sidecar.analysis.evidence import (
    NO_DRAFTS,
    Acceptance,
    Evidence,
    Loops,
    ModelEvidence,
    sum_windows,
)
from sidecar.analysis.facts import EngineFacts, ModelFacts
from sidecar.analysis.judgement import Judgement, ModelJudgement
from sidecar.analysis.report import EngineReport, ModelReport, TemperatureReport
from sidecar.analysis.speed.estimate import Estimate, estimate
from sidecar.analysis.speed.model_speed import costs_by_load
from sidecar.analysis.speed.speedup import EngineSpeed
from sidecar.analysis.split.strata import ENGINE, Difference, marginal
from sidecar.analysis.split.tallies import group_reports
from sidecar.analysis.windows.recent import Ordered
from sidecar.findings.catalog import find
from sidecar.findings.situation import Situation
from sidecar.requests.tables import ENDINGS, LOOP, Table
from sidecar.settings.groups import Thresholds

_BINS: Final = 10
_SPREAD: Final = (0.1, 0.5, 0.9)
_LOOPS_MATTER: Final = 0.05  # share of the draft tokens from which on loops flatter the rate
_TIMES: Final = (0.5, 0.95, 0.99)


def evidence(facts: ModelFacts, thresholds: Thresholds) -> ModelEvidence:
    """What the model is judged by."""
    return ModelEvidence(
        model_name=facts.model.name,
        whole=_whole(facts, thresholds),
        temperatures={label: _at_temperature(facts, label) for label in facts.windows},
        engines={
            engine.state.key.engine: _on_engine(facts, engine) for engine in facts.speculating
        },
    )


def _at_temperature(facts: ModelFacts, label: str) -> Evidence:
    return Evidence(
        window=facts.windows[label],
        hour=facts.hours[label],
        past=facts.model.pasts[label].past,
        speedup=facts.model.speed.temperature(label).in_force,
        speculation=facts.speculation,
    )


def _on_engine(facts: ModelFacts, engine: EngineFacts) -> Evidence:
    past = engine.state.past.past
    return Evidence(
        window=engine.state.window,
        hour=engine.state.hour,
        # its requests are like those of the model's other engines
        past=None if past is None else replace(past, spread=facts.model.past.spread),
        speedup=engine.speed.in_force if engine.speed is not None else None,
        speculation=engine.speculation,
    )


def _whole(facts: ModelFacts, thresholds: Thresholds) -> Evidence:
    windows = sum_windows([engine.state.window for engine in facts.speculating])
    hours = sum_windows([engine.state.hour for engine in facts.speculating])
    steps = facts.speed.steps if facts.speed is not None else None

    return Evidence(
        window=_at_positions(windows, facts.windows.values()),
        hour=_at_positions(hours, facts.hours.values()),
        past=facts.model.past.past,
        speedup=facts.speed.in_force if facts.speed is not None else None,
        costs=facts.speed.costs if facts.speed is not None else None,
        costs_by_load=costs_by_load(facts.loads),
        speculation=facts.speculation,
        is_data_parallel=any(map(_is_data_parallel, facts.speculating)),
        runs_v2=_runs_v2(facts),
        emitted_share=_emitted_share(facts.speed, windows),
        running=steps.running if steps is not None else None,
        loops=_loops(facts, thresholds.min_requests),
    )


def _loops(facts: ModelFacts, min_requests: int) -> Loops | None:
    """See ``Evidence``. Nothing is said of fewer finished requests than ``min_requests``."""
    if not facts.windows:
        return None

    tallies = facts.model.tallies
    ended = {ending: tallies[Table.ENDING, ending].window for ending in ENDINGS}
    looping = ended[LOOP]
    every = sum_windows(list(ended.values()))
    others = sum_windows([window for name, window in ended.items() if name != LOOP])
    if looping.rate is None or every.rate is None or (every.requests or 0) < min_requests:
        return None

    share = looping.draft_tokens / every.draft_tokens
    if share < _LOOPS_MATTER:
        return None

    return Loops(rate=looping.rate, share=share, whole=every.rate, without=others.rate)


def _runs_v2(facts: ModelFacts) -> bool | None:
    """Whether the model's engines run on model runner V2; all are configured alike."""
    for engine in facts.speculating:
        runs_v2 = engine.plugin.configuration.model_runner_v2
        if runs_v2 is not None:
            return runs_v2
    return None


def _emitted_share(speed: EngineSpeed | None, window: Acceptance) -> float | None:
    """The share of the accepted tokens that requests got; see ``Evidence``.

    A decode step gives one token, and those that are accepted.
    """
    steps = speed.steps if speed is not None else None
    if steps is None or not steps.drafts or not window.drafts or not window.accepted_tokens:
        return None

    accepted_per_draft = window.accepted_tokens / window.drafts
    emitted_per_draft = (steps.tokens - steps.decode_steps) / steps.drafts
    return min(max(emitted_per_draft / accepted_per_draft, 0.0), 1.0)


def _is_data_parallel(engine: EngineFacts) -> bool:
    size = engine.plugin.configuration.data_parallel_size or 1
    return size > 1 or engine.state.key.number != "0"


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


def model_report(facts: ModelFacts, judged: ModelJudgement, thresholds: Thresholds) -> ModelReport:
    """The model as of the last good poll."""
    model = facts.model
    groups = group_reports(
        model.tallies, facts.differences, thresholds.min_requests, is_fresh=facts.is_fresh
    )

    report = ModelReport(
        model_name=model.name,
        engines=tuple(_engine_report(facts, engine, judged) for engine in facts.engines),
        temperatures=tuple(_temperatures(facts, judged)) if facts.is_split else (),
        groups=tuple(groups) if facts.is_split else (),
        judgement=judged.whole,
        speed=facts.speed,
        estimate=_estimate(facts),
        loads=tuple(load for load in facts.loads if load.tokens or load.plain_seconds is not None),
        contexts=model.speed.contexts if facts.is_fresh else {},
        acceptance_p10=facts.acceptance_p10,
        overlong=facts.overlong,
        own=facts.own,
        no_split=facts.no_split,
        advice=judged.advice,
        plain_cache=model.plain_cache,
        plain_steps=model.speed.curve,
        plain_latencies=model.plain_latencies,
        endings=facts.endings,
        change=facts.change,
    )
    if not facts.is_fresh:
        return report

    if facts.is_plain:
        report = replace(report, checklist=_checklist(facts, thresholds))

    situation = Situation(
        model=report,
        sampling=marginal(Table.SAMPLING, model.groups.recent) if facts.is_split else {},
        spreads=model.spreads,
        structured_undrafted=model.structured_undrafted,
        thresholds=thresholds,
    )
    return replace(report, findings=find(situation))


def _estimate(facts: ModelFacts) -> Estimate | None:
    """What the sizes of the models say, while no speedup is known."""
    if facts.speed is None or facts.speed.in_force is not None:
        return None
    views = [engine.plugin for engine in facts.speculating if engine.plugin.speculation]
    if not views:
        return None
    plugin = views[0]  # the engines are configured alike
    return estimate(plugin.speculation, plugin.configuration, facts.speed.steps)


def _checklist(facts: ModelFacts, thresholds: Thresholds) -> Checklist:
    loads = [engine.state.polled_load.load for engine in facts.present]
    hellos = [engine.plugin.confirmed for engine in facts.present]
    hello = next(filter(None, hellos), None)  # the engines are configured alike
    return checklist(facts.traffic, loads, thresholds.min_requests, hello)


def _engine_report(facts: ModelFacts, engine: EngineFacts, judged: ModelJudgement) -> EngineReport:
    state = engine.state
    plugin = engine.plugin
    held = state.held
    block_size = plugin.configuration.block_size
    report = EngineReport(
        key=state.key,
        counters=held.counters if held is not None else {},
        accepted_per_position=held.accepted_per_position if held is not None else (),
        kv_cache_usages=state.kv_cache.distribution.snapshot(),
        window_acceptances=state.window_acceptances.snapshot(),
        loads=state.loads.report() if plugin.has_part or state.has_steps else (),
        judgement=judged.engines.get(state.key.engine, Judgement()),
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

    window = state.window
    return replace(
        report,
        gauges=state.latest.gauges,
        kv_cache_peak=state.kv_cache.peak(facts.at),
        kv_cache_capacity_tokens=state.latest.kv_cache_capacity_tokens,
        cache=state.cache,
        latencies=state.latencies,
        acceptance=window if window.draft_tokens > 0 else None,
        limitations=_limitations(engine),
        difference=_difference(facts, engine),
        undrafted_tokens=state.undrafted_tokens,
        coverage=plugin.coverage,
        report_age=plugin.report_age,
        context_tokens=state.context(facts.at),
    )


def _limitations(engine: EngineFacts) -> frozenset[Limitation]:
    if engine.plugin.senders > 1:
        return engine.state.limitations | {Limitation.SEVERAL_SENDERS}
    return engine.state.limitations


def _difference(facts: ModelFacts, engine: EngineFacts) -> Difference | None:
    return facts.differences.get(ENGINE, {}).get(engine.state.key.engine)


def _temperatures(facts: ModelFacts, judged: ModelJudgement) -> Iterator[TemperatureReport]:
    for by, label in facts.model.tallies:
        if by is Table.TEMPERATURE:
            yield _temperature(facts, label, judged.temperatures.get(label, Judgement()))


def _temperature(facts: ModelFacts, label: str, judgement: Judgement) -> TemperatureReport:
    model = facts.model
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
        endings={**state.endings} if facts.is_split else None,
    )

    window = facts.windows.get(label)
    if window is None:
        return report

    acceptances = state.recent_acceptances.ordered()
    return replace(
        report,
        window=window,
        acceptance_quantiles=_quantiles(state.recent_steady.ordered(), _SPREAD),
        acceptance_bins=_bins(acceptances),
        ttft_quantiles=_quantiles(state.recent_ttft.ordered(), _TIMES),
        tpot_quantiles=_quantiles(state.recent_tpot.ordered(), _TIMES),
        speedup=speed.speedup,
        held=speed.held,
        parts=facts.parts.get(label, ()),
    )


def _quantiles(values: Ordered, shares: Iterable[float]) -> dict[float, float | None]:
    return {share: quantile(values, share) for share in shares}


def _bins(acceptances: Ordered) -> tuple[int, ...]:
    bins = [0] * _BINS
    for acceptance, count in acceptances.counts:
        place = min(int(acceptance * _BINS), _BINS - 1)
        bins[place] += count
    return tuple(bins)
