"""The speed of one model: plain against actual time (docs/speedup.md).

It is known over all the model's engines and by temperature.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from sidecar.analysis.speed.clock import DecodeClock
from sidecar.analysis.speed.plain import PlainTime, plain_token, uncovered
from sidecar.analysis.speed.scatter import RequestSpread
from sidecar.analysis.speed.speedup import (
    ContextSpeed,
    EngineSpeed,
    EngineSpeedWindow,
    Held,
    LastKnown,
    LoadReport,
    LoadTotals,
    SlidingTimes,
    Speedup,
)
from sidecar.analysis.speed.steps import StepCosts, Steps
from sidecar.analysis.speed.withheld import Withheld
from sidecar.engine.engine_key import EngineKey
from sidecar.requests.messages import FinishedRequest
from sidecar.settings.baselines import PlainStepTimes

_ENOUGH_STEPS: Final = 1000  # decode steps needed to know the step time at a load


class TemperatureSpeed:
    """One temperature's finished requests: plain and actual seconds of their tokens.

    Times are by the engine's clock.
    """

    def __init__(self, window: float) -> None:
        self._spread = RequestSpread()
        self.times = SlidingTimes(window, self._spread)
        self.speedup: Speedup | None = None  # over the window; None if the whole model has none
        self.held: Held | None = None  # stands in for it
        # request-seconds since the start
        self.saved = 0.0
        self.lost = 0.0
        self._last_known = LastKnown()

    def add(self, tokens: int, plain: PlainTime, actual: float) -> None:
        """Adds a request: its ``tokens``, which took ``actual`` seconds in total."""
        self._spread.add(tokens * plain.seconds, actual)
        self.times.add(tokens=tokens, plain=plain, actual=actual, requests=1.0)

    def mark(self, at: float, *, is_known: bool, is_compared: bool) -> None:
        """Updates the speedup; ``is_known``: the whole model has one.

        ``is_compared``: there is a baseline.
        """
        if is_compared:
            self.times.mark(at)
        self.speedup = self.times.read() if is_known else None

        self.held = None
        if self.speedup is None:
            self.held = self._last_known.recall(at)
        else:
            self._last_known.remember(self.speedup, at)

    @property
    def in_force(self) -> Speedup | None:
        """The speedup that decides; see ``EngineSpeed``."""
        if self.speedup is None and self.held is not None:
            return self.held.speedup
        return self.speedup


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
        self._spread = RequestSpread()
        self._whole = EngineSpeedWindow(window, self._spread)
        self._engines: dict[EngineKey, EngineSpeedWindow] = {}
        self._temperatures: dict[str, TemperatureSpeed] = {}
        self._contexts = ContextSpeed(self._spread)
        self._clock = DecodeClock(history)
        # all engines together at the last good poll; None without steps
        self.whole: EngineSpeed | None = None
        self._read_engines: dict[EngineKey, EngineSpeed | None] = {}

    def forget_baseline(self, why: Withheld) -> None:
        """From now on, the speedup is withheld."""
        self.curve = None
        self._missing = why

    def polled(self, start: float, at: float, steps: Mapping[EngineKey, Steps]) -> None:
        """Takes in what the model's speculating engines decoded between two polls."""
        clock = []
        for key, found in steps.items():
            plain = self._plain(found)
            known = plain if isinstance(plain, PlainTime) else None

            if key not in self._engines:
                self._engines[key] = EngineSpeedWindow(self._window, self._spread)
            for window in (self._whole, self._engines[key]):
                window.add(found, plain)
            if known is not None:
                self._contexts.add(found, known)
            clock.append((found, known))
            self.loads.add(found)

        if self.curve is not None:  # else nothing is compared with plain times
            self._clock.add(start, at, clock)

    def _plain(self, steps: Steps) -> PlainTime | Withheld:
        if self.curve is None:
            return self._missing
        return plain_token(self.curve, steps) or uncovered(self.curve, steps) or self._missing

    def finished(self, requests: Mapping[str, Sequence[FinishedRequest]]) -> None:
        """Takes in the requests that finished since the last poll, by temperature."""
        if self.curve is None:
            return

        # Otherwise it is the clock that does not know the plain times of too many steps.
        is_known = self.whole is not None and self.whole.withheld is not Withheld.CONTEXT

        for temperature, ended in requests.items():
            speed = self.temperature(temperature)
            gained = sum(self._gained(speed, request) for request in ended)
            if is_known:
                speed.saved += max(gained, 0.0)
                speed.lost += max(-gained, 0.0)

    def _gained(self, speed: TemperatureSpeed, request: FinishedRequest) -> float:
        """Adds a request to its temperature's times; returns the seconds that it gained.

        Its own prefill counts at the mean of the requests that decoded beside it, since what it
        took is not known.
        """
        tokens = request.decoded_tokens
        begun = request.first_token
        end = request.last_token
        if tokens < 1 or begun is None or end is None:
            return 0.0

        stretch = self._clock.between(begun, end)
        if stretch is None:
            return 0.0

        actual = end - begun + tokens * stretch.prefill_seconds
        plain = tokens * stretch.plain.seconds
        self._spread.add(plain, actual)
        speed.add(tokens, stretch.plain, actual)
        return plain - actual

    def mark(self, at: float) -> None:
        """Updates the speeds; everything until ``at``, a good poll's time, has been taken in."""
        is_compared = self.curve is not None
        for window in (self._whole, *self._engines.values()):
            window.mark(at, is_compared=is_compared)

        if is_compared:
            self._contexts.mark(at)
        self.whole = self._whole.read(self.curve, self._missing, at)
        self._read_engines = {
            key: speed.read(self.curve, self._missing, at) for key, speed in self._engines.items()
        }
        is_known = self.whole is not None and self.whole.speedup is not None
        for speed in self._temperatures.values():
            speed.mark(at, is_known=is_known, is_compared=is_compared)

    @property
    def contexts(self) -> dict[str, Speedup]:
        """The speedup over the last hour by context, a label of ``CONTEXT_LABELS``."""
        return self._contexts.read() if self.curve is not None else {}

    def forget_all_but(self, engines: Collection[EngineKey]) -> None:
        """Drops engines that have left the page for good."""
        self._engines = {key: window for key, window in self._engines.items() if key in engines}

    def engine(self, key: EngineKey) -> EngineSpeed | None:
        """One engine's speed at the last good poll; None without steps."""
        return self._read_engines.get(key)

    def temperature(self, temperature: str) -> TemperatureSpeed:
        """One temperature's speed, new on first use."""
        if temperature not in self._temperatures:
            self._temperatures[temperature] = TemperatureSpeed(self._window)
        return self._temperatures[temperature]


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
