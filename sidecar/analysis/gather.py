"""Makes a model's values from the state, once a good poll."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from sidecar.analysis.engine.engine_state import EngineState
from sidecar.analysis.engine.engines import Engines
from sidecar.analysis.evidence import Acceptance, Evidence, Loops, sum_windows
from sidecar.analysis.model_state import ModelState
from sidecar.analysis.speed.model_speed import costs_by_load
from sidecar.analysis.speed.speedup import EngineSpeed
from sidecar.analysis.speed.steps import StepCosts
from sidecar.analysis.speed.withheld import Withheld
from sidecar.analysis.split.view import EngineView, LivesView
from sidecar.analysis.values import EngineValues, ModelValues
from sidecar.engine import merge
from sidecar.requests.keys import ENDINGS, LOOP, Table
from sidecar.requests.messages import Speculation
from sidecar.settings.groups import Thresholds

_LOOPS_MATTER: Final = 0.05  # share of the draft tokens; loops that hold less are not told


def gather(
    model: ModelState, engines: Engines, lives: LivesView, at: float, thresholds: Thresholds
) -> ModelValues:
    """The values of a model at ``at``, the time of the poll that has just been taken in."""
    known = tuple(
        _engine(model, state, lives.engine(state.key), is_present=state.seen_at == at)
        for state in engines.of(model.name)
    )
    speculating = [engine for engine in known if engine.speculates]
    speculation = _speculation(speculating)
    no_split = lives.no_split(model.name)
    values = ModelValues(name=model.name, at=at, engines=known, no_split=no_split)

    speed = _speed(model, speculating, speculation, is_split=values.is_split)
    temperatures = _temperatures(model, speculation) if values.is_told else {}
    return replace(
        values,
        whole=_whole(
            model,
            speculating,
            temperatures,
            speculation=speculation,
            speed=speed,
            least=thresholds.min_requests,
        ),
        temperatures=temperatures,
        speed=speed,
    )


# -------------------------------------------------------------------------------------------------
# One engine
# -------------------------------------------------------------------------------------------------


def _engine(
    model: ModelState, state: EngineState, plugin: EngineView, *, is_present: bool
) -> EngineValues:
    engine = EngineValues(
        key=state.key,
        plugin=plugin,
        is_present=is_present,
        speculates=is_present and state.speculates,
        limitations=state.limitations,
    )
    if not engine.speculates:
        return engine

    speed = model.speed.engine(state.key)
    if speed is None:
        speed = _nothing_yet(plugin.has_part and plugin.no_split is None)
    speed = _without_misleading_rate(speed, plugin.speculation)
    return replace(engine, speed=speed, evidence=_on_engine(model, state, plugin, speed))


def _on_engine(
    model: ModelState, state: EngineState, plugin: EngineView, speed: EngineSpeed
) -> Evidence:
    hour = state.hour
    past = state.past.past
    return Evidence(
        window=state.window,
        hour=hour,
        # its requests are like those of the model's other engines
        past=None if past is None else replace(past, spread=model.past.spread),
        speedup=speed.in_force,
        speculation=plugin.speculation or _assumed(model, hour),
    )


def _assumed(model: ModelState, hour: Acceptance) -> Speculation | None:
    """How an engine drafts according to the settings, where no plug-in says it."""
    if model.assumed_method is None:
        return None
    return Speculation(model.assumed_method, num_speculative_tokens=len(hour.accepted_per_position))


def _nothing_yet(counts: bool) -> EngineSpeed:  # noqa: FBT001 - whether a plug-in does
    """No steps are known."""
    return EngineSpeed(withheld=Withheld.TOO_LITTLE if counts else Withheld.NO_STEPS)


def _without_misleading_rate(speed: EngineSpeed, speculation: Speculation | None) -> EngineSpeed:
    """Removes the break-even acceptance rate if vLLM counts draft tokens that it never verified."""
    if speculation is None or not speculation.adaptive_verification:
        return speed
    return replace(speed, break_even_acceptance=None, break_even_error=None)


# -------------------------------------------------------------------------------------------------
# One temperature
# -------------------------------------------------------------------------------------------------


def _temperatures(model: ModelState, speculation: Speculation | None) -> dict[str, Evidence]:
    hours = model.hours()
    return {
        label: Evidence(
            window=window,
            hour=hours[label],
            past=model.pasts[label].past,
            speedup=model.speed.temperature(label).in_force,
            speculation=speculation,
        )
        for label, window in model.windows().items()
    }


# -------------------------------------------------------------------------------------------------
# All engines together
# -------------------------------------------------------------------------------------------------


def _speculation(engines: Sequence[EngineValues]) -> Speculation | None:
    """How the model's engines draft; all of them are configured alike."""
    known = [engine.plugin.speculation for engine in engines]
    known += [engine.evidence.speculation for engine in engines]
    return next((speculation for speculation in known if speculation is not None), None)


