"""The speed of one model: plain against actual time (docs/speedup.md).

It is known over all the model's engines and by temperature.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from sidecar.analysis.speed.plain import DecodeClock, are_prompts_alike, plain_step
from sidecar.analysis.speed.speedup import (
    EngineSpeed,
    EngineSpeedWindow,
    LoadReport,
    LoadTotals,
    SlidingTimes,
    Speedup,
    Withheld,
)
from sidecar.analysis.speed.steps import StepCosts, Steps
from sidecar.engine.identity import EngineKey
from sidecar.requests.messages import FinishedRequest
from sidecar.settings.baselines import PlainStepTimes

_ENOUGH_STEPS: Final = 1000  # decode steps needed to know the step time at a load


class TemperatureSpeed:
    """One temperature's finished requests: plain and actual seconds of their tokens.

    Times are by the engine's clock.
    """

    def __init__(self, window: float) -> None:
        self.times = SlidingTimes(window)
        self.speedup: Speedup | None = None  # over the window; None if the whole model has none
        self.saved = self.lost = 0.0  # request-seconds since the start


class ModelSpeed:
    """Takes in every poll's steps, then the requests that finished before it.

    Bounded whatever the traffic.
    """

    def __init__(
        self, curve: PlainStepTimes | None, missing: Withheld, *, window: float, history: float
    ) -> None:
        """``curve`` is the measured baseline; without one, ``missing`` says why there is none.

        ``window`` is the sliding window, ``history`` how far back requests may have begun: both in
        seconds.
        """
        self.curve = curve
        self._window = window
        self._missing = missing
        self.loads = LoadTotals()
        self._whole = EngineSpeedWindow(window)
        self._engines: dict[EngineKey, EngineSpeedWindow] = {}
        self._temperatures: dict[str, TemperatureSpeed] = {}
        self._clock = DecodeClock(history)
        # all engines together at the last good poll; None without steps
        self.whole: EngineSpeed | None = None
        self._read_engines: dict[EngineKey, EngineSpeed | None] = {}

    def polled(self, start: float, at: float, steps: Mapping[EngineKey, Steps]) -> None:
        """Takes in what the model's speculating engines decoded between two polls."""
        clock = []
        for key, found in steps.items():
            plain = plain_step(self.curve, found.running) if self.curve is not None else None
            engine = self._engines.setdefault(key, EngineSpeedWindow(self._window))
            for window in (self._whole, engine):
                window.add(found, plain)
            clock.append((found, plain))
            self.loads.add(found)
        self._clock.add(start, at, clock)

    def finished(self, requests: Mapping[str, Sequence[FinishedRequest]]) -> None:
        """Takes in the requests that finished since the last poll, by temperature."""
        if self.curve is None:
            return
        steps = self.whole.steps if self.whole is not None else None
        compares = steps is not None and are_prompts_alike(self.curve, steps)

        for temperature, ended in requests.items():
            speed = self.temperature(temperature)
            gained = 0.0
            for request in ended:
                tokens = request.output_tokens - 1
                begun, end = request.first_token, request.last_token
                if tokens < 1 or begun is None or end is None:
                    continue
                plain = self._clock.between(begun, end)
                if plain is None:
                    continue
                speed.times.add(tokens=tokens, plain=plain, actual=end - begun)
                gained += tokens * plain.seconds - (end - begun)

            if compares:
                speed.saved += max(gained, 0.0)
                speed.lost += max(-gained, 0.0)

    def mark(self, at: float) -> None:
        """Updates the speeds; everything until ``at``, a good poll's time, has been taken in."""
        for window in (self._whole, *self._engines.values()):
            window.mark(at)
        self.whole = self._whole.read(self.curve, self._missing)
        self._read_engines = {
            key: speed.read(self.curve, self._missing) for key, speed in self._engines.items()
        }
        is_known = self.whole is not None and self.whole.speedup is not None
        for speed in self._temperatures.values():
            speed.times.mark(at)
            speed.speedup = speed.times.read() if is_known else None

    def forget_all_but(self, engines: Collection[EngineKey]) -> None:
        """Drops engines that have left the page for good."""
        self._engines = {key: window for key, window in self._engines.items() if key in engines}

    def engine(self, key: EngineKey) -> EngineSpeed | None:
        """One engine's speed at the last good poll; None without steps."""
        return self._read_engines.get(key)

    def temperature(self, temperature: str) -> TemperatureSpeed:
        """One temperature's speed, new on first use."""
        return self._temperatures.setdefault(temperature, TemperatureSpeed(self._window))


def costs_by_load(loads: Sequence[LoadReport]) -> dict[int, StepCosts]:
    """Step times by a load's highest number of running requests.

    Has each load with enough steps and a plain step time.
    """
    return {
        load.highest: StepCosts(
            actual=load.seconds / load.steps, plain=load.plain_seconds, drafted=load.drafted
        )
        for load in loads
        if load.plain_seconds
        and load.drafted
        and load.steps >= _ENOUGH_STEPS
        and load.highest is not None
    }
