"""The speed of one server: per engine by load, and plain against actual time by model and temperature."""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from sidecar.analysis.attribution.attributors import Settled
from sidecar.analysis.attribution.result import AttributedRequest, Attribution
from sidecar.analysis.decode_clock import DecodeClock
from sidecar.analysis.draft_length import StepCosts
from sidecar.analysis.plain_curve import PlainCurve, PlainStep, fit_undrafted
from sidecar.analysis.speedup import (
    EngineSpeed,
    EngineSpeedWindow,
    Reference,
    SlidingTimes,
    Speedup,
    Withheld,
    reconciled,
)
from sidecar.analysis.steps import LOAD_EDGES, LOAD_LABELS, Periods, Steps, load_label, steps_between
from sidecar.engine.names import Counter
from sidecar.engine.plan import EngineKey
from sidecar.engine.timeline import Timeline

_PERIODS: Final = 900  # of a model's own decoding, kept to find steps without drafts
_ENOUGH_STEPS: Final = 1000  # decode steps at a load from which the time of one is known
_REFIT: Final = 30.0  # seconds between two fits to them


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedOptions:
    """``curves`` are plain step times by model name, ``temperatures`` all labels.

    ``window`` is the sliding window, kept in parts of ``stretch``; ``history`` is how far back requests may have begun.
    All three are in seconds.
    """

    curves: Mapping[str, PlainCurve] = field(default_factory=dict)
    temperatures: Sequence[str] = ()
    window: float = 300.0
    stretch: float = 5.0
    history: float = 900.0


@dataclass(slots=True)
class LoadTotals:
    """What was decoded at one load since the start: request-seconds, decode steps and their tokens."""

    seconds: float = 0.0
    steps: float = 0.0
    tokens: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TemperatureSpeed:
    """One temperature: its speedup over the sliding window, and request-seconds saved and lost since the start.

    ``contradicts``: the engine's steps and the request source's clock differ by more than their errors.
    """

    speedup: Speedup | None
    contradicts: bool
    saved_seconds: float
    lost_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpeed:
    """One model: all its engines together, and the source of its plain times.

    ``temperatures`` is empty while there is no reference.
    """

    whole: EngineSpeed
    reference: Reference | None
    curve: PlainCurve | None
    temperatures: Mapping[str, TemperatureSpeed]
    costs_by_load: Mapping[int, StepCosts] = field(default_factory=dict)  # by the highest number of requests running

    @property
    def plain_seconds(self) -> Mapping[str, float]:
        """S0 by load; empty without a reference."""
        return {} if self.curve is None else self.curve.by_load()


class SpeedState:
    """Takes in every poll, then the requests that it settled; bounded whatever vLLM and the traffic do."""

    def __init__(self, options: SpeedOptions) -> None:
        self._options = options
        self._models: dict[str, _Model] = {}
        self._scraped_at: float | None = None

    def scraped(self, at: float, timelines: Mapping[EngineKey, Timeline], *, several_processes: bool) -> None:
        """Takes in a poll; ``timelines`` are those of the engines on the page.

        Several API servers count the same engine step several times, so b is then unknown.
        """
        start, self._scraped_at = self._scraped_at, at
        for name in sorted({key.model_name for key in timelines}):
            self._models.setdefault(name, _Model(name, self._options)).seen_at = at
        oldest = at - self._options.history
        self._models = {name: model for name, model in self._models.items() if oldest <= model.seen_at <= at}
        for key, timeline in timelines.items():
            if timeline.value_at(Counter.DRAFTS, at) is not None:
                untimed = several_processes or timeline.value_at(Counter.DECODE_SECONDS, at) is None
                self._models[key.model_name].idle = Withheld.NO_STEPS if untimed else Withheld.TOO_LITTLE
        if several_processes or start is None or start >= at:
            return
        for name, model in self._models.items():
            steps = {
                key: found
                for key, timeline in timelines.items()
                if key.model_name == name and (found := steps_between(timeline, start, at)) is not None
            }
            speculating = {key for key in steps if timelines[key].value_at(Counter.DRAFTS, at) is not None}
            model.scraped(start, at, steps, speculating)

    def finished(self, at: float, settled: Iterable[Settled]) -> None:
        """Takes in the requests that a poll at ``at`` settled."""
        by_model: dict[str, list[AttributedRequest]] = {}
        for one in settled:
            by_model.setdefault(one.model_name, []).append(one.request)
        for name, requests in by_model.items():
            if (model := self._models.get(name)) is not None:
                model.finished(at, requests)

    def loads(self) -> Mapping[EngineKey, Mapping[str, LoadTotals]]:
        """What was decoded at each load, by engine; every load is present from the start."""
        return {key: loads for model in self._models.values() for key, loads in model.loads.items()}

    def engines(self, now: float) -> Mapping[EngineKey, EngineSpeed]:
        """Every engine that speculates, over the window that ends now."""
        return {
            key: window.read(now, model.curve)
            for model in self._models.values()
            for key, window in model.engines.items()
        }

    def models(self, now: float) -> Mapping[str, ModelSpeed]:
        """Every model that speculates."""
        return {name: model.read(now) for name, model in self._models.items() if model.idle is not None}


