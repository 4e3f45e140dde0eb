"""The speed of one model: plain against actual time, over all its engines and by temperature (docs/speedup.md)."""

import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from sidecar.analysis.decode_clock import DecodeClock
from sidecar.analysis.draft_length import StepCosts
from sidecar.analysis.engine_speed import EngineSpeedWindow
from sidecar.analysis.plain_curve import PlainCurve, fit_undrafted
from sidecar.analysis.report import LoadReport
from sidecar.analysis.speedup import EngineSpeed, Reference, SlidingTimes, Speedup, Withheld
from sidecar.analysis.steps import LOAD_EDGES, LOAD_LABELS, Periods, Steps
from sidecar.engine.plan import EngineKey
from sidecar.requests.messages import FinishedRequest

_PERIODS: Final = 900  # of a model's own decoding, kept to find steps without drafts
_REFIT: Final = 30.0  # seconds between two fits to them
_ENOUGH_STEPS: Final = 1000  # decode steps at a load from which the time of one is known
_STRETCH: Final = 5.0  # seconds: a speedup's error comes from the differences between parts of this length


class TimeSpent(NamedTuple):
    """One temperature: its speedup over the window, and request-seconds saved and lost since the start."""

    speedup: Speedup | None
    saved: float
    lost: float


class _Temperature:
    """One temperature's finished requests: plain and actual seconds of their tokens, by the engine's clock."""

    def __init__(self, window: float) -> None:
        self.times = SlidingTimes(window, _STRETCH)
        self.saved = self.lost = 0.0


class ModelSpeed:
    """Takes in every poll's steps, then the requests that finished before it; bounded whatever the traffic."""

    def __init__(self, curve: PlainCurve | None, missing: Withheld, *, window: float, history: float) -> None:
        """``curve`` is the measured baseline; without one, ``missing`` says why there is none.

        ``window`` is the sliding window, ``history`` how far back requests may have begun: both in seconds.
        """
        self._set_curve(curve)
        self.reference = Reference.BASELINE if curve is not None else None
        self._window = window
        self._missing = missing
        self._whole = EngineSpeedWindow(window, _STRETCH)
        self._engines: dict[EngineKey, EngineSpeedWindow] = {}
        self._temperatures: dict[str, _Temperature] = {}
        self._clock = DecodeClock(history)
        self._periods: deque[Steps] = deque(maxlen=_PERIODS)
        self._gathering: dict[EngineKey, Periods] = {}
        self._fitted_at = -math.inf

    def _set_curve(self, curve: PlainCurve | None) -> None:
        self.curve = curve
        self.plain_seconds: Mapping[str, float] = {} if curve is None else curve.by_load()  # S0 by load

    def polled(self, start: float, at: float, steps: Mapping[EngineKey, Steps]) -> None:
        """Takes in what the model's speculating engines decoded between two polls."""
        clock = []
        for key, found in steps.items():
            plain = self.curve.at(found.running) if self.curve is not None else None
            self._engines.setdefault(key, EngineSpeedWindow(self._window, _STRETCH)).add(at, found, plain)
            self._whole.add(at, found, plain)
            clock.append((found, plain))
            self._periods.extend(self._gathering.setdefault(key, Periods()).add(start, at, found))
        self._clock.add(start, at, clock)
        if self.reference is not Reference.BASELINE and not 0 <= at - self._fitted_at < _REFIT:
            self._set_curve(fit_undrafted(list(self._periods)))
            self._fitted_at = at
            self.reference = Reference.UNDRAFTED if self.curve is not None else None

    def finished(self, at: float, requests: Mapping[str, Sequence[FinishedRequest]]) -> None:
        """Takes in the requests that finished since the last poll, by temperature."""
        excess = self.read(at, Withheld.TOO_LITTLE).prompt_excess
        for temperature, ended in requests.items():
            speed = self._temperatures.setdefault(temperature, _Temperature(self._window))
            gained = 0.0
            for request in ended:
                tokens = request.output_tokens - 1
                begun, end = request.first_token, request.last_token
                if tokens < 1 or begun is None or end is None or (times := self._clock.between(begun, end)) is None:
                    continue
                speed.times.add(at, tokens=tokens, plain=times.plain, actual=end - begun)
                if excess is not None:
                    gained += tokens * (times.plain.seconds + excess * times.plain.others) - (end - begun)
            speed.saved += max(gained, 0.0)
            speed.lost += max(-gained, 0.0)

    def forget_all_but(self, engines: Collection[EngineKey]) -> None:
        """Drops engines that have left the page for good."""
        self._engines = {key: window for key, window in self._engines.items() if key in engines}
        self._gathering = {key: periods for key, periods in self._gathering.items() if key in engines}

    def read(self, now: float, idle: Withheld) -> EngineSpeed:
        """All engines together; ``idle`` says why there may be no steps."""
        return self._whole.read(now, self.curve, idle, self._missing)

    def read_engine(self, key: EngineKey, now: float, idle: Withheld) -> EngineSpeed:
        """One engine."""
        found = self._engines.get(key)
        return EngineSpeed(withheld=idle) if found is None else found.read(now, self.curve, idle, self._missing)

    def read_temperature(self, temperature: str, now: float, whole: EngineSpeed) -> TimeSpent:
        """One temperature; it has a speedup only if the ``whole`` has."""
        found = self._temperatures.get(temperature)
        if found is None:
            return TimeSpent(None, 0.0, 0.0)
        known = whole.speedup is not None and whole.prompt_excess is not None
        speedup = found.times.read(now, whole.prompt_excess or 0.0) if known else None
        return TimeSpent(speedup, found.saved, found.lost)


def costs_by_load(whole: EngineSpeed, loads: Sequence[LoadReport]) -> dict[int, StepCosts]:
    """Step times by the highest number of requests running, for each load with enough steps."""
    if whole.costs is None:
        return {}
    highest = dict(zip(LOAD_LABELS, LOAD_EDGES, strict=False))
    return {
        highest[load.running]: StepCosts(
            actual=load.seconds / load.steps, plain=load.plain_seconds, drafted=whole.costs.drafted
        )
        for load in loads
        if load.plain_seconds is not None and load.steps >= _ENOUGH_STEPS and load.running in highest
    }