def _speed(
    model: ModelState,
    speculating: Sequence[EngineValues],
    speculation: Speculation | None,
    *,
    is_split: bool,
) -> EngineSpeed | None:
    """The speed of all speculating engines together; None if there are none, and for ``other``."""
    if not speculating or model.name == merge.OTHER_ENGINES.model_name:
        return None
    speed = model.speed.whole or _nothing_yet(is_split)
    return _without_misleading_rate(speed, speculation)


def _whole(
    model: ModelState,
    speculating: Sequence[EngineValues],
    temperatures: Mapping[str, Evidence],
    *,
    speculation: Speculation | None,
    speed: EngineSpeed | None,
    least: int,
) -> Evidence:
    """Of fewer finished requests than ``least``, nothing is said of how they end."""
    window = sum_windows([engine.evidence.window for engine in speculating])
    hour = sum_windows([engine.evidence.hour for engine in speculating])
    steps = speed.steps if speed is not None else None

    return Evidence(
        window=_at_positions(window, (part.window for part in temperatures.values())),
        hour=_at_positions(hour, (part.hour for part in temperatures.values())),
        past=model.past.past,
        speedup=speed.in_force if speed is not None else None,
        costs=speed.costs if speed is not None else None,
        costs_by_load=_costs_by_load(model),
        speculation=speculation,
        is_data_parallel=any(map(_is_data_parallel, speculating)),
        runs_v2=_runs_v2(speculating),
        emitted_share=_emitted_share(speed, window),
        running=steps.running if steps is not None else None,
        loops=_loops(model, least) if temperatures else None,
    )


def _costs_by_load(model: ModelState) -> Mapping[int, StepCosts]:
    """Empty without a baseline, which alone tells what a load takes without speculation."""
    curve = model.speed.curve
    return {} if curve is None else costs_by_load(model.speed.loads.report(curve))


def _loops(model: ModelState, min_requests: int) -> Loops | None:
    """See ``Evidence``. Nothing is said of fewer finished requests than ``min_requests``."""
    looping = model.tallies[Table.ENDING, LOOP].window
    if looping.rate is None:
        return None
    others = sum_windows(
        [model.tallies[Table.ENDING, ending].window for ending in ENDINGS if ending != LOOP]
    )
    every = sum_windows([looping, others])
    if every.rate is None or (every.requests or 0) < min_requests:
        return None

    share = looping.draft_tokens / every.draft_tokens
    if share < _LOOPS_MATTER:
        return None

    return Loops(rate=looping.rate, share=share, whole=every.rate, without=others.rate)


def _runs_v2(speculating: Iterable[EngineValues]) -> bool | None:
    """Whether the model's engines run on model runner V2; all are configured alike."""
    for engine in speculating:
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


def _is_data_parallel(engine: EngineValues) -> bool:
    size = engine.plugin.configuration.data_parallel_size or 1
    return size > 1 or engine.key.number != "0"


def _at_positions(window: Acceptance, temperatures: Iterable[Acceptance]) -> Acceptance:
    """The window with the plug-in's counts by position, including the tokens drafted at each."""
    parts = list(temperatures)
    drafted = merge.sum_by_position([(part.drafts, part.drafted_per_position) for part in parts])
    if not any(drafted):
        return window

    return replace(
        window,
        accepted_per_position=merge.sum_by_position(
            [(part.drafts, part.accepted_per_position) for part in parts]
        ),
        drafted_per_position=drafted,
    )