class _Model:
    def __init__(self, name: str, options: SpeedOptions) -> None:
        self._options = options
        self.curve = options.curves.get(name)
        self._reference = Reference.BASELINE if self.curve is not None else None
        self._missing = Withheld.OTHER_MODEL if options.curves else Withheld.NO_REFERENCE
        self.loads: dict[EngineKey, dict[str, LoadTotals]] = {}
        self.engines: dict[EngineKey, EngineSpeedWindow] = {}
        self._whole = EngineSpeedWindow(options.window, options.stretch)
        self._clock = DecodeClock(options.history)
        self._temperatures = {label: _Temperature(options) for label in options.temperatures}
        self._periods: deque[Steps] = deque(maxlen=_PERIODS)
        self._gathering: dict[EngineKey, Periods] = {}
        self._fitted_at = -math.inf
        self.seen_at = 0.0
        self.idle: Withheld | None = None  # why there may be no step times; None while nothing speculates

    def scraped(self, start: float, at: float, steps: Mapping[EngineKey, Steps], speculating: set[EngineKey]) -> None:
        clock: list[tuple[Steps, PlainStep | None]] = []
        for key, found in steps.items():
            load = self.loads.setdefault(key, {label: LoadTotals() for label in LOAD_LABELS})[load_label(found.running)]
            load.seconds += found.seconds
            load.steps += found.decode_steps
            load.tokens += found.tokens
            if key not in speculating:
                continue
            if key not in self.engines:
                self.engines[key] = EngineSpeedWindow(self._options.window, self._options.stretch)
            plain = self.curve.at(found.running) if self.curve is not None else None
            self.engines[key].add(at, found, plain)
            self._whole.add(at, found, plain)
            clock.append((found, plain))
            self._periods.extend(self._gathering.setdefault(key, Periods()).add(start, at, found))
        self._clock.add(start, at, clock)
        if self._reference is not Reference.BASELINE and not 0 <= at - self._fitted_at < _REFIT:
            self.curve, self._fitted_at = fit_undrafted(list(self._periods)), at
            self._reference = Reference.UNDRAFTED if self.curve is not None else None

    def finished(self, at: float, requests: Iterable[AttributedRequest]) -> None:
        """Each method adds up on its own; the balance is by the clock, else by steps."""
        excess = self._whole.read(at, self.curve).prompt_excess
        balance: dict[str, float] = {}
        for request in requests:
            window, tokens = self._temperatures.get(request.temperature), request.decode_tokens
            begun = request.end - request.duration + (request.ttft or 0.0)
            if window is None or not tokens or (times := self._clock.between(begun, request.end)) is None:
                continue
            actual = None
            if request.attribution is not Attribution.NONE:
                # A step gives one token more than it accepts, unless it is the last one and cut off.
                actual = max(request.drafts, tokens - request.accepted_tokens) * times.actual
                window.by_steps.add(at, tokens=tokens, plain=times.plain, actual=actual)
            if request.tpot is not None:
                actual = request.tpot * tokens
                window.by_clock.add(at, tokens=tokens, plain=times.plain, actual=actual)
            if actual is not None and excess is not None:
                gained = tokens * (times.plain.seconds + excess * times.plain.others) - actual
                balance[request.temperature] = balance.get(request.temperature, 0.0) + gained
        for temperature, seconds in balance.items():
            self._temperatures[temperature].saved += max(seconds, 0.0)
            self._temperatures[temperature].lost += max(-seconds, 0.0)

    def read(self, now: float) -> ModelSpeed:
        whole = self._whole.read(now, self.curve)
        known = self.curve is not None
        if whole.steps is None:
            whole = replace(whole, withheld=self.idle)
        elif not known:
            whole = replace(whole, withheld=self._missing)
        return ModelSpeed(
            whole=whole,
            reference=self._reference,
            curve=self.curve,
            temperatures={t: window.read(now, whole) for t, window in self._temperatures.items()} if known else {},
            costs_by_load=self._costs(whole),
        )

    def _costs(self, whole: EngineSpeed) -> dict[int, StepCosts]:
        if whole.costs is None or self.curve is None:
            return {}
        plain = self.curve.by_load()
        found: dict[int, StepCosts] = {}
        for label, highest in zip(LOAD_LABELS, LOAD_EDGES, strict=False):
            steps = sum(loads[label].steps for loads in self.loads.values())
            if label in plain and steps >= _ENOUGH_STEPS:
                seconds = sum(loads[label].seconds for loads in self.loads.values()) / steps
                found[highest] = StepCosts(actual=seconds, plain=plain[label], drafted=whole.costs.drafted)
        return found


class _Temperature:
    def __init__(self, options: SpeedOptions) -> None:
        self.by_steps = SlidingTimes(options.window, options.stretch)
        self.by_clock = SlidingTimes(options.window, options.stretch)
        self.saved = self.lost = 0.0

    def read(self, now: float, whole: EngineSpeed) -> TemperatureSpeed:
        speedup, contradicts = None, False
        if whole.speedup is not None and whole.prompt_excess is not None:
            by_clock, by_steps = (times.read(now, whole.prompt_excess) for times in (self.by_clock, self.by_steps))
            speedup, contradicts = reconciled(by_clock, by_steps)
        return TemperatureSpeed(
            speedup=speedup, contradicts=contradicts, saved_seconds=self.saved, lost_seconds=self.lost
        )
